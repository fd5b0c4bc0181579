"""The papers' figures, drawn from the runs behind a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vergence.metrics.intervals import interval
from vergence.reports.plots import gaze_maps
from vergence.reports.plots import results as plots
from vergence.results.figure_style import (
    COLOURS,
    MARKERS,
    MUTED,
    PERSONAL,
    SPARE,
    canvas,
    column_names,
    styled,
)
from vergence.results.layout import metric_name
from vergence.results.read import Run, StudyResults
from vergence_papers.claims import TablePart
from vergence_papers.figures_zero_shot import embedding
from vergence_papers.outcome import ReproducedTable, unit
from vergence_papers.teachers import NOTHING, TEACHER
from vergence_papers.verdicts import bounds, scale

OWN_DATA = ("within", "paced", "taught")
"""Protocols by which people are judged on their own data, round by round."""
STUDENT_LAST = (TEACHER, "white_box")
BUDGET_COLOURS = ("#3f3f46", "#0072b2", "#1b9e9e")
"""Of no noise, little and much."""


def draw(outcome: ReproducedTable) -> Figure | None:
    """Return the figure of a table; None where the paper has none or the runs lack its data."""
    kinds = {
        "strip": strip,
        "matrix": matrix,
        "convergence": convergence,
        "noise": noise,
        "bars": bars,
        "epochs": epochs,
        "rates": rates,
        "front": front,
        "settings": settings,
        "rounds": rounds,
        "generator": generator,
        "embedding": embedding,
        "budgets": budgets,
        "combined": combined,
    }
    return kinds[outcome.table.figure](outcome) if outcome.table.figure else None


def strip(outcome: ReproducedTable) -> Figure | None:
    """Draw the heat maps of all methods on the same test samples (FedCPF Fig. 3)."""
    return next((gaze_maps.strip(result.study) for result in outcome.results.values()), None)


@styled
def matrix(outcome: ReproducedTable) -> Figure | None:
    """Draw the error of every person's model on every person (adaptive FL Fig. 2)."""
    found = next((r for r in outcome.results.values() if r.matrix is not None), None)
    if found is None or found.matrix is None:
        return None
    count = len(found.people)
    figure = canvas(2.4 + 0.42 * count, 1.6 + 0.38 * count)
    axes = figure.add_subplot()
    shown = axes.imshow(found.matrix, cmap="viridis_r")
    middle = (found.matrix.min() + found.matrix.max()) / 2
    for trained in range(count):
        for tested in range(count):
            value = found.matrix[trained, tested]
            dark = value > middle
            axes.text(
                tested,
                trained,
                f"{value:.1f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
            )
    column_names(axes, found.people)
    axes.set_yticks(range(count), found.people)
    axes.grid(visible=False)
    axes.set(xlabel="tested on", ylabel="trained on")
    figure.colorbar(shown, ax=axes, label=metric_name(found.study.headline), shrink=0.8)
    return figure


def convergence(outcome: ReproducedTable) -> Figure | None:
    """Draw the main score of own people over rounds (adaptive FL Fig. 3, CFed-VS 4.2, 4.5)."""
    suffix = {(part.name, part.protocol): part.suffix for part in outcome.table.parts}
    runs: list[Run] = []
    for key, result in outcome.results.items():
        if key[1] in OWN_DATA:
            runs += [_named(outcome, run, suffix[key]) for run in result.study.runs]
    return plots.convergence(StudyResults(runs[0].folder, tuple(runs), {})) if runs else None


def _named(outcome: ReproducedTable, run: Run, suffix: str) -> Run:
    """Return a run under its row's printed name, with the metric that decides as its headline."""
    results = {**run.results, "headline": outcome.metric("main")}
    return replace(run, label=outcome.name(run.label + suffix), results=results)


def _draw_metric(
    axes: Axes,
    outcome: ReproducedTable,
    at: Sequence[float],
    labels: Sequence[str],
    column: str = "main",
    *,
    band: bool = False,
    **style: Any,
) -> None:
    """Draw means of rows over `at`, with 95 % intervals as bars or as a band."""
    metric = outcome.metric(column)
    found = [list(outcome.evidence.scores[label][metric].values()) for label in labels]
    mean = scale(metric) * np.array([np.mean(values) for values in found])
    ends = scale(metric) * np.array([interval(v, bounds=bounds(metric)) for v in found])
    if band:
        axes.plot(at, mean, "o-", **style)
        axes.fill_between(at, *ends.T, color=style["color"], alpha=0.15, linewidth=0)
    else:
        off = np.abs(np.nan_to_num(ends.T - mean))
        axes.errorbar(at, mean, off, fmt="o-", capsize=3, **style)
    axes.set_ylabel(unit(metric))


