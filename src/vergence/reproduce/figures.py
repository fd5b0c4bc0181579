"""The papers' figures, drawn from the runs behind a table."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from matplotlib.figure import Figure

from vergence.metrics.intervals import interval
from vergence.reports.plots import gaze_maps
from vergence.reports.plots import results as plots
from vergence.reports.plots.style import (
    COLOURS,
    MARKERS,
    MUTED,
    PERSONAL,
    SPARE,
    canvas,
    column_names,
    styled,
)
from vergence.reproduce.experiments.adaptive import SHARES, noisy
from vergence.reproduce.experiments.pe_zsl import TEACHER
from vergence.reproduce.experiments.sg_zsl_budgets import BUDGETS as EPSILONS
from vergence.reproduce.experiments.sg_zsl_budgets import within
from vergence.reproduce.experiments.splitfed import EPOCHS, TEST_ROWS, TRAIN_ROWS
from vergence.reproduce.experiments.splitfed_tradeoffs import BUDGETS, METHODS, RULES, setting
from vergence.reproduce.experiments.splitfed_tradeoffs import label as placed
from vergence.reproduce.figures_apfl import generator, rounds
from vergence.reproduce.figures_zero_shot import embedding
from vergence.reproduce.outcome import ReproducedTable, scale, unit
from vergence.reproduce.protocols.membership import NOTHING
from vergence.results.layout import metric_name
from vergence.results.read import Run, StudyResults

OWN_DATA = ("within", "paced", "taught")
"""Protocols by which people are judged on their own data, round by round."""
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
    axes.set_xlabel("tested on")
    axes.set_ylabel("trained on")
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


@styled
def settings(outcome: ReproducedTable) -> Figure:
    """Draw every column over the rows, with intervals (CFed-VS Figs. 4.6 and 4.7)."""
    shown = [label for label in outcome.table.rows if label in outcome.evidence.scores]
    figure = canvas(2.9 * len(outcome.columns), 2.8)
    panels = figure.subplots(1, len(outcome.columns), squeeze=False)[0]
    for axes, column in zip(panels, outcome.columns, strict=True):
        metric = outcome.metric(column)
        found = [list(outcome.evidence.scores[label][metric].values()) for label in shown]
        mean = scale(metric) * np.array([np.mean(values) for values in found])
        ends = scale(metric) * np.array([interval(values) for values in found])
        axes.errorbar(
            range(len(shown)),
            mean,
            np.abs(np.nan_to_num(ends.T - mean)),
            fmt="o-",
            capsize=3,
            color=COLOURS["fedavg"],
        )
        column_names(axes, [outcome.name(label) for label in shown])
        axes.set_ylabel(unit(metric))
    return figure


@styled
def budgets(outcome: ReproducedTable) -> Figure | None:
    """Draw teacher and student over the teacher's epsilon: what they know, and who is found."""
    drawn = {row + within(epsilon) for row in (TEACHER, "white_box") for epsilon in EPSILONS}
    if not drawn <= set(outcome.evidence.scores):
        return None
    figure = canvas(7.4, 3.0)
    panels = figure.subplots(1, 2)
    for axes, column in zip(panels, ("main", "members"), strict=True):
        metric = outcome.metric(column)
        for row, colour in zip((TEACHER, "white_box"), SPARE, strict=False):
            found = [
                list(outcome.evidence.scores[row + within(epsilon)][metric].values())
                for epsilon in EPSILONS
            ]
            mean = scale(metric) * np.array([np.mean(values) for values in found])
            ends = scale(metric) * np.array([interval(values) for values in found])
            axes.errorbar(
                range(len(found)),
                mean,
                np.abs(np.nan_to_num(ends.T - mean)),
                fmt="o-",
                capsize=3,
                color=colour,
                label=outcome.name(row),
            )
        axes.set_xticks(range(len(EPSILONS)), [f"{e or 'none'}" for e in EPSILONS])
        axes.set_xlabel("epsilon of the teacher")
        axes.set_ylabel(unit(metric))
    nothing = np.mean(list(outcome.evidence.scores[NOTHING][outcome.metric("members")].values()))
    panels[-1].axhline(float(nothing), color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    panels[-1].legend()
    return figure


@styled
def noise(outcome: ReproducedTable) -> Figure | None:
    """Draw the error against the share of noisy people, with intervals (adaptive FL Fig. 4)."""
    metric, scores = outcome.metric("main"), outcome.evidence.scores
    figure = canvas(6.4, 3.7)
    axes = figure.add_subplot()
    methods = dict.fromkeys(label.partition(" ")[0] for label in scores if label.endswith("noisy"))
    for method, spare in zip(methods, SPARE, strict=False):
        shares = [s for s in SHARES if noisy(method, s) in scores]
        people = [list(scores[noisy(method, s)][metric].values()) for s in shares]
        at = 100 * np.array(shares)
        mean = np.array([np.mean(values) for values in people])
        ends = np.array([interval(values) for values in people])
        colour = COLOURS.get(method, spare)
        axes.plot(at, mean, "o-", color=colour, label=outcome.name(method))
        axes.fill_between(at, ends[:, 0], ends[:, 1], color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("people with noisy training data (%)")
    axes.set_ylabel(metric_name(metric))
    axes.axvline(70, color=MUTED, linewidth=0.7, linestyle=(0, (2, 3)))
    axes.legend()
    return figure


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
    axes.set_xlabel("person left out; lines: mean over people")
    axes.set_ylabel(metric_name(metric))
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
    axes.set_yscale("log")
    axes.set_xlabel("round")
    axes.set_ylabel("training loss")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def epochs(outcome: ReproducedTable) -> Figure:
    """Draw training and test error over local epochs, with intervals (SplitFed Fig. 4.7)."""
    metric, scores = outcome.metric("main"), outcome.evidence.scores
    figure = canvas(6.4, 3.2)
    both = figure.subplots(1, 2)
    for axes, labels, what in zip(
        both, (TRAIN_ROWS, TEST_ROWS), ("training data", "person left out"), strict=True
    ):
        people = [list(scores[label][metric].values()) for label in labels]
        ends = np.array([interval(values) for values in people])
        mean = np.array([np.mean(values) for values in people])
        axes.errorbar(
            EPOCHS, mean, np.abs(ends.T - mean), fmt="o-", capsize=3, color=COLOURS["fedavg"]
        )
        axes.set_xticks(EPOCHS)
        axes.set_xlabel("local epochs")
        axes.set_ylabel(metric_name(metric))
        axes.set_title(what)
    return figure


@styled
def front(outcome: ReproducedTable) -> Figure:
    """Draw fairness over robustness, a panel per method; colours are budgets, rings the front."""
    best, metric = outcome.front(), outcome.metric("main")
    page = canvas(8.4, 3.7)
    panels = page.subplots(1, len(METHODS), sharex=True, sharey=True)
    for axes, method in zip(panels, METHODS, strict=True):
        for (rule, marker), (budget, colour) in product(
            zip(RULES, MARKERS, strict=False), zip(BUDGETS, BUDGET_COLOURS, strict=True)
        ):
            label = placed(method, rule, budget)
            at = (outcome.value(label, "lied to"), outcome.value(label, "worst"))
            axes.plot(
                *at, marker, color=colour, markersize=6, alpha=0.9, label=setting(rule, budget)
            )
            if label in best:
                axes.plot(*at, "o", markersize=13, mfc="none", mec=PERSONAL, mew=1.4)
        axes.set_title(outcome.name(method), fontweight="bold")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel(f"{metric_name(metric)} where a fifth lies")
    panels[0].set_ylabel(f"{metric_name(metric)} of the worst person,\nnobody lies")
    panels[-1].plot(
        [], [], "o", markersize=13, mfc="none", mec=PERSONAL, mew=1.4, label="on the front"
    )
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return page
