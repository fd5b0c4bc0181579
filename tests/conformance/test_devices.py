"""Every method on a device that stands in for a GPU: near the processor, and the same bits twice.

What the host reads of the device is counted, and none but the functions here may read; no layer is
computed and no step taken in main memory. Models stay on the device, and come home in a second run.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.conformance.test_methods import NAMES, build, task_of
from tests.engine.learners import LOCALS
from tests.engine.split.test_split import LOCAL as EYE_LOCAL
from tests.engine.split.test_split import PEOPLE as EYES
from tests.engine.split.test_split import SMALL
from tests.engine.toys import CHAIN, run_toy
from tests.stand_in_device import DEVICE, HostRead, StandIn
from vergence.api.task_from import task_from
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.objectives import Objective
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import round_loop, solver_selection
from vergence.engine.plan import Plan
from vergence.engine.pruning_hooks import Gradual
from vergence.engine.round_loop import RunOutcome
from vergence.engine.silos import Silos
from vergence.engine.storage import checkpoint_validation
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.methods.local_only import LocalOnly
from vergence.methods.split.splitfed import SplitFed
from vergence.privacy.config import DpSgd, Privacy
from vergence.privacy.split.defense import NoPeekCut
from vergence.tasks.toy import ToyTask
from vergence.training.sequential import Solver

pytestmark = pytest.mark.usefixtures("deterministic")
CHECKPOINT = {"serialization._body", "serialization._equal"}
"""A checkpoint brings states home; arrays of a state are compared, so that equal ones are one."""
ONCE = {
    "cuda_graphs.fit_all",
    "cuda_graphs._fitted",
    "sequential._fit",
    "sequential._frozen",
    "sequential.loss",
    "device.to_device",
}
"""A request is answered: its result comes home, with the mean loss, once for all steps."""
NUMBERS = {"params.read_numbers", "params.norm", "params.dot", "masks._counts", "method.caution"}
"""Limits of replies and states, norms, and numbers of personal entries: a few numbers each."""
SCORES = {"task.map_outputs"}
"""The outputs of networks, which are scored in main memory."""
STEPS = {"steps._step", "sample_generator.loss"}
"""Split learning and servers that train: the loss of every single step that they ask for."""
CLIPPER = {"per_sample_gradients._by_layers", "per_sample_gradients._differing_parameter"}
"""DP-SGD looks whether gradients of single samples are finite, and the layers' right."""
ALLOWED = CHECKPOINT | ONCE | NUMBERS | SCORES | STEPS
DROPPING = task_from(
    lambda: nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 1)), mse_loss
)
NOISY = DROPPING.with_transform(lambda x: x + 0.1 * torch.randn(4))
OWN = LocalTraining(optimizer=torch.optim.RMSprop, lr=0.01, epochs=2, batch=4)
AMSGRAD = partial(torch.optim.Adam, amsgrad=True)


@pytest.fixture(autouse=True)
def _device(request, monkeypatch) -> None:
    """Let runs train on the stand-in device, where no GPU is asked for."""
    if request.node.get_closest_marker("gpu"):
        return
    monkeypatch.setattr(solver_selection, "choose_device", _choose)
    # A manifest names the kinds of devices that there are.
    shape = dict(checkpoint_validation.SHAPE, solving=object)
    monkeypatch.setattr(checkpoint_validation, "SHAPE", shape)
    # Secrets of DP-SGD from the system would make two runs differ, as they should.
    monkeypatch.setattr("vergence.privacy.release_log.new_seed", lambda: bytes(range(32)))


def _choose(wanted: str) -> torch.device:
    return torch.device("cpu") if wanted == "cpu" else DEVICE


def numbers(value: Any) -> list[torch.Tensor]:
    """Return all parameters of a state."""
    if isinstance(value, Params):
        return [value.flat.double()]
    parts = getattr(value, "__dict__", value)
    if isinstance(parts, dict):
        return [tensor for part in parts.values() for tensor in numbers(part)]
    return [t for part in parts for t in numbers(part)] if isinstance(parts, tuple | list) else []


def apart(one: RunOutcome, other: RunOutcome) -> float:
    """Return the largest difference of two runs' parameters, of the server and of all clients."""
    pairs = [(one.server, other.server), *((one.clients[c], other.clients[c]) for c in one.clients)]
    gaps = [
        float((a - b).abs().max())
        for mine, theirs in pairs
        for a, b in zip(numbers(mine), numbers(theirs), strict=True)
        if len(a)
    ]
    return max(gaps, default=0.0)


def check(
    path: Path,
    method: Method,
    allowed: set[str] | None = ALLOWED,
    near: float = 1e-4,
    there: Callable[[Any], Any] = StandIn,
    **plan: Any,
) -> None:
    """Run a method on the processor, and twice on the device, inside of `there(allowed)`."""
    plan = {"people": 3, "rounds": 2, "evaluate_every": 1, "solver": "sequential", **plan}
    alone = run_toy(path / "cpu", method, device="cpu", **plan)
    runs = []
    for name in ("one", "two"):
        with there(allowed) as device:
            runs.append(run_toy(path / name, method, device="cuda", **plan))
        trained = dict(getattr(device, "trained", {}))
        # Before it begins, a run looks whether the network mixes samples (DP-SGD), and for the
        # shape of scores (zero-shot methods).
        assert trained.pop("sample_generator.judge_outputs", 0) <= 4
        assert not trained.keys() - ({"toy.forward"} if "privacy" in plan else set())
    assert runs[0].fingerprint == runs[1].fingerprint != alone.fingerprint
    assert apart(runs[0], alone) <= near


