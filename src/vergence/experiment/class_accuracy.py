"""Accuracy of every class at the end of a run, for tasks that score class by class.

Used by `experiment.run` and `reports.plots.class_accuracy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vergence.core.task import Task
from vergence.experiment.trained_run import TrainedRun
from vergence.results.layout import TABLES
from vergence.results.write import write_csv

FILE = "per_class.csv"


def write(path: Path, finals: Sequence[TrainedRun], who: Sequence[str]) -> None:
    """Write per_class.csv: for each seed, person and class, the accuracy on the person's test data.

    Nothing is written if the task has no accuracy per class. The column `unseen` is 1 for a class
    of which the student network of zero-shot learning had no samples.

    Args:
        path: the file.
        finals: the finished run for each seed.
        who: the people to score.
    """
    if type(finals[0].task).per_class is Task.per_class:
        return
    rows = []
    for run in finals:
        names = {run.task.class_names()[i] for i in run.task.unseen_classes}
        for person in who:
            test = run.ready.people[person].test
            outputs = run.outputs(run.model(person), test)
            rows += [
                (run.task.seed, person, name, int(name in names), value)
                for name, value in run.task.per_class(outputs, test.copy()).items()
            ]
    write_csv(path, TABLES[FILE], rows)
