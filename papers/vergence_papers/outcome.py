"""Outcome of a reproduced table: rows beside the paper's, verdicts, both as text and JSON."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import le
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.files import csv_of, write_text
from vergence.core.naming import plural
from vergence.metrics.intervals import CORRELATION, interval
from vergence.results.layout import DASH, METHOD_NAMES, MINUS, finite, metric_name, number
from vergence.results.text_tables import TextTable, markdown_table
from vergence.results.verdict_rules import unit_of
from vergence.results.write import write_json
from vergence_papers.claims import PRIOR, PaperTable
from vergence_papers.data_sets import Ground
from vergence_papers.running import PartResult
from vergence_papers.verdicts import (
    ClaimVerdict,
    Difference,
    Evidence,
    bounds,
    gate_of,
    metrics_of,
    printed_on,
    scale,
    tally,
)

COLOUR = {"holds": "green", "contradicted": "red"}
"""Verdict -> its colour, where it has one."""
EVIDENCE = ("row", "seed", "split", "person", "round", "metric", "value", "steps")
"""Columns of scores.csv."""
MOST_SHARE = 5.0
"""Largest difference that is also printed as a share of the rival's mean, in shares."""
CLAIMS = (
    *("claim", "whose", "metric", "gate", "lower", "gate_lower", "these", "rival"),
    *("margin", "within", "everybody", "verdict"),
)
"""Columns of claims.csv; `gate` is the metric in which rows must have learned."""
EXTREMES = {"best": min, "worst": max}
NAMES = METHOD_NAMES | {
    "fedpac": "FedPAC",
    "fedadam": "FedAdam (Reddi et al.)",
    "fedadam_seed": "adaptive FL (FedAdam as printed)",
    "splitfed": "SplitFed",
}


