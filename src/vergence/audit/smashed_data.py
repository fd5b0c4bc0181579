"""Audit of smashed data: images, people and gaze that a split-learning server could recover.

One person of a finished run is the victim, and all others are the attacker's shadow people. An
inverse network maps smashed data of the run's own layers back to pictures: as the run sent them,
and behind defences that could have been added to the same layers. A run with a defence at its cut
is attacked through that defence. A second table shows rates at which people are recognised, and
the error of inferred gaze.

Used by `audit.run`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.progress import Progress
from torch import Tensor, nn

from vergence.attacks import score
from vergence.attacks.defended_clients import (
    Clipped,
    PixelNoise,
    UndefendedClient,
    client_messages,
    defended_client,
)
from vergence.attacks.inverse_network import InverseNetworkAttack
from vergence.attacks.view import AttackerView
from vergence.audit.disclosed_statistics import AUDIT_NOISE_KEY
from vergence.audit.findings import AuditFindings
from vergence.audit.identity import people_table
from vergence.audit.images import (
    AS_IT_RAN,
    concatenate_common,
    evenly_spaced,
    has_gray_images,
    picture_record,
    pixels,
    without_attack,
)
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.method import Exposure, Method
from vergence.core.params import Params
from vergence.core.stages import SMASHED, PartialModel, Staged
from vergence.core.task import Task
from vergence.engine.protections.split_defense import outlook
from vergence.errors import ConfigError
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.split.base import Cutting
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck
from vergence.privacy.split.defense import IMAGE, SplitDefense, gain, stage_layers
from vergence.privacy.split.pixel_dp import sensitivity
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.training.pruning import bind_parameters

# Ten sends of a picture show how much averaging undoes noise that is new every time.
SENDS, DELTA, EPSILON = 10, 1e-5, 8.0
# Noise in multiples of the sensitivity to one pixel: a scale of 1 is epsilon 1 for a pixel.
LEVELS = (0.2, 0.5, 1.0, 2.0)
NOT_TRIED = (("the layers that clients send, too", "smashed data say more"),)


@dataclass(frozen=True)
class SmashedDataExposure:
    """The defence at a run's cut, clients that apply it, and their number of sends per picture."""

    name: str
    defence: SplitDefense
    clients: UndefendedClient
    releases: int


@dataclass(frozen=True)
class Halves:
    """The network of a run, divided at the cut of its method.

    Attributes:
        task: the run's task.
        network: the whole network.
        mine: names of the stages on the client.
        layers: parameters of these stages.
        sends_labels: whether clients send labels too.
        run: the run's own defence, None if it had none.
    """

    task: Task
    network: Staged
    mine: tuple[str, ...]
    layers: Params
    sends_labels: bool
    run: SmashedDataExposure | None = None

    def sent(self, samples: Samples, secret: NoiseKey) -> Tensor:
        """Return smashed data of samples as the server receives them, behind the run's defence."""
        clean = self.smashed(samples)
        if self.run is None:
            return clean
        batches = client_messages("", clean, self.run.clients, 1, self.layers, secret)
        return torch.cat([batch.smashed for batch in batches])

    def smashed(self, samples: Samples) -> Tensor:
        """Return the outputs of the clients' layers for samples, before a defence."""
        x = self.task.inputs(samples.take(slice(None)))[0]
        return self._through(self.mine, x, samples)

    def error(self, smashed: Tensor, samples: Samples) -> float:
        """Return the headline metric that the server's layers reach on smashed data."""
        rest = tuple(name for name in self.network.stages if name not in self.mine)
        output = self._through(rest, smashed, samples)
        return self.task.metrics(output, samples)[self.task.headline]

    @torch.no_grad()
    def _through(self, stages: tuple[str, ...], x: Tensor, samples: Samples) -> Tensor:
        # Copies: a layer that works in place must not change the samples for the next attack.
        side_inputs = [samples.columns[name].float().clone() for name in self.task.side_inputs]
        x = x.clone()
        for name in stages:
            x = self.network.stage(name, x, *(side_inputs if name in self.network.reads else ()))
        return x

    def norm(self, samples: Samples) -> float | None:
        """Return the L1 sensitivity of smashed data to a pixel in [0, 1], None if it is unknown.

        It is known where the client's only layer is a first convolution `conv1`.
        """
        layers = {path for name in self.mine for path in self.network.stages[name]}
        conv = self.network.get_submodule("conv1") if layers == {"conv1"} else None
        if not isinstance(conv, nn.Conv2d):
            return None
        height, width = samples.columns[IMAGE].shape[2:]
        return gain(self.task, samples) * sensitivity(conv, height, width)


