"""Harm to one person: a loss against the best of several references that test samples can show.

Used by `results.harm` and `studies.comparison_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vergence.metrics.fairness import HARM
from vergence.metrics.statistics import ALPHA, SEED

DRAWS = 2_000
"""Bootstrap samples of each person's blocks."""
LEAST = 8
"""Number of blocks of test samples below which a bootstrap says nothing about a person."""

Blocks = NDArray[np.float64]
"""Sum of a metric and number of what it is summed over, in every block `[blocks, 2]`."""


@dataclass(frozen=True)
class Loss:
    """Loss of one person against a reference.

    Attributes:
        against: name of the reference.
        loss: loss on the test samples, as a share of the reference's metric.
        bound: lower end of the loss's confidence interval.
    """

    against: str
    loss: float
    bound: float

    @property
    def harmed(self) -> bool:
        """True if the loss is above 1 % as far as these test samples can tell."""
        return self.bound > HARM


def loss_of(mine: Blocks, references: Mapping[str, Blocks], lower_is_better: bool) -> Loss | None:
    """Return the loss against the reference that shows most harm.

    Blocks are drawn with replacement, the same ones for person and reference. The bound is the
    `ALPHA / 2` quantile of the loss, divided by the number of references (Bonferroni). References
    with scores that are not finite are left out; a person whose own scores are not finite has an
    infinite loss.

    Args:
        mine: blocks of the person under one method.
        references: blocks of the same samples under every reference.
        lower_is_better: direction of the metric.

    Returns:
        the loss with the largest bound; None for fewer than `LEAST` blocks, or no reference.

    Source: Efron 1979, percentile bootstrap of blocks; Dunn 1961 for several references.
    """
    references = {name: each for name, each in references.items() if np.isfinite(each).all()}
    if len(mine) < LEAST or not references:
        return None
    draws, sign = bootstrap_counts(len(mine)), -1 if lower_is_better else 1
    # The best of several noisy references is better than anybody by chance.
    share = ALPHA / 2 / len(references)
    found = []
    for name, blocks in references.items():
        there = _share(_mean(mine.sum(0)), _mean(blocks.sum(0)), sign)
        lost = _share(_mean(draws @ mine), _mean(draws @ blocks), sign)
        # One of the draws itself: interpolation between infinite losses gives NaN.
        bound = float(np.quantile(lost, share, method="lower"))
        found.append(Loss(name, float(there), bound))
    return max(found, key=lambda each: each.bound)


@lru_cache(maxsize=8)
def bootstrap_counts(blocks: int) -> Blocks:
    """Number of times that each bootstrap sample has each block, `[draws, blocks]`."""
    # As counts, so that one product of matrices gives the sums of all bootstrap samples.
    rng = np.random.default_rng(SEED)
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), DRAWS).astype(np.float64)


def _mean(sums: Blocks) -> Blocks:
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def _share(mine: Blocks, reference: Blocks, sign: int) -> Blocks:
    """Return the loss as a share of the reference; infinite where only the reference is 0."""
    lost, size = sign * (reference - mine), np.abs(reference)
    without = np.where(lost == 0, 0.0, np.copysign(math.inf, lost))
    lost, without = (np.where(np.isnan(mine), math.inf, each) for each in (lost, without))
    return np.where(size > 0, lost / np.where(size > 0, size, 1), without)