@dataclass(frozen=True)
class ReproducedTable:
    """A table as reproduced here.

    Attributes:
        stamps: what keeps it from being a full result: fast, generated data, changed settings.
        facts: data, seeds, rounds, budget, machine, command.
        results: of the parts, by name and protocol.
        noisy: row -> how many people have noisy training data, where a table is about that.
    """

    table: PaperTable
    ground: Ground
    stamps: tuple[str, ...]
    facts: Mapping[str, Any]
    evidence: Evidence
    verdicts: tuple[ClaimVerdict, ...]
    results: Mapping[tuple[str, str], PartResult]
    noisy: Mapping[str, int] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        """True if the printed numbers have the unit of ours."""
        return self.ground.task == self.table.unit

    @property
    def printed(self) -> Mapping[str, Mapping[str, tuple[float, ...]]]:
        """The paper's rows on this data set, where it is one of the paper's; else on all."""
        return printed_on(self.table, self.ground)

    @property
    def run_facts(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Numbers about the runs that no claim is about: column -> row -> person -> value."""
        return {name: told for part in self.results.values() for name, told in part.facts.items()}

    @property
    def columns(self) -> list[str]:
        """The table's columns that exist for this task."""
        return [c for c in self.table.columns if c in self.ground.quantities or c in EXTREMES]

    def metric(self, column: str) -> str:
        """Return the metric behind a column."""
        return self.ground.quantities["main" if column in EXTREMES else column][0]

    def name(self, label: str) -> str:
        """Return a row's printed name."""
        for known, printed in NAMES.items():
            if label == known or label.startswith((f"{known} ", f"{known},")):
                return self.table.rows.get(label, printed + label[len(known) :])
        return self.table.rows.get(label, label.replace("_", " "))

    def value(self, label: str, column: str) -> float:
        """Return a row's mean over people, or that of its best or worst person; NaN for none."""
        people = self.evidence.scores.get(label, {}).get(self.metric(column))
        if not people:
            return math.nan
        values = list(people.values())
        if column not in EXTREMES:
            return float(np.mean(values))
        lower = self.metric(column) in self.evidence.lower
        # Of scores the best is the largest.
        extreme = column if lower else "worst" if column == "best" else "best"
        return float(EXTREMES[extreme](values))

    def front(self) -> frozenset[str]:
        """Return the rows that no other beats: as good in all columns of the front, better in one.

        A number that is missing is worse than any other.
        """
        worth = {
            label: [self._loss(label, column) for column in self.table.front]
            for label in self.evidence.scores
        }
        return frozenset(
            label
            for label, mine in worth.items()
            if not any(other != mine and all(map(le, other, mine)) for other in worth.values())
        )

    def _loss(self, label: str, column: str) -> float:
        value = self.value(label, column)
        sign = 1.0 if self.metric(column) in self.evidence.lower else -1.0
        return math.inf if math.isnan(value) else sign * value


def unit(metric: str) -> str:
    """Return a metric's printed name with its unit."""
    return metric_name(metric) + (" %" if scale(metric) == 100 else "")


def labels(outcome: ReproducedTable) -> list[str]:
    """Return the rows: the paper's first, then what it lacks, then the priors."""
    printed = [label for rows in outcome.printed.values() for label in rows]
    found = dict.fromkeys([*printed, *outcome.evidence.scores, *outcome.evidence.missing])
    return sorted(found, key=lambda label: label.endswith(PRIOR))


def rows(outcome: ReproducedTable) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells: ours with its interval over people, beside the paper's."""
    columns = outcome.columns or ["main"]
    lead = "main" if "main" in columns else columns[0]
    heads = [""]
    for column in columns:
        heads.append(f"{column} person" if column in EXTREMES else unit(outcome.metric(column)))
        heads += ["95 % interval"] if column in (lead, *outcome.table.spread) else []
    for data in outcome.printed:
        heads += [f"{data}, printed", "ours - printed"]
    lines = [_row(outcome, label, columns, lead) for label in labels(outcome)]
    for column, by_label in outcome.run_facts.items():
        heads.append(f"{column}, people")
        for label, line in zip(labels(outcome), lines, strict=True):
            line.append(_range(list(by_label.get(label, {}).values())))
    if outcome.table.front:
        best = outcome.front()
        heads.append("on the front")
        for label, line in zip(labels(outcome), lines, strict=True):
            line.append("yes" if label in best else "")
    return heads, lines


def _range(values: Sequence[float]) -> str:
    """Return the mean over people, and the smallest and the largest person's value."""
    if not values:
        return ""
    low, mean, high = (number(v, 1) for v in (min(values), float(np.mean(values)), max(values)))
    return f"{mean} ({low} to {high})"


def _row(outcome: ReproducedTable, label: str, columns: Sequence[str], lead: str) -> list[str]:
    people = outcome.facts["people"]
    noisy = f" ({outcome.noisy[label]} of {people} people)" if label in outcome.noisy else ""
    cells = [outcome.name(label) + noisy]
    for column in columns:
        metric = outcome.metric(column)
        factor, ours = scale(metric), outcome.value(label, column)
        cells.append(number(factor * ours, decimals(metric)))
        if column in (lead, *outcome.table.spread):
            people = outcome.evidence.scores.get(label, {}).get(metric, {})
            ends = (
                interval(people.values(), bounds=bounds(metric)) if people else (math.nan, math.nan)
            )
            told = ", ".join(number(factor * end, decimals(metric)) for end in ends)
            none = "" if label in outcome.evidence.scores else "not run"
            cells.append(f"[{told}]" if people else none)
    at = outcome.table.columns.index(lead) if lead in outcome.table.columns else None
    for printed in outcome.printed.values():
        theirs = printed.get(label)
        cells.append("" if theirs is None else " / ".join(number(v, 2) for v in theirs))
        gap = math.nan
        if theirs is not None and at is not None and outcome.comparable:
            metric = outcome.metric(lead)
            gap = scale(metric) * outcome.value(label, lead) - theirs[at]
        cells.append(signed(gap) if math.isfinite(gap) else "")
    return cells


def signed(value: float, digits: int = 2) -> str:
    """Print a difference with its sign."""
    return ("+" if value > 0 else "") + number(value, digits)


def decimals(metric: str) -> int:
    """Return how many decimals of a metric are printed: of correlations three, else two."""
    return 3 if bounds(metric) == CORRELATION else 2


def claims(outcome: ReproducedTable) -> tuple[list[str], list[list[str]]]:
    """Return heads and cells of the verdicts, one line per pair."""
    heads = [
        "claim",
        "whose",
        "verdict",
        "better by",
        "95 % interval",
        "people",
        "printed",
        "reason",
    ]
    lines = []
    for verdict in outcome.verdicts:
        claim = verdict.claim
        text = f"{claim.text} ({claim.where})"
        pairs = verdict.differences
        cells = _difference(pairs[0]) if len(pairs) == 1 else [DASH, "", "", ""]
        lines.append([text, claim.whose, verdict.word, *cells, verdict.reason])
        for found in pairs if len(pairs) > 1 else ():
            these = ", ".join(map(outcome.name, found.these))
            name = f"\u2003{these} against {outcome.name(found.rival)}"
            lines.append([name, "", "", *_difference(found), ""])
    return heads, lines


def _difference(difference: Difference) -> list[str]:
    factor, digits = scale(difference.metric), decimals(difference.metric)
    ends = ", ".join(number(factor * end, digits) for end in (difference.lo, difference.hi))
    printed = ", ".join(
        f"{data} {signed(v)}" for data, v in difference.printed.items() if math.isfinite(v)
    )
    # A share of next to nothing says nothing.
    share = f" ({100 * difference.share:+.0f} %)" if abs(difference.share) < MOST_SHARE else ""
    gain = f"{signed(factor * difference.mean, digits)}{share}".replace("-", MINUS)
    units = "" if difference.unit == "person" else f" {difference.unit}s"
    return [gain, f"[{ends}]", f"{difference.better} of {difference.people}{units}", printed]


def facts(outcome: ReproducedTable) -> list[str]:
    """Return the lines that say what this rests on."""
    told = outcome.facts
    asked = {claim.quantity for claim in outcome.table.claims}
    columns = [c for c in outcome.columns if c in asked] or outcome.columns or ["main"]
    deciding = dict.fromkeys(unit(outcome.metric(c)) for c in columns)
    return [
        f"data: {told['data']} ({outcome.ground.kind}), {plural(told['people'], 'person')}"
        + (f"; {outcome.ground.note}" if outcome.ground.note else ""),
        f"seeds: {told['seeds']}, rounds: {told['rounds']}, {told['budget']}"
        + (f"; training samples of a client: {told['samples']}" if told["samples"] else "")
        + (f"; gradient steps of a client in all: {told['steps']}" if told["steps"] else ""),
        f"tuned: {outcome.table.tuned or outcome.ground.tuned}",
        f"machine: {told['machine']}; {told['minutes']:.1f} minutes in rounds",
        f"decided by {', '.join(deciding)}; 95 % t interval over "
        + (outcome.ground.over or outcome.table.over),
    ] + ([outcome.table.note] if outcome.table.note else [])


def show(outcome: ReproducedTable, console: Console) -> None:
    """Print rows, verdicts and what they rest on."""
    console.print()
    console.print(Text(f"{outcome.table.id}: {outcome.table.title}", style="bold"))
    for stamp in outcome.stamps:
        console.print(Text(stamp, style="yellow"))
    console.print(_grid(*rows(outcome)))
    console.print()
    console.print(_grid(*claims(outcome)))
    console.print()
    console.print(tally([v.word for v in outcome.verdicts]), highlight=False)
    for line in facts(outcome):
        console.print(Text(line, style="dim"))


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, head in enumerate(heads):
        grid.add_column(
            head, justify="left" if i == 0 or head in ("verdict", "reason") else "right"
        )
    for line in lines:
        grid.add_row(*(Text(cell, style=COLOUR.get(cell, "")) for cell in line))
    return grid


def markdown(outcome: ReproducedTable, pictures: Mapping[str, str]) -> str:
    """Return the page of a table; `pictures` are files of figures, by title."""
    title = outcome.table.title
    parts = [f"# {outcome.table.id}", "", f"{title[0].upper()}{title[1:]}.", ""]
    parts += [line for stamp in outcome.stamps for line in (f"**{stamp}**", "")]
    parts += [f"`{outcome.facts['command']}`", ""]
    parts += [f"- {line}" for line in facts(outcome)]
    parts += ["", markdown_table(*rows(outcome), rule="---"), "## Verdicts", ""]
    parts += [
        f"{tally([v.word for v in outcome.verdicts])}.",
        "",
        markdown_table(*claims(outcome), rule="---"),
    ]
    others = [d for v in outcome.verdicts for d in v.also]
    if others:
        heads = ["these", "against", "metric", "better by", "95 % interval", "people"]
        lines = [
            [
                ", ".join(map(outcome.name, d.these)),
                outcome.name(d.rival),
                unit(d.metric),
                *_difference(d)[:3],
            ]
            for d in others
        ]
        parts += [
            "## The same pairs in other metrics",
            "",
            markdown_table(heads, lines, rule="---"),
        ]
    missing = outcome.evidence.missing
    if missing:
        parts += ["## Not run", "", *(f"- {k}: {v}" for k, v in missing.items()), ""]
    for caption, name in pictures.items():
        parts += [f"![{caption}]({name})", ""]
    return "\n".join(parts)


def record(outcome: ReproducedTable) -> dict[str, Any]:
    """Return everything as JSON values; a number that is not there is null."""
    found = {
        "id": outcome.table.id,
        "title": outcome.table.title,
        "on": outcome.ground.name,
        "stamps": list(outcome.stamps),
        **outcome.facts,
        "metrics": {c: outcome.metric(c) for c in outcome.columns},
        "rows": {
            label: {
                "ours": {c: outcome.value(label, c) for c in outcome.columns},
                "interval": _ends(outcome, label),
                "printed": {
                    data: dict(zip(outcome.table.columns, table[label], strict=False))
                    for data, table in outcome.printed.items()
                    if label in table
                },
                **({"noisy": outcome.noisy[label]} if label in outcome.noisy else {}),
            }
            for label in labels(outcome)
        },
        "claims": [
            {
                "text": v.claim.text,
                "where": v.claim.where,
                "quantity": v.claim.quantity,
                "margin": v.claim.margin,
                "verdict": v.word,
                "reason": v.reason,
                "differences": [asdict(d) for d in v.differences],
                "also": [asdict(d) for d in v.also],
            }
            for v in outcome.verdicts
        ],
        "not_run": dict(outcome.evidence.missing),
    }
    return finite(found)


def _ends(outcome: ReproducedTable, label: str) -> dict[str, tuple[float, float]]:
    people = outcome.evidence.scores.get(label, {})
    return {
        c: interval(people[m].values(), bounds=bounds(m))
        for c in outcome.columns
        if c not in EXTREMES and people.get(m := outcome.metric(c))
    }


def evidence_rows(outcome: ReproducedTable) -> list[Sequence[Any]]:
    """Return every number that the verdicts rest on, as rows of a table, its heads first.

    Runs are given seed by seed, other rows as means over seeds. A score that people share is a
    seed's. Beside them stand the means of the rounds by which training is said to be finished, and
    the test images of scores that are shares of one test.
    """
    evidence = outcome.evidence
    found: list[Sequence[Any]] = [EVIDENCE]
    split = outcome.facts["experiment"].get("federation", {}).get("split_seed", 0)
    metrics = metrics_of(outcome.table, outcome.ground)
    for metric, count in evidence.images.items():
        found.append(("test", "", split, "", "end", metric, count, ""))
    for label, by_metric in evidence.scores.items():
        run, name = evidence.runs.get(label), label
        if label.endswith(PRIOR):
            name = f"prior: {label.removesuffix(PRIOR)}"
        steps = "" if run is None else f"{run.steps:.6g}"
        for metric in [m for m in metrics if m in by_metric]:
            values = by_metric[metric]
            units: Any = [
                (who[5:], "", value) if unit_of([who]) == "seed" else ("", who, value)
                for who, value in values.items()
            ]
            if run is not None and run.scores(metric) == values:
                own = run.final(metric)
                units = zip(own.seed, own.person, own.value, strict=True)
            found += [
                (name, s, split, p, "end", metric, repr(float(v)), steps) for s, p, v in units
            ]
        found += [
            (name, "", split, "", int(at), metric, repr(float(mean)), steps)
            for metric, curve in evidence.curves.get(label, {}).items()
            for at, mean in zip(*curve, strict=True)
        ]
    return found


def claim_rows(outcome: ReproducedTable) -> list[Sequence[Any]]:
    """Return a row for each pair of rows that a claim compares, with the claim's verdict."""
    found: list[Sequence[Any]] = [CLAIMS]
    for verdict in outcome.verdicts:
        claim, evidence = verdict.claim, outcome.evidence
        text = f"{claim.text} ({claim.where})"
        limits = (claim.margin, claim.within, int(claim.everybody), verdict.word)
        if not verdict.differences:
            found.append((text, claim.whose, *[""] * 6, *limits))
        for d in verdict.differences:
            gate = "" if claim.everybody else gate_of(d.metric, outcome.ground, evidence)
            lower = [int(metric in evidence.lower) for metric in (d.metric, gate)]
            pair = ("|".join(d.these), d.rival)
            found.append((text, claim.whose, d.metric, gate, *lower, *pair, *limits))
    return found


def write(outcome: ReproducedTable, folder: Path, pictures: Mapping[str, str]) -> None:
    """Write verdicts.json, report.md, scores.csv and claims.csv, and run facts to facts.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "verdicts.json", record(outcome))
    texts = {
        "report.md": markdown(outcome, pictures),
        "scores.csv": csv_of(evidence_rows(outcome)),
        "claims.csv": csv_of(claim_rows(outcome)),
    }
    facts = [
        (name, label, person, f"{value:.6g}")
        for name, by_label in outcome.run_facts.items()
        for label, people in by_label.items()
        for person, value in people.items()
    ]
    if facts:
        texts["facts.csv"] = csv_of([("fact", "row", "person", "value"), *facts])
    for name, text in texts.items():
        write_text(folder / name, text)


def write_untrained(
    shown: TextTable,
    head: Mapping[str, Any],
    records: Sequence[Mapping[str, str]],
    folder: Path,
    console: Console,
    picture: str = "",
) -> None:
    """Print a table that no training is behind, and write verdicts.json and report.md."""
    shown.show(console)
    counts = tally([record["verdict"] for record in records])
    console.print(Text(counts))
    folder.mkdir(parents=True, exist_ok=True)
    command = "vergence " + shlex.join(sys.argv[1:])
    write_json(folder / "verdicts.json", {**head, "command": command, "claims": records})
    below = f"\n![{shown.heading}]({picture})\n" if picture else ""
    write_text(folder / "report.md", f"{shown.markdown()}\n{counts}.\n\n`{command}`\n{below}")
    console.print(f"written: {folder}", soft_wrap=True)
