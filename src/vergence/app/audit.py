"""`vergence audit`: what the server of a split-learning run could make of what it was sent.

One person of a finished run is the victim, all others are the attacker's shadow people, and the
inverse network goes from the smashed data of the run's own layers back to pictures: before, with
what was sent, and after, with defences that the same layers could have had. A run with a defence at
its cut is attacked through that one. A second table says who is recognised, and where they looked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor, nn

from vergence.app.audit_people import few, people_block
from vergence.app.blocks import Block, Record
from vergence.app.newcomers import Judge
from vergence.app.run import load_data, progress_bar
from vergence.app.saved import Saved, read_saved
from vergence.app.saving import replacing
from vergence.app.style import canvas, digits, metric_name, number, save, styled
from vergence.attacks import score
from vergence.attacks.defended import Bare, Clipped, PixelNoise, sends, standing
from vergence.attacks.inverse_network import Inverse
from vergence.attacks.view import View
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.pruning import built
from vergence.core.site import Federation, Samples, Splits
from vergence.core.splitting import Cutting
from vergence.core.stages import SMASHED, Cut, Staged
from vergence.core.task import Task
from vergence.engines.cut import outlook
from vergence.errors import ConfigError, nearest
from vergence.privacy.bottleneck import Bottleneck
from vergence.privacy.cut import IMAGE, Defence, gain, held
from vergence.privacy.keyed import Secret
from vergence.privacy.pixel_dp import sensitivity

REHEARSED = Secret(bytes(32))
"""Of noise that hides nothing: the same audit gives the same table."""
SENDS, DELTA, EPSILON, SHOWN = 10, 1e-5, 8.0, 6
LEVELS = (0.2, 0.5, 1.0, 2.0)
GRAY = 4
"""Dimensions of `[samples, 1, height, width]`."""


@dataclass(frozen=True)
class Standing:
    """What stood at a run's cut, clients behind it, and how often they sent a picture."""

    name: str
    defence: Defence
    clients: Bare
    releases: int


@dataclass(frozen=True)
class Halves:
    """A run's network, cut where its method cuts it."""

    task: Task
    network: Staged
    mine: tuple[str, ...]
    layers: Params
    sends_labels: bool
    run: Standing | None = None

    def sent(self, samples: Samples, secret: Secret) -> Tensor:
        """Return what the server was sent of samples, once, through what stood at the cut."""
        clean = self.smashed(samples)
        if self.run is None:
            return clean
        batches = sends("", clean, self.run.clients, 1, self.layers, secret)
        return torch.cat([batch.smashed for batch in batches])

    def smashed(self, samples: Samples) -> Tensor:
        """Return what the clients' layers make of samples."""
        x = self.task.inputs(samples.take(slice(None)))[0]
        return self._through(self.mine, x, samples)

    def error(self, smashed: Tensor, samples: Samples) -> float:
        """Return the headline metric of what the server's layers make of smashed data."""
        rest = tuple(name for name in self.network.stages if name not in self.mine)
        output = self._through(rest, smashed, samples)
        return self.task.metrics(output, samples)[self.task.headline]

    @torch.no_grad()
    def _through(self, stages: tuple[str, ...], x: Tensor, samples: Samples) -> Tensor:
        beside = [samples.columns[name].float() for name in self.task.beside]
        for name in stages:
            x = self.network.stage(name, x, *(beside if name in self.network.reads else ()))
        return x

    def norm(self, samples: Samples) -> float | None:
        """Return how far one pixel of range 1 moves smashed data in L1; None: not only conv1."""
        layers = {path for name in self.mine for path in self.network.stages[name]}
        conv = self.network.get_submodule("conv1") if layers == {"conv1"} else None
        if not isinstance(conv, nn.Conv2d):
            return None
        height, width = samples.columns[IMAGE].shape[2:]
        return gain(self.task, samples) * sensitivity(conv, height, width)


