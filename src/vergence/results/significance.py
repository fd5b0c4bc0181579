"""Significance tests over a study: differences between methods, ranks, and people harmed.

Used by `api.comparison`, `reports.html`, `studies.compare` and `studies.comparison_tables`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from vergence.errors import ConfigError
from vergence.metrics import statistics
from vergence.metrics.fairness import Fairness, fairness
from vergence.metrics.intervals import difference_bounds, interval
from vergence.results.layout import method_name
from vergence.results.read import Run, StudyResults
from vergence.results.verdict_rules import (
    TIE,
    Standing,
    instead_of_verdict,
    same_scores,
    standings,
)

REFERENCES = ("fedavg", "local_only")
"""Methods with which every other method is paired."""
Unit = Literal["person", "person-seed"]
"""What counts as one observation: a person (mean over seeds), or a person in one seed."""
Verdict = Literal["equivalent", "different", "different, but equivalent", "undecided"]


@dataclass(frozen=True)
class Paired:
    """Mean difference a - b between two runs in one metric, over people.

    With the unit "person-seed", each person counts once per seed. `lo` and `hi` are the ends of the
    95 % interval. `better` is the number of people for whom a is better, out of `people`.
    """

    a: str
    b: str
    metric: str
    mean: float
    lo: float
    hi: float
    better: int
    people: int


@dataclass(frozen=True)
class ComparedMethod:
    """A pair of methods with the results of significance tests.

    `differences` has that of every observation, `[people]`. `p` is Wilcoxon's p-value, `holm` the
    same after Holm's adjustment over all pairs, and `t` Student's p-value. Effect sizes have the
    sign of the difference.

    `equivalence` is the p-value of TOST (two one-sided tests), also after Holm. Without a margin it
    is NaN, and `verdict` is None. If no verdict may be given, `instead` has the words to print.
    `destroyed` is the label of the run that ended below a constant answer; "" if none did.
    """

    pair: Paired
    differences: statistics.Floats = field(repr=False, compare=False)
    p: float
    holm: float
    t: float
    dz: float
    rank_biserial: float
    equivalence: float = math.nan
    verdict: Verdict | None = None
    instead: str = ""
    destroyed: str = ""

    @cached_property
    def bootstrap(self) -> tuple[float, float]:
        """BCa interval of the mean difference."""
        # 10,000 people take a second, which tables without it need not spend, and b - a not again.
        turned = bool(self.differences.sum() < 0)
        low, high = _bootstrap((-self.differences if turned else self.differences).tobytes())
        return (-high, -low) if turned else (low, high)

    @property
    def different(self) -> bool:
        """True if Wilcoxon's test after Holm shows a difference, and a verdict may be given."""
        return self.holm < statistics.ALPHA and not self.instead

    @property
    def word(self) -> str:
        """The verdict on the pair in words, or the words to print instead of a verdict."""
        if self.different and self.destroyed:
            return f"different: {method_name(self.destroyed)} is worse than a constant"
        return self.instead or ("different" if self.different else "no difference shown")


@lru_cache(maxsize=32)
def _bootstrap(differences: bytes) -> tuple[float, float]:
    """Return the BCa interval of the mean of float64 numbers."""
    return statistics.bootstrap(np.frombuffer(differences))


@dataclass(frozen=True)
class Ranked:
    """Ranks of all methods of a study among each other, for every person.

    `labels` has the runs in the order of `ranking`; `people` is the number of people (or of pairs
    of person and seed).
    """

    labels: tuple[str, ...]
    people: int
    ranking: statistics.Ranking


def paired(
    study: StudyResults, a: str, b: str, metric: str | None = None, unit: Unit = "person"
) -> Paired:
    """Return the mean difference a - b over the people in both runs, with its 95 % t interval.

    Args:
        study: the runs.
        a: label of the first run.
        b: label of the second run.
        metric: the metric; default: the headline metric.
        unit: what counts as one observation. With "person-seed" a person counts once per seed.

    Raises:
        ConfigError: a run or metric is unknown, or the runs have no person in common.
    """
    metric = metric or study.headline
    differences = _differences(study, a, b, metric, unit)
    sign = -1 if metric in study.lower_is_better else 1
    lo, hi = interval(differences, bounds=difference_bounds(study.run(a).bounds(metric)))
    better = int((sign * differences > TIE).sum())
    return Paired(a, b, metric, float(differences.mean()), lo, hi, better, len(differences))


def pairs_of(study: StudyResults, reference: str | None = None) -> list[tuple[str, str]]:
    """Return the pairs of labels to compare: each run with the run `reference`.

    By default each run is compared with FedAvg and with local-only training. `judge` calls this.

    Raises:
        ConfigError: there is no run `reference`.
    """
    others = (
        [study.find(name) for name in REFERENCES] if reference is None else [study.run(reference)]
    )
    return [
        (run.label, other.label)
        for other in others
        if other is not None
        for run in study.runs
        if run.label != other.label
    ]


