"""Number of people that a comparison needs: power of a paired t test and of a test of likeness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import nctdtr, stdtrit

from vergence.metrics.statistics import ALPHA

POWER = 0.8
"""Chance of showing a difference that is there: the usual one."""
MOST = 10_000
"""People beyond which nobody plans a study."""


def power(mean: float, deviation: float, people: int) -> float:
    """Return the chance that a two-sided paired t test at 0.05 shows a true difference.

    `mean` and `deviation` (> 0) are those of the differences between people, in the same units;
    two people or more. A difference shown on the wrong side counts as none.

    Source: Cohen 1988, section 2.3; the noncentral t distribution.
    """
    shift = abs(mean) / deviation * people**0.5
    # Where nearly nothing is missed, SciPy's chance of it may be NaN.
    return 1 - float(np.nan_to_num(nctdtr(people - 1, shift, stdtrit(people - 1, 1 - ALPHA / 2))))


def power_of_likeness(mean: float, deviation: float, limit: float, people: int) -> float:
    """Return the chance that two one-sided t tests show a true mean to lie within -/+ limit.

    A lower bound (Bonferroni's): the two tests are taken apart.

    Source: Schuirmann 1987.
    """
    edge = float(stdtrit(people - 1, 1 - ALPHA))
    shifts = [(limit + s * mean) * people**0.5 / deviation for s in (-1, 1)]
    # SciPy's chance may be NaN where it is nearly 0, or nearly 1.
    missed = [np.nan_to_num(nctdtr(people - 1, x, edge), nan=float(x < 0)) for x in shifts]
    return max(0.0, 1 - float(sum(missed)))


def people_needed(mean: float, deviation: float, limit: float = 0.0) -> int | None:
    """Return the fewest people with whom the mean would be shown with 80 % power.

    The verdicts on tables of papers report it.

    With `limit`, people with whom the mean would be shown to lie within -/+ limit. None where
    `MOST` people are not enough, as with a mean of 0, or outside the limit.
    """
    chance: Callable[[int], float] = (
        (lambda n: power_of_likeness(mean, deviation, limit, n))
        if limit
        else (lambda n: power(mean, deviation, n))
    )
    # Without any spread two people are enough, or no number is.
    if deviation == 0:
        return 2 if (abs(mean) < limit if limit else mean) else None
    if chance(MOST) < POWER:
        return None
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= POWER else (middle, high)
    return high
