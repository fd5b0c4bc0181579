"""Rules on when two rows may be judged: the winner has learned, and both have finished training.

Everything that prints a verdict asks here: `vergence compare`, the report and `vergence reproduce`.
`tools/examiner.py` computes the same from committed numbers, with formulas of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vergence.metrics.fairness import HARM
from vergence.metrics.intervals import interval
from vergence.results.baselines import kind
from vergence.results.read import Run, StudyResults, table
from vergence.results.read import read as read_study

GAIN, LAST = HARM, 1 / 3
"""A finished row gains at most this share of its final value in this last share of its rounds.

It is the share from which a person's loss counts as harm: a verdict should not rest on less."""
ERRORS, WIDTH = 3.0, 1.959964
"""Standard errors of the test by which an accuracy must be above a constant answer's, and those of
half a 95 % interval."""
FULL = 0.99
"""Mean of a share from which on no test can tell who is better."""
TIE = 1e-12
"""Differences below the rounding of a mean of float64 count as equal."""
Scores = Mapping[str, float]
"""Person, or seed -> value."""
Floats = NDArray[np.float64]
Curve = tuple[Sequence[float], Sequence[float]]
"""Evaluated rounds and means over people, signed so that more is better."""


@dataclass(frozen=True)
class Standing:
    """Standing of one row alone, in one metric.

    Attributes:
        mean: over people, signed so that more is better.
        ceiling: True if it is a share that could hardly be larger.
        learned: True if it is above the best static prior; None where that cannot be known.
        below: True if it is shown to be below that prior.
        gaining: gain of a round in the last third of its rounds; 0 if it has finished, NaN if its
            scores by round are not recorded.
        prior: name of the best static prior; "" where there is none.
    """

    mean: float
    ceiling: bool = False
    learned: bool | None = True
    below: bool = False
    gaining: float = 0.0
    prior: str = ""

    @property
    def destroyed(self) -> bool:
        """True if it has finished training and is worse than a constant."""
        return self.below and self.gaining == 0


def standing(
    scores: Scores,
    priors: Mapping[str, Scores],
    lower: bool,
    gaining: float = 0.0,
    images: int = 0,
    learned: bool | None = None,
) -> Standing:
    """Compare a row with the best of the priors, person by person.

    Args:
        scores: the row's.
        priors: name -> scores of predictors that need no training; others' gaze is none of them.
        lower: True if less is better.
        gaining: see `Standing`.
        images: of an accuracy, the number of test images, where it is known.
        learned: of a row that no prior has the scores for.
    """
    known = {k: v for k, v in scores.items() if math.isfinite(v)}
    sign, mine = (-1.0 if lower else 1.0), np.array(list(known.values()))
    guesses = {
        name: np.array([people[k] for k in known])
        for name, people in priors.items()
        if known and all(math.isfinite(people.get(k, math.nan)) for k in known)
    }
    mean = sign * float(mine.mean()) if known else math.nan
    full = not lower and mean >= FULL and float(mine.max()) <= 1
    if not guesses:
        return Standing(mean, full, learned, gaining=gaining)
    name = max(guesses, key=lambda each: sign * float(guesses[each].mean()))
    ends = lead_ends(mine, guesses[name], sign, images, unit_of(list(known)) == "seed")
    above, below = any(low > 0 for low, _ in ends), any(high < 0 for _, high in ends)
    unknown = all(math.isnan(low) for low, _ in ends)
    return Standing(mean, full, None if unknown else above, below and not above, gaining, name)


def lead_ends(
    mine: Floats, guess: Floats, sign: float, images: int, seeds: bool
) -> list[tuple[float, float]]:
    """Ends of the lead over a prior: of an accuracy by the test's standard error, else over people.

    Over people there are two intervals, of the lead itself and of the lead as a share of each
    person's own prior: where priors differ much between few people the first is wide whatever was
    learned. Seeds with one and the same lead, on one test, say nothing of its spread: NaN.
    """
    lead, level = sign * (mine - guess), float(guess.mean())
    if images:
        half = ERRORS * standard_error(level, images)
        return [(float(lead.mean()) - half, float(lead.mean()) + half)]
    if seeds and np.ptp(lead) < TIE:
        return [(math.nan, math.nan)]
    scaled = [lead, lead / np.abs(guess)] if np.abs(guess).min() > TIE else [lead]
    return [interval(each.tolist()) for each in scaled]


def unit_of(names: Sequence[str]) -> str:
    """Unit that scores are over, by their names; seeds share a test, whose images are a sample.

    >>> unit_of(["seed 0", "seed 1"]), unit_of(["p000", "p001"])
    ('seed', 'person')
    """
    first = names[0].partition(" ")[0] if names else ""
    return first if first in ("seed", "round") else "person"


def standard_error(share: float, images: int) -> float:
    """Standard error of a share of test images; one right and one wrong image are added.

    Without those two a share of 0 or 1 would have none (Agresti and Coull 1998).
    """
    share = (share * images + 1) / (images + 2)
    return math.sqrt(share * (1 - share) / images)