FEW = ("fedgen", "splitfed_u", "scaffold", "augmentation", "labs", "dp", "cut")


def few(names: Iterable[str]) -> list[Any]:
    """Return parameters of which few are for the slow tests, and all others for those at night."""
    kinds = {name: pytest.mark.slow if name in FEW else pytest.mark.nightly for name in names}
    return [pytest.param(name, marks=mark) for name, mark in kinds.items()]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_method_on_a_gpu_is_near_the_processor_and_repeats(name, tmp_path):
    check(tmp_path, build(name), None, there=nullcontext, task=task_of(build(name)))


@pytest.mark.parametrize("name", few(NAMES))
def test_a_method_is_near_the_processor_and_repeats(name, tmp_path, monkeypatch):
    method = build(name)
    check(tmp_path / "a", method, task=task_of(method))
    monkeypatch.setattr(round_loop, "stays_on", lambda *_: False)
    check(tmp_path / "b", method, task=task_of(method))


@pytest.mark.parametrize("name", few(["scaffold", "per_fedavg", "fedala", "feddf"]))
def test_dropout_has_seeds_of_client_and_fit(name, tmp_path):
    """The stand-in draws from the processor's generator: the numbers are the processor's, too."""
    check(tmp_path, build(name), task=DROPPING, near=1e-5)


@pytest.mark.slow
def test_a_training_reads_once_and_no_earlier_one_changes_its_numbers():
    data = People(people=1).load().people["p00"].train
    ask = Fit(DROPPING.init(), data, LOCALS["plain"], objective=Doubled())
    with StandIn() as device:
        solver = Solver(DROPPING, device=DEVICE)
        first, _, again = (solver.fit(ask, RandomStream(key)) for key in "aba")
    assert torch.equal(first.params.flat, again.params.flat)
    assert first.steps > 1
    # The losses, and the parameters.
    assert device.reads == {"sequential._fit": 3, "device.to_device": 3}


DP = {"privacy": Privacy(solver=DpSgd(noise=1.0))}
LABS = {"people": 4, "silos": Silos({"x": ("p00", "p01"), "y": ("p02", "p03")})}
EYE = {"task": SMALL, "federation": EYES, "rounds": 2}
SETTINGS: dict[str, tuple[Method, dict[str, Any]]] = {
    "an optimiser of one's own": (FedAvg(local=OWN), {}),
    "whose state is stored": (LocalOnly(local=OWN), {}),
    "amsgrad": (FedAvg(local=replace(OWN, optimizer=AMSGRAD)), {}),
    "augmentation": (FedAvg(local=LOCALS["clip"]), {"task": NOISY}),
    "labs": (FedAvg(local=LOCALS["momentum"]), LABS),
    "labs with states": (build("fedcpf"), LABS),
    "dp": (FedAvg(local=LOCALS["momentum"]), DP),
    "dp with states": (build("fedcpf"), DP),
    "dp, cut": (SplitFed(local=EYE_LOCAL), DP | EYE),
    "cut": (SplitFed(local=replace(EYE_LOCAL, clip=0.1)), EYE),
    "cut, int8": (SplitFed(local=EYE_LOCAL, number="int8", ahead=1), EYE),
    "pruning": (build("scaffold"), {"pruning": Gradual(0.5)}),
    "pruning, cut": (build("splitfed"), {"pruning": Gradual(0.5), "task": CHAIN}),
    "gradients": (replace(build("scaffold"), option="I"), {}),
    "second derivatives": (replace(build("per_fedavg"), variant="hf"), {}),
    "guard": (replace(build("fedcpf"), guard=True), {}),
}


@pytest.mark.parametrize("name", few(SETTINGS))
def test_what_recorded_steps_cannot_do_trains_there_too(name, tmp_path):
    method, plan = SETTINGS[name]
    check(tmp_path, method, ALLOWED | CLIPPER | {"augmentation.augmented"}, **plan)


@dataclass(frozen=True)
class Doubled(Objective):
    """Twice the task's loss."""

    def loss(self, task, module, batch, draw):
        return 2 * task.loss(task.forward(module, batch), batch)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"privacy": Privacy(cut=NoPeekCut(0.5))}, "privacy.cut"),
        ({"engine": "ray"}, "Ray's workers have no GPU"),
    ],
)
def test_who_trains_on_the_processor_is_named_or_refused(plan, why, monkeypatch):
    monkeypatch.setattr(solver_selection, "installed", lambda: None)
    assert why in solver_selection.unused_gpu(Plan(**plan))
    assert solver_selection.device_for(Plan(**plan)).type == "cpu"
    with pytest.raises(ConfigError, match='device = "cuda"'):
        Plan(**plan, device="cuda")
    # Nobody is told of a GPU that nobody asked for, or that is not there.
    assert not solver_selection.unused_gpu(Plan(**plan, device="cpu"))
    monkeypatch.setattr(solver_selection, "choose_device", lambda _: torch.device("cpu"))
    assert not solver_selection.unused_gpu(Plan(**plan))
    assert not solver_selection.unused_gpu(Plan())


def test_a_reading_that_nobody_names_ends_a_run(tmp_path, monkeypatch):
    honest = ToyTask.forward

    def forward(self, module, batch):
        float(next(iter(batch.values())).sum())
        return honest(self, module, batch)

    monkeypatch.setattr(ToyTask, "forward", forward)
    with pytest.raises(HostRead, match=r"gradients.training_loss"), StandIn(ALLOWED):
        run_toy(tmp_path, build("scaffold"), device="cuda", solver="sequential")
