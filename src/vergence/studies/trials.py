"""Trials of a sweep, which are trained and scored without test data, and their log.

Used by `studies.sweep` and `studies.sweep_figure`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation
from vergence.engine.round_loop import Tick, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import DataError, PartialRun, StateError
from vergence.experiment import provenance
from vergence.experiment.privacy.register import RegisteredRun
from vergence.experiment.schema import Experiment, Table, build_method
from vergence.experiment.search_space import Point
from vergence.experiment.starting_model import refuse_overlap
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import Loaded
from vergence.metrics.intervals import with_number
from vergence.privacy.hooks import ProtectedRun
from vergence.results import write as results
from vergence.results.divergence import NOT_FINITE
from vergence.results.layout import OUTCOME, TRIAL
from vergence.results.read import table, text_rows


class TrialOutcome(NamedTuple):
    """Outcome of one trial of one seed; `score` and `headline` are means over people."""

    score: float
    headline: float
    seconds: float
    status: str = "ok"


@dataclass(frozen=True)
class MethodTrials:
    """One method's trials: settings, values (NaN: failed), reasons of failure, and the best."""

    points: Sequence[Point]
    values: Sequence[float]
    reasons: Sequence[str]
    best: int | None


@dataclass(frozen=True)
class LoadedDataset(Dataset):
    """A federation that is in memory already."""

    federation: Federation

    def load(self, root: str | None = None) -> Federation:
        """Return the federation."""
        return self.federation


class Log:
    """The file trials.csv, with a line per method, trial and seed as soon as it is finished.

    Raises:
        StateError: an existing file belongs to another sweep, or is damaged.
    """

    def __init__(self, path: Path, points: Mapping[str, Sequence[Point]]) -> None:
        self.path, self.points = path, points
        every = [point for tried in points.values() for point in tried]
        self.settings = list(dict.fromkeys(key for point in every for key in point))
        self.rows: dict[tuple[str, int, int], TrialOutcome] = {}
        if path.is_file():
            self._read()

    def _read(self) -> None:
        if text_rows(self.path)[:1] != [[*TRIAL, *self.settings, *OUTCOME]]:
            raise StateError(
                f"{self.path} is damaged (other columns); restore it, or sweep into another --out"
            )
        for label, trial, seed, *row in table(self.path, *TRIAL, *OUTCOME).itertuples(index=False):
            self.rows[label, trial, seed] = TrialOutcome(*row)

    def add(self, label: str, trial: int, seed: int, outcome: TrialOutcome) -> None:
        """Write the outcome of one more trial."""
        self.rows[label, trial, seed] = outcome
        rows = []
        for key, each in self.rows.items():
            point = self.points[key[0]][key[1]]
            settings = [point.get(name, "") for name in self.settings]
            numbers = (repr(each.score), repr(each.headline), f"{each.seconds:.3f}")
            rows.append((*key, *settings, *numbers, each.status))
        results.write_csv(self.path, (*TRIAL, *self.settings, *OUTCOME), rows)


@dataclass(frozen=True)
class TrialStudy:
    """A running sweep: the experiment as trials run it, its data, every trial's method, the log.

    `unseen` are the people on whom no trial trains; if there are any, trials are scored on them.
    """

    out: Path
    experiment: Experiment
    loaded: Loaded
    stamp: Mapping[str, str]
    entries: Mapping[str, Sequence[Table]]
    log: Log
    unseen: Sequence[str] = ()


