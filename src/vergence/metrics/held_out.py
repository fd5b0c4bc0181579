"""Choice between candidates on held-out data: in doubt the first one, which is the simplest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from vergence.core.data import Samples

BLOCKS = 12
"""Held-out samples are judged in so many runs of neighbours, from which errors are counted."""


def cut(samples: Samples, blocks: int) -> list[Samples]:
    """Return samples in at most so many runs of neighbours, none of them empty."""
    rows = torch.arange(len(samples))
    return [samples.subset(part) for part in rows.tensor_split(blocks) if len(part)]


def smallest(losses: Sequence[Sequence[float]], counts: Sequence[int], errors: float) -> int:
    """Return the first candidate whose loss is within so many standard errors of the lowest.

    A block whose loss is no number under any candidate says nothing. Another loss that is no number
    is infinite, and of such alone the first candidate is taken.

    Args:
        losses: mean losses by block and candidate.
        counts: samples of every block.
        errors: standard errors, of the mean difference between a candidate and the best one.
    """
    table, weight = (torch.tensor(each, dtype=torch.float64) for each in (losses, counts))
    known = ~table.isnan().all(1)
    known |= ~known.any()
    table, weight = table[known].nan_to_num(nan=math.inf, posinf=math.inf), weight[known]
    weight = (weight / weight.sum())[:, None]
    best = int((weight * table).sum(0).argmin())
    if not table[:, best].isfinite().all():
        return 0
    apart = table - table[:, best : best + 1]
    mean = (weight * apart).sum(0)
    spread = ((weight * (apart - mean)) ** 2).sum(0) * len(table) / max(len(table) - 1, 1)
    return int((mean <= errors * spread.sqrt()).nonzero()[0])
