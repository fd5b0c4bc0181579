"""`vergence study sweep`: a search with an equal budget per method, on validation data only.

Used by `cli.runs` and `cli.study`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table as Grid
from rich.text import Text

from vergence.core.files import saving
from vergence.core.naming import plural
from vergence.engine.round_loop import RoundSummary
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment import provenance as stamp
from vergence.experiment.run import locked, progress_bar, refuse_several_splits
from vergence.experiment.schema import (
    Experiment,
    Table,
    build_method,
    check,
    load,
    merge,
    method_tables,
)
from vergence.experiment.search_space import Point, SweepSettings, Tuning, edges
from vergence.experiment.trust import trust_with_code, under
from vergence.experiment.validation import validate
from vergence.results import write as results
from vergence.results.figure_style import save
from vergence.results.layout import digits, metric_name, number
from vergence.studies.sweep_budget import SPENT, Spendings
from vergence.studies.sweep_figure import figure
from vergence.studies.trials import Log, MethodTrials, TrialStudy, on_validation, run_trial

CONFIG, TRIALS, FIGURE, BEST = "sweep.toml", "trials.csv", "sweep.png", "best.toml"
WORK = ".trials"
"""Folder of the trial that is running."""


@dataclass(frozen=True)
class SweepResult:
    """A finished sweep: every method's trials, how the best was chosen, and the privacy spent.

    `unseen` are the people on whose validation data the best was chosen; nobody: on everybody's.
    """

    out: Path
    sweep: SweepSettings
    metric: str
    lower: bool
    tuning: Tuning
    methods: Mapping[str, MethodTrials]
    privacy: Sequence[str] = ()
    unseen: Sequence[str] = ()


def sweep(experiment: Experiment, out: Path | str) -> SweepResult:
    """Try every method's settings in a new directory, or resume the same sweep there.

    Raises:
        ConfigError: there is no sweep, or one of its points is no usable experiment.
        StateError: the directory holds something else.
        PartialRun: interrupted, or the disk is full; finished trials stay.
    """
    out = Path(out)
    if experiment.sweep is None:
        raise ConfigError('nothing to sweep: add sweep = { space = { "local.lr" = [...] } }')
    refuse_several_splits(experiment, "a sweep, which chooses settings on validation data,")
    points = experiment.sweep.points()
    trust = trust_with_code(experiment.code)
    # Before anything trains: a setting out of range would be found after hours.
    with under(trust):
        entries = trial_entries(experiment, points)
    with under(trust), locked(out):
        if (out / "config.toml").exists():
            raise StateError(f"{out} holds a run; choose another --out")
        seen = on_validation(experiment)
        loaded = validate(seen)
        made = stamp.stamp(experiment.table, loaded.sha, experiment.plan.presence.trace)
        if (out / CONFIG).exists():
            stamp.check(out, made)
        else:
            stamp.write(out, made)
            files = experiment.files(experiment.table)
            about = results.provenance(loaded.raw, loaded.sha, made["code"], files)
            results.write_json(out / "provenance.json", about)
            results.write_toml(out / CONFIG, experiment.table)
        unseen = experiment.sweep.unseen_people(loaded.ready.clients)
        log = Log(out / TRIALS, points)
        study = TrialStudy(out, seen, loaded, made, entries, log, unseen)
        try:
            run_trials(study)
        except KeyboardInterrupt:
            raise PartialRun(
                f"interrupted; finished trials are kept: `vergence resume {out}`, or the same "
                "command again, goes on"
            ) from None
        shutil.rmtree(out / WORK, ignore_errors=True)
        return conclude(experiment, study)


def resume(out: Path) -> SweepResult:
    """Resume an interrupted sweep."""
    return sweep(load(out / CONFIG), out)


def trial_entries(
    experiment: Experiment, points: Mapping[str, Sequence[Point]]
) -> dict[str, list[Table]]:
    """Return every trial's method entry, each of them checked.

    Raises:
        ConfigError: names the method, the point, and what is wrong with it.
    """
    local = experiment.table.get("local", {})
    found: dict[str, list[Table]] = {}
    for label, entry in zip(points, method_tables(experiment.table), strict=True):
        found[label] = [with_settings(entry, point) for point in points[label]]
        for point, made in zip(points[label], found[label], strict=True):
            try:
                build_method(made, local)
            except ConfigError as error:
                raise ConfigError(f"sweep of '{label}' ({in_words(point)}): {error}") from None
    return found


def with_settings(entry: Table, point: Point) -> Table:
    """Return a method entry with these settings in it."""
    made = {key: value for key, value in entry.items() if key != "sweep"}
    for name, value in point.items():
        for part in reversed(name.removeprefix("method.").split(".")):
            value = {part: value}
        made = merge(made, value)
    return made


def run_trials(study: TrialStudy) -> None:
    """Run the trials that are not in the log yet, method after method."""
    plan, log = study.experiment.plan, study.log
    spendings = Spendings(study.out / SPENT, plan)
    with progress_bar() as bar:
        for label, entries in study.entries.items():
            runs = [(trial, seed) for trial in range(len(entries)) for seed in plan.seeds]
            line = bar.add_task(label, total=len(runs) * plan.rounds, score="")
            for begun, (trial, seed) in enumerate(runs):
                bar.update(line, score=f"trial {trial + 1} of {len(entries)}")
                if (label, trial, seed) not in log.rows:
                    path = study.out / WORK / f"{label}-{trial}-{seed}"
                    tick = partial(advance, bar, line, begun * plan.rounds)
                    outcome = run_trial(study, entries[trial], seed, path, tick)
                    # Before the log: a trial in the log is never run again, and its books go below.
                    spendings.add((label, trial, seed), path / "state")
                    log.add(label, trial, seed, outcome)
                    shutil.rmtree(path, ignore_errors=True)
                bar.update(line, completed=(begun + 1) * plan.rounds)


def advance(bar: Progress, line: TaskID, before: int, end: RoundSummary) -> None:
    """Move a method's bar on by the rounds done of one trial."""
    bar.update(line, completed=before + end.round)


