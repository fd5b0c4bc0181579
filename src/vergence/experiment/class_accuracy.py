"""How well every class is told at the end of a run, for tasks that say so class by class."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vergence.core.federation import Federation
from vergence.core.files import csv_of, saving, write_whole
from vergence.core.messages import Message
from vergence.core.task import Task
from vergence.engine.client_executor import ClientExecutor, ClientTask
from vergence.errors import StateError
from vergence.experiment.saved_run import SavedRun
from vergence.reports.plots.style import canvas, column_names, styled
from vergence.results.display_names import title
from vergence.results.read import StudyResults

FILE = "per_class.csv"
HEAD = ("seed", "person", "class", "unseen", "accuracy")


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
    with saving(path.parent):
        write_whole(path, csv_of([HEAD, *rows]).encode())


@styled
def of_study(study: StudyResults) -> Figure | None:
    """Draw accuracies by method and class, means over seeds and people; unseen classes last."""
    told = {title(run): _read(run.folder / FILE) for run in study.runs}
    told = {name: found for name, found in told.items() if found}
    if not told:
        return None
    hidden = {kind: unseen for found in told.values() for kind, (unseen, _) in found.items()}
    kinds = sorted(hidden, key=hidden.__getitem__)
    nothing = (0, [float("nan")])
    table = np.array(
        [[np.mean(found.get(kind, nothing)[1]) for kind in kinds] for found in told.values()]
    )
    figure = canvas(2.6 + 0.3 * len(kinds), 1.8 + 0.3 * len(told))
    axes = figure.add_subplot()
    image = axes.imshow(table, cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(told)), list(told))
    column_names(axes, [f"{kind} *" if hidden[kind] else kind for kind in kinds])
    axes.tick_params(length=0)
    axes.grid(False)
    if 0 < sum(hidden.values()) < len(kinds):
        axes.axvline(len(kinds) - sum(hidden.values()) - 0.5, color="white", linewidth=3)
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02)
    bar.set_label("accuracy; * unseen")
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _read(path: Path) -> dict[str, tuple[int, list[float]]]:
    """Return class -> whether it is unseen, and its accuracies; nothing where no file is.

    Raises:
        StateError: it is damaged.
    """
    if not path.is_file():
        return {}
    found: dict[str, tuple[int, list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                _, values = found.setdefault(row["class"], (int(row["unseen"]), []))
                values.append(float(row["accuracy"]))
            except (KeyError, ValueError, TypeError) as fault:
                raise StateError(f"{path} is damaged ({fault}); restore it or run again") from fault
    return found
