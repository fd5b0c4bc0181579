"""Measures on finished runs: the train x test matrix, and errors by recorded conditions.

Used by `studies.protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from vergence.core.data import Samples
from vergence.errors import ConfigError
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun
from vergence.metrics.intervals import with_number
from vergence.results.figure_style import canvas, column_names, save, styled
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv

RunOf = Callable[[Path, int], TrainedRun]
"""Function from run directory and seed to the trained run, which measures its models."""
RECORDED = ("glasses", "light", "day", "side")
"""Columns of samples that record the conditions of a picture."""
TURN = "head turn"
"""The angle by which the head is turned away from the camera, from the column `pose`."""
LEVELS = ("low", "middle", "high")
FEW = 12
"""Largest number of values of a whole-numbered condition; others are split into thirds."""


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


def write_conditions(
    experiment: Experiment, trained: RunOf, folder: Path, people: Sequence[str], console: Console
) -> None:
    """Write conditions.csv, one row per method, seed, person and condition, and print the means.

    Raises:
        ConfigError: nothing is recorded about the samples.
    """
    task, seeds = experiment.task(0), experiment.plan.seeds
    lines = []
    for label in experiment.methods:
        for seed in seeds:
            found = trained(folder / label, seed)
            models = {person: found.model(person) for person in people}
            # As in a run: a person's prior is chosen for the model that predicts.
            tests = {p: found.tune_prior(params, p).test for p, params in models.items()}
            outputs = {p: found.outputs(params, tests[p]) for p, params in models.items()}
            for person, condition, level, rows in levels(tests):
                got = task.metrics(outputs[person][rows], tests[person].subset(rows))
                value = repr(float(got[task.headline]))
                about = (label, seed, person, condition, level)
                lines.append((*about, len(rows), task.headline, value))
    path = folder.parent / "conditions.csv"
    heads = ("label", "seed", "person", "condition", "level", "samples", "metric", "value")
    export_csv(path, heads, lines)
    labels = list(experiment.methods)
    rows = []
    for condition, level in dict.fromkeys((line[3], line[4]) for line in lines):
        here = [line for line in lines if line[3:5] == (condition, level)]
        means = [
            float(np.mean(with_number(float(x[7]) for x in here if x[0] == label)))
            for label in labels
        ]
        count = len({line[2] for line in here})
        shown = (number(m, digits(means)) for m in means)
        rows.append([f"{condition} {level}", str(count), *shown])
    name = metric_name(task.headline)
    heading = f"{name} by recorded conditions: mean over the people who have them"
    TextTable(heading, ["", "people", *labels], rows).show(console)
    console.print(f"table: {path}", soft_wrap=True)


def levels(tests: Mapping[str, Samples]) -> Iterator[tuple[str, str, str, Tensor]]:
    """Yield (person, condition, level, sample numbers) of everybody's test samples.

    Thirds are computed over all people together.

    Raises:
        ConfigError: nothing is recorded about the samples.
    """
    names = [
        name
        for name in (*RECORDED, TURN)
        if all(_recorded(test, name) is not None for test in tests.values())
    ]
    if not names:
        raise ConfigError(
            f"conditions: the data records none of {', '.join(RECORDED)} or a head pose per sample"
        )
    for name in names:
        values = {person: _recorded(test, name) for person, test in tests.items()}
        # Of all people: "low" must mean the same light, say, for everybody.
        pool = torch.cat([v.double() for v in values.values() if v is not None])
        whole = bool((pool == pool.round()).all()) and len(pool.unique()) <= FEW
        edges = torch.quantile(pool, torch.tensor([1 / 3, 2 / 3], dtype=pool.dtype))
        for person, value in values.items():
            assert value is not None
            group = value.long() if whole else torch.bucketize(value.double(), edges)
            for level in group.unique().tolist():
                shown = str(level) if whole else LEVELS[level]
                yield person, name, shown, torch.nonzero(group == level).flatten()


def _recorded(test: Samples, name: str) -> Tensor | None:
    """Return a recorded condition of each test sample; None if it was not recorded."""
    if name == TURN:
        pose = test.columns.get("pose")
        return None if pose is None else pose.double().norm(dim=1)
    return test.columns.get(name)
