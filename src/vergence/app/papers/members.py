"""Whether samples are found in a teacher, and in the student it answered, seed by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vergence.app.audit_members import FPR, line
from vergence.app.audit_taught import STUDENT, remembered
from vergence.app.audit_taught import TEACHER as TAUGHT
from vergence.app.config import Experiment
from vergence.app.papers.base import Part
from vergence.app.papers.defended import kept
from vergence.app.papers.grounds import FOUND
from vergence.app.papers.outcome import PRIOR
from vergence.app.papers.pezsl import TEACHER, judged
from vergence.app.papers.running import Result, priors_of
from vergence.app.run import load_data

MODELS = 8
"""Shadow runs of every seed, each of which is attacked in turn."""


def attacked(part: Part, experiment: Experiment, out: Path) -> Result:
    """Score students and their teacher, and say how often members of the owner's data are found.

    The part has one method. Shadow runs are its experiment on random halves of the owner's samples,
    of seeds that no run has.
    """
    found = judged(part, experiment, out)
    rates = kept(out / "members.json", lambda: measured(experiment))
    (label,) = experiment.methods
    rows = {**priors_of(found.study), **found.scores}
    scores = {row: dict(metrics) for row, metrics in rows.items()}
    for row, who in ((TEACHER, TAUGHT), (label, STUDENT)):
        scores[row + part.suffix][FOUND] = {
            seed: 100 * told[who]["value"] for seed, told in rates.items()
        }
    scores[f"chance{PRIOR}"][FOUND] = dict.fromkeys(rates, 100 * FPR)
    return Result(scores, found.study, lower=found.study.lower_is_better | {FOUND})


def measured(experiment: Experiment) -> dict[str, Any]:
    """Return the rates of teacher and student with their bounds, by seed."""
    ready, plan = load_data(experiment).ready, experiment.plan
    rates = {}
    for at, seed in enumerate(plan.seeds):
        seen = remembered(experiment, ready, MODELS, max(plan.seeds) + 1 + at * MODELS)
        rates[f"seed {seed}"] = {
            who: line(f"was this sample in, by the {who}", *seen.asked(who))
            for who in (TAUGHT, STUDENT)
        }
    return rates


PROTOCOLS = {"members": attacked}
"""Protocol -> how a part is run under it."""
