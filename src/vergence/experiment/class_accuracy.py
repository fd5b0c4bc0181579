"""Accuracy of every class at the end of a run, for tasks that score class by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.core.task import Task
from vergence.engine.client_executor import ClientExecutor, ClientTask
from vergence.experiment.saved_run import SavedRun
from vergence.results.layout import TABLES
from vergence.results.write import write_csv

FILE = "per_class.csv"


def write(
    path: Path,
    worker: ClientExecutor,
    finals: Sequence[SavedRun],
    federation: Federation,
    who: Sequence[str],
) -> None:
    """Write per_class.csv, one line per seed, person and class of their test samples.

    Nothing where the task tells nothing by class. `unseen` is 1 for a class of which the student
    had no samples.
    """
    if type(worker.task).per_class is Task.per_class:
        return
    rows = []
    for saved in finals:
        names = {saved.task.class_names()[i] for i in saved.task.unseen_classes}
        for person in who:
            test = federation.people[person].test
            offered = saved.method.predicting(saved.server, person)
            message = Message("evaluate", offered, round=saved.experiment.plan.rounds)
            order = ClientTask(
                "evaluate", person, message, saved.clients.get(person), show=tuple(range(len(test)))
            )
            outputs = worker.do(order).outputs
            assert outputs is not None
            rows += [
                (saved.task.seed, person, name, int(name in names), value)
                for name, value in saved.task.per_class(outputs, test).items()
            ]
    write_csv(path, TABLES[FILE], rows)
