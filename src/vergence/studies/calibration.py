"""`vergence study calibrate`: gaze error by the number k of a person's calibration samples.

Used by `cli.study`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from vergence.adaptation.choice import PULLS, candidates, choose
from vergence.adaptation.fine_tuning import (
    STEPS,
    WHOLE,
    Adapter,
    FineTuning,
    PersonalModel,
    Rows,
    pull_name,
)
from vergence.adaptation.other_people import own_priors, priors_of_run
from vergence.core.naming import plural
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.data.io.checks import read_npz
from vergence.errors import ConfigError, DataError, nearest
from vergence.experiment.newcomers import HeldOut, find_held_out
from vergence.experiment.run import progress_bar
from vergence.experiment.schema import data_root
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.calibration import (
    COUNTS,
    KINDS,
    Eyes,
    FittedCalibration,
    errors_deg,
    orders,
)
from vergence.results.figure_style import figure_format, save
from vergence.results.write import export_csv
from vergence.studies.adaptation_curves import (
    ALONE,
    CHOSEN,
    CONSTANT,
    adaptation_figure,
    show_gains,
    show_harmed,
)
from vergence.studies.curves import Curves, export, rows, show, tell_files
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import ResidualKernel

NEEDED = "an npz with gaze [people, n, 2] and predictions of the same shape, radians (pitch, yaw)"
AXIS = "calibration samples"
PULLED = "pulled model"
"""Name of the row of fine-tuning with a pull to the start, whose strength others choose."""
FITTED = frozenset(f"p{number:02}" for number in range(11))
MPIIGAZE = ("mpiigaze", "mpiigaze_crops", "mpiifacegaze")
"""Data sets of the people on whom the priors of the shrunk corrections were fitted: `FITTED`."""
PRIORS = (
    "the priors of the shrunk corrections were read off public LeNet and ResNet predictions for "
    "p00 to p10 of MPIIGaze (docs/how-to/calibration.md): for {} the shrunk rows are no "
    "independent result"
)
UNNAMED = "these, if the file holds any (it names nobody),"
UNTRAINED = "k = 0 starts from parts never trained for anybody: this method shares only the others"


@dataclass(frozen=True)
class CalibrationOptions(NamedOptions, label="calibrate"):
    """Settings of the calibration.

    Attributes:
        person: the person to calibrate for, or `all`.
        prediction: name of the array of predictions, for an npz only; default pred_lenet.
        eyes: see `metrics.calibration.errors_deg`.
        counts: numbers of calibration samples k.
        draws: random choices of the k samples for each person; 0: 200 for predictions, 5 for a run.
        steps: batches of fine-tuning, for a run only; default 50.
        lr: learning rate of fine-tuning, for a run only; default that of the run.
        seed: seed of the random choices.
        pulls: strengths of the pull to the start among which fine-tuning chooses, for a run only;
            none: no such row.
        adapt: add rows for the choice of `vergence adapt`, for training on the samples alone and
            for a constant, for a run only.
    """

    person: str = "all"
    prediction: str | None = None
    eyes: Eyes = "together"
    counts: tuple[Annotated[int, Ge(0)], ...] = COUNTS
    draws: Annotated[int, Ge(0)] = 0
    steps: Annotated[int, Ge(1)] | None = None
    lr: Annotated[float, Gt(0)] | None = None
    seed: int = 0
    pulls: tuple[Annotated[float, Gt(0)], ...] = ()
    adapt: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.counts:
            raise ConfigError("calibrate: counts must have a number of samples, as 9; got none")

    def shows(self, way: str) -> bool:
        """True if a way has a row of its own, and is not only a candidate of `adapt`."""
        return way not in map(pull_name, PULLS) or way in map(pull_name, self.pulls)


def calibrate(
    sources: Sequence[Path], out: Path, options: CalibrationOptions, console: Console
) -> list[Curves]:
    """Measure the calibration curves of npz of predictions or of runs; print, write and draw them.

    Args:
        sources: an npz (here, or below VERGENCE_DATA), or a run directory of one method with people
            it never saw; with `adapt` several runs, which become panels of one figure.
        out: the figure (.png, .svg, .pdf); a .csv file of the same name gets the numbers.
        options: settings of the calibration.
        console: the console that the tables are printed to.

    Raises:
        ConfigError: unknown person or prediction, nobody was left out of the run, several sources
            without `adapt`, or an option for the other kind of source.
        DataError: the npz is unusable.
    """
    # Before hours of fine-tuning: the ending of the file must be one that can be drawn.
    figure_format(out)
    if not sources or (len(sources) > 1 and not options.adapt):
        raise ConfigError(
            f"calibrate: name one source, or several runs with --adapt; got {len(sources)}"
        )
    found = [measure_source(source, options, console) for source in sources]
    if not (options.adapt and options.counts[0] == 0):
        export(found[0], out, console)
        return found
    heads = ("kind", "person", "count", "metric", "value")
    lines = [(curves.data, *line) for curves in found for line in rows(curves)]
    export_csv(out.with_suffix(".csv"), ("data", *heads), lines)
    save(adaptation_figure(found), out)
    tell_files(out, console)
    return found


def measure_source(source: Path, options: CalibrationOptions, console: Console) -> Curves:
    """Return the curves of one source; print its tables and caveats."""
    if not source.exists():
        source = Path(data_root(str(source)) or source)
    of_a_run = source.is_dir()
    if of_a_run and options.prediction is not None:
        raise ConfigError("--prediction is for an npz of predictions; a run makes its own")
    for name in () if of_a_run else ("steps", "lr", "pulls", "adapt"):
        if getattr(options, name) not in (None, (), False):
            raise ConfigError(f"--{name} is for fine-tuning a run; {source} is none")
    everybody = find_held_out(source) if of_a_run else None
    left_out = None if everybody is None else everybody.only(options.person)
    curves = (
        curves_of_predictions(source, options)
        if everybody is None
        else curves_of_run(everybody, options)
    )
    for caveat in caveats(curves, left_out):
        console.print(Text(f"Note: {caveat}", style="yellow"), soft_wrap=True)
    show(curves, console)
    if options.adapt and left_out is not None and curves.counts[0] == 0:
        lower = curves.metric in left_out.run(curves.people[0]).task.lower_is_better
        show_gains(curves, lower, console)
        show_harmed(curves, lower, console)
    return curves


def caveats(curves: Curves, left_out: HeldOut | None) -> Iterator[str]:
    """Yield caveats for a reader of the table: the sources of priors and starting points."""
    fitted = fitted_on(curves.people, left_out) if "shrunk offset" in curves.values else ""
    if fitted:
        yield PRIORS.format(fitted)
    if left_out is not None and not left_out.run(curves.people[0]).offers_newcomer(whole=True):
        yield UNTRAINED


def fitted_on(people: Sequence[str], left_out: HeldOut | None) -> str:
    """Return the people on whom the priors were fitted, as text; "" if there are none.

    A run records its data set; an npz has only names, which may be mere numbers.
    """
    if left_out is not None and left_out.loaded.raw.name not in MPIIGAZE:
        return ""
    unnamed = left_out is None and all(person.isdigit() for person in people)
    return UNNAMED if unnamed else ", ".join(person for person in people if person in FITTED)


def curves_of_predictions(path: Path, options: CalibrationOptions) -> Curves:
    """Calibrate recorded predictions: `gaze` and predictions `[people, n, 2]`, left eyes first."""
    source = options.prediction or "pred_lenet"
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
    # Recorded predictions have no column of sides: the first half of a person's are left eyes.
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
    how = f"{source}, eyes {options.eyes}, {plural(draws, 'draw')} per person"
    return Curves("angle_error_deg", AXIS, chosen, options.counts, errors, how)


def curves_of_run(everybody: HeldOut, options: CalibrationOptions) -> Curves:
    """Calibrate the shared model of runs for people who took no part in them.

    The k samples are drawn from a person's training part, the error is that of the test part. A
    column `side`, if the data have one, distinguishes the eyes. Priors of the fitted corrections
    come from the other people who were left out, each measured by a run without that person.
    """
    left_out = everybody.only(options.person)
    people, draws = tuple(left_out.folders), options.draws or 5
    if options.pulls and len(people) < 2:
        raise ConfigError("calibrate: a pull is chosen on other people; leave out --person")
    first = left_out.run(people[0])
    headline = first.task.headline
    seeds = first.experiment.plan.seeds
    found: dict[str, NDArray[np.float64]] = {}
    with progress_bar() as bar:
        line = bar.add_task("people", total=len(people) * len(seeds), score="")
        for seed in seeds:
            angles = isinstance(first.task, GazeAngle)
            priors = own_priors(everybody, people, seed) if angles else {}
            for row, person in enumerate(people):
                trained = left_out.run(person, seed)
                fitted = priors.get(person) or priors_of_run(trained)
                for kind, values in _curve_of_person(
                    trained, person, draws, options, fitted
                ).items():
                    table = found.setdefault(kind, np.zeros((len(people), len(options.counts))))
                    table[row] += np.array(values) / len(seeds)
                bar.advance(line)
    starts = options.counts[0] == 0
    # One row in place of one for each strength, of which the reader would pick the best.
    tried = {pull: found.pop(pull_name(pull)) for pull in options.pulls}
    if tried:
        found[PULLED] = best_for_others(tried, found[WHOLE][:, :1] if starts else None)
    how = f"{first.folder.name}, {plural(len(seeds), 'seed')}, {plural(draws, 'draw')} per person"
    data = everybody.loaded.raw.name
    ends = first.task.bounds.get(headline)
    return Curves(headline, AXIS, people, options.counts, found, how, data=data, bounds=ends)


def frame_of(curves: Curves) -> pd.DataFrame:
    """Return curves as a frame: a row for each person and way, a column for each count."""
    return pd.concat(
        {
            way: pd.DataFrame(values, list(curves.people), list(curves.counts))
            for way, values in curves.values.items()
        },
        names=["way", "person"],
    ).swaplevel()


def best_for_others(
    tried: Mapping[float, NDArray[np.float64]], before: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return everybody's errors `[people, counts]` with the setting that is best for the others.

    Args:
        tried: errors `[people, counts]` by setting.
        before: errors `[people, 1]` without any setting, which are chosen if none is better.
    """
    every = list(tried.values())
    every += [] if before is None else [np.broadcast_to(before, every[0].shape)]
    errors = np.stack(every)
    # A setting chosen on a person's own test errors would look better than it is.
    others = errors.sum(1, keepdims=True) - errors
    return np.take_along_axis(errors, others.argmin(0)[None], 0)[0]


