"""Audit of smashed data: images, people and gaze that a split-learning server could recover.

One person of a finished run is the victim, all others are the attacker's shadow people, and the
inverse network goes from the smashed data of the run's own layers back to pictures: before, with
what was sent, and after, with defences that the same layers could have had. A run with a defence at
its cut is attacked through that one. A second table says who is recognised, and where they looked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.progress import Progress
from torch import Tensor, nn

from vergence.attacks import score
from vergence.attacks.defended_clients import Clipped, PixelNoise, UndefendedClient, sends, standing
from vergence.attacks.inverse_network import InverseNetworkAttack
from vergence.attacks.view import AttackerView
from vergence.audit.findings import AuditFindings
from vergence.audit.identity import people_block
from vergence.audit.images import AS_IT_RAN, few, gray, joined, line, pixels, without_attack
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.stages import SMASHED, CutPoint, Staged
from vergence.core.task import Task
from vergence.engine.protections.split_defense import outlook
from vergence.errors import ConfigError
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.split.base import Cutting
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck
from vergence.privacy.split.defense import IMAGE, SplitDefense, gain, held
from vergence.privacy.split.pixel_dp import sensitivity
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.training.pruning import built

AUDIT_NOISE_KEY = NoiseKey(bytes(32))
"""Of noise that hides nothing: the same audit gives the same table."""
SENDS, DELTA, EPSILON = 10, 1e-5, 8.0
LEVELS = (0.2, 0.5, 1.0, 2.0)
NOT_TRIED = (("the layers that clients send, too", "smashed data say more"),)


@dataclass(frozen=True)
class SmashedDataExposure:
    """Defence at a run's cut, clients behind it, and the number of times they sent a picture."""

    name: str
    defence: SplitDefense
    clients: UndefendedClient
    releases: int


@dataclass(frozen=True)
class Halves:
    """A run's network, cut where its method cuts it."""

    task: Task
    network: Staged
    mine: tuple[str, ...]
    layers: Params
    sends_labels: bool
    run: SmashedDataExposure | None = None

    def sent(self, samples: Samples, secret: NoiseKey) -> Tensor:
        """Data that the server was sent of samples, once, through the defence at the cut."""
        clean = self.smashed(samples)
        if self.run is None:
            return clean
        batches = sends("", clean, self.run.clients, 1, self.layers, secret)
        return torch.cat([batch.smashed for batch in batches])

    def smashed(self, samples: Samples) -> Tensor:
        """Outputs of the clients' layers for samples."""
        x = self.task.inputs(samples.take(slice(None)))[0]
        return self._through(self.mine, x, samples)

    def error(self, smashed: Tensor, samples: Samples) -> float:
        """Return the headline metric of what the server's layers make of smashed data."""
        rest = tuple(name for name in self.network.stages if name not in self.mine)
        output = self._through(rest, smashed, samples)
        return self.task.metrics(output, samples)[self.task.headline]

    @torch.no_grad()
    def _through(self, stages: tuple[str, ...], x: Tensor, samples: Samples) -> Tensor:
        beside = [samples.columns[name].float().clone() for name in self.task.side_inputs]
        x = x.clone()
        for name in stages:
            x = self.network.stage(name, x, *(beside if name in self.network.reads else ()))
        return x

    def norm(self, samples: Samples) -> float | None:
        """Change of smashed data in L1 by one pixel of range 1; None unless conv1 alone."""
        layers = {path for name in self.mine for path in self.network.stages[name]}
        conv = self.network.get_submodule("conv1") if layers == {"conv1"} else None
        if not isinstance(conv, nn.Conv2d):
            return None
        height, width = samples.columns[IMAGE].shape[2:]
        return gain(self.task, samples) * sensitivity(conv, height, width)


