"""Significance tests over a study: differences between methods, ranks, and people harmed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vergence.errors import ConfigError
from vergence.metrics import statistics
from vergence.metrics.fairness import Fairness, fairness
from vergence.metrics.intervals import interval
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
"""Methods that every other one is paired with."""
Unit = Literal["person", "person-seed"]
"""What is one observation: a person with seeds averaged first, or a person in one seed."""
Verdict = Literal["equivalent", "different", "different, but equivalent", "undecided"]


@dataclass(frozen=True)
class Paired:
    """Difference a - b over people, seeds averaged within a person first."""

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
    """A pair with its tests; `holm` and `equivalence` are adjusted over all pairs of one table.

    `bootstrap` is the BCa interval, `p` Wilcoxon's, `t` Student's; effect sizes have the sign of
    the difference. `equivalence` is the p-value of TOST, NaN without a margin, and `verdict` None.
    `instead` are the words that stand in the place of a verdict where none may be given, and
    `destroyed` is the method of the two that has finished below a constant answer, if one has.
    """

    pair: Paired
    bootstrap: tuple[float, float]
    p: float
    holm: float
    t: float
    dz: float
    rank_biserial: float
    equivalence: float = math.nan
    verdict: Verdict | None = None
    instead: str = ""
    destroyed: str = ""

    @property
    def different(self) -> bool:
        """True if Wilcoxon's test, after Holm, says so, and a verdict may be given."""
        return self.holm < statistics.ALPHA and not self.instead

    @property
    def word(self) -> str:
        """The one verdict on a pair, wherever it is shown, or the words in its place."""
        if self.different and self.destroyed:
            return f"different: {method_name(self.destroyed)} is worse than a constant"
        return self.instead or ("different" if self.different else "no difference shown")


@dataclass(frozen=True)
class Ranked:
    """All methods of a study ranked within every person; `labels` in the order of `ranking`."""

    labels: tuple[str, ...]
    people: int
    ranking: statistics.Ranking


def paired(
    study: StudyResults, a: str, b: str, metric: str | None = None, unit: Unit = "person"
) -> Paired:
    """Return the mean difference a - b over the people both have, with its 95 % t interval.

    `metric` defaults to the headline; `better` counts people for whom a is better than b. By
    `unit` "person-seed", a person counts once per seed.

    Raises:
        ConfigError: an unknown run or metric, or no person in common.
    """
    metric = metric or study.headline
    differences = _differences(study, a, b, metric, unit)
    sign = -1 if metric in study.lower_is_better else 1
    lo, hi = interval(differences)
    better = int((sign * differences > TIE).sum())
    return Paired(a, b, metric, float(differences.mean()), lo, hi, better, len(differences))


