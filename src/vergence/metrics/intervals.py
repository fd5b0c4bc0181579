"""Confidence intervals over people: the unit is the person, never the sample or the seed.

Used in `engine`, `model_tools`, `results`, `studies` and `unlearning`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import stdtrit

from vergence.errors import DataError


def with_number(values: Iterable[float]) -> list[float]:
    """Return the values that are not NaN; all values where each of them is NaN.

    NaN means that a metric is not defined for a person's data, and statistics over people leave the
    person out. A model that diverged has an infinite value instead, the worst there is.
    """
    listed = list(values)
    return [value for value in listed if not math.isnan(value)] or listed


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Student-t interval of the mean, mean -/+ t(n-1) s / sqrt(n).

    One value gives NaN twice: nothing is known about its spread. So does an infinite one.

    Raises:
        DataError: there is no value.
    """
    sample = np.asarray(list(values), dtype=np.float64)
    if not sample.size:
        raise DataError("an interval over people needs at least one person, got none")
    mean = float(sample.mean())
    if sample.size == 1 or not np.isfinite(sample).all():
        return math.nan, math.nan
    t = float(stdtrit(sample.size - 1, 0.5 + level / 2))
    half = t * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return mean - half, mean + half
