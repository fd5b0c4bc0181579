"""Verdicts of result pages, computed again from the CSV files beside them alone.

    python -m tools.examiner    # what may be said of every page; exit code 1 where one is wrong

A page `NAME.md` of docs/results, or of the results of a paper, that prints a verdict needs
`data/NAME/scores.csv` beside it (every number that verdicts rest on) and `claims.csv` (which rows
are compared, in what). Priors, learned, finished, intervals and words are computed here with
formulas of their own: nothing of
`vergence.results` or `vergence_papers` is imported. A page without these files may say `open`.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
GAIN, LAST, ERRORS, FULL, TIE = 0.01, 1 / 3, 3.0, 0.99, 1e-12
REFERENCES = ("other people", "people", "kernel ridge alone", "nearest picture")
"""Rows beside the priors that are none: what others did, and learners of a person's own samples."""
WORDS = ("holds", "contradicted", "not shown", "different", "no difference shown")
"""Verdicts that need numbers beside them."""
SENTENCE = re.compile("; (different|no difference shown) [(]Holm's p")
"""Verdicts in sentences, as pages had them before their tables did."""
INTERVAL = re.compile(r"^\[([\d.\u2212-]+), ([\d.\u2212-]+)\]$")


class Numbers:
    """Scores of a page: by row, metric and person or seed, averaged over seeds of a person."""

    def __init__(self, path: Path) -> None:
        found = defaultdict(list)
        self.curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
        self.images: dict[str, int] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                row, metric, value = line["row"], line["metric"], float(line["value"])
                if row == "test":
                    self.images[metric] = int(value)
                elif line["round"] != "end":
                    curve = self.curves.setdefault(row, {}).setdefault(metric, [])
                    curve.append((int(line["round"]), value))
                else:
                    unit = line["person"] or f"seed {line['seed']}"
                    found[row, metric, unit].append(value)
        self.scores: dict[str, dict[str, dict[str, float]]] = {}
        for (row, metric, unit), values in found.items():
            self.scores.setdefault(row, {}).setdefault(metric, {})[unit] = float(np.mean(values))

    def row(self, labels: str, metric: str) -> dict[str, float]:
        """Scores of a row, or the mean of several; a prior is found by either of its names."""
        rows = [self.scores.get(name(x), {}).get(metric, {}) for x in labels.split("|")]
        units = [u for u in rows[0] if all(u in each for each in rows)]
        return {unit: float(np.mean([each[unit] for each in rows])) for unit in units}

    def curve(self, label: str, metric: str) -> list[tuple[int, float]]:
        """Means of a row by round, in a metric, or, where it has none there, the main one."""
        own = self.curves.get(label, {})
        found = own.get(metric, next(iter(own.values()), []))
        return sorted(p for p in found if math.isfinite(p[1]))

    def gain(self, labels: str, metric: str) -> float:
        """Largest gain of a round in the last third, 0 if it is small, NaN if not recorded."""
        found = []
        for label in labels.split("|"):
            curve = self.curve(label, metric)
            inside = [p for p in curve if 0 < p[0] < curve[-1][0]]
            if not inside:
                return math.nan
            last, end = curve[-1]
            at, then = min(inside, key=lambda p: abs(p[0] - (1 - LAST) * last))
            rate = (end - then) / (last - at)
            found.append(rate if rate * LAST * last > GAIN * abs(end) else 0.0)
        return max(found)