def attacked(
    saved: TrainedRun, ready: Federation, person: str | None, quick: bool, bar: Progress
) -> AuditFindings:
    """Attack the smashed data of a finished run.

    Args:
        saved: a run of one method of split learning.
        ready: everybody's data, as the network wants it.
        person: the victim; default the first.
        quick: fewer images, epochs and defences.
        bar: where it is told how far it is.

    Raises:
        ConfigError: other images than gray ones, an unknown person, or nobody else to learn from.
    """
    halves, victim, shadow, who = opened(saved, ready, person, quick)
    lines: list[dict[str, object]] = []
    eyes, others = pixels(victim), pixels(shadow)
    mean = score.mean_image(others, len(eyes))
    shown = {"own pictures, not sent": eyes, "mean of the others": mean}
    lines += without_attack(eyes, mean)
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    plan = list(defences(halves, shadow, known, quick))
    epochs = passes(len(others), quick)
    task = bar.add_task("audit", total=len(plan) + 1, score="")
    for name, defence, times in plan:
        bar.update(task, score=name)
        sent, found = rebuilt(halves, who, clean, known, others, (defence, times), epochs)
        error = halves.error(sent, victim)
        lines.append({**line(name, _sent(times), eyes, found), halves.task.headline: error})
        shown[f"{name}\n{_sent(times)}"] = found
        bar.update(task, advance=1)
    bar.update(task, score="people")
    numbers = itertools.count()
    second = people_block(
        ready.people,
        lambda samples: halves.sent(samples, AUDIT_NOISE_KEY.child("people", next(numbers))),
        halves.sends_labels,
    )
    bar.update(task, advance=1)
    first = told(lines, halves.task, who, len(others), halves.run is not None)
    return AuditFindings(first, shown, second, NOT_TRIED)


def sends_smashed(method: Method) -> bool:
    """True if a method's server sees single clients' smashed data."""
    return isinstance(method, Cutting) and bool(_shown(method))


def _shown(method: Method) -> list[Exposure]:
    return [e for e in method.exposure.values() if e.reveal == "each" and SMASHED in e.trees]


def opened(
    saved: TrainedRun, ready: Federation, person: str | None, quick: bool
) -> tuple[Halves, Samples, Samples, str]:
    """Return a run's network, the victim's test samples, the others' training samples, the victim.

    Raises:
        ConfigError: see `attacked`.
    """
    method, task = saved.method, saved.task
    assert isinstance(method, Cutting)
    who = ready.clients[0] if person is None else person
    if len(ready.people) < 2 or not gray(ready.people[who].test):
        raise ConfigError(f"{saved.folder}: audit needs gray images and at least two people")
    image = ready.people[who].test.columns[IMAGE]
    params = saved.on(ready).model(who, known=False)
    network = built(task.module(), params)
    piece = method.front(task)
    assert isinstance(network, Staged)
    assert isinstance(piece.network, CutPoint)
    run = stood(saved, ready)
    if run is not None:
        run.defence.keep(held(network, piece.network.of), *image.shape[2:])
    layers = Params.of(network).only(piece.init().layout.names)
    labels = any("labels" in exposed.trees for exposed in _shown(method))
    halves = Halves(task, network, piece.network.of, layers, labels, run)
    others = [splits.train for name, splits in ready.people.items() if name != who]
    most = (100, 500) if quick else (300, 2000)
    victim, shadow = few(ready.people[who].test, most[0]), few(joined(others), most[1])
    return halves, victim, shadow, who


