"""Rules for verdicts on two runs: the winner must have learned, and both have finished training.

`vergence compare`, the report and `vergence reproduce` use them. `tools/examiner.py` computes the
same from committed numbers, with formulas of its own.

Used by `results.significance` and `studies.comparison_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from vergence.metrics.fairness import HARM
from vergence.metrics.intervals import interval
from vergence.metrics.statistics import Floats
from vergence.results.baselines import kind
from vergence.results.read import Run, StudyResults, table
from vergence.results.read import read as read_study

# The share from which a person's loss counts as harm: a verdict should not rest on less.
GAIN, LAST = HARM, 1 / 3
"""A run has finished training if it gains at most `GAIN` of its final value in the last third."""
# The second is the 97.5 % quantile of the normal distribution.
ERRORS, WIDTH = 3.0, 1.959964
"""An accuracy must exceed that of a constant answer by `ERRORS` standard errors.

`WIDTH` standard errors are half a 95 % interval.
"""
FULL = 0.99
"""Mean of a metric in [0, 1] above which no test can tell which run is better."""
# It is larger than the rounding of a mean of float64.
TIE = 1e-12
"""Largest difference between two scores that count as equal."""
UNITS = ("seed", "round", "pair", "video", "fold")
"""What scores may belong to instead of people."""
Scores = Mapping[str, float]
"""Person (or seed) -> value."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Evaluated rounds and means over people, signed so that more is better."""


@dataclass(frozen=True)
class Standing:
    """What is known about one row of a table (a run, in one metric) without any other row.

    Attributes:
        mean: mean over people, signed so that more is better.
        ceiling: True if the metric is in [0, 1] and could hardly be larger.
        learned: True if the row is above the best baseline without learning; None if unknown.
        below: True if the row is significantly below that baseline.
        gaining: gain per round in the last third of the rounds. It is 0 if training has finished,
            and NaN if scores were not recorded by round.
        rounds: number of rounds of training; 0 if it is unknown.
        prior: name of the best baseline without learning; "" if there is none.
        lost: how much better the mean was in its best round than at the end.
    """

    mean: float
    ceiling: bool = False
    learned: bool | None = True
    below: bool = False
    gaining: float = 0.0
    rounds: float = 0.0
    prior: str = ""
    lost: float = 0.0

    @property
    def destroyed(self) -> bool:
        """True if training has finished and the row is worse than the best baseline."""
        return self.below and self.gaining == 0


