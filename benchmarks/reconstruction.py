"""How much of an eye comes back from what a split-learning server sees: a table per defence.

python -m benchmarks.reconstruction --data real --json reconstruction.json: a gaze network is
trained with the defence at its cut; victims send their images; an inverse network, trained on other
people, looks for them. Data:

* real: the victim is MPIIGaze p00 (36x60, below VERGENCE_DATA), the shadow people the generator's;
* crops: MPIIGaze 9x15, victims p00 to p04, shadow people p05 to p10, all real;
* synthetic: the generator's people on both sides (36x60); the only eyes to ship a picture of.

Without the files the generator stands in, and says so. Every attacker knows the client's layers;
`plain` does not know the defence, `adaptive` trains through it, `averaging` also averages ten sends
of every image.
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from benchmarks.common.eyes import eye_source, spread_rows
from benchmarks.common.options import options
from benchmarks.common.report import report
from vergence.attacks import score
from vergence.attacks.defended_clients import Clipped, PixelNoise, UndefendedClient, client_messages
from vergence.attacks.inverse_network import InverseNetworkAttack, outputs_without_graph
from vergence.attacks.training import BATCH, learn
from vergence.attacks.view import AttackerKnowledge, AttackerView
from vergence.core.data import Samples
from vergence.core.params import Params
from vergence.core.stages import Staged
from vergence.data.eye_images.mpiigaze import Mpiigaze
from vergence.data.eye_images.mpiigaze_crops import MpiigazeCrops
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError
from vergence.experiment.run import progress_bar
from vergence.metrics.angles import angular_error_deg
from vergence.models.lenet import LeNet
from vergence.models.small_eye import SmallEye
from vergence.privacy.dp import dp_sgd
from vergence.privacy.dp.accounting import noise_for
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck

SENDS = 10
"""Rounds in which a victim sends every image: the thesis's epochs."""
DELTA, CLIP, FEATURES = 1e-5, 1.0, 32


def gaze_error(network: nn.Module, images: Tensor, gaze: Tensor) -> float:
    """Return the mean angular error in degrees of a gaze network on images (found, or true).

    Args:
        network: from images to (pitch, yaw) in radians.
        images: `[samples, 1, height, width]`.
        gaze: `[samples, 2]`, radians.
    """
    network.eval()
    with torch.no_grad():
        return float(angular_error_deg(network(images), gaze).mean())


@dataclass(frozen=True)
class Eyes:
    """Images `[n, 1, H, W]` in [0, 1], gaze `[n, 2]` in radians, whose they are `[n]`."""

    images: Tensor
    gaze: Tensor
    people: Tensor

    @classmethod
    def of(cls, parts: dict[int, Samples], most: int) -> "Eyes":
        """Return at most so many images of each person, spread over what there is."""
        kept = [(p, s, spread_rows(s, most)) for p, s in parts.items()]
        return cls(
            torch.cat([s.columns["image"][rows].float() / 255 for _, s, rows in kept]),
            torch.cat([s.columns["gaze"][rows] for _, s, rows in kept]),
            torch.cat([torch.full((len(rows),), p) for p, _, rows in kept]),
        )

    def and_(self, other: "Eyes") -> "Eyes":
        return Eyes(*(torch.cat([getattr(self, n), getattr(other, n)]) for n in vars(self)))


@dataclass(frozen=True)
class Scene:
    """Shadow people; other images of the victims (they train too); the images that are attacked."""

    data: str
    shadow: Eyes
    known: Eyes
    victim: Eyes

    @property
    def size(self) -> tuple[int, int]:
        return self.victim.images.shape[2], self.victim.images.shape[3]