@styled
def settings(outcome: ReproducedTable) -> Figure:
    """Draw every column over the rows, with intervals (CFed-VS Figs. 4.6 and 4.7)."""
    shown = [label for label in outcome.table.rows if label in outcome.evidence.scores]
    figure = canvas(2.9 * len(outcome.columns), 2.8)
    panels = figure.subplots(1, len(outcome.columns), squeeze=False)[0]
    for axes, column in zip(panels, outcome.columns, strict=True):
        _draw_metric(axes, outcome, range(len(shown)), shown, column, color=COLOURS["fedavg"])
        column_names(axes, [outcome.name(label) for label in shown])
    return figure


@styled
def budgets(outcome: ReproducedTable) -> Figure | None:
    """Draw teacher and student over the teacher's epsilon: what they know, and who is found."""
    parts = [part for part in outcome.table.parts if part.name.endswith("_profile")]
    if any(row + p.suffix not in outcome.evidence.scores for row in STUDENT_LAST for p in parts):
        return None
    figure = canvas(7.4, 3.0)
    panels = figure.subplots(1, 2)
    for axes, column in zip(panels, ("main", "members"), strict=True):
        for row, colour in zip(STUDENT_LAST, SPARE, strict=False):
            labels = [row + part.suffix for part in parts]
            name = outcome.name(row)
            _draw_metric(axes, outcome, range(len(parts)), labels, column, color=colour, label=name)
        budgets = [part.name.split("_")[1] for part in parts]
        axes.set(xticks=range(len(parts)), xticklabels=budgets, xlabel="epsilon of the teacher")
    nothing = np.mean(list(outcome.evidence.scores[NOTHING][outcome.metric("members")].values()))
    panels[-1].axhline(float(nothing), color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    panels[-1].legend()
    return figure


@styled
def noise(outcome: ReproducedTable) -> Figure | None:
    """Draw the error against the share of noisy people, with intervals (adaptive FL Fig. 4)."""
    scores = outcome.evidence.scores
    figure = canvas(6.4, 3.7)
    axes = figure.add_subplot()
    methods = dict.fromkeys(label.partition(" ")[0] for label in scores if label.endswith("noisy"))
    for method, spare in zip(methods, SPARE, strict=False):
        at = {
            method + part.suffix: 100 * _set(outcome, part, "noise", "share", 0.0)
            for part in outcome.table.parts
            if method + part.suffix in scores
        }
        colour, name = COLOURS.get(method, spare), outcome.name(method)
        _draw_metric(axes, outcome, [*at.values()], [*at], band=True, color=colour, label=name)
    axes.set_xlabel("people with noisy training data (%)")
    axes.axvline(70, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    axes.legend()
    return figure


def _set(outcome: ReproducedTable, part: TablePart, table: str, key: str, default: Any) -> Any:
    """A setting of a part."""
    return part.over(outcome.ground).get(table, {}).get(key, default)


@styled
def bars(outcome: ReproducedTable) -> Figure:
    """Draw every row's error, person by person (SplitFed Figs. 4.1 to 4.3 and 4.6)."""
    metric, scores = outcome.metric("main"), outcome.evidence.scores
    labels = [label for label in outcome.table.rows if label in scores]
    people = list(scores[labels[0]][metric])
    figure = canvas(1.6 + 0.16 * len(people) * (1 + len(labels)), 3.4)
    axes = figure.add_subplot()
    width = 0.8 / len(labels)
    for place, label in enumerate(labels):
        values = [scores[label][metric].get(person, np.nan) for person in people]
        at = np.arange(len(people)) + (place - (len(labels) - 1) / 2) * width
        axes.bar(at, values, width, label=outcome.name(label), color=SPARE[place])
        axes.axhline(float(np.nanmean(values)), color=SPARE[place], linewidth=0.7)
    column_names(axes, people)
    axes.set(xlabel="person left out; lines: mean over people", ylabel=metric_name(metric))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def rates(outcome: ReproducedTable) -> Figure:
    """Draw the training loss over rounds, a line per row (SplitFed Fig. 4.4)."""
    figure = canvas(6.4, 3.4)
    axes = figure.add_subplot()
    runs = {
        label: result.study.runs[0]
        for (_, result), label in zip(outcome.results.items(), outcome.table.rows, strict=True)
    }
    for (label, run), colour in zip(runs.items(), SPARE, strict=False):
        rounds, values = run.curve("loss", "train")
        axes.plot(rounds, np.mean(values, axis=0), "o-", color=colour, label=outcome.name(label))
    axes.set(yscale="log", xlabel="round", ylabel="training loss")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def epochs(outcome: ReproducedTable) -> Figure:
    """Draw training and test error over local epochs, with intervals (SplitFed Fig. 4.7)."""
    figure = canvas(6.4, 3.2)
    for axes, protocol, what in zip(
        figure.subplots(1, 2),
        ("training", "leave_one_out"),
        ("training data", "person left out"),
        strict=True,
    ):
        at = {
            f"splitfed{part.suffix}": _set(outcome, part, "local", "epochs", 1)
            for part in outcome.table.parts
            if part.protocol == protocol
        }
        _draw_metric(axes, outcome, [*at.values()], [*at], color=COLOURS["fedavg"])
        axes.set(xticks=[*at.values()], xlabel="local epochs", title=what)
    return figure


@styled
def front(outcome: ReproducedTable) -> Figure:
    """Draw fairness over robustness, a panel per method; colours are budgets, rings the front."""
    best, metric = outcome.front(), outcome.metric("main")
    methods = [entry["name"] for entry in outcome.table.parts[0].methods]
    page = canvas(8.4, 3.7)
    panels = page.subplots(1, len(methods), sharex=True, sharey=True)
    cells = {tuple(part.suffix[2:].split(", ")): part.suffix for part in outcome.table.parts}
    rules, noises = (dict.fromkeys(one) for one in zip(*cells, strict=True))
    for axes, method in zip(panels, methods, strict=True):
        for (rule, marker), (budget, colour) in product(
            zip(rules, MARKERS, strict=False), zip(noises, BUDGET_COLOURS, strict=False)
        ):
            label = method + cells[rule, budget]
            at = (outcome.value(label, "lied to"), outcome.value(label, "worst"))
            axes.plot(*at, marker, color=colour, markersize=6, alpha=0.9, label=f"{rule}, {budget}")
            if label in best:
                axes.plot(*at, "o", markersize=13, mfc="none", mec=PERSONAL, mew=1.4)
        axes.set_title(outcome.name(method), fontweight="bold")
        axes.set(xscale="log", xlabel=f"{metric_name(metric)} where a fifth lies")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
    panels[0].set_ylabel(f"{metric_name(metric)} of the worst person,\nnobody lies")
    panels[-1].plot(
        [], [], "o", markersize=13, mfc="none", mec=PERSONAL, mew=1.4, label="on the front"
    )
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return page


@styled
def combined(outcome: ReproducedTable) -> Figure:
    """Draw the error over what an attacker rebuilds: a line per budget, over levels of noise."""
    lines: dict[str, list[str]] = {}
    for label in outcome.table.rows:
        if not np.isnan(outcome.value(label, "found")):
            lines.setdefault(label.rpartition(", ")[2], []).append(label)
    page = canvas(6.4, 3.6)
    axes = page.add_subplot()
    for (budget, labels), colour in zip(lines.items(), SPARE, strict=False):
        at = [(outcome.value(r, "found"), outcome.value(r, "main")) for r in labels]
        axes.plot(*zip(*at, strict=True), "o-", color=colour, label=budget)
        for label, point in zip(labels, at, strict=True):
            level = label.split(", ")[1] if label.count(", ") > 1 else ""
            axes.annotate(level, point, (3, 4), textcoords="offset points", fontsize=6, color=MUTED)
    nothing = outcome.value("mean gaze (prior)", "main")
    axes.axhline(nothing, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)), label="mean gaze")
    axes.set(xlabel=outcome.metric("found"), ylabel=metric_name(outcome.metric("main")))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return page


