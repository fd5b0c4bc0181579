"""Headline metric of every block of a person's test samples, from which harm is computed.

Harm means that a person's score is worse with a method than without it. samples.csv has the scores
of a method. prior_samples.csv has those of each person's own baseline, which predicts without
learning. A block is the samples of one picture, or of one scene of a video. It has the picture's or
scene's number in the data set, which is the same in every split. Samples without such a number are
cut into up to 20 blocks of neighbours.

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
"""Largest number of people whose scores are written; the first ones are taken."""
Row = tuple[str, str, int, str]
"""Person, block, number of samples or frames in it that have a score, and the mean score."""


def write(path: Path, finals: Sequence[TrainedRun], who: Sequence[str]) -> None:
    """Write samples.csv: the headline metric of each block of people's test samples.

    The headline metric is the one that tables put first. A block is the samples of one picture or
    scene (`blocks_of`). Nothing is written if the metric is not a mean over samples.

    Args:
        path: the file.
        finals: the finished run for each seed.
        who: the people to score.
    """
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
    """Write prior_samples.csv: the score of each block of test samples for people's own baselines.

    Such a baseline predicts from the person's training data, without learning. A block is the
    samples of one picture or scene (`blocks_of`). Nothing is written if the task has no such
    baseline.
    """
    people = federation.only(federation.clients[:MOST])
    name, guess = task.personal_baseline(people)
    if not guess:
        return
    rows = [
        (name, *row)
        for person, splits in people.scored_people.items()
        for row in rows_of(task, person, guess[person], splits.test)
    ]
    write_csv(path, TABLES[PRIORS], rows)


def rows_of(task: Task, person: str, outputs: Tensor, samples: Samples) -> Iterator[Row]:
    """Yield a row for each block of a person's test samples: the mean score of the block.

    A block is the samples of one picture or scene (`blocks_of`). Blocks in which no sample has a
    score are left out.

    Args:
        task: the task.
        person: name of the person.
        outputs: outputs for the samples, `[samples, ...]`.
        samples: the test samples.
    """
    sums = task.per_sample(outputs, samples.copy()).double()
    names = blocks_of(samples)
    for name in dict.fromkeys(names):
        inside = torch.tensor([each == name for each in names])
        total, count = sums[inside].sum(0).tolist()
        if count:
            yield person, name, int(count), repr(total / count)


def blocks_of(samples: Samples) -> list[str]:
    """Return the name of each sample's block: its picture, its scene, or a group of neighbours.

    Samples with several gaze points per frame count as pictures, as in the task `gaze_map`; a frame
    of a video has a single gaze point.
    """
    # Scene -1 is a scene that nobody else saw: then all samples are cut into runs of neighbours.
    scene, points = samples.columns.get("scene"), samples.columns.get("points")
    if scene is not None and points is not None and (points.shape[2] > 1 or (scene >= 0).all()):
        kind = PICTURE if points.shape[2] > 1 else SCENE
        return [f"{kind} {number}" for number in scene.tolist()]
    count = len(samples)
    return [f"part {i * min(RUNS, count) // count}" for i in range(count)]
