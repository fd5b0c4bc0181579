"""Choice between candidates on held-out data; in doubt the first, simplest one is chosen.

Used by `adaptation.choice`, `methods.interpolation` and `metrics.personal_priors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from vergence.core.data import Samples

BLOCKS = 12
"""Number of runs of neighbours into which held-out samples are cut, to estimate errors."""


def runs_of_neighbours(samples: Samples, blocks: int) -> list[Samples]:
    """Cut samples into at most `blocks` runs of neighbours, none of them empty."""
    rows = torch.arange(len(samples))
    return [samples.subset(part) for part in rows.tensor_split(blocks) if len(part)]


def simplest_near_best(
    losses: Sequence[Sequence[float]], counts: Sequence[int], errors: float
) -> int:
    """Return the first candidate whose loss is within so many standard errors of the lowest.

    A block whose losses are all NaN is left out. Other losses that are NaN count as infinite; where
    no candidate has finite losses, the first one is returned.

    Args:
        losses: mean losses by block and candidate.
        counts: samples of every block.
        errors: number of standard errors of the mean difference between a candidate and the best.
    """
    table, weight = (torch.tensor(each, dtype=torch.float64) for each in (losses, counts))
    known = ~table.isnan().all(1)
    # Without a single number all blocks stay, and the first candidate is returned below.
    known |= ~known.any()
    table, weight = table[known].nan_to_num(nan=math.inf, posinf=math.inf), weight[known]
    weight = (weight / weight.sum())[:, None]
    best = int((weight * table).sum(0).argmin())
    if not table[:, best].isfinite().all():
        return 0
    # Differences within a block: how hard its samples are for everybody cancels out.
    apart = table - table[:, best : best + 1]
    mean = (weight * apart).sum(0)
    spread = ((weight * (apart - mean)) ** 2).sum(0) * len(table) / max(len(table) - 1, 1)
    return int((mean <= errors * spread.sqrt()).nonzero()[0])
