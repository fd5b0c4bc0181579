"""Notes on people with an undefined metric, or for whom training diverged.

Used by `api.comparison`, `api.finished_run`, `cli.runs` and `studies.trials`.
"""

from __future__ import annotations

import math

from vergence.core.naming import plural
from vergence.results.read import Run

NOT_FINITE = "quarantined: finite"
"""First words of a turn's status in turns.csv if its reply held NaN or infinity."""
SHOWN = 5
"""Largest number of people that a line names."""


def divergence_notes(run: Run) -> list[str]:
    """Return lines on people whose final metrics are infinite (diverged) or NaN (undefined)."""
    # A metric is NaN where it is undefined for somebody's samples; infinite means diverged.
    scores, lines = run.scores(run.headline), []
    if count := sum(map(math.isinf, scores.values())):
        lines.append(
            f"{run.label} diverged: the {run.headline} of {count} of "
            f"{plural(len(scores), 'person')} is not finite at the end; lower local.lr"
        )
    for metric in run.estimates:
        without = [p for p, value in run.scores(metric).items() if math.isnan(value)]
        # The score is NaN exactly where the headline is, and needs no line of its own.
        if without and metric != "score":
            who = [*without[:SHOWN], *([f"{len(without) - SHOWN} more"] if without[SHOWN:] else [])]
            lines.append(f"{', '.join(who)}: no {metric} (NaN), left out of it")
    return lines