def on_validation(experiment: Experiment) -> Experiment:
    """Return the experiment as trials see it: with the people of the sweep, and no test data.

    Every second validation sample remains validation data, by which methods make decisions; the
    others take the place of test data, to be scored.

    Raises:
        DataError: a person has no two validation samples.
    """
    chosen = experiment.sweep
    assert chosen is not None
    torch.set_num_threads(1)
    federation = experiment.federation(tested=False)
    plan = experiment.plan
    plan.presence.check(federation.clients)
    plan.delivery.check_clients(federation.clients)
    people = {}
    taking_part = chosen.participants(federation.clients)
    unseen = chosen.unseen_people(taking_part)
    refuse_overlap(experiment.model.start, federation.name, unseen)
    for person in taking_part:
        splits = federation.people[person]
        if (count := len(splits.val)) < 2:
            raise DataError(
                f"sweep: person '{person}' has {count} validation samples, and 2 are needed: one "
                "to steer by, one to score; name other sweep.people"
            )
        # Alternately: halves would be of different parts of a recording.
        steer, score = (splits.val.subset(torch.arange(i, count, 2)) for i in (0, 1))
        if person in unseen:
            # Nothing is decided on them: thresholds are fitted to those who train.
            score = splits.val
        people[person] = Splits(splits.train, steer, score)
    training = people.keys() - unseen
    gone = {client: since for client, since in plan.presence.gone.items() if client in training}
    # A trial is scored once, at its end, on everybody: other measurements would cost time, but for
    # those by which early stopping ends a run. They are of the samples to steer by.
    plan = replace(
        plan,
        seeds=chosen.seeds or plan.seeds,
        points=("P0",),
        evaluate_every=plan.needed_evaluations,
        evaluate_people=0,
        presence=replace(plan.presence, gone=gone),
    )
    return replace(
        experiment.on_dataset(LoadedDataset(replace(federation, people=people))), plan=plan
    )


def run_trial(study: TrialStudy, entry: Table, seed: int, path: Path, tick: Tick) -> TrialOutcome:
    """Run one trial with one seed, and score it; a trial that cannot be finished has failed."""
    experiment = study.experiment
    task = experiment.task(seed)
    _, method = build_method(entry, experiment.table.get("local", {}))
    base = {k: v for k, v in experiment.table.items() if k not in ("methods", "sweep")}
    sha = provenance.config_digest({**base, "method": entry}, experiment.plan.presence.trace)
    folder = RunDirectory(path, {**study.stamp, "config": sha})
    folder.open()
    names = ("score", task.headline)
    trained_on = [p for p in study.loaded.ready.clients if p not in study.unseen]
    try:
        method.check(task)
        # An interruption after the last round leaves only the scoring to do.
        if str(seed) not in folder.manifest["done"]:
            plan, some = experiment.plan, study.loaded.ready.only(trained_on)
            run = ProtectedRun(method, task, some, plan.rounds, folder.state)
            with RegisteredRun(plan, study.loaded.raw.only(trained_on)).counting(run):
                run_rounds(method, task, federation=some, plan=plan, folder=folder, tick=tick)
        people: Mapping[str, Mapping[str, float]] = results.person_means(path)
        wrong = diverged(path, people, names)
        if study.unseen:
            one = replace(experiment, methods={"": method})
            trained = read_run(path, seed, one).on_data(study.loaded.ready)
            scores = {p: trained.unseen_client(p, trained_on)["P0"] for p in study.unseen}
            people = {name: {p: own[name] for p, own in scores.items()} for name in names}
            wrong = wrong or diverged(path, people, names)
    # Damaged files and interruptions are not the settings' fault.
    except (StateError, PartialRun):
        raise
    # Settings may break a method or a network anywhere; the sweep goes on with the next ones.
    except Exception as error:
        people, wrong = {}, f"{type(error).__name__}: {first_or_last_line(error)}"
    spent = results.seconds(path)
    if wrong:
        return TrialOutcome(math.nan, math.nan, spent, f"failed: {wrong}")
    score, headline = (float(np.mean(with_number(people[name].values()))) for name in names)
    return TrialOutcome(score, headline, spent)


def first_or_last_line(error: Exception) -> str:
    """Return the line of an error that says what happened."""
    # A worker sends its whole traceback, whose last line is the error.
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def diverged(
    path: Path, people: Mapping[str, Mapping[str, float]], metrics: Sequence[str]
) -> str | None:
    """Return evidence that training diverged; None if it did not.

    A single NaN is no evidence: a metric may not be defined for a person's samples.
    """
    for metric in metrics:
        for person, value in people[metric].items():
            if math.isinf(value) or not any(np.isfinite([*people[metric].values()])):
                return f"{metric} of '{person}' is {value}"
    status = table(path / "turns.csv").status
    lost = status.str.startswith(NOT_FINITE).sum()
    return f"{lost} of {len(status)} replies held NaN or infinity" if lost else None