def standing(
    scores: Scores,
    priors: Mapping[str, Scores],
    lower: bool,
    gaining: float = 0.0,
    images: int = 0,
    learned: bool | None = None,
    rounds: float = 0.0,
) -> Standing:
    """Compare one run with the best baseline without learning, person by person.

    Args:
        scores: the run's scores.
        priors: name -> scores of the baselines, without those that use other people's gaze.
        lower: whether less is better.
        gaining: the run's gain per round at the end; 0: training has finished.
        images: for an accuracy, the number of test images; 0: unknown.
        learned: whether the run has learned; used only if there is no baseline.
        rounds: number of rounds of training; 0: unknown.
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
        return Standing(mean, full, learned, gaining=gaining, rounds=rounds)
    name = max(guesses, key=lambda each: sign * float(guesses[each].mean()))
    ends = lead_ends(mine, guesses[name], sign, images, unit_of(list(known)) == "person")
    above, below = any(low > 0 for low, _ in ends), any(high < 0 for _, high in ends)
    unknown = all(math.isnan(low) for low, _ in ends)
    learned = None if unknown else above
    return Standing(mean, full, learned, below and not above, gaining, rounds, name)


def lead_ends(
    mine: Floats, guess: Floats, sign: float, images: int, people: bool
) -> list[tuple[float, float]]:
    """Return intervals of a run's lead over a baseline, each as a pair of ends.

    For an accuracy on a known number of images there is one interval, over test images, from the
    worst to the best seed. Otherwise intervals are over people: one of the lead, and, if no
    person's baseline is 0, one of the lead relative to each person's baseline. If scores are not
    of people and have equal leads, the ends are NaN. `standing` calls this.

    Args:
        mine: the run's scores.
        guess: the baseline's scores.
        sign: -1.0 if less is better, else 1.0.
        images: number of test images of an accuracy; 0: intervals are over people.
        people: whether scores are of people, and not of seeds or folds on the same test.
    """
    lead, level = sign * (mine - guess), float(guess.mean())
    if images:
        half = ERRORS * standard_error(level, images)
        # One lucky seed is not enough: every seed must be above.
        worst, best = (lead.mean(), lead.mean()) if people else (lead.min(), lead.max())
        return [(float(worst) - half, float(best) + half)]
    # Equal leads of seeds on one test say nothing about the spread.
    if not people and np.ptp(lead) < TIE:
        return [(math.nan, math.nan)]
    # Where few people's baselines differ much, the interval of the plain lead is always wide.
    scaled = [lead, lead / np.abs(guess)] if np.abs(guess).min() > TIE else [lead]
    return [interval(each.tolist()) for each in scaled]


def unit_of(names: Sequence[str]) -> str:
    """Return what scores belong to, by the first word of their names: a word of `UNITS`, or person.

    >>> unit_of(["seed 0", "seed 1"]), unit_of(["p000", "p001"])
    ('seed', 'person')
    """
    first = names[0].partition(" ")[0] if names else ""
    return first if first in UNITS else "person"


def standard_error(share: float, images: int) -> float:
    """Return the standard error of an accuracy (`share`) on a number of test images."""
    # One right and one wrong image are added, as a share of 0 or 1 would have no error otherwise
    # (Agresti and Coull 1998).
    share = (share * images + 1) / (images + 2)
    return math.sqrt(share * (1 - share) / images)


def with_images(
    ends: tuple[float, float], one: float, other: float, images: int
) -> tuple[float, float]:
    """Widen an interval of the difference of two accuracies by the sampling of test images.

    Args:
        ends: the interval over seeds, without the sampling of images.
        one: an accuracy.
        other: the other accuracy.
        images: number of test images.
    """
    middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    half = math.hypot(half, WIDTH * both_errors(one, other, images))
    return middle - half, middle + half


def both_errors(one: float, other: float, images: int) -> float:
    """Return the standard error of the difference of two accuracies on a number of test images."""
    # Both models count as independent on the images, which gives the wider interval.
    return math.hypot(standard_error(one, images), standard_error(other, images))


def gain_a_round(rounds: ArrayLike, means: ArrayLike) -> float:
    """Return the mean gain per round in the last third of the rounds.

    The result is 0 if that third gains at most `GAIN` of the final value. It is NaN if nothing was
    measured between start and end. The third begins at the evaluated round nearest to two thirds of
    all rounds.

    Args:
        rounds: the evaluated rounds.
        means: means over people in these rounds, signed so that more is better.
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

    For a run merged from folds, it is the mean over the folds, as a claim is about all people. The
    curve is empty if clients train once more after the last round and nothing changed before.
    """
    folds = dict.fromkeys(run.results.get("folds", {}).values())
    if folds:
        return mean_curve(
            [training_curve(read_study(run.folder / x).runs[0], metric) for x in folds]
        )
    if not (run.folder / "rounds.csv").exists() or not len(rows := run.rounds):
        return (), ()
    own = rows[(rows.evaluation == "P0") & (rows.metric == metric)]
    # The models of the best evaluation may be measured a second time, after a last step.
    own = own.drop_duplicates(["seed", "round"])
    means = (-1 if metric in run.lower_is_better else 1) * own.groupby("round").value.mean()
    # Clients that train once more after the last round are measured after that: this last point
    # says nothing about the rounds.
    if rows["round"].max() > means.index.max():
        means = means.iloc[:-1]
        # What is learned in that last step alone has no learning curve.
        means = means if means.max() - means.min() > TIE else means.iloc[:0]
    return means.index.to_list(), means.to_list()


def steepest(curves: Iterable[Curve]) -> Curve:
    """Return the curve that gains most at the end; an unrecorded gain counts as the largest."""
    return max(curves, key=lambda each: float(np.nan_to_num(gain_a_round(*each), nan=math.inf)))


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean of learning curves with the same rounds; of others the steepest."""
    rounds = [tuple(at) for at, _ in curves]
    if len(set(rounds)) > 1:
        return steepest(curves)
    return rounds[0], [sum(each) / len(each) for each in zip(*(v for _, v in curves), strict=True)]


