"""Fairness, paired tests and ranks of a study as tables.

docs/explanation/statistics.md explains every number.

Used by `reports.html`, `studies.compare` and `studies.merge_splits`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from vergence.core.naming import plural
from vergence.metrics.fairness import HARM, Fairness
from vergence.metrics.harm import LEAST
from vergence.metrics.statistics import ALPHA, DRAWS
from vergence.results import baselines
from vergence.results.harm import Harm
from vergence.results.layout import DASH, digits, metric_name, number, spread
from vergence.results.read import StudyResults
from vergence.results.significance import (
    ComparedMethod,
    Paired,
    Unit,
    best,
    fairness_by_run,
    family,
    judge,
    rank,
)
from vergence.results.text_tables import TextTable
from vergence.results.verdict_rules import standings

PAIR = ("difference", "95 % interval", "better for")
PAIRED_BY = {"person": "person by person", "person-seed": "each person in each seed"}
ALIKE = "Not apart in mean ranks"
COARSER = "a coarser look at all pairs than the paired tests, which give the verdict"
UNITS = {"person": "people", "person-seed": "pairs of person and seed"}


def fairness_block(study: StudyResults, metric: str) -> TextTable:
    """Return a table of every method's fairness: worst, p10, p90, best, spread, harm."""
    found = fairness_by_run(study, metric)
    places = digits(v for f in found.values() for v in (f.worst, f.best))
    lines = [
        [
            study.run(label).title,
            number(f.worst, places),
            f.worst_person,
            *(number(v, places) for v in (f.p10, f.p90, f.best, f.std, f.spread)),
            *_harm(f),
        ]
        for label, f in found.items()
    ]
    heads = [
        "method",
        "worst",
        "who",
        "p10",
        "p90",
        "best",
        "std",
        "p90 − p10",
        "worse than alone",
        "largest loss",
    ]
    records = [
        {"row": label, "metric": metric, **asdict(f), "spread": f.spread}
        for label, f in found.items()
    ]
    people = len(study.runs[0].people)
    lower = ", lower is better" if metric in study.lower_is_better else ""
    notes = [] if study.find("local_only") else ["The last two need a local-only run beside these."]
    heading = f"Fairness in {metric_name(metric)} over {plural(people, 'person')}{lower}"
    return TextTable(heading, heads, lines, notes=notes, records=records)


def _harm(f: Fairness) -> list[str]:
    if f.harmed is None or f.worst_harm is None:
        return [DASH, DASH]
    who = f" {f.most_harmed}" if f.most_harmed else ""
    return [f"{f.harmed:.0%}", f"{f.worst_harm:.1%}{who}"]


def harm_block(study: StudyResults, harms: Mapping[str, Harm]) -> TextTable | None:
    """Return a table of the people each method harms, by reference; None if no run is judged."""
    if not (found := {label: harm for label, harm in harms.items() if harm.losses}):
        return None
    lines, records = [], []
    for label, harm in found.items():
        worst = [f"{loss.loss:.1%} {p} ({loss.against})" for p, loss in harm.worst()[:1]]
        who, named = " ".join(harm.people) or DASH, ", ".join(harm.references)
        lines.append([study.run(label).title, str(harm), who, *(worst or [DASH]), named])
        records += [
            {"row": label, "person": p, **asdict(loss), "harmed": int(loss.harmed)}
            for p, loss in harm.losses.items()
        ]
    return TextTable(
        f"People harmed in {metric_name(study.headline)}: a loss shown to be above {HARM:.0%}",
        ["method", "harmed", "who", "largest loss", "references"],
        lines,
        notes=[
            "Bootstrap of each person's test pictures, or of runs of neighbouring samples; a "
            f"person with fewer than {LEAST} of them is not judged. (from X %): the smallest loss "
            "that they would have shown for everybody."
        ],
        records=records,
    )


