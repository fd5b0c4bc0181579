"""Running a part of a table: its experiment, its protocol, and the scores that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from vergence.core.files import parse_json
from vergence.data.io.checks import data_path
from vergence.data.zero_shot.semantics import meanings
from vergence.errors import ConfigError, StateError, VergenceError
from vergence.experiment.registry import modules
from vergence.experiment.run import resume, start
from vergence.experiment.schema import (
    KEYS,
    Experiment,
    Table,
    check,
    merge,
    method_tables,
    override,
    read,
)
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.results.read import Run, StudyResults
from vergence.results.read import read as read_study
from vergence.results.write import write_json
from vergence.studies import protocols
from vergence.studies.protocols import StudyScene
from vergence_papers.claims import OTHERS, OWN, Protocol, Scores, TableHead, TablePart
from vergence_papers.data_sets import GROUNDS, Ground

SEEDS = 5
"""Of a run that is not stamped fast."""
SIZES = {"run.seeds": "--seeds", "run.rounds": "--rounds"}
"""Settings with an option of their own; others, such as when to measure, follow from these."""


@dataclass(frozen=True)
class Wish:
    """Options given to the command.

    Attributes:
        root: folder of the data set; None for its usual place.
        seeds: how many; of data with replicates how many of these, from the first. None for all.
        rounds: None for the data set's own number.
        sets: `a.b=c` overrides, for every part alike.
    """

    root: str | None = None
    seeds: int | None = None
    rounds: int | None = None
    sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} must be 1 or more; got {value}")


@dataclass(frozen=True)
class Planned:
    """A part's experiment, and its rows that cannot run here or must not be judged, and why.

    `replicates` are the experiments that it is run as instead, by name, and `unit` what their
    names' parts before a slash are; `experiment` is then the first of them.
    """

    part: TablePart
    experiment: Experiment | None
    missing: Mapping[str, str]
    barred: Mapping[str, str]
    replicates: Mapping[str, Experiment] = field(default_factory=dict)
    unit: str = "seed"


@dataclass(frozen=True)
class PartResult:
    """Result of a protocol: scores of its rows; runs, and a person matrix, where it has them.

    `matrix` is `[trained on, tested on]`, seeds averaged, in the order of `people`. `lower` are
    metrics where less is better, of scores that the runs do not have; their priors do not count.
    `images` are those of a test that all rows share, by metric. `facts` are numbers about the runs
    that no claim is about: column -> label -> person -> value, seeds averaged within a person.
    `closed` are rows in closed form, and teachers, which have no rounds; `base` is the row of the
    common model after the last round, where methods go on from it; `late` are rows that learn most
    in a step after the rounds, so that their curves say nothing; `others` are the studies of
    further replicates.
    """

    scores: Scores
    study: StudyResults
    matrix: NDArray[np.float64] | None = None
    people: tuple[str, ...] = ()
    lower: frozenset[str] = frozenset()
    images: Mapping[str, int] = field(default_factory=dict)
    facts: Scores = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    base: str = ""
    late: frozenset[str] = frozenset()
    others: tuple[StudyResults, ...] = ()

    def runs(self, label: str) -> list[Run]:
        """Return the runs of a method in all replicates."""
        return [r for study in (self.study, *self.others) for r in study.runs if r.label == label]


class UntrainedTable(TableHead):
    """A table that no training is behind.

    Attributes:
        uses_data: True if it is made of a data set; else of the methods' declarations.
    """

    uses_data: ClassVar[bool]

    def write(self, where: Ground | None, wish: Wish, folder: Path, console: Console) -> None:
        """Print the table, and write verdicts.json and a page."""
        raise NotImplementedError


def plan(part: TablePart, ground: Ground, wish: Wish) -> Planned:
    """Build and check the experiment of a part.

    Raises:
        ConfigError: an override or folder that cannot be used.
    """
    entries = part.entries(ground)
    name = {id(e): part.named(e) for e in entries}
    above = part.over(ground)
    unknown = [key for key in above if key not in KEYS]
    if unknown:
        missing = dict.fromkeys(name.values(), f"this version has no '{unknown[0]}' setting")
    elif part.protocol not in get_args(Protocol):
        reason = f"this version has no protocol '{part.protocol}'"
        missing = dict.fromkeys(name.values(), reason)
    elif part.classes and part.classes >= (there := ground.values["classes"]):
        reason = f"{ground.name} has {there} class{'es' if there > 1 else ''} in all"
        missing = dict.fromkeys(name.values(), reason)
    elif lacks := [what for value, what in part.needs.items() if value not in ground.values]:
        missing = dict.fromkeys(name.values(), f"{ground.name} has no {lacks[0]}")
    else:
        missing = {
            name[id(e)]: f"this version has no method '{e['name']}'"
            for e in entries
            if e["name"] not in modules("methods")
        }
        missing |= {name[id(e)]: why for e in entries if (why := unreadable(e, ground))}
    if ground.omitted:
        every = map(part.named, part.methods)
        missing |= {label: ground.omitted for label in every if label not in name.values()}
    there = [e for e in entries if name[id(e)] not in missing]
    if not there:
        return Planned(part, None, missing, {})
    rounds = wish.rounds or part.rounds(ground)
    table = merge(
        deepcopy(dict(ground.table)),
        {
            "methods": there,
            "run": {
                "rounds": rounds,
                "seeds": [0] if ground.replicates else list(range(wish.seeds or SEEDS)),
                "evaluate_every": max(1, rounds // 5),
            },
        },
    )
    table = merge(table, above)
    table["run"]["rounds"] = rounds
    if folder := root(ground, wish):
        table = merge(table, {"federation": {"root": folder}})
    for item in wish.sets:
        override(table, item)
    if above.get("local", {}).get("epochs", 1) > 1 and table["local"].get("steps"):
        raise ConfigError(
            f"{part.name} has local epochs of its own, and local.steps is taken instead of epochs; "
            "leave out --set local.steps"
        )
    wanted = list(ground.replicates.items())[: wish.seeds]
    replicates = {each: check(merge(table, settings)) for each, settings in wanted}
    first = next(iter(replicates.values()), None) or check(table)
    return Planned(part, first, missing, unfilled(table, part.suffix), replicates, ground.unit)


def unreadable(entry: Table, ground: Ground) -> str:
    """Reason why vectors of a data set's class names cannot be had here; "" where they can.

    Not of files in folders of data sets, which are there where their data set is.
    """
    source = entry.get("semantics", "/")
    if "/" in source or not ground.classes:
        return ""
    try:
        meanings(ground.classes, source, entry.get("prompt", "{}"))
    except VergenceError as error:
        return str(error).replace(data_path(source), source)  # reports travel, machines do not
    return ""


def root(ground: Ground, wish: Wish) -> str | None:
    """Return the folder of a data set, None where it needs none.

    Raises:
        ConfigError: it needs one that was not named, or has none.
    """
    if ground.root == "":
        if wish.root:
            fit = [
                g.name
                for g in GROUNDS.values()
                if g.root != "" and set(ground.papers) <= set(g.papers)
            ]
            raise ConfigError(
                f"{ground.name} is generated and reads no files: say which data DIR holds with "
                f"--on ({', '.join(fit)}), or drop --root"
            )
        return None
    folder = wish.root or ground.root
    if not folder:
        raise ConfigError(
            f"{ground.name} needs --root DIR, the licence holder's copy: "
            f"`vergence data check {ground.name} --root DIR` says what must be there"
        )
    return folder


def unfilled(table: Table, suffix: str = "") -> dict[str, str]:
    """Return the rows whose masks cannot reach the share asked for, and why."""
    rounds = table["run"]["rounds"]
    found = {}
    for entry in method_tables(table):
        rate, limit = entry.get("rate"), entry.get("limit")
        if rate and limit and rate * rounds < limit - 1e-9:
            label = entry.get("label", entry["name"]) + suffix
            found[label] = (
                f"{rounds} rounds of {rate:g} fill {rate * rounds:.0%} of the model, not the "
                f"{limit:.0%} asked for; take more rounds"
            )
    return found


def settle(experiment: Experiment, out: Path) -> StudyResults:
    """Run an experiment, or go on with it; what is finished is left as it is.

    Raises:
        StateError: the folder holds an experiment with other settings.
    """
    if (out / "config.toml").exists():
        _same(out, experiment.table)
        resume(experiment, out)
    else:
        start(experiment, out)
    return read_study(out)


def _same(out: Path, wanted: Table) -> None:
    had, now = (_bits(table) for table in (read(out / "config.toml"), wanted))
    for key in (*SIZES, *sorted({*had, *now})):
        then = had.get(key)
        if then != now.get(key):
            count = len(then) if isinstance(then, list) else then
            again = f"{SIZES[key]} {count}" if key in SIZES else "the same"
            raise StateError(
                f"{out} was begun with other settings ({key}: {then}, now {now.get(key)}), and one "
                f"--out holds one setting: choose another --out, or ask for {again} again"
            )


def _bits(table: Table, above: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            flat |= _bits(value, f"{name}.")
        elif name not in ("run.workers", "run.engine"):
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat


def within(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on their own held-out data."""
    study = settle(experiment, out)
    return PartResult(scores_of(study, part.suffix), study)