def _curve_of_person(
    trained: TrainedRun,
    person: str,
    draws: int,
    options: CalibrationOptions,
    fitted: Mapping[str, FittedCalibration | ResidualKernel],
) -> dict[str, list[float]]:
    """Return the curves of one person and seed, by kind."""
    trained = trained.without_tuned_prior()
    task, data = trained.task, trained.ready.people[person]
    _check_run(trained, person, options)
    pulls = dict.fromkeys((*options.pulls, *(PULLS if options.adapt else ())))
    tuning = FineTuning(options.steps or STEPS, options.lr, tuple(pulls))
    adapter = Adapter(trained, person, tuning, fitted, options.eyes == "apart")
    stream = RandomStream("calibrate", options.seed, task.seed, person)
    order = orders(len(data.train), draws, stream.numpy())
    before = adapter.error(PersonalModel(adapter.start))
    shown = [way for way in adapter.ways if options.shows(way)]
    extra = (CONSTANT, ALONE, CHOSEN) if options.adapt else ()
    found: dict[str, list[float]] = {way: [] for way in (*shown, *extra)}
    for k in options.counts:
        if k == 0:
            for way in found:
                # Neither a constant nor training alone exists without samples.
                found[way].append(math.nan if way in (CONSTANT, ALONE) else before)
            continue
        each = [_errors_of_draw(adapter, order[d, :k], stream, d, found) for d in range(draws)]
        for way in found:
            found[way].append(float(np.mean([errors[way] for errors in each])))
    return found