def audit(
    folder: Path, console: Console, quick: bool = False, person: str | None = None
) -> Sequence[Record]:
    """Attack a finished run; print the table, write it with pictures below `folder`/audit.

    Args:
        folder: run directory of one method of split learning.
        console: where the table goes.
        quick: fewer images, epochs and defences.
        person: the victim; default the first.

    Raises:
        ConfigError: a method whose server sees no smashed data, other images than gray ones, an
            unknown person, or nobody else to learn from.
        StateError: the run is unfinished.
    """
    halves, victim, shadow, who, people = opened(folder, person, quick)
    lines: list[dict[str, object]] = []
    eyes, others = pixels(victim), pixels(shadow)
    shown = {
        "own pictures, not sent": eyes,
        "mean of the others": score.mean_image(others, len(eyes)),
    }
    lines.append(_line("nothing: the mean of the others", "", eyes, shown["mean of the others"]))
    lines.append(_line("nothing: another picture of theirs", "", eyes, score.another(eyes)))
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    plan = list(defences(halves, shadow, known, quick))
    epochs = passes(len(others), quick)
    with progress_bar() as bar:
        line = bar.add_task("audit", total=len(plan) + 1, score="")
        for name, defence, times in plan:
            bar.update(line, score=name)
            sent, found = rebuilt(halves, who, clean, known, others, (defence, times), epochs)
            error = halves.error(sent, victim)
            lines.append({**_line(name, _sent(times), eyes, found), halves.task.headline: error})
            shown[f"{name}\n{_sent(times)}"] = found
            bar.update(line, advance=1)
        bar.update(line, score="people")
        numbers = itertools.count()
        second = people_block(
            people,
            lambda samples: halves.sent(samples, REHEARSED.child("people", next(numbers))),
            halves.sends_labels,
        )
        bar.update(line, advance=1)
    block = told(lines, halves.task, who, len(others), halves.run is not None)
    place = folder / "audit"
    page = f"{block.markdown()}\n![pictures](audit.png)\n\n{second.markdown()}"
    texts = {"audit.md": page, "audit.csv": block.csv(), "people.csv": second.csv()}
    for file, text in texts.items():
        with replacing(place / file) as scratch:
            scratch.write_text(text, encoding="utf-8")
    save(grid(shown), place / "audit.png")
    block.show(console)
    second.show(console)
    console.print(f"tables and pictures, which may show real people: {place}", soft_wrap=True)
    return lines


def opened(
    folder: Path, person: str | None, quick: bool
) -> tuple[Halves, Samples, Samples, str, Mapping[str, Splits]]:
    """Return a run's network, the victim's test samples, the others' training samples, the victim.

    And everybody's data, in client order.

    Raises:
        ConfigError: see `audit`.
    """
    saved = read_saved(folder)
    if not sees_smashed(saved.method):
        raise ConfigError(
            f"{folder}: audit attacks smashed data, and no server sees a client's in this method; "
            "give a run of split, splitfed, splitfed_v2 or splitfed_u"
        )
    ready = load_data(saved.experiment).ready
    who = ready.clients[0] if person is None else person
    if who not in ready.people:
        raise ConfigError(f"{folder}: no person '{who}'{nearest(who, ready.clients)}")
    return *faced(saved, ready, who, quick), who, ready.people


def sees_smashed(method: Method) -> bool:
    """Tell whether a server sees what single clients' layers make of samples."""
    seen = (SMASHED in e.trees for e in method.exposure.values() if e.reveal == "each")
    return isinstance(method, Cutting) and any(seen)


def faced(
    saved: Saved, ready: Federation, who: str, quick: bool
) -> tuple[Halves, Samples, Samples]:
    """Return a run's network, the victim's test samples, and the others' training samples.

    Raises:
        ConfigError: other images than gray ones, or nobody else to learn from.
    """
    method, task = saved.method, saved.task
    assert isinstance(method, Cutting)
    image = ready.people[who].test.columns.get(IMAGE)
    if len(ready.people) < 2 or image is None or image.ndim != GRAY or image.shape[1] != 1:
        raise ConfigError(f"{saved.folder}: audit needs gray images and at least two people")
    params = Judge(saved, ready).model(who, known=False)
    network = built(task.module(), params)
    piece = method.front(task)
    assert isinstance(network, Staged)
    assert isinstance(piece.network, Cut)
    run = stood(saved, ready)
    if run is not None:
        run.defence.keep(held(network, piece.network.of), *image.shape[2:])
    layers = Params.of(network).only(piece.init().layout.names)
    labels = any("labels" in e.trees for e in method.exposure.values()
                 if e.reveal == "each" and SMASHED in e.trees)  # fmt: skip
    halves = Halves(task, network, piece.network.of, layers, labels, run)
    others = [splits.train for name, splits in ready.people.items() if name != who]
    most = (100, 500) if quick else (300, 2000)
    return halves, few(ready.people[who].test, most[0]), few(joined(others), most[1])