def pairs_of(study: StudyResults, reference: str | None = None) -> list[tuple[str, str]]:
    """Pairs to compare: everybody with `reference`, else with FedAvg and local-only.

    Raises:
        ConfigError: there is no run `reference`.
    """
    found = (
        [study.find(name) for name in REFERENCES] if reference is None else [study.run(reference)]
    )
    return [
        (run.label, other.label)
        for other in found
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
    """Return the pairs of `pairs_of` with their tests, adjusted over them as one family.

    With a margin (in the metric's units) each gets a verdict: equivalent where TOST says so,
    different where Wilcoxon's test does, both after Holm at 0.05, else undecided; where both do,
    the difference is real, but too small to matter. A pair that stands in the table in both
    directions is one hypothesis and counts once.

    Raises:
        ConfigError: an unknown run or metric, or a margin that is not positive.
    """
    if margin is not None and not (margin > 0 and math.isfinite(margin)):
        raise ConfigError(f"--margin must be a positive number in the metric's units, got {margin}")
    metric = metric or study.headline
    pairs = pairs_of(study, reference)
    values = {pair: _differences(study, *pair, metric, unit) for pair in pairs}
    adjusted = _family({pair: statistics.wilcoxon(d) for pair, d in values.items()})
    near = dict.fromkeys(pairs, math.nan)
    if margin is not None:
        near = _family({pair: statistics.tost(d, margin) for pair, d in values.items()})
    alone = standings(study, metric)
    return [
        ComparedMethod(
            paired(study, *pair, metric, unit),
            statistics.bootstrap(d),
            statistics.wilcoxon(d),
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
    """Words in the place of a verdict on two runs, and the run that training has destroyed."""
    one, other = (study.run(name) for name in pair)
    mine, theirs = ({m: run.scores(m) for m in run.results["metrics"]} for run in (one, other))
    left, right = alone[one.label], alone[other.label]
    lost = one.label if left.destroyed else other.label if right.destroyed else ""
    return instead_of_verdict(left, right, same_scores(mine, theirs)), lost


def family(pairs: Sequence[ComparedMethod]) -> int:
    """Return the number of hypotheses that p-values were adjusted for."""
    return len({frozenset((j.pair.a, j.pair.b)) for j in pairs})


def best(study: StudyResults, metric: str) -> Run | None:
    """The trained method with the best finite mean over people; None: there is none."""
    sign = -1 if metric in study.lower_is_better else 1
    there = [r for r in study.runs if metric in r.estimates]
    finite = [r for r in there if math.isfinite(r.estimates[metric].mean)]
    return max(finite, key=lambda run: sign * run.estimates[metric].mean, default=None)


def rank(study: StudyResults, metric: str | None = None, unit: Unit = "person") -> Ranked | None:
    """Rank all methods within every person; None with fewer than three methods or two people.

    Raises:
        ConfigError: an unknown metric.
    """
    metric = metric or study.headline
    scores = {run.label: _scores(run, metric, unit) for run in study.runs}
    shared = [k for k in next(iter(scores.values())) if all(k in s for s in scores.values())]
    if len(scores) < 3 or len(shared) < 2:
        return None
    table = np.array([[found[k] for found in scores.values()] for k in shared])
    ranking = statistics.friedman(table, metric in study.lower_is_better)
    return Ranked(tuple(scores), len(shared), ranking)


def fairness_by_run(study: StudyResults, metric: str | None = None) -> dict[str, Fairness]:
    """Return label -> fairness block over people, against local-only where it was run.

    Of several local-only runs, each method has that of its own experiment. Methods without the
    metric are left out.
    """
    metric = metric or study.headline
    scores = {
        run.label: {p: v for p, v in run.scores(metric).items() if not math.isnan(v)}
        for run in study.runs
    }
    found = {}
    for run in study.runs:
        near = [r for r in study.runs if r.folder.parent == run.folder.parent]
        alone = StudyResults(study.folder, tuple(near), {}).find("local_only") or study.find(
            "local_only"
        )
        if scores[run.label]:
            found[run.label] = fairness(
                scores[run.label],
                metric in study.lower_is_better,
                (scores[alone.label] or None) if alone is not None else None,
            )
    return found


def _scores(run: Run, metric: str, unit: Unit) -> dict[Any, float]:
    """Return the finite value of every person, or (person, seed)."""
    found: Mapping[Any, float] = run.scores(metric)
    if unit == "person-seed":
        found = run.final(metric).set_index(["person", "seed"]).value.to_dict()
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _differences(study: StudyResults, a: str, b: str, metric: str, unit: Unit) -> statistics.Floats:
    one, other = (_scores(study.run(name), metric, unit) for name in (a, b))
    both = [key for key in one if key in other]
    if not both:
        raise ConfigError(f"{a} and {b} have no {unit} with '{metric}' in common")
    return np.array([one[key] - other[key] for key in both])


def _family(p_values: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """Adjust p-values by Holm, with a - b and b - a as one hypothesis."""
    single = {frozenset(pair): p for pair, p in p_values.items()}
    adjusted = dict(zip(single, statistics.holm(list(single.values())), strict=True))
    return {pair: adjusted[frozenset(pair)] for pair in p_values}


def _verdict(equivalence: float, difference: float) -> Verdict:
    near, apart = equivalence < statistics.ALPHA, difference < statistics.ALPHA
    if near:
        return "different, but equivalent" if apart else "equivalent"
    return "different" if apart else "undecided"
