"""Tests over people: every function takes one number per person, never per sample.

Differences below the rounding of a mean of float64 are no differences: numbers are rounded to
`DECIMALS` before they are ranked, so that what is equal counts as a tie. What each number means:
docs/explanation/statistics.md.

Used by `metrics.harm`, `metrics.sample_size`, `results.significance` and
`studies.comparison_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from vergence.errors import DataError

ALPHA = 0.05
"""Level of every verdict here."""
DECIMALS = 12
DRAWS = 10_000
"""Bootstrap samples of people."""
SEED = 20
"""Seed of the bootstrap: the same numbers give the same interval."""
EXACT = 500
"""Up to so many people who differ, Wilcoxon's distribution is counted; above, it is the normal."""
Floats = NDArray[np.float64]


def wilcoxon(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the signed-rank test: are differences symmetric about 0?

    Zeros are left out, ties get their mean rank, and p is exact all the same: the distribution of
    the rank sum is counted over all signs of the ranks there are (SciPy's `method="exact"` gives
    the same without ties and is approximate with them). Nobody differs: 1.

    Source: Wilcoxon 1945.
    """
    d = _sample(differences)
    d = d[d != 0]
    if not d.size:
        return 1.0
    if d.size > EXACT:
        found: Any = scipy.stats.wilcoxon(d, method="asymptotic")
        return float(found.pvalue)
    # Doubled, as the mean ranks of ties are halves, and sums of ranks are places in a table.
    halves = (2 * scipy.stats.rankdata(np.abs(d))).astype(np.int64)
    chance = np.zeros(int(halves.sum()) + 1)
    chance[0] = 1.0
    for rank in halves:
        chance[rank:] = (chance[rank:] + chance[: chance.size - rank]) / 2
        chance[:rank] /= 2
    reached = int(halves[d > 0].sum())
    below, above = chance[: reached + 1].sum(), chance[reached:].sum()
    return float(min(1.0, 2 * min(below, above)))


def paired_t(differences: ArrayLike) -> float:
    """Return the two-sided p-value of Student's paired t test; NaN of one person.

    The comparison of two methods reports it.

    Source: Student 1908.
    """
    d = _sample(differences)
    return 2 * _tail(d, -abs(float(d.mean())))


def tost(differences: ArrayLike, margin: float, error: float = 0.0) -> float:
    """Return the p-value of two one-sided t tests: small = the mean lies within -/+ margin.

    The comparison of two methods reports it.

    `margin` is in the metric's units and must be chosen before the data is seen. `error` is a
    standard error in these units that all differences share, such as that of the test images; it is
    added in quadrature. NaN of one person.

    Raises:
        DataError: the margin is not positive.

    Source: Schuirmann 1987.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise DataError(f"an equivalence margin must be a positive number, got {margin}")
    d = _sample(differences)
    mean = float(d.mean())
    return max(_tail(d, mean - margin, error), _tail(d, -mean - margin, error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in their order; NaN stays out of the family.

    Sorted ascending, the i-th of m is multiplied by m - i + 1; none may fall below the one before.

    Source: Holm 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[: int(np.isfinite(p).sum())]
    adjusted = np.full(p.size, math.nan)
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted.tolist()


def cohen_dz(differences: ArrayLike) -> float:
    """Return the mean difference in standard deviations of the differences (n - 1).

    0 where all are 0, infinite where all are the same otherwise, NaN of one person.

    Source: Cohen 1988, section 2.3.5.
    """
    d = _sample(differences)
    mean = float(d.mean())
    if d.size == 1:
        return math.nan
    if np.ptp(d) == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / float(d.std(ddof=1))


def rank_biserial(differences: ArrayLike) -> float:
    """Return (W+ - W-) / (W+ + W-), of the signed ranks: 1 = all positive; 0 if nobody differs.

    Source: Kerby 2014 (simple difference formula).
    """
    d = _sample(differences)
    d = d[d != 0]
    ranks = scipy.stats.rankdata(np.abs(d))
    return float((np.sign(d) * ranks).sum() / ranks.sum()) if d.size else 0.0


def bootstrap(
    differences: ArrayLike, level: float = 0.95, draws: int = DRAWS, seed: int = SEED
) -> tuple[float, float]:
    """Return the BCa interval of the mean, from `draws` samples of people; NaN of one person.

    Source: Efron 1987.
    """
    d = _sample(differences)
    if d.size == 1:
        return math.nan, math.nan
    # Resamples of equal numbers have no spread, and SciPy's BCa returns NaN.
    if np.ptp(d) == 0:
        return float(d[0]), float(d[0])
    found = scipy.stats.bootstrap(
        (d,),
        np.mean,
        n_resamples=draws,
        confidence_level=level,
        method="BCa",
        # A million numbers at a time bound the memory.
        batch=max(1, 1_000_000 // d.size),
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class Ranking:
    """Many methods at once: Friedman's test, mean ranks (1 = best), Nemenyi's distance.

    Methods whose mean ranks differ by `critical` or more differ at level 0.05.
    """

    statistic: float
    p: float
    ranks: tuple[float, ...]
    critical: float

    def groups(self) -> list[tuple[int, ...]]:
        """Return the largest sets of methods that cannot be told apart, best first.

        Only sets of two and more; a method in none of them differs from every other one.
        """
        order = sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        found: list[tuple[int, ...]] = []
        reached = 0
        for start, first in enumerate(order):
            near = [m for m in order[start:] if self.ranks[m] - self.ranks[first] < self.critical]
            if len(near) > 1 and start + len(near) > reached:
                found.append(tuple(near))
                reached = start + len(near)
        return found


def friedman(scores: ArrayLike, lower_is_better: bool = False) -> Ranking:
    """Rank methods within every person; `scores` is `[people, methods]`, three methods or more.

    The p-value is that of the chi-square distribution, corrected for ties.

    Raises:
        DataError: another shape, or NaN.

    Source: Friedman 1937; Demsar 2006, section 3.2.
    """
    table = np.round(np.asarray(scores, dtype=np.float64), DECIMALS)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 3 or not np.isfinite(table).all():
        raise DataError(
            "Friedman's test needs a table of finite numbers, at least 2 people by 3 methods; "
            f"got the shape {table.shape}"
        )
    ranks = scipy.stats.rankdata(table if lower_is_better else -table, axis=1)
    statistic, p = 0.0, 1.0
    # Where everybody ranks all methods alike, SciPy's correction for ties divides by 0.
    if np.ptp(ranks) > 0:
        found = scipy.stats.friedmanchisquare(*ranks.T)
        statistic, p = float(found.statistic), float(found.pvalue)
    people, methods = table.shape
    return Ranking(statistic, p, tuple(ranks.mean(axis=0).tolist()), nemenyi(methods, people))


def nemenyi(methods: int, people: int, alpha: float = ALPHA) -> float:
    """Return the critical difference of mean ranks, q sqrt(k (k + 1) / (6 n)).

    q is the studentized range for k methods and infinite degrees of freedom, over sqrt(2).
    `friedman` calls this.

    Source: Nemenyi 1963; Demsar 2006, section 3.2.2.
    """
    q = float(scipy.stats.studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * people))


def _sample(values: ArrayLike) -> Floats:
    sample = np.round(np.asarray(values, dtype=np.float64), DECIMALS)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise DataError(
            "a test over people needs one finite number per person, at least one; "
            f"got {sample.tolist()}"
        )
    return sample


def _tail(d: Floats, shift: float, more: float = 0.0) -> float:
    """Return P(T <= shift / standard error) of Student's t with n - 1 degrees of freedom.

    `more` is a standard error to be added in quadrature.
    """
    if d.size == 1:
        return math.nan
    if np.ptp(d) == 0 == more:
        return 0.5 if shift == 0 else float(shift > 0)
    error = math.hypot(float(d.std(ddof=1)) / math.sqrt(d.size), more)
    return float(scipy.stats.t.cdf(shift / error, d.size - 1))
