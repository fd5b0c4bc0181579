"""Curves of an error over some number (of samples, of people), printed, written and drawn.

Used by `studies.adaptation_curves`, `studies.calibration` and `studies.protocols`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from vergence.core.naming import plural
from vergence.metrics.intervals import Bounds, interval
from vergence.results.figure_style import MARKERS, SPARE, canvas, save, styled
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv


@dataclass(frozen=True)
class Curves:
    """A metric by kind, person and count, a mean over draws and seeds.

    Attributes:
        metric: name of the metric.
        axis: name of the counted things.
        people: the people, in the order of rows.
        counts: the counts, in the order of columns.
        values: values `[people, counts]` of every kind.
        how: text with everything else that a reader must know.
        titles: titles of kinds in tables and figures; default: their names.
        data: name of the data set, if there is one.
        bounds: smallest and largest possible value of the metric; None: it has none.
    """

    metric: str
    axis: str
    people: tuple[str, ...]
    counts: tuple[int, ...]
    values: Mapping[str, NDArray[np.float64]]
    how: str
    titles: Mapping[str, str] = field(default_factory=dict)
    data: str = ""
    bounds: Bounds | None = None


def present(curves: Curves, out: Path, console: Console) -> None:
    """Print the table, draw the figure `out`, and write the numbers to a .csv of its name."""
    show(curves, console)
    export(curves, out, console)


def export(curves: Curves, out: Path, console: Console) -> None:
    """Draw the figure `out`, write the numbers to a .csv of its name, and print both paths."""
    export_csv(
        out.with_suffix(".csv"), ("kind", "person", "count", "metric", "value"), rows(curves)
    )
    save(figure(curves), out)
    tell_files(out, console)


def rows(curves: Curves) -> Iterator[tuple[str, str, int, str, str]]:
    """Yield kind, person, count, metric and value of every number."""
    for kind, values in curves.values.items():
        for person, row in zip(curves.people, values, strict=True):
            for k, value in zip(curves.counts, row, strict=True):
                yield kind, person, k, curves.metric, repr(float(value))


def tell_files(out: Path, console: Console) -> None:
    """Print where the figure and its numbers are."""
    console.print(f"figure: {out}\ntable:  {out.with_suffix('.csv')}", soft_wrap=True)


def show(curves: Curves, console: Console) -> None:
    """Print the means over people, kinds as rows, and their interval at the largest count."""
    heads = [curves.axis, *map(str, curves.counts), f"95 % at {curves.counts[-1]}"]
    places = digits(float(values.mean()) for values in curves.values.values())
    lines = []
    for kind, values in curves.values.items():
        last = interval(values[:, -1], bounds=curves.bounds)
        ends = ", ".join(number(end, places) for end in last)
        means = (number(float(v), places) for v in values.mean(0))
        lines.append([curves.titles.get(kind, kind), *means, f"[{ends}]"])
    heading = (
        f"{metric_name(curves.metric)} by number of {curves.axis}, mean over "
        f"{plural(len(curves.people), 'person')} ({curves.how})"
    )
    TextTable(heading, heads, lines).show(console)


@styled
def figure(curves: Curves) -> Figure:
    """Draw the means over people, one line per kind."""
    page = canvas(6.4, 4.0)
    axes = page.add_subplot()
    places = np.arange(len(curves.counts))
    for (kind, values), colour, marker in zip(
        curves.values.items(), SPARE * 2, MARKERS, strict=False
    ):
        mean, name = values.mean(0), curves.titles.get(kind, kind)
        axes.plot(places, mean, color=colour, marker=marker, markersize=4.5, label=name)
    axes.set_xticks(places, [str(k) for k in curves.counts])
    axes.set(xlabel=curves.axis, ylabel=metric_name(curves.metric))
    axes.legend()
    return page
