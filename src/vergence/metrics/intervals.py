"""Confidence intervals over people: the unit is the person, never the sample or the seed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import stdtrit

from vergence.errors import DataError


def interval(values: Iterable[float], level: float = 0.95) -> tuple[float, float]:
    """Return the two-sided Student-t interval of the mean, mean -/+ t(n-1) s / sqrt(n).

    One value gives NaN twice: nothing is known about its spread.

    Raises:
        DataError: there is no value.
    """
    sample = np.asarray(list(values), dtype=np.float64)
    if not sample.size:
        raise DataError("an interval over people needs at least one person, got none")
    mean = float(sample.mean())
    if sample.size == 1:
        return math.nan, math.nan
    t = float(stdtrit(sample.size - 1, 0.5 + level / 2))
    half = t * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return mean - half, mean + half
