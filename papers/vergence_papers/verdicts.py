"""Verdicts: a claim against the 95 % interval of paired differences over people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from vergence.metrics.intervals import CORRELATION, SHARE, Bounds, difference_bounds, interval
from vergence.metrics.sample_size import MOST, POWER, people_needed
from vergence.metrics.statistics import ALPHA, tost
from vergence.results.baselines import ALONE, REFERENCES
from vergence.results.read import Run
from vergence.results.verdict_rules import (
    TIE,
    Curve,
    Standing,
    both_errors,
    gain_a_round,
    instead_of_verdict,
    same_scores,
    standing,
    steepest,
    unit_of,
    with_images,
)
from vergence_papers.claims import PRIOR, Claim, Pair, PaperTable, Scores
from vergence_papers.data_sets import COUNTED, Ground

KINDS: Mapping[str, str] = {
    "holds": "hold",
    "contradicted": "contradicted",
    "not shown": "not shown",
    "neither learned": "not learned",
    "winner not learned": "not learned",
    "not trained": "not trained",
    "ceiling": "ceiling",
    "same run": "same run",
    "open": "open",
    "not testable here": "not testable",
}
"""Verdict, or the words in its place, up to a bracket -> how it is counted."""


JUDGED = ("contradicted", "not shown")
OWNERS = ("T1", "u", "s", "H")
"""Mean accuracies of classes."""


def kind_of(word: str) -> str:
    """Return the column in which a verdict, or words in its place, is counted.

    >>> kind_of("holds"), kind_of("not trained (gaining 0.03 a round)")
    ('hold', 'not trained')

    Raises:
        KeyError: it is none.
    """
    return KINDS[word.partition(" (")[0]]


def scale(metric: str) -> float:
    """Return the factor from a score to what is printed: shares are printed as percent."""
    shares = metric in ("f", *OWNERS) or metric.startswith(("f1", "recall", "precision"))
    return 100.0 if shares or "accuracy" in metric else 1.0


def bounds(metric: str) -> Bounds | None:
    """Return the smallest and largest possible value of a metric; None: it has no bounds."""
    if scale(metric) == 100:
        return SHARE
    if "%" in metric:
        return 0.0, 100.0
    return CORRELATION if metric in ("tau", "rho") else None


def tally(words: Sequence[str]) -> str:
    """Number of verdicts of each kind, as text.

    >>> tally(["holds", "holds", "not testable here"])
    '2 hold, 0 contradicted, 0 not shown, 1 not testable'

    Raises:
        KeyError: a word is no verdict.
    """
    counts = Counter(map(kind_of, words))
    shown = (k for word, k in KINDS.items() if counts[k] or word in ("holds", *JUDGED))
    return ", ".join(f"{counts[kind]} {kind}" for kind in dict.fromkeys(shown))


@dataclass(frozen=True)
class Difference:
    """Gain of `these` over `rival`, over people, in the units of the metric.

    Positive means better, whatever the direction of the metric; `share` is the mean difference
    over the rival's mean, NaN where that is 0. `eased` is the interval that the verdict rests on:
    of the difference plus the claim's margin, a share of each person's rival value. `printed` maps
    the paper's data set to its own difference, NaN where a number is missing. `most` is the largest
    difference of a person, `alike` the p-value of the test that the mean lies within the claim's
    limit, NaN for a claim without one. `unit` is what the interval is over: persons, seeds, rounds;
    `needed` how many of them would show what the claim says with 80 % power, if their mean and
    spread were those seen; None where no number up to `sample_size.MOST` would. `instead` are the
    words in the place of a verdict, `destroyed` the row that has finished below a constant answer.
    """

    these: tuple[str, ...]
    rival: str
    metric: str
    mean: float
    share: float
    lo: float
    hi: float
    eased: tuple[float, float]
    better: int
    people: int
    printed: Mapping[str, float]
    most: float = math.nan
    alike: float = math.nan
    unit: str = "person"
    needed: int | None = None
    instead: str = ""
    destroyed: str = ""

    @property
    def word(self) -> str:
        """Side that the interval supports: `claimed` side, `opposite` side, or `none`."""
        low, high = self.eased
        return "claimed" if low > 0 else "opposite" if high < 0 else "none"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, judged on its deciding metric, and the differences in the other metrics."""

    claim: Claim
    word: str
    reason: str
    differences: tuple[Difference, ...] = ()
    also: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Results of the runs of a table.

    Attributes:
        scores: of every row.
        lower: metrics where less is better.
        missing: rows that could not be run here, and why.
        barred: rows that ran but must not be judged, and why.
        runs: row -> its run, where it has one of its own.
        curves: row -> metric -> rounds in which people were measured, and means over them, signed
            so that more is better; the main metric first. A row without a run of its own has those
            of the run of its part that gains most.
        images: of metrics that are accuracies on a test that all rows share, its images.
    """

    scores: Scores
    lower: frozenset[str]
    missing: Mapping[str, str]
    barred: Mapping[str, str]
    runs: Mapping[str, Run] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    images: Mapping[str, int] = field(default_factory=dict)

    def priors(self, metric: str) -> dict[str, Mapping[str, float]]:
        """Return the static predictors that have a metric; others' gaze is none of them.

        The name of a row may end with that of its part: "people with 1 class (prior)".
        """
        return {
            label: told[metric]
            for label, told in self.scores.items()
            if label.endswith(PRIOR) and metric in told
            if not any(f"{label} ".startswith(f"{each} ") for each in (*REFERENCES, *ALONE))
        }

    def standing(self, labels: Sequence[str], metric: str) -> Standing:
        """Return the standing of a row, or of the mean of several, in a metric."""
        rows = [self.scores[label].get(metric, {}) for label in labels]
        people = [p for p in rows[0] if all(p in row for row in rows)]
        mean = {p: float(np.mean([row[p] for row in rows])) for p in people}
        lower, images = metric in self.lower, self.images.get(metric, 0)
        if labels[0].endswith(PRIOR):
            return standing(mean, {}, lower, learned=True)
        own = [self.curves.get(label, {}) for label in labels]
        # A metric that was not measured between rounds has finished when the main one has.
        curves = [each.get(metric, next(iter(each.values()), ((), ()))) for each in own]
        gaining = gain_a_round(*steepest(curves))
        # How far a row would come in as many rounds again, only a curve of its own can say.
        unknown = any(metric not in each for each in own)
        rounds = math.inf if unknown else max((at[-1] for at, _ in curves if at), default=0.0)
        alone = standing(mean, self.priors(metric), lower, gaining, images, rounds=rounds)
        return replace(alone, lost=max((max(v) - v[-1] for _, v in curves if v), default=0.0))


def judge(table: PaperTable, claim: Claim, ground: Ground, evidence: Evidence) -> ClaimVerdict:
    """Return the verdict on one claim.

    Every interval above 0: holds. One below 0: contradicted. Otherwise not shown: it cannot be
    told from chance. A row or score that is not there: not testable.

    Rows said to be alike: every test rejects that the mean is outside the limit, holds; an interval
    lies outside, contradicted; otherwise not shown.
    """
    reason = claim.untestable or _obstacle(claim, ground, evidence)
    if reason:
        return ClaimVerdict(claim, "not testable here", reason)
    metrics = ground.quantities[claim.quantity]
    gate = "" if claim.everybody else gate_of(metrics[0], ground, evidence)
    shown = metrics_of(table, ground)
    found = [
        replace(told, **_instead(claim, told, gate, shown, evidence))
        for told in (
            _difference(table, claim, pair, metrics[0], evidence, ground) for pair in claim.pairs
        )
    ]
    also = [
        _difference(table, claim, pair, metric, evidence, ground)
        for metric in metrics[1:]
        for pair in claim.pairs
    ]
    word, why = _alike(claim, found) if claim.within else _word(found)
    if claim.margin:
        ends = "; ".join(
            "[" + ", ".join(f"{scale(d.metric) * end:.3g}" for end in d.eased) + "]" for d in found
        )
        why += f" (interval with the margin of {claim.margin:.0%}: {ends})"
    return ClaimVerdict(claim, word, why, tuple(found), tuple(also))


def gate_of(metric: str, ground: Ground, evidence: Evidence) -> str:
    """Return the metric by which rows must have learned; "" of what is spent, made or attacked.

    It is the metric itself where a predictor that needs no training has it, else the main one; and
    the main one for half of a trade-off: a map that is bright everywhere has the best recall.
    """
    halves = {ground.quantities.get(name, ("",))[0] for name in ("recall", "precision", "u", "s")}
    if metric in COUNTED:
        return ""
    if metric not in halves and evidence.priors(metric):
        return metric
    return ground.quantities["main"][0]


def metrics_of(table: PaperTable, ground: Ground) -> list[str]:
    """Return the metrics that decide the claims of a table, the main one of its data set first."""
    asked = [c.quantity for c in table.claims if c.quantity in ground.quantities]
    return list(dict.fromkeys(ground.quantities[name][0] for name in ("main", *asked)))


def _instead(
    claim: Claim, pair: Difference, gate: str, shown: Sequence[str], evidence: Evidence
) -> dict[str, str]:
    """Words in the place of a verdict on a pair, and the row that training has destroyed."""
    if not gate:
        return {}
    sides = (pair.these, (pair.rival,))
    one, other = (evidence.standing(labels, gate) for labels in sides)
    told = [evidence.scores[labels[0]] for labels in sides]
    mine, theirs = ({m: row[m] for m in shown if m in row} for row in told)
    equal = len(pair.these) == 1 and not claim.within and same_scores(mine, theirs)
    lost = pair.these[0] if one.destroyed else pair.rival if other.destroyed else ""
    # The curve by which rows still gain is that of the metric in which they must have learned.
    # What a claim allows a row to be worse by, a margin or a limit, it would not have to catch up.
    # Rows that are said to be alike must both have learned, unless they are further apart.
    ends = [pair.lo - claim.within, -pair.eased[1] - claim.within, 0.0]
    lead = float(np.nanmax(ends)) if pair.metric == gate else 0.0
    words = instead_of_verdict(one, other, equal, claim.within > 0 and not lead, lead)
    return {"instead": words, "destroyed": lost}


def _word(differences: Sequence[Difference]) -> tuple[str, str]:
    against = [d for d in differences if d.word == "opposite" and not d.instead]
    open_ = [d for d in differences if d.word == "none"]
    if against:
        return "contradicted", f"opposite found against {_rivals(against)}{_destroyed(against)}"
    if any(math.isnan(d.lo) and d.instead != "same run" for d in differences):
        return "not testable here", _alone(differences)
    if barred := _barred(differences):
        return barred
    if open_:
        return "not shown", f"no difference shown here against {_rivals(open_)}; {_plan(open_)}"
    return "holds", f"every interval excludes 0 on the claimed side{_destroyed(differences)}"


def _barred(differences: Sequence[Difference]) -> tuple[str, str] | None:
    """Words in the place of a verdict, and against whom; None where one may be given."""
    told = [
        (d.instead, f"{', '.join(d.these)} against {d.rival}") for d in differences if d.instead
    ]
    return (told[0][0], "; ".join(f"{pair}: {words}" for words, pair in told)) if told else None


def _destroyed(differences: Sequence[Difference]) -> str:
    """Clause on rows that lose by name, as they have finished below a constant answer."""
    names = dict.fromkeys(d.destroyed for d in differences if d.destroyed)
    return "".join(f"; {name}: worse than a constant" for name in names)


def _alike(claim: Claim, differences: Sequence[Difference]) -> tuple[str, str]:
    limit = claim.within
    told = f"within {limit:g}"
    if claim.everybody:
        most = max(differences, key=lambda d: d.most)
        if most.most <= limit:
            return "holds", f"for everybody {told}; at most {most.most:.2g}"
        return "contradicted", f"{most.most:.2g} apart from {most.rival}"
    if any(math.isnan(d.alike + d.lo) for d in differences):
        return "not testable here", _alone(differences)
    if barred := _barred(differences):
        return barred
    ps = "two one-sided t tests, p = " + ", ".join(f"{d.alike:.2g}" for d in differences)
    apart = [d for d in differences if d.lo > limit or d.hi < -limit]
    if apart:
        return "contradicted", f"not {told} of {_rivals(apart)}: {ps}"
    open_ = [d for d in differences if d.alike >= ALPHA]
    if open_:
        return "not shown", f"not shown to be {told} of {_rivals(open_)}: {ps}; {_plan(open_)}"
    return "holds", f"{told}: {ps}"


def _plan(differences: Sequence[Difference]) -> str:
    """Name the number of people, seeds or rounds that would decide what these left open."""
    units = "people" if differences[0].unit == "person" else f"{differences[0].unit}s"
    if any(d.needed is None for d in differences):
        return f"with the mean and spread seen here, {MOST:,} {units} would not show it"
    most = max(d.needed or 0 for d in differences)
    return f"with the mean and spread seen here, {most:,} {units} show it with {POWER:.0%} power"


def _alone(differences: Sequence[Difference]) -> str:
    worst = next(d for d in differences if math.isnan(d.lo))
    over = "people" if worst.unit == "person" else f"{worst.unit}s"
    few = f"one {worst.unit}" if worst.people < 2 else f"all {worst.people} {over} differ alike"
    return f"{few}: nothing is known about the spread over {over}"


def _rivals(differences: Sequence[Difference]) -> str:
    return ", ".join(d.rival for d in differences)


def _obstacle(claim: Claim, ground: Ground, evidence: Evidence) -> str:
    if claim.quantity not in ground.quantities:
        return f"the task {ground.task} has no {claim.quantity}"
    if any({*p.these, p.rival} <= {*ground.incomparable} for p in claim.pairs):
        return ground.why
    named = dict.fromkeys(label for p in claim.pairs for label in (*p.these, p.rival))
    for label in named:
        for reasons in (evidence.missing, evidence.barred):
            if label in reasons:
                return f"{label}: {reasons[label]}"
        if label not in evidence.scores:
            return f"no row '{label}' was run"
    return ""


def _difference(
    table: PaperTable, claim: Claim, pair: Pair, metric: str, evidence: Evidence, ground: Ground
) -> Difference:
    scores = evidence.scores
    rival = scores[pair.rival][metric]
    sign = -1.0 if metric in evidence.lower else 1.0
    sides = [rival, *(scores[label][metric] for label in pair.these)]
    people = [p for p in rival if all(math.isfinite(row.get(p, math.nan)) for row in sides)]
    mine = np.array([np.mean([scores[label][metric][p] for label in pair.these]) for p in people])
    other = np.array([rival[p] for p in people])
    gain = sign * (mine - other)
    eased = gain + claim.margin * np.abs(other)
    unit, images = unit_of(people), evidence.images.get(metric, 0)
    error = both_errors(float(mine.mean()), float(other.mean()), images) if images else 0.0

    def ends(values: NDArray[np.floating]) -> tuple[float, float]:
        if images:
            return with_images(interval(values), float(mine.mean()), float(other.mean()), images)
        same = unit != "person" and metric not in COUNTED and np.ptp(values) < TIE
        return (math.nan, math.nan) if same else interval(values)

    lowest, highest = difference_bounds(bounds(metric)) or (-math.inf, math.inf)
    lo, hi = (float(np.clip(end, lowest, highest)) for end in ends(gain))
    level = abs(float(other.mean()))
    share = float(gain.mean()) / level if level else math.nan
    return Difference(
        pair.these,
        pair.rival,
        metric,
        float(gain.mean()),
        share,
        lo,
        hi,
        ends(eased),
        int((gain > TIE).sum()),
        len(people),
        _printed(table, claim, pair, ground),
        float(np.abs(gain).max()),
        tost(gain, claim.within, error) if claim.within else math.nan,
        unit,
        _needed(gain if claim.within else eased, claim.within),
    )


def _needed(gain: NDArray[np.floating], limit: float) -> int | None:
    mean = float(gain.mean())
    if gain.size < 2 or (not limit and mean <= TIE):
        return None
    return people_needed(mean, float(gain.std(ddof=1)), limit)


def printed_on(table: PaperTable, ground: Ground) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
    """Return a table's printed rows on a data set, where it is one of the paper's; else on all."""
    same = table.printed.get(ground.same_as)
    return table.printed if same is None else {ground.same_as: same} if same else {}


def _printed(table: PaperTable, claim: Claim, pair: Pair, ground: Ground) -> dict[str, float]:
    """Return the paper's own difference, data set by data set."""
    if claim.quantity not in table.columns:
        return {}
    at = table.columns.index(claim.quantity)
    lower = table.unit == "gaze_angle" or claim.quantity in table.less
    sign = -1.0 if lower else 1.0
    found = {}
    for data, rows in printed_on(table, ground).items():
        if all(label in rows for label in (*pair.these, pair.rival)):
            mine = float(np.mean([rows[label][at] for label in pair.these]))
            found[data] = sign * (mine - rows[pair.rival][at])
    return found