def audit_smashed_data(
    saved: TrainedRun, ready: Federation, person: str | None, quick: bool, bar: Progress
) -> AuditFindings:
    """Attack the smashed data of a finished run.

    Args:
        saved: run of a split-learning method.
        ready: everybody's prepared data.
        person: the victim; default the first person.
        quick: fewer images, epochs and defences.
        bar: progress bar.

    Raises:
        ConfigError: images are not grey, the person is unknown, or there are no shadow people.
    """
    halves, victim, shadow, who = attack_setup(saved, ready, person, quick)
    lines: list[dict[str, object]] = []
    eyes, others = pixels(victim), pixels(shadow)
    mean = score.mean_image(others, len(eyes))
    shown = {"own pictures, not sent": eyes, "mean of the others": mean}
    lines += without_attack(eyes, mean)
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    plan = list(defences(halves, shadow, known, quick))
    epochs = attacker_epochs(len(others), quick)
    task = bar.add_task("audit", total=len(plan) + 1, score="")
    for name, defence, times in plan:
        bar.update(task, score=name)
        sent, pictures = reconstruct(halves, who, clean, known, others, (defence, times), epochs)
        error = halves.error(sent, victim)
        lines.append(
            {
                **picture_record(name, _times_sent(times), eyes, pictures),
                halves.task.headline: error,
            }
        )
        shown[f"{name}\n{_times_sent(times)}"] = pictures
        bar.update(task, advance=1)
    bar.update(task, score="people")
    numbers = itertools.count()
    second = people_table(
        ready.people,
        lambda samples: halves.sent(samples, AUDIT_NOISE_KEY.child("people", next(numbers))),
        halves.sends_labels,
    )
    bar.update(task, advance=1)
    first = pictures_table(lines, halves.task, who, len(others), halves.run is not None)
    return AuditFindings(first, shown, second, NOT_TRIED)


def sends_smashed(method: Method) -> bool:
    """Return whether a method's server sees single clients' smashed data."""
    return isinstance(method, Cutting) and bool(_smashed_exposures(method))


def _smashed_exposures(method: Method) -> list[Exposure]:
    return [e for e in method.exposure.values() if e.reveal == "each" and SMASHED in e.trees]


def attack_setup(
    saved: TrainedRun, ready: Federation, person: str | None, quick: bool
) -> tuple[Halves, Samples, Samples, str]:
    """Prepare an attack on smashed data.

    Returns:
        The run's divided network, test samples of the victim, training samples of the others, and
        the victim's name.

    Raises:
        ConfigError: see `audit_smashed_data`.
    """
    method, task = saved.method, saved.task
    assert isinstance(method, Cutting)
    who = ready.clients[0] if person is None else person
    if len(ready.people) < 2 or not has_gray_images(ready.people[who].test):
        raise ConfigError(f"{saved.folder}: audit needs gray images and at least two people")
    image = ready.people[who].test.columns[IMAGE]
    # A newcomer's network: the same layers must serve the victim and the shadow people.
    params = saved.on_data(ready).model(who, known=False)
    network = bind_parameters(task.module(), params)
    piece = method.front(task)
    assert isinstance(network, Staged)
    assert isinstance(piece.network, PartialModel)
    run = defence_of(saved, ready)
    # A defence may constrain the layers after every step, the last one included.
    if run is not None:
        run.defence.constrain(stage_layers(network, piece.network.of), *image.shape[2:])
    layers = Params.of(network).only(piece.init().layout.names)
    labels = any("labels" in exposed.trees for exposed in _smashed_exposures(method))
    halves = Halves(task, network, piece.network.of, layers, labels, run)
    others = [splits.train for name, splits in ready.people.items() if name != who]
    most = (100, 500) if quick else (300, 2000)
    victim, shadow = (
        evenly_spaced(ready.people[who].test, most[0]),
        evenly_spaced(concatenate_common(others), most[1]),
    )
    return halves, victim, shadow, who


