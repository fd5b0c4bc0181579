"""Measure on finished runs: the train x test matrix.

Used by `studies.protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.intervals import with_number
from vergence.results.figure_style import canvas, column_names, save, styled
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv

RunOf = Callable[[Path, int], TrainedRun]
"""Function from run directory and seed to the trained run, which measures its models."""


def write_matrix(
    experiment: Experiment, trained: RunOf, folder: Path, people: Sequence[str], console: Console
) -> None:
    """Write each method's train x test matrix as .csv and picture, and print its means.

    The diagonal has everybody's own model on their own test data (person-specific); the other
    entries have individual models on other people's data (person-independent).
    """
    task = experiment.task(0)
    rows = []
    for label in experiment.methods:
        lines, tables = [], []
        for seed in experiment.plan.seeds:
            found = list(trained(folder / label, seed).matrix(people, people))
            lines += [
                (seed, owner, person, metric, repr(float(value)))
                for owner, person, metrics in found
                for metric, value in metrics.items()
            ]
            tables.append([metrics[task.headline] for _, _, metrics in found])
        table = np.mean(tables, axis=0).reshape(len(people), len(people))
        out = folder.parent / "matrix"
        export_csv(out / f"{label}.csv", ("seed", "model_of", "person", "metric", "value"), lines)
        save(figure(table, people, task.headline), out / f"{label}.png")
        others = np.array(with_number(table[~np.eye(len(people), dtype=bool)]))
        cells = [float(np.mean(with_number(np.diag(table))))]
        # One person has no others.
        if len(others):
            worst = others.max() if task.headline in task.lower_is_better else others.min()
            cells += [float(others.mean()), float(worst)]
        shown = [number(c, digits(cells)) for c in cells]
        rows.append([label, *shown, *[""] * (3 - len(shown))])
    heading = (
        f"{metric_name(task.headline)} of everybody's final model, {len(people)} x "
        f"{len(people)} people"
    )
    TextTable(heading, ["", "own data", "others' data", "worst pair"], rows).show(console)
    console.print(f"tables and figures: {folder.parent / 'matrix'}", soft_wrap=True)


@styled
def figure(table: NDArray[np.float64], people: Sequence[str], metric: str) -> Figure:
    """Draw a matrix: rows are whose model it is, columns whose data."""
    size = 1.6 + 0.42 * len(people)
    page = canvas(size + 1.0, size)
    axes = page.add_subplot()
    image = axes.imshow(table, cmap="viridis")
    column_names(axes, people)
    axes.set_yticks(range(len(people)), list(people))
    axes.grid(visible=False)
    axes.set(xlabel="data of", ylabel="model of")
    page.colorbar(image, label=metric_name(metric))
    return page