def passes(images: int, quick: bool) -> int:
    """Number of passes of an attacker over so many images of shadow people."""
    return -(-(4_000 if quick else 24_000) // images)


def rebuilt(
    halves: Halves,
    who: str,
    clean: Tensor,
    known: Tensor,
    others: Tensor,
    behind: tuple[UndefendedClient, int],
    epochs: int,
) -> tuple[Tensor, Tensor]:
    """Smashed data of a victim as sent to the server, once, and the server's reconstruction.

    Args:
        halves: the network.
        who: the victim.
        clean: the victim's smashed data `[images, ...]`, before a defence.
        known: the shadow people's.
        others: their pictures `[images, 1, height, width]`.
        behind: the defence, through which the attacker trains, and how often a picture is sent.
        epochs: of that training.
    """
    defence, times = behind
    batches = sends(who, clean, defence, times, halves.layers, AUDIT_NOISE_KEY)
    _, seen = AttackerView("server", batches).averaged(who)
    network = InverseNetworkAttack(epochs).learned(known, others, defence.imitation(times))
    return torch.cat([batch.smashed for batch in batches if not batch.round]), network.found(seen)


def left_over(saved: TrainedRun, ready: Federation, who: str) -> tuple[float, float]:
    """Return the MSE of the best-informed quick attack on a run, and that of the others' mean.

    It knows the run's layers and what stood at their cut, and has seen every picture as often as
    `attacked` grants.
    """
    halves, victim, shadow, _ = opened(saved, ready, who, quick=True)
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    eyes, others = pixels(victim), pixels(shadow)
    tried = defences(halves, shadow, known, quick=True)
    _, defence, times = next(tried) if halves.run is None else [*tried][-1]
    epochs = passes(len(others), quick=True)
    _, found = rebuilt(halves, who, clean, known, others, (defence, times), epochs)
    mean = score.mean_image(others, len(eyes))
    return float(score.mse(eyes, found).mean()), float(score.mse(eyes, mean).mean())


def stood(saved: TrainedRun, ready: Federation) -> SmashedDataExposure | None:
    """Defence that stood at a run's cut, None where there was none."""
    plan = saved.experiment.plan
    defence = plan.privacy.cut
    if defence is None:
        return None
    seen = outlook(plan, saved.method, saved.task, ready)
    name = saved.experiment.table["privacy"]["cut"]["name"]
    return SmashedDataExposure(name, defence, standing(defence, seen.noise_spec), seen.releases)


def defences(
    halves: Halves, shadow: Samples, clean: Tensor, quick: bool
) -> Iterator[tuple[str, UndefendedClient, int]]:
    """Yield possible defences at the cut, and the number of times an attacker sees every image.

    Pixel noise needs the norm of all layers before it, known for a first convolution alone.
    """
    if halves.run is not None:
        if type(halves.run.clients) is not UndefendedClient:
            yield "no defence, the same layers", UndefendedClient(), 1
        often = min(SENDS, halves.run.releases) if halves.run.clients.fresh else 1
        for times in sorted({1, often}):
            yield f"{halves.run.name}{AS_IT_RAN}", halves.run.clients, times
        return
    yield f"no defence{AS_IT_RAN}", UndefendedClient(), 1
    norm = halves.norm(shadow)
    for level in () if norm is None else LEVELS[1::2] if quick else LEVELS:
        for times in (1, SENDS):
            yield f"PixelDP l = {level:g}", PixelNoise(level * (norm or 0)), times
    clip = float(torch.linalg.vector_norm(clean.flatten(1), dim=1).median())
    bottleneck = Bottleneck.for_budget(clip, EPSILON, DELTA, releases=1)
    yield f"clipped, epsilon {EPSILON:g} per image", Clipped(bottleneck), 1


def _sent(times: int) -> str:
    return "sent once" if times == 1 else f"sent {times} times"


def told(
    lines: list[dict[str, object]], task: Task, who: str, others: int, stood: bool
) -> TextTable:
    """Return the table and what must be said about it."""
    errors = [float(str(line[task.headline])) for line in lines if task.headline in line]
    places = digits(errors)
    cells = [
        [
            str(line["what the server has"]),
            str(line["seen"]),
            f"{line['mse']:.4f}",
            f"{line['ssim']:.3f}",
            number(float(str(line.get(task.headline, "nan"))), places),
        ]
        for line in lines
    ]
    return TextTable(
        f"audit: pictures of {who} from smashed data",
        ["what the server has", "seen", "MSE", "SSIM", metric_name(task.headline)],
        cells,
        keys=2,
        notes=[
            f"The attacker knows the clients' layers and {others} images of other people, and "
            "trains through the defence; the layers were trained "
            + ("with that of the run." if stood else "without it, which the last column pays for."),
            "A defence that leaves the MSE below that of the mean of the others leaves something "
            "of the person. No attack found is no proof that there is none.",
        ],
        records=lines,
    )