def conclude(experiment: Experiment, study: TrialStudy) -> SweepResult:
    """Choose every method's winner, and write best.toml and the figure."""
    chosen, out = experiment.sweep, study.out
    assert chosen is not None
    task = experiment.task(0)
    lower = chosen.metric == "headline" and task.headline in task.lower_is_better
    # Trials of earlier sweeps count: they, too, were spent on choosing these settings.
    earlier = experiment.tuning.trials if experiment.tuning else 0
    count = len(next(iter(study.entries.values())))
    tuning = Tuning(
        count + earlier,
        chosen.search,
        tuple(study.loaded.ready.clients),
        chosen.seed,
        chosen.digest(),
        "unseen" if study.unseen else "validation",
        study.experiment.plan.seeds,
        chosen.metric,
    )
    methods = {label: method_outcome(study, label, chosen.metric, lower) for label in study.entries}
    winners = {
        label: study.entries[label][t.best] for label, t in methods.items() if t.best is not None
    }
    metric = task.headline if chosen.metric == "headline" else "score"
    privacy = Spendings(out / SPENT, study.experiment.plan).lines()
    found = SweepResult(out, chosen, metric, lower, tuning, methods, privacy, study.unseen)
    # Without the sweep: its winners are ordinary experiments.
    base = {
        k: v
        for k, v in experiment.table.items()
        if k not in ("method", "methods", "sweep", "tuning")
    }
    base["tuning"] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(tuning).items()
    }
    with saving(out):
        (out / "best").mkdir(exist_ok=True)
    for label, entry in winners.items():
        write_experiment(out / "best" / f"{label}.toml", {**base, "method": entry}, privacy)
    if winners and experiment.several:
        write_experiment(out / BEST, {**base, "methods": list(winners.values())}, privacy)
    elif winners:
        write_experiment(out / BEST, {**base, "method": next(iter(winners.values()))}, privacy)
    save(figure(methods, chosen.spaces, metric, lower), out / FIGURE)
    return found