def scene(data: str, quick: bool) -> Scene:
    """Load the people, or the generator's where there are no files."""
    data, root = eye_source(data)
    each, attacked = (25, 150) if quick else (40, 400)
    if data == "crops":
        people = MpiigazeCrops().load(root).people
        parts = dict(enumerate(people.values()))
        victims, others = list(range(5)), list(range(5, len(parts)))
        each *= 5
    else:
        made = EyeSynthetic(people=50, samples=150).load().people
        parts = dict(enumerate(made.values()))
        victims, others = list(range(10)), list(range(10, 50))
        if data == "real":
            p00 = Mpiigaze(people=("p00",)).load(root).people["p00"]
            parts[0], victims, others = p00, [0], list(range(1, 50))
    rest = {p: parts[p] for p in victims}
    return Scene(
        data,
        Eyes.of({p: parts[p].train for p in others}, each),
        Eyes.of({p: s.train for p, s in rest.items()}, max(2 * each, 400 // len(victims))),
        Eyes.of({p: s.test for p, s in rest.items()}, attacked // len(victims)),
    )


@dataclass(frozen=True)
class Row:
    """A defence, where the network is cut, and who attacks."""

    name: str
    cut: str
    defence: UndefendedClient = UndefendedClient()
    attackers: tuple[str, ...] = ("plain",)
    epsilon: float | None = None
    note: str = ""


def rows(size: tuple[int, int], quick: bool) -> Iterator[Row]:
    """Yield the defences; a U-shape's smashed data are those of no defence, so is its row."""
    usual, deeper = ("pool1", "pool2") if size == (36, 60) else ("conv1", "conv3")
    yield Row("no defence", usual)
    yield Row("U-shape", usual, note="as no defence: it hides labels, the images cross as before")
    yield Row("deeper cut", deeper)
    fresh = ("adaptive", "averaging") if quick else ("plain", "adaptive", "averaging")
    for level in (0.2, 2.0) if quick else (0.2, 0.5, 1.0, 2.0):
        yield Row(f"PixelDP l = {level:g}", usual, PixelNoise(level), fresh)
    for epsilon in (8.0,) if quick else (8.0, 1.0):
        made = Bottleneck.for_budget(CLIP, epsilon, DELTA, releases=1)
        yield Row(
            f"clipped bottleneck, epsilon {epsilon:g}",
            "fc1",
            Clipped(made),
            ("adaptive",) if quick else ("plain", "adaptive"),
        )
    yield Row("DP-SGD, epsilon 0.5", usual, epsilon=0.5)


def network(row: Row, size: tuple[int, int]) -> Staged:
    """Return the network of a row; one that is cut at `fc1` has a narrow one."""
    torch.manual_seed(0)
    if size != (36, 60):
        return SmallEye(hidden=FEATURES, pose=False).build()
    made = LeNet(pose=False).build()
    if row.cut == "fc1":
        made.fc1, made.fc2 = nn.Linear(made.fc1.in_features, FEATURES), nn.Linear(FEATURES, 2)
    return made


def parts(whole: Staged, cut: str) -> tuple[Staged, Staged]:
    """Return the client's stages and the server's; they share the network's parameters."""
    names = list(whole.stages)
    at, made = names.index(cut) + 1, (copy.copy(whole), copy.copy(whole))
    for piece, mine in zip(made, (names[:at], names[at:]), strict=True):
        piece.stages = {name: whole.stages[name] for name in mine}
        used = {path for paths in piece.stages.values() for path in paths}
        piece._modules = {name: layer for name, layer in whole._modules.items() if name in used}
    return made


def trained(row: Row, eyes: Eyes, size: tuple[int, int], epochs: int) -> Staged:
    """Return a gaze network trained with a row's defence at its cut."""
    whole = network(row, size)
    front, tail = parts(whole, row.cut)
    imitate = row.defence.imitation()
    row.defence.constrain(front, *size)
    private = None if row.epsilon is None else Private(row.epsilon, whole, eyes, epochs)

    def loss(rows: Tensor, noise: torch.Generator) -> Tensor:
        if private is not None:
            return private.loss(front, tail)
        found = tail(imitate(front(eyes.images[rows]), noise))
        return (found - eyes.gaze[rows]).abs().mean()

    learn(
        whole,
        loss,
        len(eyes.images),
        epochs,
        1e-3,
        after=lambda: row.defence.constrain(front, *size),
    )
    return whole


class Private:
    """DP-SGD for both halves: a sample's gradient of the whole network is clipped at once.

    The thesis has noise at the client's layers alone: the server's, which learn from the same
    people without any, then keep no such promise, and epsilon is of nothing that is released.
    """

    def __init__(self, epsilon: float, whole: Staged, eyes: Eyes, epochs: int) -> None:
        samples = len(eyes.images)
        self.rate, self.eyes = BATCH / samples, eyes
        steps = epochs * -(-samples // BATCH)
        self.noise = noise_for(epsilon, DELTA, self.rate, steps)
        self.clipper, self.own = Clipper(whole, CLIP), dict(whole.named_parameters())
        self.flat = torch.empty(sum(p.numel() for p in self.own.values()))
        self.secret, self.step = NoiseKey(bytes(32)).child("dp"), 0

    def loss(self, front: Staged, tail: Staged) -> Tensor:
        """Return a loss whose gradient is the private one."""
        self.step += 1
        rows = dp_sgd.poisson(
            len(self.eyes.images), self.rate, self.secret.child(self.step, "who").draws()
        )
        split = self.flat.zero_().split([p.numel() for p in self.own.values()])
        found = {n: part.view_as(p) for part, (n, p) in zip(split, self.own.items(), strict=True)}
        if len(rows):
            off = tail(front(self.eyes.images[rows])) - self.eyes.gaze[rows]
            self.clipper.gradients(off.abs().mean(1), found)
        draws = self.secret.child(self.step, "how").draws()  # an empty batch has noise too
        dp_sgd.noised(self.flat, self.noise * CLIP, BATCH, draws)
        return torch.stack([(p * found[name]).sum() for name, p in self.own.items()]).sum()


@dataclass(frozen=True)
class Judges:
    """What scores reconstructions: a gaze network without defence, and who knows the victims."""

    gaze: nn.Module
    people: score.Classifier | None

    def scores(self, eyes: Eyes, found: Tensor) -> dict[str, Any]:
        rank = self.people and self.people.rank_1(found, eyes.people)
        return {
            "mse": float(score.mse(eyes.images, found).mean()),
            "ssim": float(score.ssim(eyes.images, found).mean()),
            "gaze_deg": gaze_error(self.gaze, found, eyes.gaze),
            "rank_1": rank and [rank.value, rank.low, rank.high],
        }


def attacked(row: Row, whole: Staged, stage: Scene, epochs: int) -> Iterator[tuple[str, Tensor]]:
    """Yield what each attacker of a row finds of the victims' images."""
    front, _ = parts(whole, row.cut)
    averages = "averaging" in row.attackers
    batches = client_messages(
        "victims",
        outputs_without_graph(front, stage.victim.images),
        row.defence,
        SENDS if averages else 1,
        Params.of(front),
        NoiseKey(bytes(32)),
    )
    once = tuple(batch for batch in batches if batch.round == 0)
    for who in row.attackers:
        times = SENDS if who == "averaging" else 1
        known = None if who == "plain" else row.defence.imitation(times)
        prior = AttackerKnowledge(stage.shadow.images, stage.shadow.people, front, known)
        view = AttackerView("server", batches if times > 1 else once)
        yield who, InverseNetworkAttack(epochs).attack(view, prior, "victims")[1]


def measured(
    stage: Scene, quick: bool, only: str = ""
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the lines of the table, and the pictures behind them."""
    learning, seeking = (3, 4) if quick else (8, 10)
    eyes, victim = stage.shadow.and_(stage.known), stage.victim
    usual, *others = rows(stage.size, quick)
    plan = [row for row in (usual, *others) if only in row.name]
    bare = trained(usual, eyes, stage.size, learning)
    several = len(stage.known.people.unique()) > 1
    judges = Judges(
        bare, score.Classifier(stage.known.images, stage.known.people) if several else None
    )
    asked: dict[str, Tensor] = {
        "original": victim.images,
        "mean image": score.mean_image(stage.shadow.images, len(victim.images)),
        "chance (another eye)": score.other_images(victim.images),
    }
    lines = [
        {"defence": name, "attacker": "", "model_deg": None, **judges.scores(victim, images)}
        for name, images in asked.items()
    ]
    if judges.people:
        lines[-1]["rank_1"] = [1 / len(judges.people.known)] * 3
    with progress_bar() as bar:
        line = bar.add_task("reconstruction", total=len(plan), score="")
        for row in plan:
            bar.update(line, score=row.name)
            try:
                whole = (
                    bare
                    if row.name in ("no defence", "U-shape")
                    else trained(row, eyes, stage.size, learning)
                )
            except ConfigError as missing:
                print(f"{row.name}: left out, {missing}")
                continue
            error = model_error(row, whole, victim)
            for who, found in attacked(row, whole, stage, seeking):
                lines.append(
                    {
                        "defence": row.name,
                        "attacker": who,
                        "model_deg": error,
                        **judges.scores(victim, found),
                        "note": row.note,
                    }
                )
                if row.name != "U-shape":
                    asked[f"{row.name}\n{who}"] = found
            bar.update(line, advance=1)
    return lines, asked


def model_error(row: Row, whole: Staged, eyes: Eyes) -> float:
    """Return the defended network's own gaze error on the victims, its noise on."""
    front, tail = parts(whole, row.cut)
    noise = torch.Generator().manual_seed(1)
    imitate = row.defence.imitation()
    return gaze_error(_Joined(lambda x: tail(imitate(front(x), noise))), eyes.images, eyes.gaze)


class _Joined(nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table."""
    heads = [
        "defence",
        "attacker",
        "MSE",
        "SSIM",
        "gaze of the picture",
        "re-identified",
        "the model's own error",
    ]
    table = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * 5]
    for line in lines:
        rank, model = line["rank_1"], line["model_deg"]
        cells = [
            line["defence"],
            line["attacker"],
            f"{line['mse']:.4f}",
            f"{line['ssim']:.3f}",
            f"{line['gaze_deg']:.1f} deg",
            f"{rank[0]:.0%} ({rank[1]:.0%} to {rank[2]:.0%})" if rank else "one victim",
            "" if model is None else f"{model:.1f} deg",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def draw(asked: dict[str, Tensor], out: Path, columns: int = 8) -> None:
    """Draw originals and what was found of them, a row each."""
    shown = torch.linspace(0, len(asked["original"]) - 1, columns).long()
    kept = {
        name: images for name, images in asked.items() if "plain" not in name or "l =" not in name
    }
    figure = Figure(figsize=(columns * 1.0 + 2, len(kept) * 0.64), dpi=90)
    axes = figure.subplots(len(kept), columns)
    for (name, images), cells in zip(kept.items(), axes, strict=True):
        for cell, number in zip(cells, shown.tolist(), strict=True):
            cell.imshow(images[number, 0], cmap="gray", vmin=0, vmax=1)
            cell.axis("off")
        cells[0].text(
            -0.1, 0.5, name, ha="right", va="center", fontsize=8, transform=cells[0].transAxes
        )
    figure.subplots_adjust(0.22, 0.01, 0.99, 0.99, 0.04, 0.06)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def main() -> None:
    """Measure, print the table, write numbers and picture."""
    given = options(
        __doc__.splitlines()[0],
        data={"choices": ["real", "crops", "synthetic"], "default": "real"},
        quick={"action": "store_true", "help": "fewer images, rows and epochs"},
        only={"default": "", "help": "rows with this in their name"},
        json=Path("reconstruction.json"),
        picture={"type": Path, "help": ".png; keep real people's eyes to yourself"},
    )
    torch.set_num_threads(1)
    began, cpu = time.perf_counter(), time.process_time()
    stage = scene(given.data, given.quick)
    lines, asked = measured(stage, given.quick, given.only)
    if given.picture:
        draw(asked, given.picture)
    numbers = {"data": stage.data, "quick": given.quick, "rows": lines}
    closing = (
        f"{len(stage.shadow.images)} shadow images, {len(stage.victim.images)} attacked, "
        f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU"
    )
    report(given.json, numbers, markdown(lines), closing)


if __name__ == "__main__":
    main()
