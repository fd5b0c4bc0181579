"""Accuracies by method and class, drawn from per_class.csv.

Used by `reports.html`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vergence.experiment.class_accuracy import FILE
from vergence.results.figure_style import canvas, colour_bar, column_names, styled
from vergence.results.read import StudyResults, table


@styled
def of_study(study: StudyResults) -> Figure | None:
    """Draw accuracies by method and class, means over seeds and people; unseen classes last."""
    tables = {run.title: _read(run.folder / FILE) for run in study.runs}
    tables = {name: classes for name, classes in tables.items() if classes}
    if not tables:
        return None
    hidden = {kind: unseen for classes in tables.values() for kind, (unseen, _) in classes.items()}
    # Unseen classes stand last, and the sort keeps the file's order otherwise.
    kinds = sorted(hidden, key=hidden.__getitem__)
    nothing = 0, np.nan
    grid = np.array([[own.get(kind, nothing)[1] for kind in kinds] for own in tables.values()])
    figure = canvas(2.6 + 0.3 * len(kinds), 1.8 + 0.3 * len(tables))
    axes = figure.add_subplot()
    image = axes.imshow(grid, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(tables)), list(tables))
    column_names(axes, [f"{kind} *" if hidden[kind] else kind for kind in kinds])
    axes.tick_params(length=0)
    axes.grid(False)
    if 0 < sum(hidden.values()) < len(kinds):
        axes.axvline(len(kinds) - sum(hidden.values()) - 0.5, color="white", linewidth=3)
    colour_bar(figure, image, "accuracy; * unseen", ax=axes, fraction=0.03, pad=0.02)
    return figure


def _read(path: Path) -> dict[str, tuple[int, float]]:
    """Return class -> whether it is unseen, and its mean accuracy; empty if there is no file.

    Raises:
        StateError: the file is damaged.
    """
    if not path.is_file():
        return {}
    return {
        kind: (own.unseen.iloc[0], np.mean(own.accuracy.to_numpy()))
        for kind, own in table(path).groupby("class", sort=False)
    }
