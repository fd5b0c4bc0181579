"""Figure of a sweep: the result of every trial against each of its settings.

Used by `studies.sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vergence.experiment.search_space import SearchRange, Space, is_number, size
from vergence.results.figure_style import COLOURS, INK, MUTED, PAPER, PERSONAL, canvas, styled
from vergence.results.layout import digits, metric_name, number
from vergence.studies.trials import MethodTrials

WIDE = 20.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic."""


@styled
def figure(
    methods: Mapping[str, MethodTrials], spaces: Mapping[str, Space], metric: str, lower: bool
) -> Figure:
    """Draw a row per method: a panel per setting, or a heat map of a grid of two settings."""
    panes = {
        m: 1 if is_full_grid(tried, spaces[m]) else len(spaces[m]) for m, tried in methods.items()
    }
    wide = max(panes.values())
    page = canvas(max(3.1 * wide, 4.2), 2.4 * len(methods) + 0.3)
    panels = page.subplots(len(methods), wide, squeeze=False)
    legend = f"{metric_name(metric)}, {'lower' if lower else 'higher'} is better"
    for row, (label, tried) in zip(panels, methods.items(), strict=True):
        space = spaces[label]
        row[0].set_title(label, fontweight="bold")
        row[0].set_title(legend, loc="right", fontsize=8, color=MUTED)
        if is_full_grid(tried, space):
            heat(row[0], tried, space, lower)
        else:
            for axes, key in zip(row, space, strict=False):
                dots(axes, tried, key, space[key], COLOURS.get(label, INK), lower)
        for axes in row[max(panes[label], 1) :]:
            axes.set_visible(False)
    return page


def is_full_grid(tried: MethodTrials, space: Space) -> bool:
    """True if every point of two settings was tried."""
    return len(space) == 2 and len(tried.points) == size(space)


def dots(
    axes: Axes,
    tried: MethodTrials,
    key: str,
    choices: tuple[Any, ...] | SearchRange,
    colour: str,
    lower: bool,
) -> None:
    """Draw every trial over one setting, with failed ones as crosses at the bad end."""
    settings = [point[key] for point in tried.points]
    names = () if isinstance(choices, SearchRange) or all(map(is_number, choices)) else choices
    # Words have no scale: they get places in the order of the space.
    x = [names.index(v) if names else float(v) for v in settings]
    failed = [math.isnan(value) for value in tried.values]
    axes.scatter(x, tried.values, s=22, color=colour, alpha=0.8, linewidth=0)
    lost = [v for v, bad in zip(x, failed, strict=True) if bad]
    at = [0.96 if lower else 0.04] * len(lost)
    # Failed trials have no value: their place is a share of the axis, whatever its limits.
    axes.plot(lost, at, "x", color=MUTED, transform=axes.get_xaxis_transform())
    if tried.best is not None:
        axes.plot(
            x[tried.best],
            tried.values[tried.best],
            "o",
            markersize=10,
            mfc="none",
            mec=PERSONAL,
            mew=1.6,
        )
    if names:
        axes.set_xticks(range(len(names)), [str(v) for v in names])
    elif logarithmic(choices):
        axes.set_xscale("log")
    axes.set_xlabel(key)
    worth = [value for value in tried.values if math.isfinite(value)]
    if worth and 0 < WIDE * min(worth) < max(worth):
        axes.set_yscale("log")


def logarithmic(choices: tuple[Any, ...] | SearchRange) -> bool:
    """True if numbers are spread over orders of magnitude."""
    if isinstance(choices, SearchRange):
        return choices.log
    return min(choices) > 0 and max(choices) > WIDE * min(choices)


def heat(axes: Axes, tried: MethodTrials, space: Space, lower: bool) -> None:
    """Draw a grid of two settings as a map with its values, and a frame around the best one."""
    (down, rows), (across, columns) = space.items()
    assert isinstance(rows, tuple)
    assert isinstance(columns, tuple)
    values = np.full((len(rows), len(columns)), np.nan)
    places = {}
    for i, (point, value) in enumerate(zip(tried.points, tried.values, strict=True)):
        places[i] = rows.index(point[down]), columns.index(point[across])
        values[places[i]] = value
    # Bright is good, whichever direction the metric has.
    shown = np.ma.masked_invalid(-values if lower else values)
    axes.imshow(shown, cmap="viridis", aspect="auto")
    decimals = digits(values.flat)
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (0.0, 0.0)
    for (i, j), value in np.ndenumerate(values):
        bright = math.isfinite(value) and float(shown[i, j]) > (low + high) / 2
        text = number(value, decimals) if math.isfinite(value) else "failed"
        axes.text(
            j,
            i,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color=INK if bright or text == "failed" else PAPER,
        )
    if tried.best is not None:
        i, j = places[tried.best]
        axes.add_patch(Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, fill=False, ec=PERSONAL, lw=2))
    axes.set_xticks(range(len(columns)), [str(v) for v in columns])
    axes.set_yticks(range(len(rows)), [str(v) for v in rows])
    axes.set(xlabel=across, ylabel=down)
    axes.grid(visible=False)