def splits_block(study: StudyResults, metric: str) -> TextTable | None:
    """Return a table of a metric's spread over splits; None if every run has one split."""
    by_run = {run.label: run.results.get("splits", {}).get(metric) for run in study.runs}
    if not (known := {label: each for label, each in by_run.items() if each}):
        return None
    places = digits(v for each in known.values() for v in each["means"].values())
    lines, records = [], []
    for label, each in known.items():
        run, means = study.run(label), [*each["means"].values()]
        values = run.scores(metric).values()
        ends = (number(end, places) for end in (each["std"], min(means), max(means)))
        lines.append([run.title, spread(values, places, run.bounds(metric)), *ends])
        records.append({"row": label, "metric": metric, "std": each["std"], **each["means"]})
    count = max(len(each["means"]) for each in known.values())
    return TextTable(
        f"{metric_name(metric)} over {plural(count, 'split')}",
        ["method", "mean and 95 % over people", "std over splits", "lowest", "highest"],
        lines,
        notes=["A person counts once, by the mean over splits that have them; tests pair people."],
        records=records,
    )


def paired_block(
    study: StudyResults,
    metric: str,
    reference: str | None = None,
    margin: float | None = None,
    unit: Unit = "person",
) -> TextTable | None:
    """Return the table of paired tests; None if there is no run to compare with."""
    if not (judged := judge(study, metric, reference, margin, unit)):
        return None
    heads = [
        "method",
        "against",
        *PAIR[:2],
        "bootstrap",
        PAIR[2],
        "Wilcoxon p",
        "Holm p",
        "t test p",
        "d_z",
    ]
    if margin is not None:
        heads.append(f"within ±{margin:g}")
    heads.append("verdict")
    lines = [
        [study.run(j.pair.a).title, study.run(j.pair.b).title, *_cells(j, margin is not None)]
        for j in judged
    ]
    notes = [*_caveats(judged, unit), *best_pairs(study, metric, judged)]
    return TextTable(
        f"Paired differences in {metric_name(metric)}, {PAIRED_BY[unit]}",
        heads,
        lines,
        keys=2,
        dim=frozenset(i for i, j in enumerate(judged) if not j.different),
        notes=notes,
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
                "word": j.word,
            }
            for j in judged
        ],
    )


def best_mean(study: StudyResults, metric: str) -> list[str]:
    """Return sentences on the best trained method and on baselines without learning."""
    if (run := best(study, metric)) is None:
        return []
    e = run.estimates[metric]
    places = digits([e.mean])
    many = "Best mean of the trained methods: " if len(study.runs) > 1 else ""
    spread = f" (95 % interval {number(e.lo, places)} to {number(e.hi, places)})"
    text = f"{many}{run.title}, {metric_name(metric)} {number(e.mean, places)}"
    baseline = baselines.baseline_sentence(study, metric)
    return [
        f"{text}{spread if math.isfinite(e.lo) else ''}.",
        *filter(None, [baseline, baselines.alone_sentence(study, metric)]),
        *training_notes(study, metric),
    ]


def training_notes(study: StudyResults, metric: str) -> list[str]:
    """Return sentences on rows without a verdict: unlearned, destroyed, or still learning."""
    found = standings(study, metric)

    def named(labels: Iterable[str]) -> str:
        return ", ".join(study.run(label).title for label in labels)

    below = [label for label, each in found.items() if each.destroyed]
    unlearned = [k for k, each in found.items() if each.learned is False and k not in below]
    rising = [
        f"{named([label])} gains {each.gaining:.2g} a round, at "
        f"{number(study.run(label).steps, 0)} steps"
        for label, each in found.items()
        if each.gaining > 0
    ]
    verdicts = (
        (
            not any(each.prior for each in found.values()),
            "No baseline: what a constant answer would have is not known, so no verdict.",
        ),
        (
            all(each.learned is None for each in found.values()),
            "Too few people for an interval, so no verdict on what was learned.",
        ),
        (
            not any(each.learned for each in found.values()),
            "Nothing was learned that these people show: no row beats the best guess.",
        ),
        (unlearned, f"Not shown to beat the best guess: {named(unlearned)}."),
    )
    return [
        *[text for holds, text in verdicts if holds][:1],
        *([f"Worse than a constant: {named(below)}."] if below else []),
        *([f"Not trained to the end: {'; '.join(rising)}."] if rising else []),
    ]