def standings(study: StudyResults, metric: str) -> dict[str, Standing]:
    """Return label -> what is known about the run alone in a metric, for every run of a study."""
    priors = {
        name: {person: metrics.get(metric, math.nan) for person, metrics in people.items()}
        for name, people in study.priors.items()
        if kind(name) == "prior"
    }
    by_label = {}
    for run in study.runs:
        # A larger budget of the same method was tried and is worse: more training would not help.
        done = run.closed_form or best_of_budgets(study, run, metric)
        gain = 0.0 if done else gain_a_round(*training_curve(run, metric))
        lower = metric in run.lower_is_better
        by_label[run.label] = standing(
            run.scores(metric), priors, lower, gain, count_test_images(run, metric)
        )
    return by_label


def count_test_images(run: Run, metric: str) -> int:
    """Return the number of all people's test images.

    It is 0 if the number is unknown, or if the metric is not an accuracy. `standings` calls this.
    """
    if "accuracy" not in metric or not (run.folder / "samples.csv").exists():
        return 0
    rows = table(run.folder / "samples.csv")
    return int(rows[rows.seed == rows.seed.min()].counted.sum())


def best_of_budgets(study: StudyResults, run: Run, metric: str) -> bool:
    """Return whether a run has the best of the training budgets tried for its method.

    A budget is a number of gradient steps.

    At least three budgets must have been run, and the best must not be the largest of them.
    `standings` calls this.
    """
    sign = -1 if metric in run.lower_is_better else 1
    means = {
        other.steps: sign * other.estimates[metric].mean
        for other in study.runs
        if other.method == run.method and metric in other.estimates and other.steps > 0
    }
    best = max(means, key=means.__getitem__, default=math.nan)
    return len(means) > 2 and best == run.steps < max(means)


def same_scores(one: Mapping[str, Scores], other: Mapping[str, Scores]) -> bool:
    """Return whether two runs have equal scores of all people in every metric they share."""
    shared = one.keys() & other.keys()
    return bool(shared) and all(
        one[m].keys() == other[m].keys()
        and all(
            abs(v - other[m][k]) <= TIE or (v != v and other[m][k] != other[m][k])
            for k, v in one[m].items()
        )
        for m in shared
    )


def instead_of_verdict(
    one: Standing, other: Standing, equal: bool, both: bool = False, lead: float = 0.0
) -> str:
    """Return the words that replace a verdict on two runs; "" if a verdict may be given.

    Runs that still gain may be judged if the worse one could not catch up: if it gained as much in
    every round as in its last third, and trained for as many rounds again, it would not reach the
    end of the interval of the difference that is nearer to 0. Nor may it have lost as much since
    its best round: where it was, it may be again.

    Args:
        one: what is known about the first run alone, such as whether it has learned.
        other: the same of the second run; of a baseline without learning, only the mean is known.
        equal: whether all scores of the two are the same.
        both: whether both runs must have learned. If False, it is enough that the run with the
            better mean has learned.
        lead: size of that end; 0 if the interval includes 0, or if runs must have finished.
    """
    rows = (one, other)
    if one.ceiling and other.ceiling:
        return "ceiling"
    if equal:
        return "same run"
    winner = max(rows, key=lambda row: row.mean)
    loser = other if winner is one else one
    asked = rows if both else (winner,)
    if unknown := [row for row in asked if row.learned is None]:
        return f"open ({'no spread' if all(row.prior for row in unknown) else 'no baseline'})"
    if not (one.learned or other.learned):
        return "neither learned"
    fastest = float(np.nanmax([row.gaining for row in rows] + [0.0]))
    judged = winner.learned and loser.gaining * loser.rounds < lead and loser.lost < lead
    if fastest > 0 and not judged:
        return f"not trained (gaining {fastest:.2g} a round)"
    if any(math.isnan(row.gaining) for row in rows):
        return "open (not recorded)"
    if not all(row.learned for row in asked):
        return "winner not learned"
    return ""
