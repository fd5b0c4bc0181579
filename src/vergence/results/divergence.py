"""People who have no number, or for whom training diverged, each told in one line."""

from __future__ import annotations

import math

from vergence.core.naming import plural
from vergence.results.read import Run

NOT_FINITE = "quarantined: finite"
"""Begins the status of a turn whose reply held NaN or infinity."""
SHOWN = 5
"""So many people are named in a line."""


def divergence_notes(run: Run) -> list[str]:
    """Lines on people whose headline is infinite at the end, and on those who have no number.

    NaN says that a metric is not defined for somebody's samples; the score follows the headline.
    """
    scores, lines = run.scores(run.headline), []
    if count := sum(map(math.isinf, scores.values())):
        lines.append(
            f"{run.label} diverged: the {run.headline} of {count} of "
            f"{plural(len(scores), 'person')} is not finite at the end; lower local.lr"
        )
    for metric in run.estimates:
        without = [p for p, value in run.scores(metric).items() if math.isnan(value)]
        if without and metric != "score":
            who = [*without[:SHOWN], *([f"{len(without) - SHOWN} more"] if without[SHOWN:] else [])]
            lines.append(f"{', '.join(who)}: no {metric} (NaN), left out of it")
    return lines