def name(label: str) -> str:
    """A row's name in scores.csv."""
    return f"prior: {label.removesuffix(' (prior)')}" if label.endswith(" (prior)") else label


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Two-sided 95 % Student-t interval of a mean; NaN of one value."""
    if len(values) < 2:
        return math.nan, math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def no_person(unit: str) -> bool:
    """Whether scores belong to seeds, rounds, pairs, videos or folds, which share a test."""
    return unit.partition(" ")[0] in ("seed", "round", "pair", "video", "fold")


def test_error(share: float, images: int) -> float:
    """Standard error of a share of test images, one right and one wrong image added."""
    p = (share * images + 1) / (images + 2)
    return math.sqrt(p * (1 - p) / images)


def learned(numbers: Numbers, labels: str, metric: str, lower: bool) -> tuple[bool | None, bool]:
    """Whether a row is shown to be above the best static prior (None: unknown), or below it."""
    sign, mine, best = (-1 if lower else 1), numbers.row(labels, metric), None
    for label, told in numbers.scores.items():
        prior, there = label.removeprefix("prior: "), told.get(metric, {})
        reference = any(f"{prior} ".startswith(f"{each} ") for each in REFERENCES)
        if prior != label and not reference and mine and mine.keys() <= there.keys():
            mean = sign * np.mean([there[u] for u in mine])
            best = max(best or (-math.inf, {}), (float(mean), there), key=lambda each: each[0])
    if best is None:
        return None, False
    prior = np.array([best[1][u] for u in mine])
    lead = sign * (np.array([*mine.values()]) - prior)
    ends = [t_interval(lead)]
    if images := numbers.images.get(metric):
        half = ERRORS * test_error(float(prior.mean()), images)
        leads = lead if no_person(next(iter(mine))) else [lead.mean()]
        ends = [(min(leads) - half, max(leads) + half)]
    elif all(no_person(u) for u in mine) and np.ptp(lead) < TIE:
        ends = [(math.nan, math.nan)]
    elif np.abs(prior).min() > TIE:
        ends.append(t_interval(lead / np.abs(prior)))
    above = any(low > 0 for low, _ in ends)
    known = not all(math.isnan(low) for low, _ in ends)
    return (above if known else None), not above and any(high < 0 for _, high in ends)


def in_place(numbers: Numbers, claim: Mapping[str, str], tested: bool = False) -> tuple[str, bool]:
    """Words in the place of a verdict on a pair, "" for none, and whether a row is destroyed.

    `tested`: the pair is of a table of tests, for which both rows must have finished.
    """
    gate, lower = claim["gate"], claim["gate_lower"] == "1"
    if not gate:
        return "", False
    sides = [claim["these"], claim["rival"]]
    rows = [numbers.row(side, gate) for side in sides]
    means = [float(np.mean([*row.values()])) if row else math.nan for row in rows]
    full = [m >= FULL and max(r.values()) <= 1 for m, r in zip(means, rows, strict=True)]
    if all(full) and not lower:
        return "ceiling", False
    one, other = (numbers.scores.get(name(side), {}) for side in sides)
    shared = one.keys() & other.keys()
    if (
        shared
        and not float(claim["within"])
        and all(
            one[m].keys() == other[m].keys()
            and all(np.isclose(v, other[m][u], 0, TIE, equal_nan=True) for u, v in one[m].items())
            for m in shared
        )
    ):
        return "same run", False
    prior = [side.endswith(" (prior)") for side in sides]
    told = [learned(numbers, side, gate, lower) for side in sides]
    above = [True if p else t[0] for p, t in zip(prior, told, strict=True)]
    gains = [0.0 if p else numbers.gain(side, gate) for p, side in zip(prior, sides, strict=True)]
    lost = any(b and g == 0 and not p for (_, b), g, p in zip(told, gains, prior, strict=True))
    winner = int((means[1] > means[0]) != lower and means[0] != means[1])
    apart = not tested and distance(numbers, claim)
    asked = above if float(claim["within"]) > 0 and not apart else [above[winner]]
    if any(a is None for a in asked):
        return "open", lost
    if not any(above):
        return "neither learned", lost
    judged = above[winner] and reach(numbers, sides[1 - winner], gate) < apart
    if max([g for g in gains if not math.isnan(g)], default=0.0) > 0 and not judged:
        return "not trained", lost
    if any(math.isnan(g) for g in gains):
        return "open", lost
    return ("" if all(asked) else "winner not learned"), lost


def distance(numbers: Numbers, claim: Mapping[str, str]) -> float:
    """End of the interval that is nearer to 0, less what the claim allows one row to be worse by.

    0 if nothing is left of it, or the curves are of another metric.
    """
    if claim["gate"] != claim["metric"]:
        return 0.0
    (low, *_), (_, high, *_) = (ends_of(numbers, claim, m) for m in (0.0, float(claim["margin"])))
    limit = float(claim["within"])
    return float(np.nanmax([low - limit, -high - limit, 0.0]))


def reach(numbers: Numbers, loser: str, metric: str) -> float:
    """What a row would gain in as many rounds again, if it gained on as in its last third.

    It is not less than what the row has lost since its best round. NaN if nothing is known about
    it, as the metric was not measured between rounds.
    """
    if loser.endswith(" (prior)"):
        return 0.0
    if any(metric not in numbers.curves.get(label, {}) for label in loser.split("|")):
        return math.nan
    curves = [curve for label in loser.split("|") if (curve := numbers.curve(label, metric))]
    lost = max(max(value for _, value in curve) - curve[-1][1] for curve in curves)
    return max(numbers.gain(loser, metric) * max(curve[-1][0] for curve in curves), lost)


def ends_of(numbers: Numbers, claim: Mapping[str, str], margin: float) -> tuple[float, ...]:
    """Interval of the gain of `these` over the rival, and the gains."""
    metric, sign = claim["metric"], -1 if claim["lower"] == "1" else 1
    rival = numbers.row(claim["rival"], metric)
    these = numbers.row(claim["these"], metric)
    units = [u for u in rival if u in these and math.isfinite(rival[u] + these[u])]
    mine, other = (np.array([row[u] for u in units]) for row in (these, rival))
    gains = sign * (mine - other) + margin * np.abs(other)
    low, high = t_interval(gains)
    if images := numbers.images.get(metric):
        spread = 1.959964 * math.hypot(
            *(test_error(p, images) for p in (mine.mean(), other.mean()))
        )
        middle, half = (low + high) / 2, math.hypot((high - low) / 2, spread)
        low, high = middle - half, middle + half
    elif claim["gate"] and np.ptp(gains) < TIE and all(no_person(u) for u in units):
        low = high = math.nan
    return low, high, *gains


def alike(numbers: Numbers, claim: Mapping[str, str]) -> str:
    """Word on two rows that are said to be alike to within a limit, by two one-sided t tests."""
    low, high, *gains = ends_of(numbers, claim, 0.0)
    limit, n = float(claim["within"]), len(gains)
    if claim["everybody"] == "1":
        return "holds" if max(map(abs, gains)) <= limit else "contradicted"
    if low > limit or high < -limit:
        return "contradicted"
    metric, error = claim["metric"], float(np.std(gains, ddof=1)) / math.sqrt(n)
    if images := numbers.images.get(metric):
        sides = (numbers.row(claim[side], metric) for side in ("these", "rival"))
        means = (float(np.mean([*row.values()])) for row in sides)
        error = math.hypot(error, *(test_error(mean, images) for mean in means))
    room = limit - abs(float(np.mean(gains)))
    return "holds" if room > 0 and room >= stats.t.ppf(0.95, n - 1) * error else "not shown"


def word(numbers: Numbers, pairs: Sequence[Mapping[str, str]]) -> str:
    """Verdict on a claim of one or several pairs."""
    found, instead = [], [in_place(numbers, pair)[0] for pair in pairs]
    limit = float(pairs[0]["within"])
    for pair, words in zip(pairs, instead, strict=True):
        low, high, *_ = ends_of(numbers, pair, float(pair["margin"]))
        if math.isnan(low) and words != "same run":
            found.append("not testable here")
        elif pair["everybody"] == "1" or (limit and not words):
            found.append(alike(numbers, pair))
        else:
            found.append(words or ("holds" if low > 0 else "contradicted" if high < 0 else ""))
    first = "not testable here" if limit else "contradicted"
    if "contradicted" in found and not (limit and (any(instead) or first in found)):
        return "contradicted"
    if "not testable here" in found:
        return "not testable here"
    return next(filter(None, instead), "" if all(f == "holds" for f in found) else "not shown") or (
        "holds"
    )


def different(numbers: Numbers, pairs: Sequence[Mapping[str, str]]) -> list[str]:
    """Words on the pairs of one table of tests: Wilcoxon's signed-rank test, after Holm."""
    chance, told = {}, []
    for pair in pairs:
        gains = np.round(ends_of(numbers, pair, 0.0)[2:], 12)
        gains = gains[gains != 0]
        spread = np.ones(1)  # chances of every sum of positive half ranks
        halves = (2 * stats.rankdata(np.abs(gains))).astype(int)
        for half in halves:
            spread = np.convolve(
                spread, np.eye(1, half + 1)[0] / 2 + np.eye(1, half + 1, half)[0] / 2
            )
        up = int(halves[gains > 0].sum())
        p = min(1.0, 2 * min(spread[: up + 1].sum(), spread[up:].sum()))
        chance[frozenset((pair["these"], pair["rival"]))] = p
    order = sorted(chance, key=chance.__getitem__)
    holm, top = {}, 0.0
    for i, key in enumerate(order):
        top = holm[key] = max(top, min(1.0, chance[key] * (len(order) - i)))
    for pair in pairs:
        words, lost = in_place(numbers, pair, tested=True)
        small = holm[frozenset((pair["these"], pair["rival"]))] < 0.05
        shown = "different: destroyed" if small and lost else "different" if small else ""
        told.append(words or shown or "no difference shown")
    return told


