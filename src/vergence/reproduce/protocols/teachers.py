"""Protocol for one owner's teacher and the students it taught, seed by seed.

There is one owner, so that nothing is known about a spread over people. Source: the Durham thesis,
sections 5.4 and 6.4.
"""

from __future__ import annotations

from pathlib import Path

from vergence.core.serialization import pack
from vergence.data.zero_shot.owner import OWNER
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import read_run
from vergence.reproduce.claims import TablePart
from vergence.reproduce.data_sets import COSTS
from vergence.reproduce.outcome import PRIOR
from vergence.reproduce.protocols.defences import kept
from vergence.reproduce.running import PartResult, priors_of, settle
from vergence.results.read import Run
from vergence.training.sequential import Solver

TEACHER, CHANCE = "teacher", f"chance{PRIOR}"
"""Rows of who taught, and of somebody who guesses."""
SECONDS, UP, DOWN, KEPT = (names[0] for names in COSTS.values())
MB = 1e6


def judged(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score students, and the teacher that answered the first of them, seed by seed.

    Priors are the same for every seed; that of the most frequent class is the first part's.
    """
    study = settle(experiment, out)
    metrics = study.runs[0].results["metrics"]
    scores = {
        run.label + part.suffix: {m: by_seed(run, m) for m in metrics} | costs(run)
        for run in study.runs
    }
    scores[TEACHER + part.suffix] = kept(out / "teacher.json", lambda: teachers(study.runs[0]))
    chance = priors_of(study)[CHANCE]
    scores[CHANCE] = {
        metric: {_seed(seed): people[OWNER] for seed in study.runs[0].seeds}
        for metric, people in chance.items()
    }
    return PartResult(scores, study)


def by_seed(run: Run, metric: str) -> dict[str, float]:
    """Return seed -> the final score of the owner's test samples."""
    return {
        _seed(row.seed): row.value
        for row in run.values
        if row.metric == metric and row.evaluation == "P0"
    }


def costs(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> what the student's training took, and what its provider keeps."""
    took = {(row.seed, row.round): row.seconds for row in run.rounds if row.round}
    found: dict[str, dict[str, float]] = {SECONDS: {}, UP: {}, DOWN: {}, KEPT: {}}
    for seed in run.seeds:
        own = [turn for turn in run.turns if turn.seed == seed]
        told = (
            sum(spent for (of, _), spent in took.items() if of == seed),
            sum(turn.bytes_up for turn in own) / MB,
            sum(turn.bytes_down for turn in own) / MB,
            len(pack(read_run(run.folder, seed).server)) / MB,
        )
        for metric, value in zip(found, told, strict=True):
            found[metric][_seed(seed)] = value
    return found


def teachers(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> seed -> scores and costs of the teacher that the owner kept.

    A teacher has no outputs for classes that it does not know.
    """
    took = {row.seed: row.seconds for row in run.rounds if not row.round}
    test = read_run(run.folder, run.seeds[0]).ready.people[OWNER].test
    found: dict[str, dict[str, float]] = {}
    for seed in run.seeds:
        saved = read_run(run.folder, seed)
        owner = saved.clients.get(OWNER, None)
        output = Solver(saved.task).outputs(owner.teacher, test)
        told = saved.task.metrics(saved.task.among(output, owner.known["classes"]), test)
        spent = {SECONDS: took[seed], KEPT: len(pack(owner)) / MB}
        for metric, value in (told | spent).items():
            found.setdefault(metric, {})[_seed(seed)] = value
    return found


def _seed(seed: int) -> str:
    return f"seed {seed}"
