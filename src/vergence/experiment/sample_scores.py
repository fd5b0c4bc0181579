"""Headline metric of every block of test samples, from which harm is judged.

It is written for methods and for each person's own baseline without learning. A block is a picture,
or the scene of a video's window, under the data set's own number, which is the same in every split.
Samples without such a number are cut into up to 20 runs of neighbours.

Used by `experiment.run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.task import Task
from vergence.experiment.trained_run import TrainedRun
from vergence.results.harm import PICTURE, PRIORS, RUNS, SAMPLES, SCENE
from vergence.results.layout import TABLES
from vergence.results.write import write_csv

MOST = 200
"""Most people whose scores are written: the first ones."""
Row = tuple[str, str, int, str]
"""Person, block, number of frames or samples that count in it, and their mean."""


def write(path: Path, finals: Sequence[TrainedRun], who: Sequence[str]) -> None:
    """Write samples.csv, if the task's headline metric is a mean over samples."""
    if not finals[0].task.by_sample:
        return
    rows = []
    for run in finals:
        for person in who[:MOST]:
            params = run.model(person)
            test = run.tune_prior(params, person).test
            outputs = run.outputs(params, test)
            rows += [(run.task.seed, *row) for row in rows_of(run.task, person, outputs, test)]
    write_csv(path, TABLES[SAMPLES], rows)


def write_priors(path: Path, task: Task, federation: Federation) -> None:
    """Write prior_samples.csv for the baseline from each person's own training data, if any."""
    people = federation.only(federation.clients[:MOST])
    name, guess = task.personal_baseline(people)
    if not guess:
        return
    rows = [
        (name, *row)
        for person, splits in people.people.items()
        for row in rows_of(task, person, guess[person], splits.test)
    ]
    write_csv(path, TABLES[PRIORS], rows)


def rows_of(task: Task, person: str, outputs: Tensor, samples: Samples) -> Iterator[Row]:
    """Yield the rows of one person's test samples, without blocks in which no sample counts."""
    sums = task.per_sample(outputs, samples.copy()).double()
    names = blocks_of(samples)
    for name in dict.fromkeys(names):
        inside = torch.tensor([each == name for each in names])
        total, count = sums[inside].sum(0).tolist()
        if count:
            yield person, name, int(count), repr(total / count)


def blocks_of(samples: Samples) -> list[str]:
    """Return the block of every sample: its picture's or scene's number, or its run of neighbours.

    A sample of a picture may have several fixations, as in `gaze_map`; a frame of a video has one.
    """
    # Scene -1 is a scene that nobody else saw: then all samples are cut into runs of neighbours.
    scene, points = samples.columns.get("scene"), samples.columns.get("points")
    if scene is not None and points is not None and (points.shape[2] > 1 or (scene >= 0).all()):
        kind = PICTURE if points.shape[2] > 1 else SCENE
        return [f"{kind} {number}" for number in scene.tolist()]
    count = len(samples)
    return [f"part {i * min(RUNS, count) // count}" for i in range(count)]
