"""Verdicts: a claim against the 95 % interval of paired differences over people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vergence.metrics.intervals import interval
from vergence.metrics.sample_size import MOST, POWER, people_needed
from vergence.metrics.statistics import ALPHA, tost
from vergence.reproduce.claims import Claim, Pair, PaperTable, Scores
from vergence.reproduce.data_sets import Ground

TIE = 1e-12
"""Differences below the rounding of a mean of float64 count as equal."""

Word = Literal["holds", "contradicted", "not shown", "not testable here"]
KINDS: Mapping[str, str] = {
    "holds": "hold",
    "contradicted": "contradicted",
    "not shown": "not shown",
    "not testable here": "not testable",
}
"""Verdict -> how it is counted."""


def tally(words: Sequence[str]) -> str:
    """Number of verdicts of each kind, as text.

    >>> tally(["holds", "holds", "not testable here"])
    '2 hold, 0 contradicted, 0 not shown, 1 not testable'

    Raises:
        KeyError: a word is no verdict.
    """
    counts = Counter(KINDS[word] for word in words)
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS.values())


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
    spread were those seen; None where no number up to `sample_size.MOST` would.
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

    @property
    def word(self) -> str:
        """Side that the interval supports: `claimed` side, `opposite` side, or `none`."""
        low, high = self.eased
        return "claimed" if low > 0 else "opposite" if high < 0 else "none"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, judged on its deciding metric, and the differences in the other metrics."""

    claim: Claim
    word: Word
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
    """

    scores: Scores
    lower: frozenset[str]
    missing: Mapping[str, str]
    barred: Mapping[str, str]


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
    found = [_difference(table, claim, pair, metrics[0], evidence, ground) for pair in claim.pairs]
    also = [
        _difference(table, claim, pair, metric, evidence, ground)
        for metric in metrics[1:]
        for pair in claim.pairs
    ]
    word, why = _alike(claim, found) if claim.within else _word(found)
    if claim.margin:
        ends = "; ".join(f"[{d.eased[0]:.3g}, {d.eased[1]:.3g}]" for d in found)
        why += f" (interval with the margin of {claim.margin:.0%}: {ends})"
    return ClaimVerdict(claim, word, why, tuple(found), tuple(also))


def _word(found: Sequence[Difference]) -> tuple[Word, str]:
    if any(math.isnan(d.lo) for d in found):
        return "not testable here", _alone(found)
    against = [d for d in found if d.word == "opposite"]
    open_ = [d for d in found if d.word == "none"]
    if against:
        return "contradicted", f"opposite found against {_rivals(against)}"
    if open_:
        return "not shown", f"no difference shown here against {_rivals(open_)}; {_plan(open_)}"
    return "holds", "every interval excludes 0 on the claimed side"


def _alike(claim: Claim, found: Sequence[Difference]) -> tuple[Word, str]:
    limit = claim.within
    told = f"within {limit:g}"
    if claim.everybody:
        most = max(found, key=lambda d: d.most)
        if most.most <= limit:
            return "holds", f"for everybody {told}; at most {most.most:.2g}"
        return "contradicted", f"{most.most:.2g} apart from {most.rival}"
    if any(math.isnan(d.alike) for d in found):
        return "not testable here", _alone(found)
    ps = "two one-sided t tests, p = " + ", ".join(f"{d.alike:.2g}" for d in found)
    apart = [d for d in found if d.lo > limit or d.hi < -limit]
    if apart:
        return "contradicted", f"not {told} of {_rivals(apart)}: {ps}"
    open_ = [d for d in found if d.alike >= ALPHA]
    if open_:
        return "not shown", f"not shown to be {told} of {_rivals(open_)}: {ps}; {_plan(open_)}"
    return "holds", f"{told}: {ps}"


def _plan(found: Sequence[Difference]) -> str:
    """Name the number of people, seeds or rounds that would decide what these left open."""
    units = "people" if found[0].unit == "person" else f"{found[0].unit}s"
    if any(d.needed is None for d in found):
        return f"with the mean and spread seen here, {MOST:,} {units} would not show it"
    most = max(d.needed or 0 for d in found)
    return f"with the mean and spread seen here, {most:,} {units} show it with {POWER:.0%} power"


def _alone(found: Sequence[Difference]) -> str:
    unit = next(d.unit for d in found if d.people < 2)
    over = "people" if unit == "person" else f"{unit}s"
    return f"one {unit}: nothing is known about the spread over {over}"


def _rivals(found: Sequence[Difference]) -> str:
    return ", ".join(d.rival for d in found)


def _obstacle(claim: Claim, ground: Ground, evidence: Evidence) -> str:
    if claim.quantity not in ground.quantities:
        return f"the task {ground.task} has no {claim.quantity}"
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
    people = [p for p in rival if all(p in scores[label][metric] for label in pair.these)]
    mine = np.array([np.mean([scores[label][metric][p] for label in pair.these]) for p in people])
    other = np.array([rival[p] for p in people])
    gain = sign * (mine - other)
    eased = gain + claim.margin * np.abs(other)
    level = abs(float(other.mean()))
    share = float(gain.mean()) / level if level else math.nan
    return Difference(
        pair.these,
        pair.rival,
        metric,
        float(gain.mean()),
        share,
        *interval(gain),
        interval(eased),
        int((gain > TIE).sum()),
        len(people),
        _printed(table, claim, pair, ground),
        float(np.abs(gain).max()),
        tost(gain, claim.within) if claim.within else math.nan,
        unit_of(people),
        _needed(gain if claim.within else eased, claim.within),
    )


def _needed(gain: NDArray[np.floating], limit: float) -> int | None:
    mean = float(gain.mean())
    if gain.size < 2 or (not limit and mean <= TIE):
        return None
    return people_needed(mean, float(gain.std(ddof=1)), limit)


def unit_of(names: Sequence[str]) -> str:
    """Unit that scores are over, by their names.

    >>> unit_of(["seed 0", "seed 1"]), unit_of(["p000", "p001"])
    ('seed', 'person')
    """
    first = names[0].partition(" ")[0] if names else ""
    return first if first in ("seed", "round") else "person"


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
