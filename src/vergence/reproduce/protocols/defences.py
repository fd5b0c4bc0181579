"""Protocols for defences: their cost, what they leave to an attacker, and liars behind them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from vergence.audit.smashed_data import left_over, sends_smashed
from vergence.core.files import parse_json
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment.schema import Experiment, check, merge
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.reproduce.claims import TablePart
from vergence.reproduce.data_sets import DEFENDED
from vergence.reproduce.running import PartResult, priors_of, settle
from vergence.results.read import Run
from vergence.results.write import write_json

SECONDS, SENT, FOUND, EPSILON, LIED = (names[0] for names in DEFENDED.values())
LOWER = frozenset({SECONDS, SENT, EPSILON, LIED})
MEAN_PICTURE = "mean picture of the others (prior)"
"""The row of an attacker who looks at nothing that was sent."""
PACED = 6
"""Rounds that are timed, between one that warms up and one that also measures everybody.

Verdicts on time are over these, not over people.
"""
VICTIMS = 5
UNITS = ("person", "sample", "picture", "pixel")
LIARS: Mapping[str, Any] = {"attack": "sign_flip", "factor": 4.0, "share": 0.2}


def attacked(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody, and say what a round cost and what an attacker made of people's pictures.

    The attacker is the inverse network on the first seed's run, and the first few are its victims.
    """
    study = settle(experiment, out)
    (run,) = study.runs
    costs = kept(out / "costs.json", lambda: measured(experiment, run))
    rounds = kept(out / "seconds.json", lambda: seconds(experiment))
    sent = sum(run.results["bytes"].values()) / 1024
    by_metric = beside(run) | {
        SECONDS: {f"round {number}": took for number, took in enumerate(rounds, 2)},
        SENT: dict.fromkeys(run.people, sent),
    }
    scores = {run.label + part.suffix: by_metric, **priors_of(study)}
    if costs["found"]:
        by_metric[FOUND] = costs["found"]
        scores[MEAN_PICTURE] = {FOUND: costs["mean"]}
    return PartResult(scores, study, lower=LOWER | study.lower_is_better)


def lied_to(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody where all are honest, and once more where a fifth turns updates round."""
    study = settle(experiment, out)
    liars = settle(check(merge(experiment.table, {"poison": dict(LIARS)})), out / "liars")
    scores = {
        run.label + part.suffix: beside(run) | {LIED: liars.run(run.label).scores(study.headline)}
        for run in study.runs
    }
    return PartResult(scores, study, lower=LOWER | study.lower_is_better)


def beside(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> person -> value, and the epsilon of the largest unit that has one."""
    found = {metric: run.scores(metric) for metric in run.results["metrics"]}
    told = run.results.get("privacy", {})
    spent = [float(told[unit]["epsilon"]) for unit in UNITS if unit in told]
    if spent:
        found[EPSILON] = dict.fromkeys(run.people, spent[0])
    return found


def measured(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Return each victim's MSE (x 1000): found, and by the mean."""
    ready = validate(experiment).ready
    (method,) = experiment.methods.values()
    saved = read_run(run.folder)
    victims = run.people[:VICTIMS] if sends_smashed(method) else []
    found = {person: left_over(saved, ready, person) for person in victims}
    return {
        "found": {person: 1000 * mine for person, (mine, _) in found.items()},
        "mean": {person: 1000 * mean for person, (_, mean) in found.items()},
    }


def seconds(experiment: Experiment) -> list[float]:
    """Return the CPU seconds of some rounds, server and clients all in this process.

    Messages travel as bytes, so that sums are held by their protocols; sums of groups, which have
    none in one process, are simulated.
    """
    secure = experiment.plan.privacy.aggregation
    engine = "simulator" if secure is not None and secure.groups else "bytes"
    plan = replace(
        experiment.plan,
        rounds=PACED + 2,
        engine=engine,
        workers=1,
        evaluate_every=0,
        points=("P0",),
    )
    (method,) = experiment.methods.values()
    ticks: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunDirectory(Path(place), {"config": "", "code": "", "data": ""})
        folder.open()
        run_rounds(
            method,
            experiment.task(plan.seeds[0]),
            validate(experiment).ready,
            plan,
            folder,
            lambda *_: ticks.append(time.process_time()),
        )
    return [b - a for a, b in pairwise(ticks)][1:-1]


def kept(path: Path, measure: Callable[[], Any]) -> Any:
    """Load an earlier measurement, or measure it and write it down."""
    if not path.is_file():
        write_json(path, measure())
    return parse_json(path.read_text(encoding="utf-8"))
