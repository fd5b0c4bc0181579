"""Few-shot gaze estimation for unseen clients, from codes learned without labels.

Used by `cli.study` and `studies.swaps`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.data import Samples
from vergence.core.naming import by_key
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.experiment.newcomers import HeldOut, find_held_out
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.angles import mean_direction, to_vector
from vergence.models.cross_encoder import CrossEncoder
from vergence.models.unlabelled_eyes import mirror, turned
from vergence.results.layout import METHOD_NAMES, spread
from vergence.results.read import Run, read
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv
from vergence.tasks.cross_encoder import pixels
from vergence.training.few_shot import Estimator, adam, error_deg, ridge

TASKS = ("cross_encoder", "auto_encoder", "siamese")
CODES = ("gaze code", "both codes")
READERS = ("network", "ridge")
RANDOM, SUPERVISED, MEAN = "random encoder", "supervised on the shots", "mean gaze of the shots"
HEADS = ("encoder", "code", "reader", "seed", "person", "angle_error_deg")
Errors = Mapping[str, float]
"""Mean errors in degrees by person."""


@dataclass(frozen=True)
class FewShotOptions(NamedOptions, label="unlabelled"):
    """Settings of the evaluation.

    Attributes:
        shots: number of labelled images, half of them left and half right eyes if rows have both.
        source: owners of the shots: the `first` person of the training, as in the thesis, or `all`
            people of the training.
        draws: number of random choices of the shots.
        epochs: epochs of the few-shot network; the thesis takes 5, the original 30.
        steps: training steps of the network that is trained on the shots alone.
        seed: seed of the random choices.
    """

    shots: Annotated[int, Ge(4)] = 100
    source: Literal["first", "all"] = "all"
    draws: Annotated[int, Ge(1)] = 5
    epochs: Annotated[int, Ge(1)] = 30
    steps: Annotated[int, Ge(1)] = 300
    seed: int = 0


@dataclass(frozen=True)
class CodeRows:
    """Single eyes of some people: images in [0, 1], pose and gaze `[n, 2]` in radians, side."""

    image: Tensor
    pose: Tensor
    gaze: Tensor
    side: Tensor

    @classmethod
    def of(cls, samples: Samples) -> CodeRows:
        """Return every eye of every row as a sample of its own."""
        columns, eyes = samples.columns, samples.columns["eyes"].shape[1]
        # Rows of one eye keep its side in the last bit of `whose` (see `unlabelled_eyes`).
        side = torch.arange(eyes).repeat(len(samples)) if eyes > 1 else columns["whose"] % 2
        image = pixels(dict(columns)).flatten(0, 1)
        return cls(image, columns["pose"].flatten(0, 1), columns["gaze"].flatten(0, 1), side)

    def take(self, rows: Tensor) -> CodeRows:
        """Return these rows, in the shape of `rows`."""
        return CodeRows(self.image[rows], self.pose[rows], self.gaze[rows], self.side[rows])


@dataclass(frozen=True)
class FewShotScene:
    """One seed of a run, its unseen clients, and the shots drawn from its participants."""

    trained: TrainedRun
    people: tuple[str, ...]
    options: FewShotOptions

    @cached_property
    def pool(self) -> tuple[CodeRows, int]:
        """The training samples from which shots are drawn, and the number of eyes in a row."""
        trained = self.trained.participants
        assert trained is not None
        names = trained.clients[:1] if self.options.source == "first" else trained.clients
        parts = [trained.people[name].train for name in names]
        return CodeRows.of(Samples.concatenate(parts)), parts[0].columns["eyes"].shape[1]

    @cached_property
    def shot_rows(self) -> Tensor:
        """Row numbers of the shots, `[draws, shots]`: both eyes of a glance, or single eyes.

        Raises:
            ConfigError: fewer training samples than shots.
        """
        rows, eyes = self.pool
        there, wanted = len(rows.gaze) // eyes, self.options.shots // eyes
        if wanted > there:
            raise ConfigError(
                f"unlabelled: {self.options.shots} shots, but there are {there * eyes} training "
                "samples to draw from; give fewer, or draw across all people"
            )
        # Not keyed by the run: all encoders of a seed get the same shots.
        stream = RandomStream("shots", self.options.seed, self.trained.task.seed).numpy()
        chosen = np.stack([stream.permutation(there)[:wanted] for _ in range(self.options.draws)])
        first = torch.from_numpy(chosen * eyes)
        return torch.cat([first + eye for eye in range(eyes)], 1)

    @cached_property
    def shots(self) -> CodeRows:
        """The shots, `[draws, shots, ...]`."""
        return self.pool[0].take(self.shot_rows)

    @cached_property
    def tests(self) -> Mapping[str, CodeRows]:
        """The test samples of the people who were left out."""
        return {p: CodeRows.of(self.trained.ready.people[p].test) for p in self.people}

    def codes(self, params: Params) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the codes of all rows of the pool, and of the test samples of unseen people."""
        network = self.network(params)
        pool = encode_images(network, self.pool[0].image)
        return pool, {p: encode_images(network, rows.image) for p, rows in self.tests.items()}

    def network(self, params: Params | None = None) -> nn.Module:
        """Return the task's network with these parameters, or its initial ones."""
        network = self.trained.task.module().eval()
        for name, value in (params or {}).items():
            network.get_parameter(name).data.copy_(value)
        return network

    def encoder(self, params: Params) -> Iterator[tuple[str, str, Errors]]:
        """Yield code, reader and errors of the few-shot estimators on a frozen encoder."""
        pool, tests = self.codes(params)
        gaze = self.trained.task.network.gaze  # type: ignore[attr-defined]
        for name, columns in zip(CODES, (slice(-gaze, None), slice(None)), strict=True):
            near = torch.cat([pool[self.shot_rows][..., columns], self.shots.pose], 2)
            stream = RandomStream("estimator", self.options.seed)
            network = Estimator(epochs=self.options.epochs).fit(near, self.shots.gaze, stream)
            readers = (network, ridge(near, self.shots.gaze))
            far = {p: torch.cat([tests[p][:, columns], r.pose], 1) for p, r in self.tests.items()}
            for reader, read_ in zip(READERS, readers, strict=True):
                yield (
                    name,
                    reader,
                    {
                        person: float(error_deg(read_(far[person]), rows.gaze).mean())
                        for person, rows in self.tests.items()
                    },
                )

    def constant(self) -> Errors:
        """Return the errors of the shots' mean direction, which is computed for each eye."""
        found: dict[str, list[float]] = {person: [] for person in self.people}
        for gaze, side in zip(self.shots.gaze.double(), self.shots.side, strict=True):
            known = {int(s): mean_direction(gaze[side == s]) for s in side.unique()}
            other = mean_direction(gaze)
            for person, rows in self.tests.items():
                # Shots may lack one of the eyes: their common mean stands in for its own.
                predicted = torch.stack([known.get(int(s), other) for s in rows.side])
                found[person].append(float(error_deg(to_vector(predicted), rows.gaze)))
        return {person: float(np.mean(errors)) for person, errors in found.items()}

    def supervised(self) -> Errors:
        """Return the errors of the same encoder and a linear layer, trained on the shots alone.

        Right eyes are mirrored for it, and its predictions for them back.
        """
        found = np.zeros(len(self.people))
        for draw in range(self.options.draws):
            rows = self.pool[0].take(self.shot_rows[draw])
            stream = RandomStream("supervised", self.options.seed, draw)
            network = _Labelled(self.network(), self.trained.task.network)
            network.learn(rows, self.options.steps, stream)
            found += [network.error(test) for test in self.tests.values()]
        return dict(zip(self.people, (found / self.options.draws).tolist(), strict=True))


