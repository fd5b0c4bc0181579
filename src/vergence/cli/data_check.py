"""`vergence data check`: runs the checks of a data set and prints what they find.

Used by `cli.data`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.federation import Dataset, Federation
from vergence.core.task import Task
from vergence.data.io.checks import Check, CheckedFolder, missing_folder
from vergence.data.io.finite_values import check_finite
from vergence.errors import DataError
from vergence.experiment.registry import find
from vergence.experiment.schema import data_root, load
from vergence.experiment.trust import trust_in_own_file, under
from vergence.tasks.gaze_angle import GazeAngle, check_angles


def check(name: str, root: str | None, console: Console) -> int:
    """Print what the files hold beside what is expected; return the number of failed checks."""
    dataset: Dataset | None = None
    tasks: type[Task] | None = None
    if name.endswith(".toml"):
        experiment = load(name)
        dataset, kind, root = experiment.dataset, type(experiment.dataset), root or experiment.root
        tasks = experiment.tasks
    else:
        # A name typed by the user himself is as good as consent: no file of others chose it.
        with under(trust_in_own_file()):
            kind = find("data", name, Dataset)
    module = importlib.import_module(kind.__module__)
    folder = data_root(root)
    if folder is not None and not Path(folder).exists():
        raise DataError(f"{missing_folder(Path(folder))} for data set '{name}': correct --root")
    own_check = getattr(module, "check", None)
    checks: list[Check]
    dataset = dataset or kind()
    if isinstance(dataset, CheckedFolder) and folder is not None:
        checks = dataset.check(Path(folder))
    # A check whose root may be left out knows its packaged files.
    elif own_check is not None and (folder is not None or own_check.__defaults__):
        checks = own_check(folder and Path(folder))
    else:
        checks = _checks_by_loading(dataset, folder, tasks)
    table = Table("", "what", "found", "expected", "what to do")
    table.columns[-1].overflow = "fold"  # a path is wrapped, not cut
    for c in checks:
        mark = Text("ok", "green") if c.ok else Text("no", "red")
        # Columns of files are called such things as "gaze x [px]", which is no markup.
        table.add_row(mark, *map(Text, (c.what, c.actual, c.expected, c.hint)))
    console.print(table)
    return sum(not c.ok for c in checks)


def _checks_by_loading(
    dataset: Dataset, folder: str | None, tasks: type[Task] | None
) -> list[Check]:
    """Check a data set without checks of its own: it must load and have samples of everybody.

    Angles are checked for the task `gaze_angle`, or if no task is known (None) and there are the
    columns `image` and `gaze`.
    """
    try:
        federation = dataset.load(folder)
        check_finite(federation)
    except DataError as error:
        # A data set that does not load is a failed check with its reason, and no crash.
        return [Check("loads", "no", "yes", False, str(error))]
    sizes = [len(s.train) + len(s.val) + len(s.test) for s in federation.people.values()]
    angles = tasks is None or issubclass(tasks, GazeAngle)
    return [
        Check("people", str(len(sizes)), "at least 1", bool(sizes)),
        Check("samples per person", f"{min(sizes)} to {max(sizes)}", "at least 1", min(sizes) > 0),
        *(_angle_checks(federation) if angles else ()),
    ]


def _angle_checks(federation: Federation) -> list[Check]:
    """Check gaze, head poses and sides of everybody who has eye images; none if nobody has any."""
    parts = [
        (person, part)
        for person, splits in ({} if federation.recipe else federation.people).items()
        for part in (splits.train, splits.val, splits.test)
        if {"image", "gaze"} <= part.columns.keys()
    ]
    what, found = "angles in radians, sides 0 or 1", "yes"
    try:
        advice = check_angles(parts)
    except DataError as error:
        advice, found = str(error), "no"
    return [Check(what, found, "yes", found == "yes", advice)] if parts else []
