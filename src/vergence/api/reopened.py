"""Experiments of finished runs, rebuilt from their tables and the Python objects that made them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

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
from vergence.experiment.record_tables import table_of
from vergence.experiment.registry import bind
from vergence.experiment.schema import (
    Experiment,
    Table,
    build_dataset,
    build_method,
    build_plan,
    build_task,
    method_table,
)
from vergence.results.run_files import read_config


def rebuild_experiment(
    run: FinishedRun, task: Task | None, people: Dataset | Federation | None, method: Method | None
) -> Experiment:
    """The experiment of a run that was made by these objects.

    Raises:
        ConfigError: one of them is lacking, or is of another kind.
        StateError: the run was made by others.
    """
    table = read_config(run.folder / "config.toml")
    if not table.get("python"):
        return _check_objects(run, table, task, people, method)
    python = {"task" if part == "model" else part for part in table["python"]} - {"run"}
    given = {"task": task, "federation": people, "method": method}
    if lacking := sorted(part for part in python if given[part] is None):
        names = ", ".join("people" if part == "federation" else part for part in lacking)
        raise ConfigError(f"{run.folder}: its {names} came from Python: give open_run that too")
    local = bind(LocalTraining, table.get("local", {}), "local")
    if method is None:
        _, trained = build_method(method_table(table["method"]), table.get("local", {}))
    else:
        trained = _with_training_settings(run, table, method, local)
    task = build_task(table) if task is None else task
    data = build_dataset(table["federation"], "federation")[0] if people is None else people
    root = None if isinstance(data, Federation) else table["federation"].get("root")
    made = experiment_from(trained, task, data, build_plan(table, run.folder), run.label, root)
    for part in ("task", "model", "federation", "method"):
        if made.table[part] != table[part]:
            raise _mismatch(run, part, table[part], made.table[part])
    return made


def _check_objects(
    run: FinishedRun, table: Table, task: Any, people: Any, method: Any
) -> Experiment:
    """The experiment of a run that its file says all of, if it says what is given."""
    experiment = run.experiment
    (before,) = experiment.methods.values()
    stored = {
        "model": experiment.model,
        "task": experiment.task(0),
        "federation": experiment.dataset,
        "method": before,
    }
    given = {
        "task": stored["task"] if task is None else task,
        "federation": stored["federation"] if people is None else people,
        "method": before
        if method is None
        else _with_training_settings(run, table, method, before.local),
    }
    check_kinds(given["method"], given["task"], given["federation"])
    given["model"] = given["task"].network
    given["task"] = replace(_with_names(given["task"], experiment.dataset), seed=0)
    for part, made_by in stored.items():
        if comparable(made_by) != comparable(given[part]):
            raise _mismatch(run, part, table[part], describe(given[part]))
    return experiment


def _with_training_settings(
    run: FinishedRun, table: Table, method: Any, local: LocalTraining
) -> Any:
    """The method that is given, training as the run did where it does not say how."""
    if not isinstance(method, Method):
        return method
    try:
        return with_base(with_local(method, local))
    except ConfigError:  # it says how it trains, and this is otherwise
        told = {**describe(method), "local": table_of(method.local)}
        raise _mismatch(
            run, "method", {**table["method"], "local": table_of(local)}, told
        ) from None


def _with_names(task: Task, data: Dataset) -> Task:
    """The task with the data's class names, as `schema.named` writes them where it has none."""
    classes = getattr(data, "classes", ())
    if "names" not in {part.name for part in fields(task)} or not classes or vars(task)["names"]:
        return task
    return replace(task, names=tuple(classes))  # type: ignore[call-arg]


def _mismatch(run: FinishedRun, part: str, before: Any, now: Any) -> StateError:
    return StateError(
        f"{run.folder} was made by another {part}: its config.toml says {before}, and what was "
        f"given is {now}"
    )
