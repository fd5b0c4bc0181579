"""Protocol for one owner's teacher and the students it taught, seed by seed.

There is one owner, so that nothing is known about a spread over people. Source: the Durham thesis,
sections 5.4 and 6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from vergence.core.data import Samples
from vergence.core.serialization import pack
from vergence.data.owner import OWNER
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
from vergence.methods.generative.provider import Taught
from vergence.metrics.zero_shot import eszsl, zero_shot_scores
from vergence.results.read import Run
from vergence.training.sequential import Solver
from vergence_papers.claims import PRIOR, TablePart
from vergence_papers.data_sets import COSTS
from vergence_papers.running import PartResult, load_or_measure, priors_of, settle

TEACHER, CHANCE = "teacher", f"chance{PRIOR}"
"""Rows of who taught, and of somebody who guesses."""
NOTHING = f"nothing to find{PRIOR}"
"""The row of an attack on losses that have nothing to do with who was in."""
RIDGE, ESZSL = "ridge", "ESZSL"
"""Rows in closed form, which see the owner's samples: of all classes, or of seen ones."""
SECONDS, UP, DOWN, KEPT = (names[0] for names in COSTS.values())
MB = 1e6


def judged(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score students, and the teacher that answered the first of them, seed by seed.

    Beside them stand the closed forms that the part names among its rows. Priors are the same for
    every seed; that of the most frequent class is the first part's.
    """
    study = settle(experiment, out)
    metrics = study.runs[0].results["metrics"]
    scores = {
        run.label + part.suffix: {m: by_seed(run, m) for m in metrics} | costs(run)
        for run in study.runs
    }
    scores[TEACHER + part.suffix] = load_or_measure(
        out / "teacher.json", lambda: teachers(study.runs[0])
    )
    chance = priors_of(study)[CHANCE]
    scores[CHANCE] = {
        metric: {_seed(seed): people[OWNER] for seed in study.runs[0].seeds}
        for metric, people in chance.items()
    }
    closed = [name + part.suffix for name in (RIDGE, ESZSL) if name + part.suffix in part.rows]
    for label in closed:
        scores[label] = closed_form(study.runs[0], label.startswith(ESZSL))
    # Where the teacher knows no unseen classes, students learn these after the rounds.
    quasi = experiment.table["federation"].get("teacher") == "quasi"
    late = frozenset(run.label + part.suffix for run in study.runs if quasi)
    return PartResult(scores, study, closed=frozenset((*closed, TEACHER + part.suffix)), late=late)


def closed_form(run: Run, described: bool) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> scores of a closed form learned from the owner's own samples.

    That is ESZSL from the `described` classes, by the vectors of the run's method, or ridge
    regression to classes; of features of unit length, with lambda = gamma = 1, as nothing is tuned.
    """
    saved = read_run(run.folder, run.seeds[0])
    task, splits = saved.task, saved.ready.people[OWNER]
    learned = Samples.concatenate([splits.train, splits.val])
    x, test = (
        torch.nn.functional.normalize(task.inputs(part.take(torch.arange(len(part))))[0])
        for part in (learned, splits.test)
    )
    method = saved.method
    assert isinstance(method, Taught)
    # With a vector of its own for every class ESZSL is ridge regression.
    meaning = method.meanings(task)[0] if described else torch.eye(len(task.class_names()))
    output = test @ eszsl(x, learned.columns["y"], meaning, 1.0) @ meaning.T
    found = zero_shot_scores(output, splits.test.columns["y"], task.unseen_classes)
    return {metric: {_seed(seed): value for seed in run.seeds} for metric, value in found.items()}


def by_seed(run: Run, metric: str) -> dict[str, float]:
    """Return seed -> the final score of the owner's test samples."""
    own = run.final(metric)
    return dict(zip(map(_seed, own.seed), own.value, strict=True))


def costs(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what the student's training took, and what its provider keeps."""
    took = run.rounds[run.rounds["round"] > 0].drop_duplicates(["seed", "round"], keep="last")

    def of_seed(seed: int) -> dict[str, float]:
        own = run.turns[run.turns.seed == seed]
        return {
            SECONDS: sum(took.seconds[took.seed == seed].tolist()),
            UP: float(own.bytes_up.sum()) / MB,
            DOWN: float(own.bytes_down.sum()) / MB,
            KEPT: len(pack(read_run(run.folder, seed).server)) / MB,
        }

    return measured_by_seed(run, of_seed)


def teachers(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> scores and costs of the teacher that the owner kept.

    A teacher has no outputs for classes that it does not know.
    """
    before = run.rounds[run.rounds["round"] == 0]
    took = dict(zip(before.seed, before.seconds, strict=True))
    test = read_run(run.folder, run.seeds[0]).ready.people[OWNER].test

    def of_seed(seed: int) -> dict[str, float]:
        saved = read_run(run.folder, seed)
        owner = saved.clients.get(OWNER, None)
        output = Solver(saved.task).outputs(owner.teacher, test)
        scores = saved.task.metrics(
            saved.task.restrict_to_known(output, owner.known["classes"]), test
        )
        return {**scores, SECONDS: took[seed], KEPT: len(pack(owner)) / MB}

    return measured_by_seed(run, of_seed)


def measured_by_seed(
    run: Run, measure: Callable[[int], Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what is measured of a seed."""
    found: dict[str, dict[str, float]] = {}
    for seed in run.seeds:
        for metric, value in measure(seed).items():
            found.setdefault(metric, {})[_seed(seed)] = value
    return found


def _seed(seed: int) -> str:
    return f"seed {seed}"