def attacker_epochs(images: int, quick: bool) -> int:
    """Return the attacker's number of epochs for this many images of shadow people."""
    # The number of images seen in training is fixed, so that every attack is equally long.
    return -(-(4_000 if quick else 24_000) // images)


def reconstruct(
    halves: Halves,
    who: str,
    clean: Tensor,
    known: Tensor,
    others: Tensor,
    behind: tuple[UndefendedClient, int],
    epochs: int,
) -> tuple[Tensor, Tensor]:
    """Return the victim's smashed data as sent once, and the server's reconstructed pictures.

    Args:
        halves: the divided network.
        who: name of the victim.
        clean: smashed data of the victim, `[images, ...]`, before a defence.
        known: smashed data of the shadow people, before a defence.
        others: pictures of the shadow people, `[images, 1, height, width]`.
        behind: the clients' defence, which the attacker simulates, and the sends of each picture.
        epochs: number of epochs of the attacker's training.
    """
    defence, times = behind
    batches = client_messages(who, clean, defence, times, halves.layers, AUDIT_NOISE_KEY)
    _, seen = AttackerView("server", batches).averaged(who)
    network = InverseNetworkAttack(epochs).train(known, others, defence.imitation(times))
    return torch.cat([batch.smashed for batch in batches if not batch.round]), network.reconstruct(
        seen
    )


def reconstruction_errors(saved: TrainedRun, ready: Federation, who: str) -> tuple[float, float]:
    """Return the MSE of a quick attack on a run, and the MSE of the others' mean picture.

    The attacker knows the run's layers and the defence at their cut, and has seen every picture as
    often as in `audit_smashed_data`.
    """
    halves, victim, shadow, _ = attack_setup(saved, ready, who, quick=True)
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    eyes, others = pixels(victim), pixels(shadow)
    tried = defences(halves, shadow, known, quick=True)
    # With a defence the last attack saw the most sends; without, the first is of the bare layers.
    _, defence, times = next(tried) if halves.run is None else [*tried][-1]
    epochs = attacker_epochs(len(others), quick=True)
    _, pictures = reconstruct(halves, who, clean, known, others, (defence, times), epochs)
    mean = score.mean_image(others, len(eyes))
    return float(score.mse(eyes, pictures).mean()), float(score.mse(eyes, mean).mean())


def defence_of(saved: TrainedRun, ready: Federation) -> SmashedDataExposure | None:
    """Return the defence at a run's cut, None if it had none."""
    plan = saved.experiment.plan
    if (defence := plan.privacy.cut) is None:
        return None
    seen = outlook(plan, saved.method, saved.task, ready)
    name = saved.experiment.table["privacy"]["cut"]["name"]
    return SmashedDataExposure(
        name, defence, defended_client(defence, seen.noise_spec), seen.releases
    )


def defences(
    halves: Halves, shadow: Samples, clean: Tensor, quick: bool
) -> Iterator[tuple[str, UndefendedClient, int]]:
    """Yield the name of each defence, clients that apply it, and how often a picture is sent."""
    if halves.run is not None:
        if type(halves.run.clients) is not UndefendedClient:
            # Layers that were trained with the defence, without it: what the defence adds.
            yield "no defence, the same layers", UndefendedClient(), 1
        # Noise that repeats gives nothing away by a second send: one send is enough.
        often = min(SENDS, halves.run.releases) if halves.run.clients.fresh else 1
        for times in sorted({1, often}):
            yield f"{halves.run.name}{AS_IT_RAN}", halves.run.clients, times
        return
    yield f"no defence{AS_IT_RAN}", UndefendedClient(), 1
    norm = halves.norm(shadow)
    # Without the sensitivity of all layers before the cut, no epsilon of pixel noise is known.
    for level in () if norm is None else LEVELS[1::2] if quick else LEVELS:
        for times in (1, SENDS):
            yield f"PixelDP l = {level:g}", PixelNoise(level * (norm or 0)), times
    # The median norm: a smaller clip loses more of the vectors, a larger one needs more noise.
    clip = float(torch.linalg.vector_norm(clean.flatten(1), dim=1).median())
    bottleneck = Bottleneck.for_budget(clip, EPSILON, DELTA, releases=1)
    yield f"clipped, epsilon {EPSILON:g} per image", Clipped(bottleneck), 1


def _times_sent(times: int) -> str:
    return "sent once" if times == 1 else f"sent {times} times"


def pictures_table(
    lines: list[dict[str, object]], task: Task, who: str, others: int, defended: bool
) -> TextTable:
    """Return the table of reconstructed pictures, with notes on how to read it."""
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
            "simulates the defence in its training. The layers were trained "
            + (
                "with the run's defence."
                if defended
                else "without a defence, so that one which is added worsens the last column."
            ),
            "Where the MSE is below that of the mean of the others, something of the person is "
            "still recognisable. No attack found is no proof that there is none.",
        ],
        records=lines,
    )