class _Labelled(nn.Module):
    """An encoder from scratch and one linear layer to the gaze vector, on mirrored right eyes."""

    def __init__(self, network: nn.Module, options: object) -> None:
        super().__init__()
        own = options if isinstance(options, CrossEncoder) else options.options  # type: ignore[attr-defined]
        self.network, self.last = network, nn.Linear(own.eye + own.gaze + 2, 3)

    def forward(self, rows: CodeRows) -> Tensor:
        sign = mirror(rows.side)
        image = turned(rows.image, rows.side)
        code = self.network.encode(image[:, None])[:, 0]  # type: ignore[operator]
        found = self.last(torch.cat([code, rows.pose * sign], 1))
        # A flip of the picture turns the vector's x, as it turns the sign of yaw.
        return found * torch.stack([sign[:, 1], sign[:, 0], sign[:, 0]], 1)

    def learn(self, rows: CodeRows, steps: int, stream: RandomStream, batch: int = 20) -> None:
        draws = stream.torch()
        # Predictions start at 0; the encoder gets gradients from the second step on.
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        used = [*self.network.encoder.parameters(), *self.last.parameters()]  # type: ignore[union-attr]
        step = adam(used, torch.tensor(1e-3))
        wanted = to_vector(rows.gaze)
        for _ in range(steps):
            at = torch.randperm(len(wanted), generator=draws)[:batch]
            step((self(rows.take(at)) - wanted[at]).abs().mean())

    @torch.no_grad()
    def error(self, rows: CodeRows) -> float:
        parts = torch.arange(len(rows.gaze)).split(256)
        found = torch.cat([self(rows.take(part)) for part in parts])
        return float(error_deg(functional.normalize(found, dim=1), rows.gaze))


@torch.no_grad()
def encode_images(network: nn.Module, images: Tensor) -> Tensor:
    """Return the codes `[n, codes]` of images `[n, 1, H, W]` in [0, 1]."""
    # In parts, as the feature maps of all images at once need much memory.
    parts = [network.encode(part[:, None])[:, 0] for part in images.split(256)]  # type: ignore[operator]
    return torch.cat(parts)