def judge(
    study: StudyResults,
    metric: str | None = None,
    reference: str | None = None,
    margin: float | None = None,
    unit: Unit = "person",
) -> list[ComparedMethod]:
    """Return the pairs of `pairs_of` with their tests, adjusted over all pairs.

    With a margin (in the metric's units) each pair gets a verdict, after Holm at level 0.05:
    "equivalent" by TOST (two one-sided tests), "different" by Wilcoxon's test, else "undecided". A
    pair that is both has a real difference that is too small to matter.

    Raises:
        ConfigError: a run or metric is unknown, or the margin is not positive.
    """
    if margin is not None and not (margin > 0 and math.isfinite(margin)):
        raise ConfigError(f"--margin must be a positive number in the metric's units, got {margin}")
    metric = metric or study.headline
    pairs = pairs_of(study, reference)
    values = {pair: _differences(study, *pair, metric, unit) for pair in pairs}
    p_values = {pair: statistics.wilcoxon(d) for pair, d in values.items()}
    adjusted = _family(p_values)
    near = (
        dict.fromkeys(pairs, math.nan)
        if margin is None
        else _family({pair: statistics.tost(d, margin) for pair, d in values.items()})
    )
    alone = standings(study, metric)
    return [
        ComparedMethod(
            paired(study, *pair, metric, unit),
            d,
            p_values[pair],
            adjusted[pair],
            statistics.paired_t(d),
            statistics.cohen_dz(d),
            statistics.rank_biserial(d),
            near[pair],
            None if margin is None else _verdict(near[pair], adjusted[pair]),
            *_standing(study, pair, alone),
        )
        for pair, d in values.items()
    ]


def _standing(
    study: StudyResults, pair: tuple[str, str], alone: Mapping[str, Standing]
) -> tuple[str, str]:
    """Return the words that replace a verdict on two runs, and the label of a destroyed run.

    A run is destroyed if it finished training significantly below the best baseline without
    learning. If both are destroyed, the label is the first one's; it is "" if neither is. `alone`
    holds, by label, what `standings` says about each run without the other.
    """
    one, other = (study.run(name) for name in pair)
    mine, theirs = ({m: run.scores(m) for m in run.results["metrics"]} for run in (one, other))
    first, second = alone[one.label], alone[other.label]
    destroyed = one.label if first.destroyed else other.label if second.destroyed else ""
    return instead_of_verdict(first, second, same_scores(mine, theirs)), destroyed


def family(pairs: Sequence[ComparedMethod]) -> int:
    """Return the number of hypotheses over which p-values were adjusted.

    a - b and b - a count once.
    """
    return len({frozenset((j.pair.a, j.pair.b)) for j in pairs})


def best(study: StudyResults, metric: str) -> Run | None:
    """Return the run with the best mean over people in a metric; None if no mean is finite."""
    sign = -1 if metric in study.lower_is_better else 1
    measured = [r for r in study.runs if metric in r.estimates]
    finite = [r for r in measured if math.isfinite(r.estimates[metric].mean)]
    return max(finite, key=lambda run: sign * run.estimates[metric].mean, default=None)


def rank(study: StudyResults, metric: str | None = None, unit: Unit = "person") -> Ranked | None:
    """Rank all methods for every person.

    Returns:
        The ranks; None with fewer than three methods or two people.

    Raises:
        ConfigError: the metric is unknown.
    """
    metric = metric or study.headline
    scores = {run.label: _scores(run, metric, unit) for run in study.runs}
    shared = [k for k in next(iter(scores.values())) if all(k in s for s in scores.values())]
    if len(scores) < 3 or len(shared) < 2:
        return None
    table = np.array([[values[k] for values in scores.values()] for k in shared])
    ranking = statistics.friedman(table, metric in study.lower_is_better)
    return Ranked(tuple(scores), len(shared), ranking)


def fairness_by_run(study: StudyResults, metric: str | None = None) -> dict[str, Fairness]:
    """Return label -> fairness over people, such as the worst score and who is harmed.

    Harm is a loss compared with a local-only run, if there is one. With several local-only runs,
    that of the method's own experiment is taken. Runs without the metric are left out.
    """
    metric = metric or study.headline
    scores = {
        run.label: {p: v for p, v in run.scores(metric).items() if not math.isnan(v)}
        for run in study.runs
    }
    blocks = {}
    for run in study.runs:
        near = [r for r in study.runs if r.folder.parent == run.folder.parent]
        alone = StudyResults(study.folder, tuple(near), {}).find("local_only") or study.find(
            "local_only"
        )
        if scores[run.label]:
            blocks[run.label] = fairness(
                scores[run.label],
                metric in study.lower_is_better,
                (scores[alone.label] or None) if alone is not None else None,
            )
    return blocks


def _scores(run: Run, metric: str, unit: Unit) -> dict[Any, float]:
    """Return the finite value of every person, or of every (person, seed)."""
    values: Mapping[Any, float] = run.scores(metric)
    if unit == "person-seed":
        values = run.final(metric).set_index(["person", "seed"]).value.to_dict()
    return {key: value for key, value in values.items() if math.isfinite(value)}


def _differences(study: StudyResults, a: str, b: str, metric: str, unit: Unit) -> statistics.Floats:
    one, other = (_scores(study.run(name), metric, unit) for name in (a, b))
    both = [key for key in one if key in other]
    if not both:
        raise ConfigError(f"{a} and {b} have no {unit} with '{metric}' in common")
    return np.array([one[key] - other[key] for key in both])


def _family(p_values: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Adjust p-values by Holm's method; a - b and b - a count as one hypothesis."""
    # The tests of a - b and b - a are one hypothesis, which must not be paid for twice.
    single = {frozenset(pair): p for pair, p in p_values.items()}
    adjusted = dict(zip(single, statistics.holm(list(single.values())), strict=True))
    return {pair: adjusted[frozenset(pair)] for pair in p_values}


def _verdict(equivalence: float, difference: float) -> Verdict:
    equivalent, different = equivalence < statistics.ALPHA, difference < statistics.ALPHA
    if equivalent:
        return "different, but equivalent" if different else "equivalent"
    return "different" if different else "undecided"
