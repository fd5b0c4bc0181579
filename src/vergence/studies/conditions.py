"""Scores of finished runs by condition: a table, and tests over people and stimuli together.

Used by `studies.protocols`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.federation import CONDITIONS
from vergence.errors import ConfigError, DataError
from vergence.experiment.schema import Experiment
from vergence.metrics.crossed_effects import Effect, crossed_difference
from vergence.metrics.intervals import with_number
from vergence.metrics.statistics import holm
from vergence.results.layout import digits, metric_name, number
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv
from vergence.studies.measures import RunOf

HEADS = ("label", "seed", "person", "condition", "level", "samples", "metric", "value")
"""Columns of conditions.csv."""
Levels = Mapping[str, tuple[str, ...]]
"""Name of a condition of the data -> its levels; see `Federation.conditions`."""
RECORDED = ("glasses", "light", "day", "side")
"""Columns of samples that record the conditions of a picture."""
TURN = "head turn"
"""The angle by which the head is turned away from the camera, from the column `pose`."""
LEVELS = ("low", "middle", "high")
FEW = 12
"""Largest number of values of a whole-numbered condition; others are split into thirds."""


def write_conditions(
    experiment: Experiment,
    trained: RunOf,
    folder: Path,
    people: Sequence[str],
    known: Levels,
    console: Console,
) -> None:
    """Write conditions.csv, one row per method, seed, person and condition, and print the means.

    Where the headline is a mean over samples, effects.csv has the difference between each level and
    the first one of its condition, tested over people and stimuli (`crossed_difference`).

    Args:
        experiment: the experiment.
        trained: function that returns a trained run.
        folder: folder of the runs.
        people: everybody to measure.
        known: conditions that the data state, with their levels.
        console: the console to print to.

    Raises:
        ConfigError: nothing is recorded about the samples.
    """
    task, seeds = experiment.task(0), experiment.plan.seeds
    lines: list[tuple[str, int, str, str, str, int, str, str]] = []
    sums: dict[str, dict[str, NDArray[np.float64]]] = {}
    tests: dict[str, Samples] = {}
    for label in experiment.methods:
        for seed in seeds:
            found = trained(folder / label, seed)
            models = {person: found.model(person) for person in people}
            # As in a run: a person's prior is chosen for the model that predicts.
            tests = {p: found.tune_prior(params, p).test for p, params in models.items()}
            outputs = {p: found.outputs(params, tests[p]) for p, params in models.items()}
            for person, condition, level, rows in levels(tests, known):
                got = task.metrics(outputs[person][rows], tests[person].subset(rows))
                value = repr(float(got[task.headline]))
                about = (label, seed, person, condition, level)
                lines.append((*about, len(rows), task.headline, value))
            for person in people if task.by_sample else ():
                parts = task.per_sample(outputs[person], tests[person].copy()).double().numpy()
                own = sums.setdefault(label, {})
                own[person] = own[person] + parts if person in own else parts
    path = folder.parent / "conditions.csv"
    export_csv(path, HEADS, lines)
    _show_means(lines, list(experiment.methods), metric_name(task.headline), console)
    try:
        effects = [
            (label, *row)
            for label, own in sums.items()
            for row in _effects(own, tests, known, console, label)
        ]
    except ConfigError as error:
        # A library is missing: the means stand without a test, too.
        console.print(f"differences are not tested: {error}", soft_wrap=True)
    else:
        if effects:
            _show_effects(effects, task.headline, folder.parent / "effects.csv", console)
    console.print(f"table: {path}", soft_wrap=True)


def _show_means(
    lines: Sequence[tuple[str, int, str, str, str, int, str, str]],
    labels: Sequence[str],
    name: str,
    console: Console,
) -> None:
    """Print the mean of each method under each condition."""
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
    heading = f"{name} by recorded conditions: mean over the people who have them"
    TextTable(heading, ["", "people", *labels], rows).show(console)


def _effects(
    sums: Mapping[str, NDArray[np.float64]],
    tests: Mapping[str, Samples],
    known: Levels,
    console: Console,
    label: str,
) -> Iterator[tuple[str, str, str, Effect]]:
    """Yield (condition, level, first level, effect) of each level but the first of its condition.

    `sums` maps each person to the numerators and denominators of the samples' scores, `[n, 2]`.
    """
    scores, who, what = [], [], []
    for person, parts in sums.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            scores += (parts[:, 0] / parts[:, 1]).tolist()
        who += [person] * len(parts)
        scene = tests[person].columns.get("scene")
        what += ["one"] * len(parts) if scene is None else [str(n) for n in scene.tolist()]
    starts = dict(zip(sums, np.cumsum([0, *map(len, sums.values())]).tolist(), strict=False))
    every = sorted(levels(tests, known), key=lambda row: row[1])
    for condition, group in groupby(every, key=lambda row: row[1]):
        marks: dict[str, list[int]] = {}
        for person, _, level, rows in group:
            marks.setdefault(level, []).extend((starts[person] + rows).tolist())
        first, *others = sorted(marks, key=_order)
        for level in others:
            use = np.array(marks[first] + marks[level])
            second = np.arange(len(use)) >= len(marks[first])
            with console.status(f"{label}: {condition} {level} against {first}"):
                names = [[each[i] for i in use] for each in (who, what)]
                try:
                    effect = crossed_difference(np.array(scores)[use], names[0], names[1], second)
                except DataError as error:
                    text = f"{label}: {condition} {level} - {first} is not tested: {error}"
                    console.print(text, soft_wrap=True)
                    continue
            yield condition, level, first, effect


def _order(level: str) -> tuple[int, float, str]:
    """Return a sort key: low, middle and high in this order, then numbers, then words."""
    if level in LEVELS:
        return 0, LEVELS.index(level), ""
    return (1, float(level), "") if level.isdecimal() else (2, 0.0, level)


def _show_effects(
    effects: Sequence[tuple[str, str, str, str, Effect]], metric: str, path: Path, console: Console
) -> None:
    """Write effects.csv, and print each difference with its interval; Holm over each method."""
    heads = ("label", "condition", "level", "against", "metric", "difference", "low", "high", "p")
    records, rows = [], []
    for label, group in groupby(effects, key=lambda row: row[0]):
        own = list(group)
        adjusted = holm([row[4].p for row in own])
        for (_, condition, level, first, effect), p in zip(own, adjusted, strict=True):
            three = (effect.difference, effect.low, effect.high)
            values = (repr(value) for value in (*three, effect.p, p))
            about = (label, condition, level, first, metric)
            records.append((*about, *values, effect.people, effect.stimuli, effect.degrees))
            mean, low, high = (number(value, digits(three)) for value in three)
            counts = f"{effect.people} x {effect.stimuli}" if effect.stimuli > 1 else effect.people
            rows.append([label, f"{condition} {level} - {first}", mean, f"{low} to {high}"])
            rows[-1] += ["< .001" if p < 0.001 else f"{p:.3f}", str(counts)]
    export_csv(path, (*heads, "p_holm", "people", "stimuli", "degrees"), records)
    crossed = any(row[4].stimuli > 1 for row in effects)
    how = (
        "People and stimuli are crossed random effects, each with a response of its own to the "
        "condition (linear mixed model)."
        if crossed
        else "Stimuli are not known: paired t tests over people."
    )
    some = [row[4] for row in effects if row[4].stimuli < row[4].all_stimuli]
    drawn = " To save time, stimuli were drawn at random: of {} in all." if some else ""
    drawn = drawn.format(max((each.all_stimuli for each in some), default=0))
    TextTable(
        f"{metric_name(metric)}, differences between conditions",
        ["", "difference", "mean", "95 %", "p (Holm)", "people x stimuli" if crossed else "people"],
        rows,
        keys=2,
        notes=[f"{how} Seeds are averaged before.{drawn}"],
    ).show(console)


def levels(tests: Mapping[str, Samples], known: Levels) -> Iterator[tuple[str, str, str, Tensor]]:
    """Yield (person, condition, level, sample numbers) of everybody's test samples.

    Conditions are those that the data state (`known`), and columns in `RECORDED`. Thirds of the
    latter are computed over all people together.

    Raises:
        ConfigError: nothing is recorded about the samples.
    """
    names = [
        name
        for name in (*RECORDED, TURN)
        if all(_recorded(test, name) is not None for test in tests.values())
    ]
    if not names and not known:
        raise ConfigError(
            f"conditions: the data records none of {', '.join(RECORDED)} or a head pose per sample;"
            " for own tables, name columns in federation.columns.conditions"
        )
    for k, (name, words) in enumerate(known.items()):
        for person, test in tests.items():
            column = test.columns[CONDITIONS][:, k]
            for code in column.unique().tolist():
                yield person, name, words[code] or "none", torch.nonzero(column == code).flatten()
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