@styled
def learning_curves(outcome: ReproducedTable) -> Figure | None:
    """Draw the mean score of every row over rounds, and that of the priors, in one metric.

    Rows that are read off the runs of others, such as those of people left out, have the curve by
    which their training is judged; a curve of several rows is drawn once, and named after the row
    whose score it ends at. None: nobody was measured between rounds.
    """
    studies = {result.study.headline: result.study for result in outcome.results.values()}
    (metric, study), *_ = studies.items()
    sign = -1 if metric in study.lower_is_better else 1
    by_curve: dict[Any, list[tuple[float, str]]] = {}
    for label, by_metric in outcome.evidence.curves.items():
        at, values = by_metric.get(metric, ((), ()))
        if len(at) > 1:
            people = outcome.evidence.scores.get(label, {}).get(metric) or {"": np.inf}
            gap = abs(float(np.mean([*people.values()])) - sign * values[-1])
            by_curve.setdefault((tuple(at), tuple(values)), []).append((gap, label))
    if not by_curve or len(studies) > 1:
        return None
    page = canvas(7.4, 3.8)
    axes = page.add_subplot()
    styles = product(MARKERS, SPARE)
    for ((at, values), names), (marker, colour) in zip(by_curve.items(), styles, strict=False):
        shown = [sign * scale(metric) * value for value in values]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        style = {"marker": marker, "markersize": 3, "color": colour}
        axes.plot(at, shown, label=outcome.name(min(names)[1]) + more, **style)
    for (label, people), dash in zip(
        outcome.evidence.priors(metric).items(), ((2, 2), (5, 2), (1, 3), (7, 3)), strict=False
    ):
        level = scale(metric) * float(np.mean(list(people.values())))
        axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=(0, dash), label=label)
    axes.set(xlabel="round", ylabel=unit(metric))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=6)
    return page