@dataclass(frozen=True)
class FewShotResult:
    """Errors in degrees by row, code, reader and person, means over seeds."""

    people: tuple[str, ...]
    errors: Mapping[tuple[str, str, str], NDArray[np.float64]]


def unlabelled(
    folders: Sequence[Path], out: Path, options: FewShotOptions, console: Console
) -> FewShotResult:
    """Measure the few-shot error on unseen people of encoders trained without labels.

    Args:
        folders: run directories (or folders of several) of tasks `cross_encoder`, `auto_encoder`
            and `siamese` with the same people left out; runs that differ only in their seed are one
            row.
        out: the .csv file of the table.
        options: settings of the evaluation.
        console: the console that the table is printed to.

    Raises:
        ConfigError: nobody was left out, other tasks, different people, or a method without a
            common model.
    """
    lines: list[Line] = []
    people: tuple[str, ...] = ()
    # Rows that need no run are the same for all runs of a seed, and computed once.
    bare: set[int] = set()
    for folder in folders:
        for run in read(folder).runs:
            if run.results["task"] not in TASKS:
                raise ConfigError(
                    f"{run.folder} is of task '{run.results['task']}'; codes are learned by "
                    f"{', '.join(TASKS)} (docs/how-to/unlabelled.md)"
                )
            left_out = find_held_out(run.folder)
            trained = left_out.run(next(iter(left_out.folders)))
            if not hasattr(trained.task.network, "gaze"):
                raise ConfigError(
                    f"{run.folder}: model of task '{run.results['task']}' has no gaze code"
                )
            if not trained.offers_newcomer(whole=True):
                raise ConfigError(
                    f"{run.folder}: '{run.method}' shares no whole model with unseen clients"
                )
            if people and people != tuple(left_out.folders):
                raise ConfigError(
                    f"{run.folder} left out {', '.join(left_out.folders)}, another run "
                    f"{', '.join(people)}; give runs with the same people left out"
                )
            people = tuple(left_out.folders)
            for seed in run.seeds:
                lines += _one_seed(run, left_out, seed, options, plain=seed not in bare)
                bare.add(seed)
    cells = by_key(((name, code, at), (who, error)) for name, code, at, _, who, error in lines)
    errors = {
        kind: np.array([float(np.mean(own[person])) for person in people])
        for kind, own in ((kind, by_key(pairs)) for kind, pairs in cells.items())
    }
    found = FewShotResult(people, errors)
    export_csv(out, HEADS, lines)
    block(found, options).show(console)
    console.print(f"numbers: {out}", soft_wrap=True)
    return found


Line = tuple[str, str, str, int, str, float]


def _one_seed(
    run: Run, left_out: HeldOut, seed: int, options: FewShotOptions, plain: bool
) -> Iterator[Line]:
    """Yield the lines of a run and seed; with `plain` also those of rows that need no run."""
    for folder in dict.fromkeys(left_out.folders.values()):
        people = tuple(p for p, at in left_out.folders.items() if at == folder)
        scene = FewShotScene(left_out.run(people[0], seed), people, options)
        trained = scene.trained
        found = [(_name(run), *kind) for kind in scene.encoder(trained.newcomer(people[0]))]
        if plain:
            found += [(RANDOM, *kind) for kind in scene.encoder(trained.task.init())]
            found.append((SUPERVISED, "", "", scene.supervised()))
            found.append((MEAN, "", "", scene.constant()))
        for name, code, reader, errors in found:
            for person, error in errors.items():
                yield name, code, reader, seed, person, error


def _name(run: Run) -> str:
    task = run.results["task"]
    if task == "siamese":
        task = "byol" if '"byol"' in run.config else "simclr"
    elif "equal" in tomllib.loads(run.config)["task"]:
        task = "auto_encoder EFC"
    method = METHOD_NAMES.get(run.method, run.method)
    return f"{task} {method if run.label == run.method else run.label}"


def block(result: FewShotResult, options: FewShotOptions) -> TextTable:
    """Return means and 95 % intervals over people: encoders as rows, codes and readers as columns.

    Rows without code and reader use the first column.
    """
    kinds = [(code, reader) for code in CODES for reader in READERS]
    lines = []
    for name in dict.fromkeys(name for name, _, _ in result.errors):
        alone = result.errors.get((name, "", ""))
        cells = (
            [alone, None, None, None]
            if alone is not None
            else [result.errors[name, *kind] for kind in kinds]
        )
        lines.append([name, *("" if cell is None else spread(cell, 2, None) for cell in cells)])
    whose = "across all people" if options.source == "all" else "of one person"
    heading = (
        f"angle error in degrees on {len(result.people)} unseen people after {options.shots} shots "
        f"drawn {whose}: mean and 95 % interval over people, {options.draws} draws"
    )
    return TextTable(heading, ["", *(f"{code}, {reader}" for code, reader in kinds)], lines, 1)