def passes(images: int, quick: bool) -> int:
    """Return how often an attacker goes through so many images of shadow people."""
    return -(-(4_000 if quick else 24_000) // images)


def rebuilt(
    halves: Halves,
    who: str,
    clean: Tensor,
    known: Tensor,
    others: Tensor,
    behind: tuple[Bare, int],
    epochs: int,
) -> tuple[Tensor, Tensor]:
    """Return what the server is sent, once, of a victim's smashed data, and what it makes of it.

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
    batches = sends(who, clean, defence, times, halves.layers, REHEARSED)
    _, seen = View("server", batches).averaged(who)
    network = Inverse(epochs).learned(known, others, defence.imitation(times))
    return torch.cat([batch.smashed for batch in batches if not batch.round]), network.found(seen)


def left_over(saved: Saved, ready: Federation, who: str) -> tuple[float, float]:
    """Return the MSE of the best-informed quick attack on a run, and that of the others' mean.

    It knows the run's layers and what stood at their cut, and has seen every picture as often as
    `audit` grants.
    """
    halves, victim, shadow = faced(saved, ready, who, quick=True)
    clean, known = halves.smashed(victim), halves.smashed(shadow)
    eyes, others = pixels(victim), pixels(shadow)
    tried = defences(halves, shadow, known, quick=True)
    _, defence, times = next(tried) if halves.run is None else [*tried][-1]
    epochs = passes(len(others), quick=True)
    _, found = rebuilt(halves, who, clean, known, others, (defence, times), epochs)
    mean = score.mean_image(others, len(eyes))
    return float(score.mse(eyes, found).mean()), float(score.mse(eyes, mean).mean())


def stood(saved: Saved, ready: Federation) -> Standing | None:
    """Return what stood at a run's cut, None where nothing did."""
    plan = saved.experiment.plan
    defence = plan.privacy.cut
    if defence is None:
        return None
    seen = outlook(plan, saved.method, saved.task, ready)
    name = saved.experiment.table["privacy"]["cut"]["name"]
    return Standing(name, defence, standing(defence, seen.veiling), seen.releases)


def joined(parts: list[Samples]) -> Samples:
    """Return everybody's samples, without the columns that not everybody has."""
    common = set.intersection(*(set(part.columns) for part in parts))
    return Samples.concatenate([
        Samples({n: c for n, c in part.columns.items() if n in common}, part.banks)
        for part in parts
    ])  # fmt: skip


def pixels(samples: Samples) -> Tensor:
    """Return images `[samples, 1, height, width]` in [0, 1]."""
    return samples.columns["image"].float() / 255


def defences(
    halves: Halves, shadow: Samples, clean: Tensor, quick: bool
) -> Iterator[tuple[str, Bare, int]]:
    """Yield what could stand at the cut, and how often an attacker sees every image.

    Pixel noise needs the norm of all layers before it, known for a first convolution alone.
    """
    if halves.run is not None:
        if type(halves.run.clients) is not Bare:
            yield "no defence, the same layers", Bare(), 1
        often = min(SENDS, halves.run.releases) if halves.run.clients.fresh else 1
        for times in sorted({1, often}):
            yield f"{halves.run.name}, as in the run", halves.run.clients, times
        return
    yield "no defence, as in the run", Bare(), 1
    norm = halves.norm(shadow)
    for level in () if norm is None else LEVELS[1::2] if quick else LEVELS:
        for times in (1, SENDS):
            yield f"PixelDP l = {level:g}", PixelNoise(level * (norm or 0)), times
    clip = float(torch.linalg.vector_norm(clean.flatten(1), dim=1).median())
    bottleneck = Bottleneck.for_budget(clip, EPSILON, DELTA, releases=1)
    yield f"clipped, epsilon {EPSILON:g} per image", Clipped(bottleneck), 1


def _sent(times: int) -> str:
    return "sent once" if times == 1 else f"sent {times} times"


def _line(name: str, seen: str, eyes: Tensor, found: Tensor) -> dict[str, object]:
    return {
        "what the server has": name,
        "seen": seen,
        "mse": float(score.mse(eyes, found).mean()),
        "ssim": float(score.ssim(eyes, found).mean()),
    }


def told(lines: list[dict[str, object]], task: Task, who: str, others: int, stood: bool) -> Block:
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
    return Block(
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


@styled
def grid(shown: Mapping[str, Tensor]) -> Figure:
    """Draw pictures, a row for everything the attacker had."""
    first = next(iter(shown.values()))
    columns = torch.linspace(0, len(first) - 1, min(SHOWN, len(first))).long().tolist()
    tall, wide = first.shape[2:]
    drawing = canvas(8.4, (1.0 * tall / wide + 0.08) * len(shown) + 0.2)
    cells = drawing.subplots(len(shown), len(columns), squeeze=False)
    for row, (name, images) in zip(cells, shown.items(), strict=True):
        for axes, column in zip(row, columns, strict=True):
            axes.imshow(images[column, 0].numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    return drawing
