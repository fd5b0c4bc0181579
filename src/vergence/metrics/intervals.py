"""Confidence intervals over people: the unit is the person, never the sample or the seed.

Used in `engine`, `model_tools`, `results`, `studies` and `unlearning`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import stdtrit

from vergence.errors import DataError

Bounds = tuple[float, float]
"""Smallest and largest possible value of a metric."""
SHARE: Bounds = (0.0, 1.0)
CORRELATION: Bounds = (-1.0, 1.0)


def with_number(values: Iterable[float]) -> list[float]:
    """Return the values that are not NaN; all values where each of them is NaN.

    NaN means that a metric is not defined for a person's data, and statistics over people leave the
    person out. A model that diverged has an infinite value instead, the worst there is.
    """
    listed = list(values)
    return [value for value in listed if not math.isnan(value)] or listed


def interval(
    values: Iterable[float], level: float = 0.95, bounds: Bounds | None = None
) -> tuple[float, float]:
    """Return the two-sided Student-t interval of the mean, mean -/+ t(n-1) s / sqrt(n).

    One value gives NaN twice: nothing is known about its spread. So does an infinite one.

    An interval of a quantity with bounds is cut at them. The mean of such a quantity cannot lie
    outside, so that only impossible values go: the interval covers the mean exactly as often as
    before, stays the set of means that the t test does not reject, and is never empty. An interval
    on a logit scale would be one of another mean, and does not exist if somebody has 0 or 1.

    Args:
        values: a value of every person.
        level: share of repetitions in which the interval covers the mean.
        bounds: smallest and largest possible value; None: there are none. They are not used if a
            value lies outside, as that of an accuracy in percent does.

    Raises:
        DataError: there is no value.

    Source: Student 1908; Mandelkern 2002, on intervals of bounded parameters.
    """
    sample = np.asarray(list(values), dtype=np.float64)
    if not sample.size:
        raise DataError("an interval over people needs at least one person, got none")
    mean = float(sample.mean())
    if sample.size == 1 or not np.isfinite(sample).all():
        return math.nan, math.nan
    t = float(stdtrit(sample.size - 1, 0.5 + level / 2))
    half = t * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    if bounds is None or sample.min() < bounds[0] or sample.max() > bounds[1]:
        return mean - half, mean + half
    return max(mean - half, bounds[0]), min(mean + half, bounds[1])


def difference_bounds(bounds: Bounds | None) -> Bounds | None:
    """Return the bounds of the difference of two values of a metric; None: it has none."""
    return None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