def _errors_of_draw(
    adapter: Adapter, rows: Rows, stream: RandomStream, draw: int, wanted: Collection[str]
) -> dict[str, float]:
    """Return the errors of ways, by name, after they are fitted to one draw of samples."""
    found = {
        way: adapter.error(adapter.fit(way, rows, stream, draw))
        for way in adapter.ways
        if way in wanted
    }
    if CHOSEN in wanted:
        found[CONSTANT] = adapter.constant_error(rows)
        found[ALONE] = adapter.error(adapter.train_alone(rows, stream.child(draw)))
        way = choose(adapter, candidates(adapter), rows, stream.child("choice", draw)).way
        # A chosen way with a row of its own is fitted already.
        found[CHOSEN] = (
            found[way] if way in found else adapter.error(adapter.fit(way, rows, stream, draw))
        )
    return found


def _check_run(trained: TrainedRun, person: str, options: CalibrationOptions) -> None:
    """Refuse a run that cannot be calibrated for this person."""
    task, data = trained.task, trained.ready.people[person]
    if not trained.offers_newcomer():
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
    eyes = options.eyes
    if isinstance(task, GazeAngle) and (
        eyes == "each" or (eyes == "apart" and "side" not in data.train.columns)
    ):
        raise ConfigError(
            f"calibrate: eyes = '{eyes}' on a run: 'apart' needs a column side in the data, 'each' "
            "is for recorded predictions; use eyes = 'together'"
        )
