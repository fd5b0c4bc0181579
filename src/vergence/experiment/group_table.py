"""Groups of people at the end of a run, for methods that keep a model per group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vergence.core.conversation import drive
from vergence.core.federation import Federation
from vergence.experiment.saved_run import SavedRun
from vergence.results.layout import TABLES
from vergence.results.write import write_csv
from vergence.training.sequential import Solver

FILE = "groups.csv"


def write(
    path: Path, finals: Sequence[SavedRun], federation: Federation, who: Sequence[str]
) -> None:
    """Write groups.csv (`seed,person,group`), if the method has groups: who is served by which."""
    rows = []
    for saved in finals:
        solver = Solver(saved.task)
        for person in who:
            train = federation.people[person].train
            asked = saved.method.group_on(saved.server, person, train)
            group = drive(asked, solver.compute)
            if group is None:
                return
            rows.append((saved.task.seed, person, group))
    write_csv(path, TABLES[FILE], rows)
