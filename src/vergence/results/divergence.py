"""People for whom training diverged, told in one line."""

from __future__ import annotations

import math

from vergence.core.naming import plural
from vergence.results.read import Run

NOT_FINITE = "quarantined: finite"
"""Begins the status of a turn whose reply held NaN or infinity."""


def told_diverged(run: Run) -> str:
    """A line on people whose headline is not finite at the end; "" where there are none.

    NaN may also say that nothing was recorded of somebody: it counts where a reply of theirs held
    such numbers, too.
    """
    scores = run.scores(run.headline)
    if all(math.isfinite(value) for value in scores.values()):
        return ""
    refused = {*run.turns.client[run.turns.status.str.startswith(NOT_FINITE)]}
    lost = [p for p, v in scores.items() if math.isinf(v) or (math.isnan(v) and p in refused)]
    if not lost:
        return ""
    whose = f"{len(lost)} of {plural(len(scores), 'person')}"
    return (
        f"{run.label} diverged: the {run.headline} of {whose} is not finite at the end; lower "
        "local.lr"
    )
