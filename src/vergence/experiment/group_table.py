"""Groups of people at the end of a run, for methods with one model for each group.

Used by `experiment.run` and `reports.plots.groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vergence.core.conversation import drive
from vergence.experiment.trained_run import TrainedRun
from vergence.results.layout import TABLES
from vergence.results.write import write_csv

FILE = "groups.csv"


def write(path: Path, finals: Sequence[TrainedRun], who: Sequence[str]) -> None:
    """Write groups.csv (`seed,person,group`) if the method has groups of people.

    Args:
        path: the file.
        finals: the finished run for each seed.
        who: the people whose groups are written.
    """
    rows = []
    for run in finals:
        for person in who:
            asked = run.method.group_on(run.server, person, run.ready.people[person].train)
            if (group := drive(asked, run.executor.solver.compute)) is None:
                return
            rows.append((run.task.seed, person, group))
    write_csv(path, TABLES[FILE], rows)