def best_pairs(study: StudyResults, metric: str, judged: Sequence[ComparedMethod]) -> list[str]:
    """Return a sentence with the verdicts on all pairs whose first method is the best one."""
    run, found = best(study, metric), []
    for j in judged:
        if run is None or j.pair.a != run.label:
            continue
        difference, _, better = paired_cells(j.pair)
        found.append(
            f"against {study.run(j.pair.b).title}: {difference}, better for {better} people; "
            f"{verdict_on(j, judged)}"
        )
    return [f"{run.title} {'; '.join(found)}."] if run is not None and found else []


def verdict_on(j: ComparedMethod, judged: Sequence[ComparedMethod]) -> str:
    """Return the verdict on a pair in words, the same wherever the pair is shown."""
    if j.pair.people < 2:
        return "not compared: this is one person, and a comparison over people needs two or more"
    # Wilcoxon's p is smallest if all n differences have one sign: 2 of 2^n; Holm multiplies it.
    least = 2.0 ** (1 - j.pair.people) * family(judged)
    few = least >= ALPHA and not j.different
    why = f"Holm's p {chance(j.holm)}" + (", and so few people cannot show one" if few else "")
    return j.instead or f"{j.word} ({why})"


def paired_cells(p: Paired) -> list[str]:
    """Return the printed cells of a comparison: difference, interval, people better."""
    places = max(3, digits([p.mean]))
    plus = "+" if p.mean > 0 else ""
    return [
        plus + number(p.mean, places),
        _interval(p.lo, p.hi, places),
        f"{p.better} of {p.people}",
    ]


def _cells(j: ComparedMethod, verdict: bool) -> list[str]:
    difference, spread, better = paired_cells(j.pair)
    places = max(3, digits([j.pair.mean]))
    near = j.instead or f"{j.verdict} ({chance(j.equivalence)})"
    return [
        difference,
        spread,
        _interval(*j.bootstrap, places),
        better,
        chance(j.p),
        chance(j.holm),
        chance(j.t),
        number(j.dz, 2),
        *([near] if verdict else []),
        j.word,
    ]


def _interval(lo: float, hi: float, places: int) -> str:
    return f"[{number(lo, places)}, {number(hi, places)}]"


def chance(p: float) -> str:
    """Print a p-value."""
    return "<0.001" if p < 0.001 else number(p, 3)


def _caveats(judged: Sequence[ComparedMethod], unit: Unit) -> list[str]:
    many = family(judged)
    draws = UNITS[unit]
    count = min(j.pair.people for j in judged)
    least = 2.0 ** (1 - count)
    few = (
        f"Of {count} {draws}, Wilcoxon's p cannot be below {chance(least)}, nor Holm's below "
        f"{chance(min(1.0, least * many))}."
    )
    alike = "Seeds of one person are not independent: these p-values are too small."
    return [
        f"Holm over {plural(many, 'comparison')}, a pair below {ALPHA} is different; "
        f"bootstrap: BCa, {DRAWS:,} samples of {draws}.",
        *([few] if least * many >= ALPHA else []),
        *([alike] if unit == "person-seed" else []),
    ]


def ranks_block(study: StudyResults, metric: str, unit: Unit = "person") -> TextTable | None:
    """Return a table of mean ranks, best first, and groups of methods that do not differ in them.

    It is None below three methods. Verdicts come from the paired tests, which are finer.
    """
    if (found := rank(study, metric, unit)) is None:
        return None
    names = [study.run(label).title for label in found.labels]
    ranks = found.ranking.ranks
    order = sorted(range(len(names)), key=ranks.__getitem__)
    groups = found.ranking.groups()
    apart = [f"{ALIKE}: {', '.join(names[i] for i in group)}." for group in groups]
    # Nemenyi's test is only done where Friedman's finds a difference at all (Demsar 2006, 3.2.2).
    if found.ranking.p >= ALPHA:
        apart = [f"{ALIKE}: all of these methods (Friedman's test)."]
    return TextTable(
        f"Mean ranks in {metric_name(metric)} over {found.people} {UNITS[unit]}, 1 = best",
        ["method", "mean rank"],
        [[names[i], number(ranks[i], 2)] for i in order],
        notes=[
            f"Friedman's p {chance(found.ranking.p)}; mean ranks differ from a distance of "
            f"{number(found.ranking.critical, 2)} on (Nemenyi, {ALPHA}): {COARSER}.",
            *(apart or ["In mean ranks every method differs from every other one."]),
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
