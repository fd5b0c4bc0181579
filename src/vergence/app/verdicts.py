"""Fairness, paired tests and ranks of a study as tables; every number: docs/statistics.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from vergence.app.blocks import Block
from vergence.app.judging import Judged, Paired, Unit, family, judge, rank, treatment
from vergence.app.runs import Study
from vergence.app.style import DASH, digits, metric_name, number, title
from vergence.metrics.fairness import Fairness
from vergence.metrics.statistics import ALPHA, DRAWS

PAIR = ("difference", "95 % interval", "better for")
PAIRED_BY = {"person": "person by person", "person-seed": "each person in each seed"}
UNITS = {"person": "people", "person-seed": "pairs of person and seed"}


def fairness_block(study: Study, metric: str) -> Block:
    """Return how every method treats people: worst, p10, p90, best, spread, harm."""
    found = treatment(study, metric)
    places = digits(v for f in found.values() for v in (f.worst, f.best))
    lines = [
        [
            title(study.run(label)),
            number(f.worst, places),
            f.worst_person,
            *(number(v, places) for v in (f.p10, f.p90, f.best, f.std, f.spread)),
            *_harm(f),
        ]
        for label, f in found.items()
    ]
    heads = ["method", "worst", "who", "p10", "p90", "best", "std", "p90 − p10", "harmed",
             "worst harm"]  # fmt: skip
    records = [
        {"row": label, "metric": metric, **asdict(f), "spread": f.spread}
        for label, f in found.items()
    ]
    people = len(study.runs[0].people)
    lower = ", lower is better" if metric in study.lower_is_better else ""
    notes = [] if study.find("local_only") else ["Harm needs a local-only run beside these."]
    heading = f"Fairness in {metric_name(metric)} over {people} people{lower}"
    return Block(heading, heads, lines, notes=notes, records=records)


def _harm(f: Fairness) -> list[str]:
    if f.harmed is None or f.worst_harm is None:
        return [DASH, DASH]
    who = f" {f.most_harmed}" if f.most_harmed else ""
    return [f"{f.harmed:.0%}", f"{f.worst_harm:.1%}{who}"]


def paired_block(
    study: Study,
    metric: str,
    reference: str | None = None,
    margin: float | None = None,
    unit: Unit = "person",
) -> Block | None:
    """Return the paired tests, None where there is nobody to be paired with."""
    judged = judge(study, metric, reference, margin, unit)
    if not judged:
        return None
    heads = ["method", "against", *PAIR[:2], "bootstrap", PAIR[2], "Wilcoxon p", "Holm p",
             "t test p", "d_z"]  # fmt: skip
    if margin is not None:
        heads.append(f"within ±{margin:g}")
    lines = [
        [title(study.run(j.pair.a)), title(study.run(j.pair.b)), *_cells(j, margin is not None)]
        for j in judged
    ]
    return Block(
        f"Paired differences in {metric_name(metric)}, {PAIRED_BY[unit]}",
        heads,
        lines,
        keys=2,
        dim=frozenset(i for i, j in enumerate(judged) if not j.pair.clear),
        notes=_caveats(judged, unit),
        records=[
            {
                **asdict(j.pair),
                "unit": unit,
                "bootstrap_lo": j.bootstrap[0],
                "bootstrap_hi": j.bootstrap[1],
                "wilcoxon_p": j.p,
                "holm_p": j.holm,
                "t_p": j.t,
                "d_z": j.dz,
                "rank_biserial": j.rank_biserial,
                "margin": margin,
                "tost_p": j.equivalence,
                "verdict": j.verdict,
            }
            for j in judged
        ],
    )


def paired_cells(p: Paired) -> list[str]:
    """Return the printed cells of a comparison: difference, interval, people better."""
    places = max(3, digits([p.mean]))
    plus = "+" if p.mean > 0 else ""
    return [
        plus + number(p.mean, places),
        _interval(p.lo, p.hi, places),
        f"{p.better} of {p.people}",
    ]


def _cells(j: Judged, verdict: bool) -> list[str]:
    difference, spread, better = paired_cells(j.pair)
    places = max(3, digits([j.pair.mean]))
    said = [f"{j.verdict} ({chance(j.equivalence)})"] if verdict else []
    return [
        difference, spread, _interval(*j.bootstrap, places), better, chance(j.p), chance(j.holm),
        chance(j.t), number(j.dz, 2), *said,
    ]  # fmt: skip


def _interval(lo: float, hi: float, places: int) -> str:
    return f"[{number(lo, places)}, {number(hi, places)}]"


def chance(p: float) -> str:
    """Print a p-value."""
    return "<0.001" if p < 0.001 else number(p, 3)


def _caveats(judged: Sequence[Judged], unit: Unit) -> list[str]:
    many = family(judged)
    draws = UNITS[unit]
    told = [f"Holm over {many} comparisons; bootstrap: BCa, {DRAWS:,} samples of {draws}."]
    count = min(j.pair.people for j in judged)
    least = 2.0 ** (1 - count)
    if least * many >= ALPHA:
        told.append(
            f"Of {count} {draws}, Wilcoxon's p cannot be below {chance(least)}, nor Holm's below "
            f"{chance(min(1.0, least * many))}."
        )
    if unit == "person-seed":
        told.append("Seeds of one person are not independent: these p-values are too small.")
    return told


def ranks_block(study: Study, metric: str, unit: Unit = "person") -> Block | None:
    """Return mean ranks, best first, and who cannot be told apart; None below three methods."""
    found = rank(study, metric, unit)
    if found is None:
        return None
    names = [title(study.run(label)) for label in found.labels]
    ranks = found.ranking.ranks
    order = sorted(range(len(names)), key=ranks.__getitem__)
    groups = found.ranking.groups()
    apart = [f"Not to be told apart: {', '.join(names[i] for i in group)}." for group in groups]
    if found.ranking.p >= ALPHA:
        apart = ["Friedman's test finds no difference between these methods."]
    return Block(
        f"Mean ranks in {metric_name(metric)} over {found.people} {UNITS[unit]}, 1 = best",
        ["method", "mean rank"],
        [[names[i], number(ranks[i], 2)] for i in order],
        notes=[
            f"Friedman's p {chance(found.ranking.p)}; mean ranks differ from a distance of "
            f"{number(found.ranking.critical, 2)} on (Nemenyi, {ALPHA}).",
            *(apart or ["Every method differs from every other one."]),
        ],
        records=[
            {
                "row": found.labels[i],
                "metric": metric,
                "mean_rank": ranks[i],
                "groups": " ".join(str(g) for g, group in enumerate(groups) if i in group),
                "friedman": found.ranking.statistic,
                "friedman_p": found.ranking.p,
                "critical_difference": found.ranking.critical,
            }
            for i in order
        ],
    )