@styled
def rounds(outcome: ReproducedTable) -> Figure:
    """Draw the pooled accuracy over rounds, a panel per partition (AP-FL Figs. 3.2 and 3.4).

    A line is the mean over seeds of a method that all partitions have.
    """
    metric = outcome.metric("main")
    parts = [
        (part, outcome.results[part.name, part.protocol].study)
        for part in outcome.table.parts
        if (part.name, part.protocol) in outcome.results
    ]
    common = [
        run.label for run in parts[0][1].runs if all(study.find(run.label) for _, study in parts)
    ]
    figure = canvas(2.0 + 2.2 * len(parts), 3.2)
    panels = np.atleast_1d(figure.subplots(1, len(parts), sharey=True))
    for axes, (part, study) in zip(panels, parts, strict=True):
        for label, spare in zip(common, SPARE, strict=False):
            at, values = study.run(label).curve(metric)
            axes.plot(
                at,
                scale(metric) * values.mean(0),
                "o-",
                markersize=3,
                color=COLOURS.get(label, spare),
                label=outcome.name(label),
            )
        axes.set(title=part.suffix.strip(" ()"), xlabel="round")
    panels[0].set_ylabel(unit(metric))
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def generator(outcome: ReproducedTable) -> Figure:
    """Draw the friend's accuracy by entries of noise and by made-up samples (AP-FL Fig. 3.5)."""
    figure = canvas(7.0, 3.2)
    panels = figure.subplots(1, 2, sharey=True)
    # The first method is the run after which all generators were trained.
    entries = outcome.table.parts[0].methods[1:]
    for axes, key, other, name in zip(
        panels,
        ("noise", "samples"),
        ("samples", "noise"),
        ("entries of the noise", "made-up samples of a class in a pass"),
        strict=True,
    ):
        ((usual, _),) = Counter(entry[other] for entry in entries).most_common(1)
        at = {
            entry["label"]: entry[key]
            for entry in sorted(entries, key=lambda entry: entry[key])
            if entry[other] == usual and entry["label"] in outcome.evidence.scores
        }
        for column, colour in zip(outcome.columns, SPARE, strict=False):
            style = {"color": colour, "label": unit(outcome.metric(column))}
            _draw_metric(axes, outcome, [*at.values()], [*at], column, band=True, **style)
        axes.set(xticks=[*at.values()], xlabel=name, ylabel="")
    panels[0].set_ylabel("accuracy of friends %")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
