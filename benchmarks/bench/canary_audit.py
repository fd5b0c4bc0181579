"""Audit by canaries: the epsilon that training with and without one sample proves it spends.

A lower bound: where it is above what is claimed, the claim is wrong, be it by a clip that does not
hold, noise that is left out or drawn twice, or an accountant that assumes another sampling. Where
it is below, nothing was found; a better canary may find more.

Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine learning", NeurIPS
2020; Nasr et al., "Adversary instantiation", S&P 2021, for canaries whose gradient is at its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from vergence.errors import ConfigError

Scores = NDArray[np.float64]


class CanaryResult(NamedTuple):
    """Result of an audit: the proven epsilon, and the rates of right and wrong guesses."""

    epsilon: float
    hits: float
    alarms: float


def audit(
    train: Callable[[bool, int], float], runs: int, delta: float, confidence: float = 0.95
) -> CanaryResult:
    """Train with and without a canary; return the epsilon that telling them apart proves.

    Args:
        train: given whether the canary is there, and the number of the run, trains with fresh
            randomness; returns a score that is higher where the canary was likelier there.
        runs: of either kind; n of them prove at most about log(n / 4).
        delta: at which epsilon is claimed.
        confidence: of the bound.
    """
    there, away = (
        np.array([train(present, run) for run in range(runs)]) for present in (True, False)
    )
    return lower_bound(there, away, delta, confidence)


def lower_bound(
    there: Scores, away: Scores, delta: float, confidence: float = 0.95
) -> CanaryResult:
    """Lower bound of epsilon, proven by scores of runs with and without a canary.

    An (epsilon, delta)-private training has hits <= e^epsilon alarms + delta, and the same for the
    opposite guess. The threshold is chosen on the first half of the runs, the rates are bounded by
    Clopper and Pearson's intervals on the second.

    Raises:
        ConfigError: fewer than 4 runs, or a confidence outside (0, 1).
    """
    if min(len(there), len(away)) < 4 or not 0 < confidence < 1:
        raise ConfigError(
            f"an audit needs 4 runs of either kind and a confidence in (0, 1); got {len(there)}, "
            f"{len(away)} and {confidence:g}"
        )
    mine, other = len(there) // 2, len(away) // 2
    best = max(
        (
            (float(proven.max()), sign, thresholds[int(proven.argmax())])
            for sign, thresholds, proven in _guesses(there[:mine], away[:other], delta)
        )
    )
    counted = (there[mine:], away[other:])
    return CanaryResult(*(float(x) for x in _proven(*counted, best[1], best[2], delta, confidence)))


def _guesses(there: Scores, away: Scores, delta: float) -> Iterator[tuple[int, Scores, Scores]]:
    for sign in (1, -1):
        thresholds = np.unique(sign * np.concatenate([there, away]))
        yield sign, thresholds, _proven(there, away, sign, thresholds, delta, 0.5)[0]


def _proven(
    there: Scores,
    away: Scores,
    sign: int,
    threshold: Scores | float,
    delta: float,
    confidence: float,
) -> tuple[Scores, Scores, Scores]:
    """Proof by guesses: sign * score >= threshold means there (1), or away (-1)."""
    mine, other = (np.sort(sign * s) for s in ((there, away) if sign == 1 else (away, there)))
    hits = len(mine) - np.searchsorted(mine, threshold)
    alarms = len(other) - np.searchsorted(other, threshold)
    tail = (1 - confidence) / 2
    low = np.where(hits > 0, beta.ppf(tail, np.maximum(hits, 1), len(mine) - hits + 1), 0)
    sure = alarms >= len(other)
    high = np.where(sure, 1, beta.ppf(1 - tail, alarms + 1, np.maximum(len(other) - alarms, 1)))
    proven = np.log(np.maximum(low - delta, 1e-300) / high)
    return np.maximum(proven, 0), hits / len(mine), alarms / len(other)
