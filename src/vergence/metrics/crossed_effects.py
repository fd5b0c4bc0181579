"""Difference between two conditions where the same people saw the same stimuli.

Used by `studies.conditions`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy.special import stdtr, stdtrit

from vergence.core.optional import import_optional
from vergence.core.randomness import RandomStream
from vergence.errors import DataError

MOST_MEANS = 3000
"""The model is fitted to at most so many means; more take over a minute."""


@dataclass(frozen=True)
class Effect:
    """Difference of the mean score between two conditions.

    Attributes:
        difference: the estimated difference, in the unit of the score.
        low, high: its 95 % interval.
        p: p-value of the hypothesis that there is no difference.
        people, stimuli: numbers of people and of stimuli; 1 stimulus: they are not known.
        all_stimuli: number of stimuli in the data, of which `stimuli` were tested.
        degrees: degrees of freedom of interval and p-value.
    """

    difference: float
    low: float
    high: float
    p: float
    people: int
    stimuli: int
    all_stimuli: int
    degrees: int


def crossed_difference(
    scores: NDArray[np.float64],
    people: Sequence[str],
    stimuli: Sequence[str],
    second: NDArray[np.bool_],
) -> Effect:
    """Estimate how much higher scores are under the second of two conditions.

    Samples of one person are alike, and so are samples of one stimulus: tests that take samples as
    independent find differences where there are none. This fits a linear mixed model to the means
    of each person on each stimulus under each condition. People and stimuli are crossed random
    effects, and each of them may respond to the condition in its own way. The interval uses
    Student's t with as many degrees of freedom as the smaller of people and stimuli, less one.
    Where each stimulus belongs to one condition, these are the stimuli less two. If stimuli are not
    known, it is a paired t test over people.

    Args:
        scores: a score per sample, `[n]`; NaN: none.
        people: the person of each sample.
        stimuli: the stimulus of each sample; all equal if stimuli are not known.
        second: whether a sample was recorded under the second condition, `[n]`.

    Raises:
        ConfigError: statsmodels is not installed.
        DataError: too few people have scores under both conditions, as where the condition is a
            group of people; or there are too few stimuli.

    Source: Baayen, Davidson & Bates 2008; random slopes as Barr et al. 2013.
    """
    table: Any = DataFrame(
        {"score": scores, "person": people, "stimulus": stimuli, "second": second}
    )
    table = table.dropna().groupby(["person", "stimulus", "second"], as_index=False).mean()
    both = {who: table.groupby(who).second.nunique().eq(2) for who in CROSSED}
    if both["person"].sum() < 2:
        raise DataError(f"two people or more need scores under both conditions, {TOO_FEW}")
    total = table.stimulus.nunique()
    if total < 2:
        pairs = table.pivot_table(values="score", index="person", columns="second").dropna()
        steps = (pairs[True] - pairs[False]).to_numpy()
        error = float(steps.std(ddof=1)) / math.sqrt(len(steps))
        return _effect(float(steps.mean()), error, (len(steps), 1, 1), len(steps) - 1)
    # Stimuli of one condition each compare two groups of stimuli: they have no response of their
    # own to the condition, and one more mean is estimated from them.
    between = both["stimulus"].sum() < 2
    if between and table.groupby("second").stimulus.nunique().min() < 2:
        raise DataError(f"a condition has fewer than two stimuli, {TOO_FEW}")
    if len(table) > MOST_MEANS:
        names = sorted(table.stimulus.unique())
        order = RandomStream("crossed effects", 0).numpy().permutation(len(names))
        few = [names[i] for i in order[: max(4, len(names) * MOST_MEANS // len(table))]]
        table = table[table.stimulus.isin(few)]
    difference, error = _fitted(table, between)
    people_left, stimuli_left = table.person.nunique(), table.stimulus.nunique()
    degrees = min(people_left - 1, stimuli_left - 1 - between)
    return _effect(difference, error, (people_left, stimuli_left, total), degrees)


def _fitted(table: Any, between: bool) -> tuple[float, float]:
    """Return the difference by a linear mixed model, and its standard error.

    If `between`, each stimulus belongs to one condition, and has no response of its own to it.

    Raises:
        ConfigError: statsmodels is not installed.
        DataError: the means do not determine the model.
    """
    models = import_optional(
        "statsmodels.regression.mixed_linear_model", "a comparison of conditions", "statistics"
    )
    table = table.assign(second=table.second.astype(float))
    parts = {f"{who} {what}": f"0 + C({who}){by}" for who in CROSSED for what, by in EFFECTS}
    if between:
        del parts[f"stimulus {EFFECTS[1][0]}"]
    with warnings.catch_warnings():
        # A variance of 0 is at the edge of what is allowed, and the optimiser says so each time.
        warnings.simplefilter("ignore")
        try:
            fitted = models.MixedLM.from_formula(
                "score ~ second",
                table,
                groups=np.ones(len(table)),
                re_formula="0",
                vc_formula=parts,
            ).fit(reml=True)
        except np.linalg.LinAlgError:
            raise DataError(f"{len(table)} means do not determine the model, {TOO_FEW}") from None
    return float(fitted.params["second"]), float(fitted.bse["second"])


def _effect(difference: float, error: float, counts: tuple[int, int, int], degrees: int) -> Effect:
    """Return an effect with this standard error; `counts` are people, stimuli, and all stimuli.

    Raises:
        DataError: the error is not known.
    """
    if not (math.isfinite(error) and degrees > 0):
        raise DataError(f"the error of the difference cannot be estimated, {TOO_FEW}")
    width = error * float(stdtrit(degrees, 0.975))
    p = 2 * float(stdtr(degrees, -abs(difference / error))) if error else float(not difference)
    return Effect(difference, difference - width, difference + width, p, *counts, degrees)


TOO_FEW = "so they cannot be compared: record more people, or leave the condition out"
CROSSED = ("person", "stimulus")
EFFECTS = (("level", ""), ("response to the condition", ":C(second)"))
"""Random effects of people and of stimuli: what each is, and the end of its formula."""
