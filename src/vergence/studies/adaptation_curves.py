"""Gains of new people by `vergence adapt`, the people harmed, and a figure of both.

Used by `studies.calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from vergence.core.naming import plural
from vergence.metrics.fairness import HARM
from vergence.metrics.intervals import difference_bounds, interval
from vergence.results.figure_style import COLOURS, INK, MUTED, PERSONAL, canvas, styled
from vergence.results.layout import digits, metric_name, spread
from vergence.results.text_tables import TextTable
from vergence.studies.curves import Curves

CONSTANT, ALONE = "constant mean of the k samples", "training alone on the k samples"
CHOSEN = "adapt, as it chooses"
DRAWN = {
    CONSTANT: ("constant, or own map", MUTED, ":", "s"),
    ALONE: ("training alone", COLOURS["local_only"], "--", "D"),
    "shared": ("shared model, as it is", COLOURS["fedavg"], "-", ""),
    CHOSEN: ("adapt, as it chooses", PERSONAL, "-", "o"),
}
"""Label, colour, line and marker of the lines that are named; all other ways are thin."""


def show_gains(curves: Curves, lower_is_better: bool, console: Console) -> None:
    """Print how much better `adapt` is than the shared model, training alone and a constant."""
    sign, chosen = (-1 if lower_is_better else 1), curves.values[CHOSEN][:, 1:]
    others = {
        "than the shared model": curves.values[CHOSEN][:, :1],
        "than training alone": curves.values[ALONE][:, 1:],
        "than the constant": curves.values[CONSTANT][:, 1:],
    }
    places = digits(float(np.nanmean(values)) for values in curves.values.values())
    ends = difference_bounds(curves.bounds)
    lines = [
        [other, *(spread(column, places, ends) for column in sign * (chosen - values).T)]
        for other, values in others.items()
    ]
    heading = (
        f"How much better adapt is, {metric_name(curves.metric)}: mean over "
        f"{plural(len(curves.people), 'person')} [95 % interval]"
    )
    TextTable(heading, _heads(curves), lines).show(console)


def show_harmed(curves: Curves, lower_is_better: bool, console: Console) -> None:
    """Print how many people each way makes worse off than the shared model, per count."""
    people = harmed(curves, lower_is_better)
    lines = [[way, *map(str, counts)] for way, counts in people.items()]
    heading = (
        f"People of {len(curves.people)} whom samples make worse off than none, by more than "
        f"{HARM:.0%}"
    )
    TextTable(heading, _heads(curves), lines).show(console)


def _heads(curves: Curves) -> list[str]:
    return [curves.axis, *map(str, curves.counts[1:])]


def harmed(curves: Curves, lower_is_better: bool) -> dict[str, list[int]]:
    """Return how many people each way makes worse than the shared model by over `HARM`, per k."""
    sign = 1 if lower_is_better else -1
    shared = curves.values[CHOSEN][:, :1]
    worse = {way: sign * (values - shared) for way, values in curves.values.items()}
    return {
        way: (lost[:, 1:] > HARM * np.abs(shared)).sum(0).tolist() for way, lost in worse.items()
    }


@styled
def adaptation_figure(panels: Sequence[Curves]) -> Figure:
    """Draw the mean over people by number of samples, with a panel for each set of people.

    Thin lines without a name are single ways of `adapt`. The band is the 95 % interval over people
    of the difference between `adapt` and the shared model, shifted by the shared model's mean.
    """
    alone = len(panels) == 1
    page = canvas(5.0 if alone else 3.2 * len(panels), 3.6)
    every = page.subplots(1, len(panels), squeeze=False)[0]
    for axes, curves in zip(every, panels, strict=True):
        _panel(axes, curves)
    names, labels = every[0].get_legend_handles_labels()
    page.legend(names, labels, loc="outside lower center", ncols=2 if alone else 5)
    return page


def _panel(axes: Axes, curves: Curves) -> None:
    # Equally far apart, as counts grow in ratios and may begin with 0.
    places = np.arange(len(curves.counts))
    chosen = curves.values[CHOSEN]
    shared = np.broadcast_to(chosen[:, :1], chosen.shape)
    lines = {**curves.values, "shared": shared}
    for way in (way for way in curves.values if way not in DRAWN):
        axes.plot(places, lines[way].mean(0), color=MUTED, linewidth=0.5, alpha=0.6)
    # Of paired differences: the interval of the means would mostly show how much people differ.
    ends = np.array([interval(column) for column in (chosen - shared).T]) + shared.mean()
    if curves.bounds is not None:
        ends = ends.clip(*curves.bounds)
    axes.fill_between(places, *ends.T, color=PERSONAL, alpha=0.15, linewidth=0)
    for way, (label, colour, line, marker) in DRAWN.items():
        axes.plot(places, lines[way].mean(0), line, color=colour, marker=marker, ms=4, label=label)
    # Only named lines set the limits: a single way that fails would flatten all others.
    named = np.concatenate([lines[way].mean(0) for way in DRAWN])
    low, high = np.nanmin(named), np.nanmax(named)
    axes.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))
    axes.set_xticks(places, [str(k) for k in curves.counts])
    axes.set(xlabel="labelled samples of a new person", ylabel=metric_name(curves.metric))
    axes.set_title(
        f"{curves.data}, {plural(len(curves.people), 'new person')}",
        color=INK,
    )