def method_outcome(study: TrialStudy, label: str, metric: str, lower: bool) -> MethodTrials:
    """Return the outcome of a method's trials; of equal ones the earlier is the best."""
    rows, seeds = study.log.rows, study.experiment.plan.seeds
    values, reasons = [], []
    for i in range(len(study.entries[label])):
        mine = [rows[label, i, seed] for seed in seeds]
        # A setting that fails with one seed has failed: its mean would be over other seeds.
        wrong = next((row.status for row in mine if row.status != "ok"), "")
        reasons.append(wrong)
        values.append(math.nan if wrong else sum(getattr(r, metric) for r in mine) / len(mine))
    ranked = [i for i, value in enumerate(values) if math.isfinite(value)]
    best = min(ranked, key=lambda i: values[i] if lower else -values[i], default=None)
    return MethodTrials(study.log.points[label], values, reasons, best)


def write_experiment(path: Path, table: Table, above: Sequence[str]) -> None:
    """Write an experiment file that `vergence run` accepts, after lines of comment."""
    # Whatever `vergence run` would refuse is refused here, before it is written.
    check(table)
    results.write_toml(path, table, above)


def in_words(point: Point) -> str:
    """Return a point's settings as text."""
    return ", ".join(f"{key} = {value}" for key, value in point.items())


def show(result: SweepResult, console: Console) -> None:
    """Print every method's winner, warnings, and the paths of the files.

    Raises:
        PartialRun: all trials of a method failed.
    """
    tuning = result.tuning
    lower = ", lower is better" if result.lower else ""
    count, seeds = len(tuning.people), plural(len(tuning.seeds), "seed")
    over = plural(count, "person")
    if result.unseen:
        others = plural(count - len(result.unseen), "other")
        over = f"{plural(len(result.unseen), 'unseen client')} of models trained on {others},"
    console.print(
        f"{metric_name(result.metric)} on validation data: mean over {over} and {seeds}{lower}; "
        f"{tuning.search} search, {plural(tuning.trials, 'trial')} of every method",
        style="bold",
        soft_wrap=True,
    )
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    grid.add_column("")
    for head in ("best", "median", "worst", "failed"):
        grid.add_column(head, justify="right", no_wrap=True)
    grid.add_column("best settings")
    warnings, lost = [], []
    for label, t in result.methods.items():
        values = sorted((v for v in t.values if math.isfinite(v)), reverse=not result.lower)
        if t.best is None:
            lost.append(f"{label} ({t.reasons[0].removeprefix('failed: ')})")
            values = [math.nan]
        # A trial's own value, and not a mean of two.
        middle = values[len(values) // 2]
        places = digits([values[0], middle])
        cells = [number(v, places) for v in (values[0], middle, values[-1])]
        point = {} if t.best is None else t.points[t.best]
        grid.add_row(label, *cells, str(sum(map(bool, t.reasons))), Text(in_words(point)))
        warnings += [f"{label}: {edge}" for edge in edges(result.sweep.spaces[label], point)]
    console.print(grid)
    for warning in warnings:
        console.print(f"edge: {warning}; a better one may lie beyond", soft_wrap=True, markup=False)
    written = {"trials": TRIALS, "figure": FIGURE, "best": BEST, "spent": SPENT}
    for what, name in written.items():
        if (result.out / name).exists():
            console.print(f"{what}: {result.out / name}", soft_wrap=True, markup=False)
    for line in result.privacy:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if lost:
        raise PartialRun(
            f"every trial failed of {', '.join(lost)}: no best settings of it are written; try "
            "other values in a new --out"
        )
