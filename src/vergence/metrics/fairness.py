"""Fairness of a method to people: its best and worst person, the spread, and whom it harms.

Used in `metrics`, `reports`, `results` and `studies`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vergence.errors import DataError

HARM = 0.01
"""A person is harmed if the metric is worse than local-only training's by more than this share."""


@dataclass(frozen=True)
class Fairness:
    """One metric of one method over people, in the metric's units.

    `p10`, `p90` are percentiles of the values, whichever end is better; `std` divides by n - 1.
    `harmed` is the share of people whose value is worse than that of local-only training by more
    than 1 %. `worst_harm` is the largest loss, as a share of the person's local-only value (0 =
    nobody loses). Both are None without local-only values.
    """

    best: float
    best_person: str
    worst: float
    worst_person: str
    p10: float
    p90: float
    std: float
    harmed: float | None = None
    worst_harm: float | None = None
    most_harmed: str | None = None

    @property
    def spread(self) -> float:
        """Distance from the 10th to the 90th percentile."""
        return self.p90 - self.p10


def fairness(
    scores: Mapping[str, float],
    lower_is_better: bool,
    alone: Mapping[str, float] | None = None,
) -> Fairness:
    """Return the fairness of `scores` (person -> value); `alone`: values of local-only training.

    People whose value is NaN are left out; people whose local-only value is not finite do not count
    in `harmed` and `worst_harm`.

    Raises:
        DataError: there is nobody, or nobody in common with `alone`.
    """
    if not scores:
        raise DataError("a fairness block needs at least one person, got none")
    scores = {p: v for p, v in scores.items() if not math.isnan(v)} or scores
    good, bad = (min, max) if lower_is_better else (max, min)
    best, worst = (pick(scores, key=scores.__getitem__) for pick in (good, bad))
    values = np.array(list(scores.values()))
    # A value may be infinite, and numpy warns of the difference of two such.
    with np.errstate(invalid="ignore"):
        p10, p90 = np.percentile(values, [10, 90])
        std = float(values.std(ddof=1)) if values.size > 1 else 0.0
    whole = (scores[best], best, scores[worst], worst, float(p10), float(p90), std)
    if alone is None:
        return Fairness(*whole)
    sign = -1 if lower_is_better else 1
    if not scores.keys() & alone.keys():
        raise DataError("local-only and this method have no person in common")
    both = [person for person in scores if math.isfinite(alone.get(person, math.nan))]
    if not both:
        return Fairness(*whole)
    harmed = [sign * scores[p] < sign * alone[p] - HARM * abs(alone[p]) for p in both]
    shares = {p: _share(sign * (alone[p] - scores[p]), abs(alone[p])) for p in both}
    most = max(shares, key=shares.__getitem__)
    name = most if shares[most] > 0 else None
    return Fairness(*whole, sum(harmed) / len(both), shares[most] if name else 0.0, name)


def _share(loss: float, size: float) -> float:
    if size:
        return loss / size
    return math.copysign(math.inf, loss) if loss else 0.0
