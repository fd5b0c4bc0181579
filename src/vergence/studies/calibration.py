"""`vergence study calibrate`: gaze error over k labelled samples of a person used to calibrate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text
from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.serialization import same
from vergence.data.io.checks import read_npz
from vergence.errors import ConfigError, DataError, nearest
from vergence.experiment.newcomers import HeldOut, unseen
from vergence.experiment.run import progress_bar
from vergence.experiment.schema import data_root
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.calibration import (
    COUNTS,
    KINDS,
    Calibration,
    Eyes,
    FittedCalibration,
    errors_deg,
    orders,
)
from vergence.reports.plots.style import figure_format
from vergence.studies.curves import Curves, present
from vergence.tasks.gaze_angle import GazeAngle

NEEDED = "an npz with gaze [people, n, 2] and predictions of the same shape, radians (pitch, yaw)"
AXIS = "calibration samples"
TUNED = ("last layer", "whole model")
FITTED_KINDS = {"fitted offset": (), "fitted affine": ("slopes",), "fitted eyes": ("eye", "slopes")}
"""Corrections with priors of the run's own people, and what is fitted beside the offset."""
PULLED, PULLS = "pulled model", (0.1, 1.0, 10.0)
"""Row of fine-tuning with a pull to the start, and the pulls that it chooses among."""
ADAPTED = "the method's own"
"""Row of a method that makes a stranger's model of the data they have."""
PREDICTION, STEPS = "pred_lenet", 50
FITTED = frozenset(f"p{number:02}" for number in range(11))
MPIIGAZE = ("mpiigaze", "mpiigaze_crops", "mpiifacegaze")
"""Data sets of the people on whom the priors of the shrunk corrections were fitted: `FITTED`."""
PRIORS = (
    "the priors of the shrunk corrections were read off public LeNet and ResNet predictions for "
    "p00 to p10 of MPIIGaze (docs/calibration.md): for {} the shrunk rows are no independent result"
)
UNNAMED = "these, if the file holds any (it names nobody),"
UNTRAINED = "k = 0 starts from parts never trained for anybody: this method shares only the others"


@dataclass(frozen=True)
class CalibrationOptions:
    """Settings of the calibration.

    Attributes:
        person: who, or `all`.
        prediction: the array of predictions, of an npz only; default pred_lenet.
        eyes: see `metrics.calibration.errors_deg`.
        counts: numbers of calibration samples k.
        draws: random choices of the k samples, per person; 0: 200 of predictions, 5 of a run.
        steps: batches of fine-tuning, of a run only; default 50.
        lr: learning rate of fine-tuning, of a run only; default that of the run.
        seed: of the random choices.
        pulls: strengths of the pull to the start among which fine-tuning chooses, of a run only;
            none: no such row.
    """

    person: str = "all"
    prediction: str | None = None
    eyes: Eyes = "together"
    counts: tuple[int, ...] = COUNTS
    draws: int = 0
    steps: int | None = None
    lr: float | None = None
    seed: int = 0
    pulls: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.counts or min(*self.counts, self.draws) < 0:
            raise ConfigError(
                f"calibrate: counts {self.counts} and draws {self.draws} must be 0 or more"
            )
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"calibrate: steps must be 1 or more; got {self.steps}")
        if self.lr is not None and not self.lr > 0:
            raise ConfigError(f"calibrate: lr must be above 0; got {self.lr:g}")
        if any(pull <= 0 for pull in self.pulls):
            raise ConfigError(f"calibrate: pulls must be above 0; got {self.pulls}")


