"""Protocol for membership in a teacher, and in the student it answered, seed by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vergence.attacks.membership import leave_one_out_ratios, random_halves
from vergence.attacks.score import tpr_at
from vergence.audit.membership import FPR, membership_record
from vergence.audit.teacher_membership import SAMPLES, STUDENT, shadow_losses
from vergence.audit.teacher_membership import TEACHER as TAUGHT
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import validate
from vergence_papers.claims import TablePart
from vergence_papers.data_sets import FOUND
from vergence_papers.running import PartResult, load_or_measure, priors_of
from vergence_papers.teachers import NOTHING, TEACHER, judged

MODELS = 8
"""Shadow runs of every seed, each of which is attacked in turn."""


def attacked(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score students and their teacher, and say how often members of the owner's data are found.

    The part has one method. Shadow runs are its experiment on random halves of the owner's samples,
    of seeds that no run has.
    """
    found = judged(part, experiment, out)
    rates = load_or_measure(out / "members.json", lambda: measured(experiment))
    (label,) = experiment.methods
    rows = {**priors_of(found.study), **found.scores}
    scores = {row: dict(metrics) for row, metrics in rows.items()}
    for row, who in ((TEACHER, TAUGHT), (label, STUDENT)):
        scores[row + part.suffix][FOUND] = {
            seed: 100 * told[who]["value"] for seed, told in rates.items()
        }
    scores[NOTHING] = {FOUND: {seed: blind(at) for at, seed in enumerate(rates)}}
    return PartResult(scores, found.study, lower=found.study.lower_is_better | {FOUND})


def measured(experiment: Experiment) -> dict[str, Any]:
    """Return the rates of teacher and student with their bounds, by seed."""
    ready, plan = validate(experiment).ready, experiment.plan
    rates = {}
    for at, seed in enumerate(plan.seeds):
        seen = shadow_losses(experiment, ready, MODELS, max(plan.seeds) + 1 + at * MODELS)
        rates[f"seed {seed}"] = {
            who: membership_record(f"was this sample in, by the {who}", *seen.ratios(who))
            for who in (TAUGHT, STUDENT)
        }
    return rates


def blind(seed: int) -> float:
    """Result of the attack where there is nothing to find, in percent.

    With few runs that is less than the false alarms: every sample is in half of the runs, so that
    the attacked one is missing on its own side, and is a little further from its mean.
    """
    inside = random_halves(SAMPLES, MODELS, seed)
    losses = torch.randn(inside.shape, generator=torch.Generator().manual_seed(seed)).exp()
    scores, truth = zip(*leave_one_out_ratios(losses, inside), strict=True)
    return 100 * tpr_at(torch.cat(truth), torch.cat(scores), FPR)[0].value


PROTOCOLS = {"members": attacked}
