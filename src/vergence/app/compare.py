"""Tables: methods as rows, priors first, and paired differences over people."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.app.runs import Estimate, Run, Study, read
from vergence.app.style import DASH, digits, metric_name, number, title
from vergence.errors import ConfigError
from vergence.metrics.intervals import interval

REFERENCES = ("fedavg", "local_only")
"""Methods that every other one is paired with."""


HEADS = ("mean", "95 % interval", "worst", "harmed", "MB up", "MB down", "s")

TIE = 1e-12
"""Differences below the rounding of a mean of float64 count as equal."""


@dataclass(frozen=True)
class Row:
    """One line of the table. A prior learns nothing: it has metrics and no costs.

    `mb_up`, `mb_down` are megabytes (10^6) per client and round; NaN = not applicable.
    """

    label: str
    name: str
    prior: bool
    metrics: Mapping[str, Estimate]
    harmed: float = math.nan
    mb_up: float = math.nan
    mb_down: float = math.nan
    seconds: float = math.nan


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

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.lo > 0 or self.hi < 0


def gather(folders: Iterable[Path | str]) -> Study:
    """Read folders (an OUT with its index, or single runs) as one study.

    Raises:
        ConfigError: no folder, or runs of different task, federation or seeds.
        StateError: a folder holds no finished run.
    """
    studies = [read(folder) for folder in folders]
    if not studies:
        raise ConfigError("nothing to compare: name at least one folder that vergence run wrote")
    runs: list[Run] = []
    for study in studies:
        for run in study.runs:
            same = any(r.label == run.label for r in runs)
            label = f"{study.folder.name}/{run.label}" if same else run.label
            runs.append(Run(run.folder, label, run.results))
    agree(runs)
    priors = next((s.priors for s in studies if s.priors), {})
    return Study(studies[0].folder, tuple(runs), priors)


def agree(runs: Sequence[Run]) -> None:
    """Check that runs may stand in one table.

    Raises:
        ConfigError: task, federation, people, data, headline or seeds differ; names both.
    """
    first = runs[0]
    for run in runs[1:]:
        for what in ("task", "federation", "headline", "seeds", "people", "data"):
            one, other = _trait(first, what), _trait(run, what)
            if one != other:
                raise ConfigError(
                    f"cannot compare: {what} differs, {first.label} has {one}, "
                    f"{run.label} has {other}; compare runs of one configuration"
                )


def _trait(run: Run, what: str) -> Any:
    if what == "data":
        return run.provenance.get("data", {}).get("sha256")
    value = run.results[what]
    return sorted(value) if what == "seeds" else value


def table(dirs: Iterable[Path | str]) -> list[Row]:
    """Return the rows for these folders: priors, then methods in the order of the index.

    Raises:
        ConfigError: the runs cannot be compared.
    """
    return rows(gather(dirs))


def rows(study: Study) -> list[Row]:
    """Return the table of a study, headline metric first in every row."""
    order = list(dict.fromkeys(m for run in study.runs for m in run.estimates))
    found = [_prior(name, people, order, study) for name, people in study.priors.items()]
    for run in study.runs:
        sent = run.results.get("bytes") or {}
        harmed = run.results.get("harmed_vs_local")
        found.append(
            Row(
                label=run.label,
                name=title(run),
                prior=False,
                metrics=run.estimates,
                harmed=math.nan if harmed is None else float(harmed),
                mb_up=float(sent.get("up", math.nan)) / 1e6,
                mb_down=float(sent.get("down", math.nan)) / 1e6,
                seconds=float(run.results.get("seconds", math.nan)),
            )
        )
    return found


def _prior(
    name: str, people: Mapping[str, Mapping[str, float]], order: Sequence[str], study: Study
) -> Row:
    estimates = {}
    for metric in order:
        values = [v[metric] for v in people.values() if math.isfinite(v.get(metric, math.nan))]
        if values:
            worst = max(values) if metric in study.lower_is_better else min(values)
            std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            estimates[metric] = Estimate(float(np.mean(values)), *interval(values), std, worst)
    return Row(label=name, name=name.replace("_", " "), prior=True, metrics=estimates)


def paired(study: Study, a: str, b: str, metric: str | None = None) -> Paired:
    """Return the mean difference a - b over the people both have, with its 95 % t interval.

    `metric` defaults to the headline; `better` counts people for whom a is better than b.

    Raises:
        ConfigError: an unknown run or metric, or no person in common.
    """
    metric = metric or study.headline
    one, other = (study.run(name).scores(metric) for name in (a, b))
    both = [person for person in one if person in other]
    if not both:
        raise ConfigError(f"{a} and {b} have no person with '{metric}' in common")
    differences = np.array([one[person] - other[person] for person in both])
    sign = -1 if metric in study.lower_is_better else 1
    lo, hi = interval(differences)
    better = int((sign * differences > TIE).sum())
    return Paired(a, b, metric, float(differences.mean()), lo, hi, better, len(both))


def comparisons(study: Study, metric: str | None = None) -> list[Paired]:
    """Return every method against FedAvg and against local-only, as far as they were run."""
    found = []
    for name in REFERENCES:
        reference = study.find(name)
        if reference is None:
            continue
        found += [
            paired(study, run.label, reference.label, metric)
            for run in study.runs
            if run.label != reference.label
        ]
    return found


def show(study: Study, console: Console, metric: str | None = None) -> None:
    """Print the table, the other metrics in as many blocks as the width asks for, and the pairs."""
    listed = rows(study)
    names = _metrics(listed)
    chosen = metric or study.headline
    if chosen not in names:
        raise ConfigError(f"no run has the metric '{chosen}'; measured: {', '.join(names)}")
    people, seeds = len(study.runs[0].people), len(study.runs[0].seeds)
    lower = ", lower is better" if chosen in study.lower_is_better else ""
    _heading(
        console,
        f"{metric_name(chosen)}: mean and 95 % interval over {people} people, {seeds} seeds{lower}",
    )
    whole = _headline(listed, chosen, range(len(HEADS)))
    parts = [whole]
    free = console.options.update(width=1000)
    if console.measure(whole, options=free).maximum > console.width:
        parts = [_headline(listed, chosen, part) for part in (range(3), range(3, len(HEADS)))]
    for part in parts:
        console.print(part)
    others = [n for n in names if n != chosen]
    room = console.width - max(len(r.name) for r in listed) - 4
    if others:
        _heading(console, "Other metrics, mean over people")
    while others:
        block: list[str] = []
        used = 0
        while others and (not block or used + len(metric_name(others[0])) + 4 <= room):
            used += max(len(metric_name(others[0])), 6) + 4
            block.append(others.pop(0))
        console.print(_others(listed, block))
    pairs = comparisons(study, chosen)
    if pairs:
        _heading(console, f"Paired differences in {metric_name(chosen)}, person by person")
        console.print(_pairs(pairs, study))


def _metrics(listed: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(m for row in listed if not row.prior for m in row.metrics))


def _decimals(listed: Sequence[Row], metric: str) -> int:
    return digits(row.metrics[metric].mean for row in listed if metric in row.metrics)


def _grid() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"), soft_wrap=True)


def _headline(listed: Sequence[Row], metric: str, columns: Sequence[int]) -> Table:
    grid = _grid()
    grid.add_column("", no_wrap=True)
    heads = (metric_name(metric), *HEADS[1:])
    for head in (heads[i] for i in columns):
        grid.add_column(head, justify="right", no_wrap=True)
    for row in listed:
        told = headline_cells(listed, row, metric)
        cells = [told[i] for i in columns]
        style = "dim" if row.prior else ""
        mark = " (prior)" if row.prior else ""
        grid.add_row(*(Text(cell, style=style) for cell in (row.name + mark, *cells)))
    return grid


def headline_cells(listed: Sequence[Row], row: Row, metric: str) -> list[str]:
    """Return the printed cells of a row: mean, interval, worst, harmed, MB up, MB down, seconds."""
    e = row.metrics.get(metric)
    places = _decimals(listed, metric)
    first = [""] * 3
    if e is not None:
        spread = f"[{number(e.lo, places)}, {number(e.hi, places)}]"
        first = [number(e.mean, places), spread, number(e.worst, places)]
    if row.prior:
        return [*first, "", "", "", ""]
    harmed = DASH if math.isnan(row.harmed) else f"{row.harmed:.0%}"
    sent = [v for r in listed for v in (r.mb_up, r.mb_down) if v > 0]
    top = max(sent, default=1.0)
    fine = 2 if top >= 0.1 else 4 if top >= 1e-3 else 6
    return [
        *first,
        harmed,
        number(row.mb_up, fine),
        number(row.mb_down, fine),
        number(row.seconds, 0),
    ]


def _others(listed: Sequence[Row], metrics: Sequence[str]) -> Table:
    grid = _grid()
    grid.add_column("", no_wrap=True)
    for metric in metrics:
        grid.add_column(metric_name(metric), justify="right", no_wrap=True)
    for row in listed:
        cells = [
            number(row.metrics[m].mean, _decimals(listed, m)) if m in row.metrics else ""
            for m in metrics
        ]
        style = "dim" if row.prior else ""
        grid.add_row(*(Text(cell, style=style) for cell in (row.name, *cells)))
    return grid


def _pairs(pairs: Sequence[Paired], study: Study) -> Table:
    grid = _grid()
    for head in ("method", "against"):
        grid.add_column(head, no_wrap=True)
    for head in ("difference", "95 % interval", "better for"):
        grid.add_column(head, justify="right", no_wrap=True)
    for p in pairs:
        a, b = title(study.run(p.a)), title(study.run(p.b))
        grid.add_row(a, b, *paired_cells(p), style="" if p.clear else "dim")
    return grid


def paired_cells(p: Paired) -> list[str]:
    """Return the printed cells of a comparison: difference, interval, people better."""
    places = max(3, digits([p.mean]))
    plus = "+" if p.mean > 0 else ""
    interval_text = f"[{number(p.lo, places)}, {number(p.hi, places)}]"
    return [plus + number(p.mean, places), interval_text, f"{p.better} of {p.people}"]


def to_csv(listed: Sequence[Row]) -> str:
    """Return the table with full precision: one line per row, `_lo`, `_hi`, `_worst` columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = _metrics(listed)
    parts = ("mean", "lo", "hi", "std", "worst")
    heads = [n if part == "mean" else f"{n}_{part}" for n in names for part in parts]
    costs = ("harmed_vs_local", "mb_up", "mb_down", "seconds")
    writer.writerow(["row", "kind", *heads, *costs])
    for row in listed:
        cells = []
        for name in names:
            estimate = row.metrics.get(name)
            cells += (
                [""] * 5
                if estimate is None
                else [repr(float(getattr(estimate, part))) for part in parts]
            )
        last = [
            "" if math.isnan(v) else repr(v)
            for v in (row.harmed, row.mb_up, row.mb_down, row.seconds)
        ]
        writer.writerow([row.label, "prior" if row.prior else "method", *cells, *last])
    return out.getvalue()


def to_markdown(listed: Sequence[Row]) -> str:
    """Return the table in Markdown: headline with interval, then the other metrics, then costs."""
    names = _metrics(listed)
    places = {name: _decimals(listed, name) for name in names}
    heads = [metric_name(names[0]), *HEADS[1:]]
    lines = [["", *heads, *(metric_name(n) for n in names[1:])]]
    for row in listed:
        cells = headline_cells(listed, row, names[0])
        others = [
            number(row.metrics[n].mean, places[n]) if n in row.metrics else "" for n in names[1:]
        ]
        lines.append([f"*{row.name}* (prior)" if row.prior else row.name, *cells, *others])
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])) + "\n"