def calibrate(source: Path, out: Path, options: CalibrationOptions, console: Console) -> Curves:
    """Measure the calibration curve of an npz of predictions or of a run; print, write and draw it.

    Args:
        source: the npz (here, or below VERGENCE_DATA), or a run directory of one method with people
            it never saw.
        out: the figure (.png, .svg, .pdf); the numbers go beside it, as .csv.
        options: how.
        console: where the table goes.

    Raises:
        ConfigError: unknown person or prediction, nobody was left out of the run, or an option
            that is for the other kind of source.
        DataError: the npz is unusable.
    """
    figure_format(out)
    if not source.exists():
        source = Path(data_root(str(source)) or source)
    of_a_run = source.is_dir()
    if of_a_run and options.prediction is not None:
        raise ConfigError("--prediction is for an npz of predictions; a run makes its own")
    for name in () if of_a_run else ("steps", "lr", "pulls"):
        if getattr(options, name) not in (None, ()):
            raise ConfigError(f"--{name} is for fine-tuning a run; {source} is none")
    everybody = unseen(source) if of_a_run else None
    strangers = None if everybody is None else everybody.only(options.person)
    curves = of_predictions(source, options) if everybody is None else of_run(everybody, options)
    for caveat in caveats(curves, strangers):
        console.print(Text(f"Note: {caveat}", style="yellow"), soft_wrap=True)
    present(curves, out, console)
    return curves


def caveats(curves: Curves, strangers: HeldOut | None) -> Iterator[str]:
    """Yield caveats for a reader of the table: the sources of priors and starting points."""
    fitted = fitted_on(curves.people, strangers) if "shrunk offset" in curves.values else ""
    if fitted:
        yield PRIORS.format(fitted)
    if strangers is not None and not strangers.run(curves.people[0]).shares(whole=True):
        yield UNTRAINED


def fitted_on(people: Sequence[str], strangers: HeldOut | None) -> str:
    """The people on whom the priors were fitted, "" where there is none.

    A run says whose data it read; of an npz names alone tell, and a number is no name.
    """
    if strangers is not None and strangers.loaded.raw.name not in MPIIGAZE:
        return ""
    unnamed = strangers is None and all(person.isdigit() for person in people)
    return UNNAMED if unnamed else ", ".join(person for person in people if person in FITTED)


