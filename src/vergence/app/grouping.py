"""Who is in which group at the end of a run, for methods that keep a model per group."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from vergence.app.saved import Saved
from vergence.core.disk import write_whole
from vergence.core.fitting import Solver
from vergence.core.site import Federation
from vergence.engines.store import saving
from vergence.engines.turn import drive

FILE = "groups.csv"


def write(path: Path, finals: Sequence[Saved], federation: Federation, who: Sequence[str]) -> None:
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
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("seed", "person", "group"), *rows])
    with saving(path.parent):
        write_whole(path, text.getvalue().encode())