def scores_of(study: StudyResults, suffix: str = "") -> dict[str, dict[str, dict[str, float]]]:
    """Return label -> metric -> person -> value of finished runs."""
    return {
        run.label + suffix: {m: run.scores(m) for m in run.results["metrics"]} for run in study.runs
    }


def priors_of(study: StudyResults) -> dict[str, dict[str, dict[str, float]]]:
    """Return label -> metric -> person -> value of the predictors that need no learning."""
    return {
        f"{prior} (prior)": {
            metric: {p: told[metric] for p, told in people.items()}
            for metric in next(iter(people.values()))
        }
        for prior, people in study.priors.items()
    }


def matrix(_: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score every person's local-only model on every person.

    A row `others` has, for each person tested, the mean over the models of all others.
    """
    study = settle(experiment, out)
    folder, metric = study.runs[0].folder, study.headline
    first, *more = (read_run(folder, seed) for seed in experiment.plan.seeds)
    ready = first.ready
    people = tuple(ready.clients)
    if len(people) < 2:
        raise ConfigError("a person matrix needs at least two people; take more")
    errors = np.mean(
        [
            [metrics[metric] for _, _, metrics in saved.on_data(ready).matrix(people, people)]
            for saved in (first, *more)
        ],
        axis=0,
    ).reshape(len(people), len(people))
    others = np.where(np.eye(len(people), dtype=bool), np.nan, errors)
    scores = {
        OWN: {metric: dict(zip(people, map(float, np.diag(errors)), strict=True))},
        OTHERS: {metric: dict(zip(people, map(float, np.nanmean(others, 0)), strict=True))},
    }
    return PartResult(scores, study, errors, people)


def left_out(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody with models that were trained without them."""
    for config in sorted((out / protocols.LEAVE / "folds").glob("*/config.toml")):
        _same(config.parent, experiment.table)
    scene = StudyScene(experiment, validate(experiment), out, Console(stderr=True))
    folds = part.folds if part.folds < len(scene.people) else 0
    folder = protocols.leave_one_out(replace(scene, folds=folds))
    study = read_study(folder)
    return PartResult(scores_of(study, part.suffix), study)


def load_or_measure(path: Path, measure: Callable[[], Any]) -> Any:
    """Load an earlier measurement, or measure it and write it down."""
    if not path.is_file():
        write_json(path, measure())
    return parse_json(path.read_text(encoding="utf-8"))