def of_predictions(path: Path, options: CalibrationOptions) -> Curves:
    """Calibrate recorded predictions: `gaze` and predictions `[people, n, 2]`, left eyes first."""
    source = options.prediction or PREDICTION
    table = read_npz(path, {"gaze": 3, source: 3}, NEEDED, ("person",), ("person",))
    gaze, predicted = (
        torch.from_numpy(table[name].astype(np.float64)) for name in ("gaze", source)
    )
    if gaze.shape != predicted.shape or gaze.shape[-1] != 2:
        raise DataError(
            f"{path}: gaze is {tuple(gaze.shape)} and {source} "
            f"{tuple(predicted.shape)}; needed is {NEEDED}"
        )
    names = tuple(map(str, table.get("person", range(len(gaze)))))
    chosen = names if options.person == "all" else (options.person,)
    if not set(chosen) <= set(names):
        raise ConfigError(f"{path}: no person '{chosen[0]}'{nearest(chosen[0], names)}")
    n, draws = gaze.shape[1], options.draws or 200
    side = (torch.arange(n) >= n // 2).long()
    errors = {kind: np.zeros((len(chosen), len(options.counts))) for kind in KINDS}
    with progress_bar() as bar:
        line = bar.add_task("people", total=len(chosen), score="")
        for row, person in enumerate(chosen):
            at = names.index(person)
            order = orders(n, draws, RandomStream("calibrate", options.seed, person).numpy())
            for kind, calibration in KINDS.items():
                found = errors_deg(
                    calibration, predicted[at], gaze[at], order, options.counts, side, options.eyes
                )
                errors[kind][row] = found.mean(1).numpy()
            bar.advance(line)
    how = f"{source}, eyes {options.eyes}, {draws} draws per person"
    return Curves("angle_error_deg", AXIS, chosen, options.counts, errors, how)


def of_run(everybody: HeldOut, options: CalibrationOptions) -> Curves:
    """Calibrate the shared model of runs for people who took no part in them.

    The k samples are drawn from a person's training part, the error is that of the test part. Eyes
    are told apart by a column `side` where the data has one. Priors of the fitted corrections are
    those of the other people left out, each as a stranger to the run without them.
    """
    strangers = everybody.only(options.person)
    people, draws = tuple(strangers.folders), options.draws or 5
    if options.pulls and len(people) < 2:
        raise ConfigError("calibrate: a pull is chosen on other people; leave out --person")
    first = strangers.run(people[0])
    headline = first.task.headline
    seeds = first.experiment.plan.seeds
    found: dict[str, NDArray[np.float64]] = {}
    with progress_bar() as bar:
        line = bar.add_task("people", total=len(people) * len(seeds), score="")
        for seed in seeds:
            angles = isinstance(first.task, GazeAngle)
            priors = own_priors(everybody, people, seed) if angles else {}
            for row, person in enumerate(people):
                trained = strangers.run(person, seed)
                fitted = priors.get(person, {})
                for kind, values in _one(trained, person, draws, options, fitted).items():
                    table = found.setdefault(kind, np.zeros((len(people), len(options.counts))))
                    table[row] += np.array(values) / len(seeds)
                bar.advance(line)
    starts = options.counts[0] == 0
    pulled = {pull: found.pop(_pull(pull)) for pull in options.pulls}
    if pulled:
        found[PULLED] = chosen_by_others(pulled, found[TUNED[1]][:, :1] if starts else None)
    how = f"{first.folder.name}, {len(seeds)} seeds, {draws} draws per person"
    return Curves(headline, AXIS, people, options.counts, found, how)


def own_priors(
    everybody: HeldOut, people: Sequence[str], seed: int
) -> dict[str, dict[str, FittedCalibration]]:
    """Priors for each stranger, of the people who took part in the run without that stranger.

    Each of these is a stranger too, to a run of their own: so there are none where one run left
    several people out.
    """
    wanted = {person: everybody.known(person) for person in people}
    seen = {}
    for person in {who for others in wanted.values() for who in others}:
        run = everybody.run(person, seed)
        train = run.ready.people[person].train
        outputs = run.outputs(run.newcomer(person), train).double()
        seen[person] = (outputs, train.columns["gaze"].double(), train.columns.get("side"))
    return {
        person: {
            kind: FittedCalibration.of([seen[who] for who in others], *terms)
            for kind, terms in FITTED_KINDS.items()
            if "eye" not in terms or all(seen[who][2] is not None for who in others)
        }
        for person, others in wanted.items()
        if len(others) > 1
    }


def chosen_by_others(
    tried: Mapping[float, NDArray[np.float64]], before: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Errors `[people, counts]`, of everybody the setting that is best for the others.

    Args:
        tried: setting -> errors `[people, counts]`.
        before: errors without any, `[people, 1]`, to be chosen where no setting is better.
    """
    every = list(tried.values())
    every += [] if before is None else [np.broadcast_to(before, every[0].shape)]
    errors = np.stack(every)
    others = errors.sum(1, keepdims=True) - errors
    return np.take_along_axis(errors, others.argmin(0)[None], 0)[0]


def _pull(pull: float) -> str:
    return f"pull {pull:g}"


def _one(
    trained: TrainedRun,
    person: str,
    draws: int,
    options: CalibrationOptions,
    fitted: Mapping[str, FittedCalibration],
) -> dict[str, list[float]]:
    """Return the curve of one person and seed per kind."""
    task, data = trained.task, trained.ready.people[person]
    _accept(trained, person, options)
    start = trained.newcomer(person)
    layout = start.layout
    head = Mask.layers(layout, *task.parts()[1])
    stream = RandomStream("calibrate", options.seed, trained.task.seed, person)
    order = orders(len(data.train), draws, stream.numpy())

    def tuned(
        trainable: Mask | None, what: str, pull: float = 0.0
    ) -> Callable[[int, Tensor], float]:
        local = trained.method.local
        local = replace(local, steps=options.steps or STEPS, schedule="constant")
        local = replace(local, lr=options.lr or local.lr)

        def score(draw: int, rows: Tensor) -> float:
            anchor = (start, pull / len(rows)) if pull else None
            ask = Fit(start, data.train.subset(rows), local, trainable, anchor=anchor)
            made = trained.executor.solver.fit(ask, stream.child(what, draw, len(rows)))
            return trained.measure(made.params, person)[task.headline]

        return score

    def adapted(_: int, rows: Tensor) -> float:
        params = trained.model(person, known=False, train=data.train.subset(rows))
        return trained.measure(params, person)[task.headline]

    kinds: dict[str, Callable[[int, Tensor], float]]
    kinds = dict(zip(TUNED, (tuned(head, TUNED[0]), tuned(None, TUNED[1])), strict=True))
    kinds |= {_pull(pull): tuned(None, TUNED[1], pull) for pull in options.pulls}
    if isinstance(task, GazeAngle):
        ways = {**KINDS, **fitted}
        kinds = {**corrected(trained, start, person, options.eyes, ways), **kinds}
    if not same(trained.model(person, known=False), start):
        kinds[ADAPTED] = adapted
    before = trained.measure(start, person)[task.headline]
    return {
        kind: [
            before if k == 0 else float(np.mean([score(d, order[d, :k]) for d in range(draws)]))
            for k in options.counts
        ]
        for kind, score in kinds.items()
    }


def _accept(trained: TrainedRun, person: str, options: CalibrationOptions) -> None:
    """Refuse a run that cannot be calibrated for this person."""
    task, data = trained.task, trained.ready.people[person]
    if not trained.shares():
        raise ConfigError(
            f"{trained.folder}: this method shares no model that a newcomer could start from"
        )
    most = max(options.counts)
    if most > len(data.train):
        raise ConfigError(
            f"calibrate: {most} samples, but '{person}' has {len(data.train)} for "
            "training; give smaller counts"
        )
    if task.own_prior:
        raise ConfigError(
            f"{trained.folder}: task.personal_prior is made of all of a person's training samples, "
            "so a curve over few of them would say nothing; name a run without it (0)"
        )


def corrected(
    trained: TrainedRun,
    start: Params,
    person: str,
    eyes: Eyes,
    ways: Mapping[str, Calibration | FittedCalibration],
) -> dict[str, Callable[[int, Tensor], float]]:
    """Return, per kind of correction, the error on test data after fitting it to some rows.

    Raises:
        ConfigError: eyes are to be told apart, and the data does not say which is which.
    """
    data, outputs = trained.ready.people[person], trained.outputs
    near, far = (outputs(start, part).double() for part in (data.train, data.test))
    true = data.train.columns["gaze"].double()
    if eyes != "together" and (eyes == "each" or "side" not in data.train.columns):
        raise ConfigError(
            f"calibrate: eyes = '{eyes}' on a run: 'apart' needs a column side in the data, 'each' "
            "is for recorded predictions; use eyes = 'together'"
        )
    sides = [
        part.columns["side"] if eyes == "apart" else torch.zeros(len(part))
        for part in (data.train, data.test)
    ]

    known = data.train.columns.get("side")

    def scorer(kind: str) -> Callable[[int, Tensor], float]:
        way = ways[kind]

        def score(_: int, rows: Tensor) -> float:
            fixed = far.clone()
            if isinstance(way, FittedCalibration):  # it tells eyes apart by itself
                learned = way.fit(near[rows], true[rows], None if known is None else known[rows])
                fixed = learned(far, data.test.columns.get("side"))
            else:
                for side in sides[1].unique():
                    mine, here = rows[sides[0][rows] == side], sides[1] == side
                    fixed[here] = way.fit(near[mine], true[mine])(far[here])
            return trained.task.metrics(fixed, data.test)[trained.task.headline]

        return score

    return {kind: scorer(kind) for kind in ways}
