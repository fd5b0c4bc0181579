"""The groups of a run, drawn from groups.csv (after the Durham thesis, Fig. 4.1).

Used by `reports.html`.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vergence.experiment.group_table import FILE
from vergence.results.figure_style import COLOURS, INK, MUTED, SPARE, canvas, styled
from vergence.results.layout import CROWD, digits, metric_name, number
from vergence.results.read import Run, StudyResults, table

TINTS = tuple(COLOURS[name] for name in ("fedavg", "fedcpf", "fedselect", "fedavg_ft")) + SPARE
"""Colours of groups, in turn; where there are more groups, they repeat."""
SERVER, MODEL, PERSON = 0.0, 1.0, 2.0
"""Horizontal positions of the columns."""


@styled
def of_study(study: StudyResults) -> Figure | None:
    """Draw the server, a model per group and its people: one panel per run, first seed."""
    runs = [(run, groups) for run in study.runs if 0 < len(groups := served(run)) <= CROWD]
    if not runs:
        return None
    heights = [0.7 + 0.24 * len(groups) for _, groups in runs]
    figure = canvas(5.8, sum(heights))
    panels = figure.subplots(len(runs), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (run, groups) in zip(panels, runs, strict=True):
        panel(axes, run, groups)
    return figure


def served(run: Run) -> dict[str, int]:
    """Return person -> group at the end of a run's first seed, empty where there are no groups."""
    path = run.folder / FILE
    if not path.exists():
        return {}
    rows = table(path)
    # Groups are numbered anew in every seed: only one seed can be drawn.
    first = rows[rows.seed == run.seeds[0]]
    return dict(zip(first.person, first.group.astype(int), strict=True))


def panel(axes: Axes, run: Run, groups: dict[str, int]) -> None:
    """Draw one run: people are listed by group, with their headline in that seed."""
    rows = run.final(run.headline)
    scores = dict(rows[rows.seed == run.seeds[0]][["person", "value"]].itertuples(index=False))
    places = digits(scores.values())
    listed = sorted(groups, key=lambda person: (groups[person], person))
    heights = {person: -float(i) for i, person in enumerate(listed)}
    middle = float(np.mean([*heights.values()]))
    axes.plot(SERVER, middle, "s", color=INK, markersize=11)
    axes.annotate("server", (SERVER, middle), (0, 10), textcoords="offset points", ha="center")
    for group in sorted({*groups.values()}):
        tint = TINTS[group % len(TINTS)]
        members = [person for person in listed if groups[person] == group]
        y = float(np.mean([heights[person] for person in members]))
        axes.plot([SERVER, MODEL], [middle, y], color=MUTED, linewidth=1, zorder=0)
        axes.plot(MODEL, y, "o", color=tint, markersize=13)
        axes.annotate(
            f"group {group}", (MODEL, y), (0, 10), textcoords="offset points", ha="center"
        )
        for person in members:
            axes.plot([MODEL, PERSON], [y, heights[person]], color=tint, linewidth=1, zorder=0)
            axes.plot(PERSON, heights[person], "o", color=tint, markersize=6)
            text = f"{person}  {number(scores[person], places)}" if person in scores else person
            axes.annotate(
                text, (PERSON, heights[person]), (8, 0), textcoords="offset points", va="center"
            )
    axes.set(
        title=f"{run.title}: {metric_name(run.headline)} by person, seed {run.seeds[0]}",
        xlim=(-0.4, PERSON + 0.8),
        ylim=(-len(listed) + 0.3, 1.0),
    )
    axes.set_axis_off()
