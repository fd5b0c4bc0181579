"""Figures of results: people, slopes against local-only, convergence, bytes, mask growth.

Used by `reports.html`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from vergence.metrics.fairness import HARM
from vergence.results.figure_style import (
    DASHES,
    INK,
    MARKERS,
    MUTED,
    PAPER,
    canvas,
    colours,
    distribution,
    hover,
    mark_curve,
    styled,
)
from vergence.results.layout import CROWD, MINUS, digits, metric_name, number
from vergence.results.read import Run, StudyResults
from vergence.studies.compare import rows


def _better(study: StudyResults) -> str:
    return "lower is better" if study.headline in study.lower_is_better else "higher is better"


@styled
def persons(study: StudyResults) -> Figure:
    """Draw every person as a dot, and each row's mean with its 95 % interval; baselines in grey."""
    listed = rows(study)
    tint = colours(study.runs)
    places = digits(r.metrics[study.headline].mean for r in listed if study.headline in r.metrics)
    figure = canvas(8.6, 0.9 + 0.42 * len(listed))
    axes = figure.add_subplot()
    for i, row in enumerate(listed):
        if study.headline not in row.metrics:
            continue
        e = row.metrics[study.headline]
        colour = MUTED if row.prior else tint[row.label]
        values = (
            _prior_scores(study, row.label)
            if row.prior
            else study.run(row.label).scores(study.headline)
        )
        if len(values) > CROWD:
            distribution(axes, i, [*values.values()], colour)
            values = _ends(values)
        # Multiples of the golden ratio spread dots evenly, and the same way in every report.
        spread = (np.arange(len(values)) * 0.618 % 1 - 0.5) * 0.4
        dots = axes.scatter(
            list(values.values()), i + spread, s=15, color=colour, alpha=0.4, linewidth=0
        )
        hover(dots, [f"{who}: {number(value, places)}" for who, value in values.items()])
        axes.plot([e.lo, e.hi], [i, i], color=colour, linewidth=2.6, solid_capstyle="round")
        axes.plot(e.mean, i, "D", color=colour, markersize=6.5, mec=PAPER, mew=1)
        told = f"{number(e.mean, places)}  [{number(e.lo, places)}, {number(e.hi, places)}]"
        axes.annotate(
            told,
            (1.01, i),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=MUTED if row.prior else INK,
        )
    axes.set_yticks(range(len(listed)), [row.name for row in listed])
    for label, row in zip(axes.get_yticklabels(), listed, strict=True):
        label.set_color(MUTED if row.prior else INK)
    axes.set(
        ylim=(len(listed) - 0.4, -0.6), xlabel=f"{metric_name(study.headline)} ({_better(study)})"
    )
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    priors = sum(r.prior for r in listed)
    if 0 < priors < len(listed):
        axes.axhline(priors - 0.5, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    return figure


def _ends(values: Mapping[str, float]) -> dict[str, float]:
    """Return the people with the five lowest and the five highest values."""
    order = sorted((p for p in values if math.isfinite(values[p])), key=values.__getitem__)
    return {person: values[person] for person in [*order[:5], *order[-5:]]}


def _prior_scores(study: StudyResults, name: str) -> dict[str, float]:
    found = {p: own.get(study.headline, math.nan) for p, own in study.priors[name].items()}
    return {person: value for person, value in found.items() if math.isfinite(value)}


@styled
def slope(study: StudyResults) -> Figure | None:
    """Draw each person as a line from local-only to a method; None without a local-only run."""
    base = study.find("local_only")
    others = [r for r in study.runs if base is not None and r.label != base.label]
    if base is None or not others:
        return None
    tint = colours(study.runs)
    before = base.scores(study.headline)
    places = digits(before.values())
    sign = -1 if study.headline in study.lower_is_better else 1
    tall = math.ceil(len(others) / 5)
    wide = math.ceil(len(others) / tall)
    many = len(before) > CROWD
    figure = canvas(max((2.6 if many else 1.85) * wide + 0.5, 4), 3.3 * tall)
    grid = figure.subplots(tall, wide, sharex=many, sharey=True, squeeze=False)
    for axes, run in zip(grid.flat, others, strict=False):
        after = run.scores(study.headline)
        people = [p for p in before if math.isfinite(before[p] - after.get(p, math.nan))]
        gains = {person: sign * (after[person] - before[person]) for person in people}
        # The same rule as the column 'harmed': worse by more than 1 % of the score before.
        bad = {person for person in people if gains[person] < -HARM * abs(before[person])}
        better, worse = sum(gain > 0 for gain in gains.values()), len(bad)
        if many:
            _gains(axes, gains, bad, tint[run.label])
        else:
            scores = [(p, [before[p], after[p]]) for p in people]
            _lines(axes, scores, bad, tint[run.label], places)
        axes.set_title(f"{run.title}\n", fontweight="bold")
        told = f"{better} of {len(people)} better" + (
            f", {worse} worse by over 1 %" if worse else ""
        )
        axes.annotate(told, (0, 1.02), xycoords="axes fraction", fontsize=8, color=MUTED)
        if many:
            axes.set_xlabel(f"gain in {metric_name(study.headline)}")
        else:
            axes.set_xticks([0, 1], ["local-only", run.title], fontsize=8)
            axes.set_xlim(-0.25, 1.25)
        axes.grid(axis="x", visible=False)
        axes.spines["left"].set_visible(False)
    for axes in grid.flat[len(others) :]:
        axes.set_visible(False)
    for row in grid:
        of_scores = f"{metric_name(study.headline)} ({_better(study)})"
        row[0].set_ylabel("people" if many else of_scores)
    return figure


def _lines(
    axes: Axes,
    scores: Sequence[tuple[str, list[float]]],
    bad: Container[str],
    colour: str,
    places: int,
) -> None:
    """Draw a line per person from the score alone to the score by a method, and that of the means.

    `scores` has each person with both scores; lines of people in `bad` are dark and dashed.
    """
    for person, points in scores:
        tint = INK if person in bad else colour
        style = (0, (3, 2)) if person in bad else "-"
        axes.plot([0, 1], points, color=tint, linewidth=1.1, alpha=0.75, linestyle=style)
        dots = axes.scatter([0, 1], points, s=11, color=tint, zorder=3, linewidth=0)
        hover(dots, [f"{person}: {number(value, places)}" for value in points])
    means = [float(np.mean([points[i] for _, points in scores])) for i in (0, 1)]
    axes.plot([0, 1], means, color=colour, linewidth=4.5, solid_capstyle="round")


def _gains(axes: Axes, gains: Mapping[str, float], bad: Container[str], colour: str) -> None:
    """Draw how many people gain how much, those in `bad` dark, and the mean gain as a line."""
    parts = [[g for p, g in gains.items() if (p in bad) == dark] for dark in (False, True)]
    axes.hist(parts, bins=60, stacked=True, color=[colour, INK], histtype="stepfilled", alpha=0.75)
    axes.axvline(float(np.mean([*gains.values()])), color=colour, linewidth=3)
    axes.axvline(0, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))


