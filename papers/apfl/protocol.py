"""Ways to judge models of images: by own and pooled tests, of who was away, and friends alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.methods.generative.ap_fl import mix_models
from vergence.results.read import Run, StudyResults
from vergence.results.verdict_rules import count_test_images
from vergence_papers.claims import PRIOR, TablePart
from vergence_papers.data_sets import FRIENDS
from vergence_papers.running import PartResult, load_or_measure, settle

OWN, POOLED = "accuracy", "pooled_accuracy"
PRESENT_OWN, PRESENT_POOLED, ABSENT_OWN, ABSENT_POOLED = (names[0] for names in FRIENDS.values())
MOST = "own most frequent"
AWAY = "p008"
"""Device 8 of Table 3.1, who alone has the last classes."""
OWN_MODEL, FRIEND = "ap_fl beta 0", "ap_fl beta 1"
"""Rows of the client's own model and of the friend alone, from the run of `ap_fl`."""
MIXED = {OWN_MODEL: 0.0, "ap_fl beta 0.5": 0.5, FRIEND: 1.0}
"""Row -> share of the friend, besides the method's own."""

Cells = dict[tuple[int, str, str], float]
"""(seed, person, metric) -> value."""


def measured(run: Run) -> Cells:
    """Return both accuracies of everybody's final model."""
    own = run.final(OWN, POOLED)
    return dict(zip(zip(own.seed, own.person, own.metric, strict=True), own.value, strict=True))


def befriended(run: Run, experiment: Experiment, shares: Mapping[str, float]) -> dict[str, Cells]:
    """Return row -> both accuracies of AP-FL with other shares of the friend, from its states."""
    ready = validate(experiment).ready
    found: dict[str, Cells] = {row: {} for row in shares}
    for seed in run.seeds:
        saved = read_run(run.folder, seed).on_data(ready)
        measure = saved.executor.measure
        for person in ready.clients:
            state = saved.clients.get(person, None)
            for row, share in shares.items():
                model = mix_models(state.mine, state.friend, share)
                scores = {**measure.own(model, person), **measure.pooled(model)}
                found[row] |= {(seed, person, metric): scores[metric] for metric in (OWN, POOLED)}
    return found


def every_row(
    part: TablePart, experiment: Experiment, out: Path, study: StudyResults
) -> dict[str, Cells]:
    """Return all rows with both accuracies, AP-FL's with other shares of the friend among them."""
    found = {}
    for run in study.runs:
        found[run.label] = measured(run)
        if run.method == "ap_fl" and part.rows:
            found |= measured_cells(
                out / "shares.json", partial(befriended, run, experiment, MIXED)
            )
    return found


def measured_cells(path: Path, measure: Callable[[], dict[str, Cells]]) -> dict[str, Cells]:
    """Return rows that were measured before, or measure them and write them down."""
    told = load_or_measure(
        path,
        lambda: {
            row: [[*key, value] for key, value in cells.items()] for row, cells in measure().items()
        },
    )
    return {
        row: {(seed, person, metric): value for seed, person, metric, value in cells}
        for row, cells in told.items()
    }


def over_people(cells: Cells, metric: str, people: Sequence[str]) -> dict[str, float]:
    """Return person -> mean over seeds."""
    return {
        who: float(np.mean([v for (_, p, m), v in cells.items() if p == who and m == metric]))
        for who in people
    }


def over_seeds(cells: Cells, metric: str, people: Sequence[str]) -> dict[str, float]:
    """Return seed -> mean over these people's models.

    A common model has one pooled score, whoever holds it: over people there is no spread.
    """
    seeds = dict.fromkeys(seed for seed, _, _ in cells)
    return {
        f"seed {seed}": float(
            np.mean(
                [v for (s, p, m), v in cells.items() if s == seed and p in people and m == metric]
            )
        )
        for seed in seeds
    }


def both_tests(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on own images, person by person, and on pooled ones, seed by seed."""
    study = settle(experiment, out)
    scores = {
        row + part.suffix: {
            OWN: over_people(cells, OWN, study.runs[0].people),
            POOLED: over_seeds(cells, POOLED, study.runs[0].people),
        }
        for row, cells in every_row(part, experiment, out, study).items()
    }
    scores[f"{MOST}{part.suffix}{PRIOR}"] = {
        OWN: {person: told[OWN] for person, told in study.priors[MOST].items()},
        POOLED: constant(study, POOLED, study.runs[0].people),
    }
    return PartResult(
        scores,
        study,
        lower=study.lower_is_better,
        images={POOLED: count_test_images(study.runs[0], POOLED)},
    )


def constant(study: StudyResults, metric: str, people: Sequence[str]) -> dict[str, float]:
    """Return seed -> mean over people of always answering with the own most frequent class."""
    mean = float(np.mean([study.priors[MOST][person][metric] for person in people]))
    return {f"seed {seed}": mean for seed in study.runs[0].seeds}


def absent(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score who was away while others trained, and is back, seed by seed."""
    study = settle(experiment, out)
    scores = {
        row + part.suffix: {metric: over_seeds(cells, metric, [AWAY]) for metric in (OWN, POOLED)}
        for row, cells in every_row(part, experiment, out, study).items()
    }
    scores[f"{MOST}{part.suffix}{PRIOR}"] = {
        metric: constant(study, metric, [AWAY]) for metric in (OWN, POOLED)
    }
    images = {POOLED: count_test_images(study.runs[0], POOLED)}
    return PartResult(scores, study, lower=study.lower_is_better, images=images)


def friends(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score friends alone, those of people who took part and those of who was away."""
    study = settle(experiment, out)
    scores = {}
    for run in [run for run in study.runs if run.method == "ap_fl"]:
        path = out / f"{run.label}.json"
        found = measured_cells(path, partial(befriended, run, experiment, {FRIEND: 1.0}))[FRIEND]
        away = set(experiment.plan.presence.back)
        there = [person for person in run.people if person not in away]
        by_metric = {
            PRESENT_OWN: over_people(found, OWN, there),
            PRESENT_POOLED: over_seeds(found, POOLED, there),
        }
        if away:
            by_metric |= {
                ABSENT_OWN: over_seeds(found, OWN, sorted(away)),
                ABSENT_POOLED: over_seeds(found, POOLED, sorted(away)),
            }
        scores[run.label + part.suffix] = by_metric
    return PartResult(scores, study, lower=study.lower_is_better)


PROTOCOLS = {"both_tests": both_tests, "absent": absent, "friends": friends}
