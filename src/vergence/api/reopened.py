"""Experiments of finished runs, rebuilt from their tables and the Python objects that made them.

Used by `api.train`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from vergence.adaptation.adapted_run import adapted_again, unadapted
from vergence.api.finished_run import FinishedRun
from vergence.api.from_objects import (
    check_kinds,
    comparable,
    describe,
    experiment_from,
    with_base,
    with_local,
)
from vergence.core.federation import Dataset, Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.task import Task
from vergence.errors import ConfigError, StateError
from vergence.experiment.record_tables import local_table
from vergence.experiment.schema import (
    Experiment,
    Table,
    build_dataset,
    build_method,
    build_plan,
    build_task,
    method_table,
)
from vergence.experiment.table_binding import record_from_table
from vergence.results.run_files import read_config


def rebuild_experiment(
    run: FinishedRun, task: Task | None, people: Dataset | Federation | None, method: Method | None
) -> Experiment:
    """Rebuild the experiment of a run from its config.toml and the Python objects that made it.

    Args:
        run: the finished run.
        task: the run's task; None: take it from config.toml.
        people: the run's data; None: take them from config.toml.
        method: the run's method; None: take it from config.toml.

    Raises:
        ConfigError: an object that config.toml only describes is missing, or has the wrong type.
        StateError: the run was made from other objects.
    """
    table = read_config(run.folder / "config.toml")
    if not table.get("python"):
        return _check_objects(run, table, task, people, method)
    python = {"task" if part == "model" else part for part in table["python"]} - {"run"}
    objects = {"task": task, "federation": people, "method": method}
    if lacking := sorted(part for part in python if objects[part] is None):
        names = ", ".join("people" if part == "federation" else part for part in lacking)
        raise ConfigError(f"{run.folder}: its {names} came from Python: give open_run that too")
    local = record_from_table(LocalTraining, table.get("local", {}), "local")
    if method is None:
        _, run_method = build_method(method_table(table["method"]), table.get("local", {}))
    else:
        run_method = _with_training_settings(run, table, method, local)
    task = build_task(table) if task is None else task
    data, home = people, None
    if data is None:
        data, home = build_dataset(table["federation"], "federation", run.folder)
    root = None if isinstance(data, Federation) else table["federation"].get("root")
    plan = build_plan(table, run.folder)
    # Only an adapted run has no rounds: its task is that of the run that it was adapted from.
    adapted = not plan.rounds
    experiment = experiment_from(
        run_method, task, data, replace(plan, rounds=1) if adapted else plan, run.label, root
    )
    # Descriptions contain digests of networks and functions, so that a changed one differs.
    expected = unadapted(table) if adapted else table
    parts = ("task", "model", "federation", "method", "local")
    for part in parts[:2] if adapted else parts:
        if experiment.table[part] != expected.get(part, {}):
            raise _mismatch(run, part, expected.get(part, {}), experiment.table[part])
    if not adapted:
        return experiment
    return adapted_again(replace(experiment, root=home), table, run.folder)


def _check_objects(
    run: FinishedRun, table: Table, task: Any, people: Any, method: Any
) -> Experiment:
    """Rebuild the experiment from config.toml, and check that the caller's objects match it.

    An object of None is not checked.

    Raises:
        StateError: an object differs from what config.toml says.
    """
    experiment = run.experiment
    (before,) = experiment.methods.values()
    parts = {
        "model": experiment.model,
        "task": experiment.task(0),
        "federation": experiment.dataset,
        "method": before,
    }
    objects = {
        "task": parts["task"] if task is None else task,
        "federation": parts["federation"] if people is None else people,
        "method": before
        if method is None
        else _with_training_settings(run, table, method, before.local),
    }
    check_kinds(objects["method"], objects["task"], objects["federation"])
    objects["model"] = objects["task"].network
    # The run's task has seed 0 here, and the class names of its data.
    objects["task"] = replace(_with_names(objects["task"], experiment.dataset), seed=0)
    if getattr(objects["task"], "personal_prior", 0.0) is None:
        # The run decided what the caller left open.
        choice = getattr(parts["task"], "personal_prior", 0.0)
        objects["task"] = replace(objects["task"], personal_prior=choice)
    for part, expected in parts.items():
        if comparable(expected) != comparable(objects[part]):
            raise _mismatch(run, part, table[part], describe(objects[part]))
    return experiment


def _with_training_settings(
    run: FinishedRun, table: Table, method: Any, local: LocalTraining
) -> Any:
    """Return the caller's method with the run's local training, unless it has its own settings.

    Raises:
        StateError: its own settings differ from those of the run.
    """
    if not isinstance(method, Method):
        return method
    if method.local.functions:
        return with_base(method)
    try:
        return with_base(with_local(method, local))
    except ConfigError:
        text = {**describe(method), "local": local_table(method.local)}
        raise _mismatch(
            run, "method", {**table["method"], "local": local_table(local)}, text
        ) from None


def _with_names(task: Task, data: Dataset) -> Task:
    """Return the task with the data's class names, if it has none of its own.

    `schema.with_class_names` does the same for experiment files.
    """
    classes = getattr(data, "classes", ())
    if "names" not in {part.name for part in fields(task)} or not classes or vars(task)["names"]:
        return task
    return replace(task, names=tuple(classes))  # type: ignore[call-arg]


def _mismatch(run: FinishedRun, part: str, before: Any, now: Any) -> StateError:
    return StateError(
        f"{run.folder} was made by another {part}: its config.toml says {before}, and what was "
        f"given is {now}"
    )