@styled
def convergence(study: StudyResults) -> Figure:
    """Draw the headline metric over rounds: mean over seeds, band from lowest to highest seed."""
    figure = canvas(8.6, 3.7)
    axes = figure.add_subplot()
    ends: dict[str, tuple[float, float]] = {}
    for i, (run, colour) in enumerate(_tinted(study)):
        rounds, values = run.curve(study.headline)
        if len(rounds):
            ends[run.title] = _band(axes, rounds, values, colour, i)
            _hover_curve(axes, rounds, values, i, [f"{run.title}, round {r}" for r in rounds])
    _end_labels(axes, ends, _tinted(study))
    axes.set(xlabel="round", ylabel=f"{metric_name(study.headline)} ({_better(study)})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@styled
def masks(study: StudyResults) -> Figure | None:
    """Draw the personal share of the parameters over rounds, and each person's at the end."""
    grown = [(r, c) for r, c in _tinted(study) if r.masks or np.nansum(r.growth()[1]) > 0]
    if not grown:
        return None
    figure = canvas(8.6, 3.3)
    axes, final = figure.subplots(1, 2, sharey=True, width_ratios=(4, max(1, 0.5 * len(grown))))
    ends = {}
    for i, (run, colour) in enumerate(grown):
        rounds, values = run.growth()
        drawn = {} if len(run.people) > CROWD else run.growth_of_people()
        for at, one in drawn.values():
            axes.plot(at, np.nanmean(one, axis=0) * 100, color=colour, linewidth=0.7, alpha=0.3)
        if len(rounds):
            ends[run.title] = _band(axes, rounds, values * 100, colour, i)
        shares = list(run.masks.totals().values()) if run.masks else []
        if len(shares) > CROWD:
            distribution(final, i, np.array(shares) * 100, colour, upright=True)
            continue
        spread = (np.arange(len(shares)) * 0.618 % 1 - 0.5) * 0.5
        final.scatter(
            i + spread, np.array(shares) * 100, s=18, color=colour, alpha=0.7, linewidth=0
        )
    axes.set_ylim(bottom=0)
    _end_labels(axes, ends, grown)
    axes.set(xlabel="round", ylabel="personal parameters (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    final.set_title("per person, at the end", color=MUTED, fontsize=8.5)
    final.set_xticks(range(len(grown)), [run.title for run, _ in grown], fontsize=8)
    final.set_xlim(-0.6, len(grown) - 0.4)
    final.grid(axis="x", visible=False)
    final.spines["left"].set_visible(False)
    return figure


@styled
def traffic(study: StudyResults) -> Figure:
    """Draw the headline metric against bytes sent up so far, and bytes per round up and down."""
    figure = canvas(8.6, 3.5)
    axes, bars = figure.subplots(1, 2, width_ratios=(3, 2))
    ends, tint = {}, {r.title: c for r, c in _tinted(study)}
    moved = {r.label: r.traffic() for r in study.runs if len(r.turns)}
    unit, size = _unit(max((total[0, -1] for _, total in moved.values()), default=0.0))
    for i, (run, colour) in enumerate(_tinted(study)):
        rounds, values = run.curve(study.headline)
        if not len(rounds) or run.label not in moved:
            continue
        told, total = moved[run.label]
        # An evaluation "at r" is made when r rounds are done: the bytes of round r count.
        before = np.concatenate([[0.0], total[0]])[np.searchsorted(told, rounds, side="right")]
        mean = np.nanmean(values, axis=0)
        # A method that sends nothing has no width on this axis: a line shows what it reaches.
        if total[0, -1] == 0:
            line = axes.axhline(mean[-1], color=colour, linewidth=1.6, linestyle=(0, (4, 2)))
            label = axes.annotate(
                f"{run.title}, nothing sent",
                (0.99, mean[-1]),
                xycoords=("axes fraction", "data"),
                xytext=(0, 4),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=colour,
            )
            mark_curve(i, line=line, label=label)
            continue
        ends[run.title] = _band(axes, before / size, values, colour, i)
        told = [f"{run.title}, {sent:.3g} {unit} sent" for sent in before / size]
        _hover_curve(axes, before / size, values, i, told)
    _end_labels(axes, ends, _tinted(study))
    axes.set(
        xlabel=f"sent up per client so far ({unit})",
        ylabel=f"{metric_name(study.headline)} ({_better(study)})",
    )
    _bars(bars, study.runs, tint)
    return figure


def _bars(axes: Axes, runs: Sequence[Run], tint: Mapping[str, str]) -> None:
    pairs = [(r, (r.results.get("bytes") or {})) for r in runs]
    unit, size = _unit(max((v for _, sent in pairs for v in sent.values()), default=0.0))
    reference = next((sent["up"] for r, sent in pairs if r.method == "fedavg" and sent), 0.0)
    top = max((v for _, sent in pairs for v in sent.values()), default=0.0) / size
    for i, (run, sent) in enumerate(pairs):
        colour = tint[run.title]
        axes.barh(i - 0.17, sent.get("up", 0) / size, 0.3, color=colour)
        axes.barh(i + 0.17, sent.get("down", 0) / size, 0.3, color=colour, alpha=0.35)
        told = "up"
        if reference and run.method != "fedavg" and sent.get("up"):
            change = round(100 * (sent["up"] / reference - 1))
            told = f"up, {change:+d} %".replace("-", MINUS) if change else "up"
        for value, text, offset in (
            (sent.get("up", 0), told, -0.17),
            (sent.get("down", 0), "down", 0.17),
        ):
            if value:
                axes.annotate(
                    text,
                    (value / size, i + offset),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                    color=MUTED,
                )
    axes.set_yticks(range(len(pairs)), [run.title for run, _ in pairs])
    axes.set(
        ylim=(len(pairs) - 0.4, -0.6),
        xlim=(0, top * 1.3 if top else 1),
        xlabel=f"{unit} per client and round",
    )
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _unit(largest: float) -> tuple[str, float]:
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((unit for unit in units if largest >= unit[1]), ("bytes", 1.0))


def _tinted(study: StudyResults) -> list[tuple[Run, str]]:
    tint = colours(study.runs)
    return [(run, tint[run.label]) for run in study.runs]


def _band(
    axes: Axes,
    x: NDArray[np.number],
    values: NDArray[np.float64],
    colour: str,
    curve: int,
) -> tuple[float, float]:
    """Draw the mean over seeds with a band to the extremes; return the end of the line."""
    mean = np.nanmean(values, axis=0)
    band = axes.fill_between(
        x, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=colour, alpha=0.16, lw=0
    )
    # About eight markers a curve, at other points for each curve: where curves coincide, all
    # markers stay visible.
    every = max(1, len(x) // 8)
    marker = curve % len(MARKERS)
    (line,) = axes.plot(
        x,
        mean,
        color=colour,
        lw=1.8,
        linestyle=DASHES[curve % len(DASHES)],
        marker=MARKERS[marker],
        markevery=(marker * every // 4 % every, every),
        ms=4.5,
        mec=PAPER,
        mew=0.6,
    )
    mark_curve(curve, band=band, line=line)
    return float(x[-1]), float(mean[-1])


def _hover_curve(
    axes: Axes,
    x: NDArray[np.number],
    values: NDArray[np.float64],
    curve: int,
    texts: Sequence[str],
) -> None:
    """Add nearly invisible points to a curve, over which the page shows its values."""
    mean = np.nanmean(values, axis=0)
    places = digits(mean)
    dots = axes.scatter(x, mean, s=130, color=INK, alpha=0.01, linewidth=0, zorder=5)
    hover(dots, [f"{at}: {number(v, places)}" for at, v in zip(texts, mean, strict=True)])
    mark_curve(curve, points=dots)


def _end_labels(
    axes: Axes, ends: Mapping[str, tuple[float, float]], tinted: Sequence[tuple[Run, str]]
) -> None:
    """Write each line's name right of its end, pushed apart where they would overlap."""
    # A line of text takes 13 points of 72 to the inch, on the 80 % of the figure that axes fill.
    low, high = axes.get_ylim()
    rows_fit = axes.figure.get_figheight() * 72 / 13 * 0.8  # type: ignore[union-attr]
    gap = (high - low) / max(rows_fit, 1)
    order = sorted(ends, key=lambda name: ends[name][1])
    places = [ends[name][1] for name in order]
    # Pushing one pair apart may close another: 60 sweeps settle a dozen of names.
    for _ in range(60):
        for i in range(len(places) - 1):
            push = gap - (places[i + 1] - places[i])
            if push > 0:
                places[i] -= push / 2
                places[i + 1] += push / 2
    curves = {run.title: (i, colour) for i, (run, colour) in enumerate(tinted)}
    for name, y in zip(order, places, strict=True):
        curve, colour = curves[name]
        label = axes.annotate(
            name,
            (1.0, y),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=colour,
            fontweight="bold",
            annotation_clip=False,
        )
        mark_curve(curve, label=label)
    axes.set_ylim(low, high)
    axes.margins(x=0.02)
