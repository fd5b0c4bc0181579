"""The AP-FL chapter's figures: accuracy over rounds by partition, and friends by generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vergence.metrics.intervals import interval
from vergence.reports.plots.style import COLOURS, SPARE, canvas, styled
from vergence.reproduce.claims import Table
from vergence.reproduce.experiments.apfl import BY_COUNT, BY_NOISE
from vergence.reproduce.outcome import ReproducedTable, scale, unit


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
        axes.set_title(part.suffix.strip(" ()"))
        axes.set_xlabel("round")
    panels[0].set_ylabel(unit(metric))
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


@styled
def generator(outcome: ReproducedTable) -> Figure:
    """Draw the friend's accuracy by entries of noise and by made-up samples (AP-FL Fig. 3.5)."""
    figure = canvas(7.0, 3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    _by(left, outcome, BY_NOISE, "noise", "entries of the noise")
    counts = sorted([*BY_COUNT, BY_NOISE[1]], key=lambda entry: entry["samples"])
    _by(right, outcome, counts, "samples", "made-up samples of a class in a pass")
    left.set_ylabel("accuracy of friends %")
    right.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _by(
    axes: Axes, outcome: ReproducedTable, entries: Sequence[Table], key: str, name: str
) -> None:
    there = [entry for entry in entries if entry["label"] in outcome.evidence.scores]
    at = [entry[key] for entry in there]
    for column, colour in zip(outcome.columns, SPARE, strict=False):
        metric = outcome.metric(column)
        found = [list(outcome.evidence.scores[entry["label"]][metric].values()) for entry in there]
        mean = scale(metric) * np.array([np.mean(values) for values in found])
        ends = scale(metric) * np.array([interval(values) for values in found])
        axes.plot(at, mean, "o-", color=colour, label=unit(metric))
        axes.fill_between(at, ends[:, 0], ends[:, 1], color=colour, alpha=0.15, linewidth=0)
    axes.set_xticks(at)
    axes.set_xlabel(name)