def printed(text: str) -> list[tuple[str, str, str]]:
    """Claim, word and interval of every line of a page's tables of verdicts."""
    found, heads, heading = [], [], ""
    for line in text.splitlines():
        found += [(heading, words, "") for words in SENTENCE.findall(line)]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("#"):
            heading = line.strip("# ")
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif "verdict" in heads and not set(line) <= set("|-: ") and len(cells) == len(heads):
            at = dict(zip(heads, cells, strict=True))
            tested = "against" in at
            claim = f"{heading}: {at['method']} against {at['against']}" if tested else cells[0]
            found.append((claim, at["verdict"], at.get("95 % interval", "")))
    return found


def plain(words: str) -> str:
    """A word without its bracket, and without the name of a destroyed row."""
    told = words.partition(" (")[0]
    return "different: destroyed" if told.startswith("different: ") else told


def same_interval(text: str, ends: Sequence[float], signed: bool) -> bool:
    """True if a printed interval is that of these numbers, or of them in percent.

    Where all gains are within -1 and 1, an interval may be cut there, as that of a share is.
    """
    found = INTERVAL.match(text)
    if not found:
        return not any(map(math.isfinite, ends[:2]))
    said = [float(each.replace("\u2212", "-")) for each in found.groups()]
    turned = (-ends[1], -ends[0]) if signed else ends[:2]
    within = max(map(abs, ends[2:]), default=0.0) <= 1
    return any(
        all(
            abs(factor * b - a) <= 0.006
            for a, b in zip(said, np.clip(turned, -most, most), strict=True)
        )
        for factor in (1, 100)
        for most in (math.inf, 1.0 if within else math.inf)
    )


