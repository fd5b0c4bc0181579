"""Private inference, measured: who computes what, under which protocol, and how far it is off."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.mpc import mp_spdz_parties, spu_parties
from benchmarks.mpc.network_variants import head, strongest, thinned
from benchmarks.mpc.protocols import protocol
from benchmarks.mpc.spu_parties import SAME, InferenceAnswer, InferenceQuestion, Say
from vergence.core.data import Samples
from vergence.core.params import Params
from vergence.core.stages import Staged
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError, StateError, nearest
from vergence.models.lenet import LeNet
from vergence.privacy.inference.network import Layer, NetworkParts, parts
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.pruning import Pruning, bind_parameters, remove_pruned_units

NUMBERS = 100_000
"""Random products of the cases that test the arithmetic alone."""
LARGEST = 4.0
FAR = 1e-4
"""How far an answer may be from the network's in float64: as far as in the thesis."""


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        protocol: see `PROTOCOLS`.
        parties: how many.
        images: at once.
        batches: how often, if nobody says.
        public: whether the parties may see the weights.
        pruned: share of the weights of hidden linear layers that went, as many of each neuron.
        halved: whether half of all filters and hidden neurons were taken out.
        after: the parties compute what is behind this stage; the rest its owner, in clear.
        arithmetic: random products instead of a network.
    """

    protocol: str
    parties: int
    images: int = 1
    batches: int = 3
    public: bool = False
    pruned: float = 0.0
    halved: bool = False
    after: str = ""
    arithmetic: bool = False

    @property
    def what(self) -> str:
        """What is computed."""
        if self.arithmetic:
            return "products alone"
        how = {
            f"fc1 pruned {self.pruned:g}": self.pruned,
            "half of the filters": self.halved,
            f"tail after {self.after}": self.after,
        }
        return next((name for name, is_so in how.items() if is_so), "whole")


CASES = {
    "aby3": Case("aby3", 3),
    "cheetah": Case("cheetah", 2),
    "semi2k": Case("semi2k", 2),
    "semi2k_3": Case("semi2k", 3),
    "semi2k_4": Case("semi2k", 4),
    "semi2k_5": Case("semi2k", 5),
    "aby3_64": Case("aby3", 3, images=64, batches=1),
    "semi2k_64": Case("semi2k", 2, images=64, batches=1),
    "aby3_public": Case("aby3", 3, public=True),
    "cheetah_public": Case("cheetah", 2, public=True),
    "semi2k_public": Case("semi2k", 2, public=True),
    "aby3_pruned": Case("aby3", 3, pruned=0.9),
    "cheetah_pruned": Case("cheetah", 2, pruned=0.9),
    "semi2k_pruned": Case("semi2k", 2, pruned=0.9),
    "aby3_halved": Case("aby3", 3, halved=True),
    "cheetah_halved": Case("cheetah", 2, halved=True),
    "aby3_tail": Case("aby3", 3, after="pool1"),
    "cheetah_tail": Case("cheetah", 2, after="pool1"),
    "aby3_products": Case("aby3", 3, batches=1, arithmetic=True),
    "cheetah_products": Case("cheetah", 2, batches=1, arithmetic=True),
    "semi2k_products": Case("semi2k", 2, batches=1, arithmetic=True),
    "malicious_sy": Case("malicious_sy", 3),
    "malicious_ps": Case("malicious_ps", 3, batches=1),
    "malicious_rep": Case("malicious_rep", 3, batches=1),
    "malicious_rep4": Case("malicious_rep4", 4),
    "malicious_sy_8": Case("malicious_sy", 3, images=8, batches=1),
    "malicious_sy_halved": Case("malicious_sy", 3, halved=True),
    "malicious_sy_tail": Case("malicious_sy", 3, after="pool1"),
    "malicious_sy_products": Case("malicious_sy", 3, batches=1, arithmetic=True),
    "mascot": Case("mascot", 2, batches=1),
}


@dataclass(frozen=True)
class Subject:
    """A network, and images to predict from.

    Attributes:
        network: in evaluation mode.
        x: images as it takes them `[n, ...]`.
        beside: the head poses `[n, 2]`, whether it reads them or not.
        name: where it comes from.
    """

    network: Staged
    x: Tensor
    beside: Tensor
    name: str


@dataclass(frozen=True)
class Measured:
    """A case and what came out.

    Attributes:
        security: whom it holds against.
        products: of two secrets, per image; 0 where the weights are public.
        seconds: of every batch, from shared inputs to shared answers, offline material included.
        cpu: seconds per image, all parties.
        sent: bytes by every party, per batch.
        messages: by the party that sent most, per batch: no fewer than its rounds.
        peak_mb: largest memory of a party.
        error: largest |answer - the network's in float64|, in radians.
        clear_error: the same of JAX without a protocol, where it computed that.
    """

    case: Case
    security: str
    products: int
    seconds: tuple[float, ...]
    cpu: float
    sent: tuple[float, ...]
    messages: float
    peak_mb: float
    error: float
    clear_error: float | None

    def row(self) -> dict[str, Any]:
        """Return all of it by name; `s` is the median of `seconds`."""
        about = {"what": self.case.what, "runs": len(self.seconds), "s": median(self.seconds)}
        found = {k: v for k, v in vars(self).items() if k != "case"}
        return asdict(self.case) | about | found


def find(names: Sequence[str]) -> dict[str, Case]:
    """Return cases by name, all of SPU's if none is named.

    Raises:
        ConfigError: an unknown one.
    """
    for name in names:
        if name not in CASES:
            raise ConfigError(f"bench mpc: no case '{name}'{nearest(name, CASES)}")
    known = names or [name for name, case in CASES.items() if not protocol(case.protocol).party]
    return {name: CASES[name] for name in known}


@dataclass(frozen=True)
class Installed:
    """What computes.

    Attributes:
        python: has SPU.
        mp_spdz: the directory of a built MP-SPDZ.
    """

    python: Path
    mp_spdz: Path | None = None

    def check(self, case: Case) -> None:
        """Refuse a case whose program is not there.

        Raises:
            ConfigError: says how to get it.
        """
        if protocol(case.protocol).party:
            mp_spdz_parties.check_install(self.mp_spdz, case.protocol)
        else:
            spu_parties.check_python(self.python)

    def infer(self, case: Case, given: Work, say: Say) -> InferenceAnswer:
        """Return what the parties of a case answer."""
        question = InferenceQuestion(given.parts, case.protocol, case.parties, case.public)
        if protocol(case.protocol).party:
            return mp_spdz_parties.infer(question, given.inputs, self.mp_spdz, say)
        return spu_parties.infer(question, given.inputs, self.python, say)


def fresh(images: int) -> Subject:
    """Return the thesis's Model 2 as initialised, and synthetic eye patches."""
    task = GazeAngle(LeNet((20, 80)))
    network = task.module()
    people = EyeSynthetic(people=max(1, -(-images // 1000)), samples=min(1000, max(40, images)))
    found = [s for p in people.load().people.values() for s in (p.train, p.val, p.test)]
    network = bind_parameters(network, task.init())
    assert isinstance(network, Staged)
    return subject(task, network, Samples.concatenate(found), "lenet (20, 80), not trained")


def subject(task: GazeAngle, network: Staged, samples: Samples, name: str) -> Subject:
    """Return a network with images prepared as its task does."""
    x, (beside,) = task.inputs(samples.take(slice(None)))
    return Subject(network, x, beside, name)


def measure(
    chosen: Mapping[str, Case],
    given: Subject,
    installed: Installed,
    say: Say,
    batches: int | None = None,
) -> Iterator[tuple[str, Measured]]:
    """Measure cases, one after the other.

    Args:
        chosen: by name.
        given: network and images; they begin anew where there are too few.
        installed: what computes.
        say: takes progress.
        batches: instead of a case's own number.

    Raises:
        ConfigError: such a network cannot be computed, or nothing that computes it.
        StateError: an answer is far off, or a party failed or noticed a lie.
    """
    for number, (name, case) in enumerate(chosen.items()):
        done = number / len(chosen)

        def tell(what: str, share: float, name: str = name, done: float = done) -> None:
            say(f"{name}: {what}", done + share / len(chosen))

        count = case.batches if batches is None or case.arithmetic else batches
        made = work(case, given, count)
        yield name, judged(case, made, installed.infer(case, made, tell))


@dataclass(frozen=True)
class Work:
    """What is computed of what, and what should come out.

    Attributes:
        parts: of the network.
        inputs: by name `[batches, images, ...]`.
        wanted: the same network's answers in float64 `[batches, images, ...]`.
    """

    parts: NetworkParts
    inputs: Mapping[str, NDArray]
    wanted: NDArray[np.float64]


def work(case: Case, given: Subject, batches: int) -> Work:
    """Return what a case computes."""
    if case.arithmetic:
        return arithmetic()
    network, columns = variant(case, given.network)
    rows = torch.arange(batches * case.images) % len(given.x)
    x, beside = given.x[rows], given.beside[rows]
    made = parts(network, x[:1], case.after, columns)
    inputs = {"x": head(network, x, case.after)} | (
        {"beside": beside} if made.takes_side_inputs else {}
    )
    with torch.no_grad():
        wanted = network.double()(x.double(), beside.double())
    cut = (batches, case.images)
    shaped = {name: value.unflatten(0, cut).numpy() for name, value in inputs.items()}
    return Work(made, shaped, wanted.unflatten(0, cut).numpy())


def variant(case: Case, whole: Staged) -> tuple[Staged, dict[str, NDArray]]:
    """Return a copy of a network as a case prunes it, and which inputs its `fc1` keeps."""
    network = copy.deepcopy(whole)
    if case.halved:
        keep = Pruning(0.5, "both", structured=True).mask_of_remaining(network, Params.of(network))
        small = remove_pruned_units(network, keep)
        assert isinstance(small, Staged)
        return small, {}
    if not case.pruned:
        return network, {}
    columns = {"fc1": strongest(network.get_submodule("fc1"), case.pruned)}
    thinned(network, columns)
    return network, columns


def arithmetic() -> Work:
    """Return random numbers to be multiplied, every product truncated."""
    x, y = np.random.default_rng(0).uniform(-LARGEST, LARGEST, (2, 1, NUMBERS)).astype(np.float32)
    made = NetworkParts((Layer("by", "product", products=NUMBERS),), {"by.weight": y}, {})
    return Work(made, {"x": x[None]}, x[None].astype(np.float64) * y)


def judged(case: Case, given: Work, answer: InferenceAnswer) -> Measured:
    """Return how far off an answer is, and what it took.

    Raises:
        StateError: too far, or without a protocol it is another one than the network's.
    """
    clear = None if answer.clear is None else float(np.abs(answer.clear - given.wanted).max())
    if clear is not None and not clear <= SAME:
        raise StateError(
            f"bench mpc: JAX computes this network with a difference of {clear:g} from torch, more "
            f"than {SAME:g}: its stages do more than their layers say; take lenet"
        )
    error = float(np.abs(answer.values - given.wanted).max())
    if not error <= FAR:
        raise StateError(
            f"bench mpc: {case.protocol} is off by {error:g}, more than {FAR:g}: its stages do "
            "more than their layers say, or its numbers are too large; take lenet, or scale them"
        )
    batches, images = answer.values.shape[:2]
    return Measured(
        case=case,
        security=protocol(case.protocol, case.parties).model,
        products=0 if case.public else given.parts.products,
        seconds=answer.seconds,
        cpu=answer.cpu / (batches * images),
        sent=tuple(sent / batches for sent in answer.sent),
        messages=max(answer.messages) / batches,
        peak_mb=answer.peak_mb,
        error=error,
        clear_error=clear,
    )