def with_images(
    ends: tuple[float, float], one: float, other: float, images: int
) -> tuple[float, float]:
    """Interval over seeds of a difference of two accuracies, with the sampling of test images.

    Both models are taken for independent on the images, which is the wider of the two ways.
    """
    middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    half = math.hypot(half, *(WIDTH * standard_error(p, images) for p in (one, other)))
    return middle - half, middle + half


def gain_a_round(rounds: ArrayLike, means: ArrayLike) -> float:
    """Gain of a round in the last third; 0 if that third gains at most `GAIN` of the final value.

    The third begins at the evaluated round nearest to two thirds of all; the gain from there is
    taken to be the same in every round. NaN where nothing was measured between start and end.
    """
    values = np.asarray(means, dtype=np.float64)
    known = np.isfinite(values)
    at, values = np.asarray(rounds, dtype=np.float64)[known], values[known]
    inside = np.flatnonzero((at > 0) & (at < at.max(initial=0)))
    if not inside.size:
        return math.nan
    start = min(inside, key=lambda i: abs(at[i] - (1 - LAST) * at[-1]))
    rate = float(values[-1] - values[start]) / float(at[-1] - at[start])
    return rate if rate * LAST * float(at[-1]) > GAIN * abs(float(values[-1])) else 0.0


def training_curve(run: Run, metric: str) -> Curve:
    """Return evaluated rounds and means over people and seeds, signed so that more is better.

    A run whose clients train once more after the last round was measured after that, so that this
    measurement says nothing of its rounds. Of merged folds the curve is that which gains most.
    """
    folds = dict.fromkeys(run.results.get("folds", {}).values())
    if folds:
        return steepest(training_curve(read_study(run.folder / x).runs[0], metric) for x in folds)
    if not (run.folder / "rounds.csv").exists() or not len(told := run.rounds):
        return (), ()
    own = told[(told.evaluation == "P0") & (told.metric == metric)]
    means = (-1 if metric in run.lower_is_better else 1) * own.groupby("round").value.mean()
    if told["round"].max() > means.index.max():
        means = means.iloc[:-1]
    return means.index.to_list(), means.to_list()


def steepest(curves: Iterable[Curve]) -> Curve:
    """Return the curve that gains most; one of which that is not recorded may gain more."""
    return max(curves, key=lambda each: float(np.nan_to_num(gain_a_round(*each), nan=math.inf)))


def standings(study: StudyResults, metric: str) -> dict[str, Standing]:
    """Label -> standing of every run of a study in a metric."""
    priors = {
        name: {person: told.get(metric, math.nan) for person, told in people.items()}
        for name, people in study.priors.items()
        if kind(name) == "prior"
    }
    found = {}
    for run in study.runs:
        best = best_of_budgets(study, run, metric)
        gain = 0.0 if best else gain_a_round(*training_curve(run, metric))
        lower = metric in run.lower_is_better
        found[run.label] = standing(run.scores(metric), priors, lower, gain, tested(run, metric))
    return found


def tested(run: Run, metric: str) -> int:
    """Number of test images of everybody, of an accuracy in a run that keeps their scores."""
    if "accuracy" not in metric or not (run.folder / "samples.csv").exists():
        return 0
    rows = table(run.folder / "samples.csv")
    return int(rows[rows.seed == rows.seed.min()].counted.sum())


def best_of_budgets(study: StudyResults, run: Run, metric: str) -> bool:
    """True if a run is the best of three budgets of its method, none of them the largest."""
    sign = -1 if metric in run.lower_is_better else 1
    means = {
        other.steps: sign * other.estimates[metric].mean
        for other in study.runs
        if other.method == run.method and metric in other.estimates and other.steps > 0
    }
    best = max(means, key=means.__getitem__, default=math.nan)
    return len(means) > 2 and best == run.steps < max(means)


def same_scores(one: Mapping[str, Scores], other: Mapping[str, Scores]) -> bool:
    """True if two rows have the same score for everybody in every metric: one and the same run."""
    shared = one.keys() & other.keys()
    return bool(shared) and all(
        one[m].keys() == other[m].keys()
        and all(
            abs(v - other[m][k]) <= TIE or (v != v and other[m][k] != other[m][k])
            for k, v in one[m].items()
        )
        for m in shared
    )


def instead_of_verdict(one: Standing, other: Standing, equal: bool, both: bool = False) -> str:
    """The words that stand in the place of a verdict on two rows; "" where one may be given.

    Args:
        one: a row.
        other: what it is compared with; a static prior is a `Standing` of a mean alone.
        equal: whether all their scores are the same.
        both: whether both must have learned, as where they are said to be alike.
    """
    rows = (one, other)
    if one.ceiling and other.ceiling:
        return "ceiling"
    if equal:
        return "same run"
    if unknown := [row for row in rows if row.learned is None]:
        return f"open ({'no spread' if all(row.prior for row in unknown) else 'no baseline'})"
    if not (one.learned or other.learned):
        return "neither learned"
    if (fastest := float(np.nanmax([row.gaining for row in rows] + [0.0]))) > 0:
        return f"not trained (gaining {fastest:.2g} a round)"
    if any(math.isnan(row.gaining) for row in rows):
        return "open (not recorded)"
    winner = max(rows, key=lambda row: row.mean)
    if not winner.learned or (both and not (one.learned and other.learned)):
        return "winner not learned"
    return ""