def examine(page: Path, data: Path) -> tuple[str, list[str]]:
    """What may be said of a page: agrees, disagrees, or not recorded; and what is wrong."""
    lines = printed(page.read_text(encoding="utf-8"))
    if not any(said for _, said, _ in lines):
        return "no verdicts", []
    if not (data / "scores.csv").is_file():
        bad = [f"{c}: '{w}' without numbers beside it" for c, w, _ in lines if plain(w) in WORDS]
        return ("disagrees" if bad else "not recorded"), bad
    numbers = Numbers(data / "scores.csv")
    with (data / "claims.csv").open(encoding="utf-8", newline="") as file:
        claims: dict[str, list[dict[str, str]]] = defaultdict(list)
        for line in csv.DictReader(file):
            claims[line["claim"]].append(line)
    tests = defaultdict(list)
    for pairs in claims.values():
        if pairs[0]["whose"] == "test":
            tests[pairs[0]["claim"].partition(": ")[0]] += pairs
    computed = {
        pair["claim"]: words
        for family in tests.values()
        for pair, words in zip(family, different(numbers, family), strict=True)
    }
    wrong, left = [], dict(claims)
    ends = iter([])
    for claim, said, interval in lines:
        if said:
            pairs = left.pop(claim, None)
            if pairs is None:
                wrong.append(f"{claim}: not in claims.csv")
                continue
            ends = iter(pairs if pairs[0]["these"] else [])
            right = computed.get(claim) or (word(numbers, pairs) if pairs[0]["these"] else "")
            if right and right != plain(said):
                wrong.append(f"{claim}: the page says '{said}', its numbers '{right}'")
            if len(pairs) != 1:
                continue
        pair = next(ends, None)
        if pair is not None:
            turned = pair["whose"] == "test" and pair["lower"] == "1"
            if not same_interval(interval, ends_of(numbers, pair, 0.0), turned):
                wrong.append(f"{claim}: interval {interval} is not that of its numbers")
    wrong += [f"{claim}: in claims.csv, not on the page" for claim in left]
    return ("disagrees" if wrong else "agrees"), wrong


def main(folders: Sequence[Path] = (RESULTS, *sorted(ROOT.glob("papers/*/results")))) -> int:
    """Say of every page what may be said of it; 1 where one is wrong."""
    counts: dict[str, int] = defaultdict(int)
    for page in (page for folder in folders for page in sorted(folder.glob("*.md"))):
        name = page.relative_to(ROOT) if ROOT in page.parents else page
        state, wrong = examine(page, page.parent / "data" / page.stem)
        counts[state] += 1
        if state != "no verdicts":
            sys.stdout.write(f"{name}: {state}\n")
        sys.stderr.write("".join(f"{name}: {each}\n" for each in wrong))
    sys.stdout.write(", ".join(f"{count} {state}" for state, count in counts.items()) + "\n")
    return int(counts["disagrees"] > 0)


if __name__ == "__main__":
    sys.exit(main())
