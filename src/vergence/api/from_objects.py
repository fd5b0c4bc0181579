"""Experiments from Python objects, in the same form as from a file.

An experiment file can name objects of this package's classes with plain options. If all objects are
of this kind, any command can resume, verify and explain the run. For other objects (arrays, a
function, a user's class) the run's config.toml only describes them, and the run can be resumed from
Python alone.

Used by `api.explanation`, `api.reopened` and `api.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset as TorchDataset

from vergence.api.function_digest import behaviour_digest, qualified_name
from vergence.api.task_from import FactoryModel, FunctionTask, fixed_arrays, is_importable
from vergence.core.arrays import loader_hint
from vergence.core.federation import Dataset, Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.params import Params
from vergence.core.serialization import digest, pack
from vergence.core.task import Model, Task
from vergence.data.noise import Noise
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan, until_no_gain
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.record_tables import (
    OWN_TABLES,
    NotWritable,
    Table,
    local_table,
    method_table,
    plan_tables,
    table_of,
    toml_value,
)
from vergence.experiment.registry import find
from vergence.experiment.schema import (
    Experiment,
    TableOrigin,
    build_method,
    check,
    check_combinations,
    check_label,
)
from vergence.experiment.table_binding import record_from_table
from vergence.privacy.config import Privacy
from vergence.training.device import choose_device
from vergence.training.fused_optimizers import try_functions

FROM_PYTHON = TableOrigin({"command": "vergence.train(...), in Python"})
"""Text that stands in provenance.json where a run of the command line has its command."""
# Most characters of a network's description in config.toml. It is for readers: changes are found
# by the digest of the initial parameters next to it.
SHOWN = 2000


@dataclass(frozen=True)
class InMemory(Dataset):
    """A data set whose data are in memory already."""

    federation: Federation

    def load(self, root: str | None = None) -> Federation:
        """Return the federation itself."""
        return self.federation


def experiment_from(
    method: Method,
    task: Task,
    people: Dataset | Federation,
    plan: Plan,
    label: str | None = None,
    root: Path | str | None = None,
) -> Experiment:
    """Build the experiment of one method from Python objects.

    Raises:
        ConfigError: an object has the wrong type, or objects cannot be combined; the message says
            what to change.
    """
    check_kinds(method, task, people)
    method = with_base(method)
    try_functions(method.local, map(plan.progress, range(plan.rounds)))
    label = default_label(method) if label is None else label
    check_label(label)
    root = None if root is None else str(root)
    if root is not None and isinstance(people, Federation):
        raise ConfigError("root is the folder of a data set's files; a Federation has no files")
    table, python = _describe_parts(method, task, people, plan, label, root)
    if not python:
        return replace(check(table), origin=FROM_PYTHON)
    refuse_ray(plan, objects_in(method, task))
    choose_device(plan.device)
    built = replace(task, seed=plan.seeds[0])
    model = task.network
    if "task" in python or "model" in python:
        table["model"] = {**table["model"], **_network_marks(built)}
    table["run"] = {**table["run"], **({"workers": plan.workers} if plan.workers else {})}
    dataset = InMemory(people) if isinstance(people, Federation) else people
    return check_combinations(
        Experiment(
            {"python": python, **table},
            dataset,
            root,
            model,
            {label: method},
            plan,
            Noise(),
            poison=plan.poison,
            tasks=type(task),
            built=built,
            origin=FROM_PYTHON,
        )
    )


def default_label(method: object) -> str:
    """Return a method's name in tables.

    It is its name in experiment files for a method of `vergence.methods`, else its class's name.
    """
    return registry_name(method) if _is_packaged(method, "methods") else type(method).__name__


def with_base(method: Method) -> Method:
    """Return the method; if its field `base` is empty, return a copy with FedAvg as `base`."""
    if "base" not in {part.name for part in fields(method)} or getattr(method, "base", None):
        return method
    _, base = build_method({"name": "fedavg"}, table_of(method.local))
    return replace(method, base=base)  # type: ignore[call-arg]


def check_kinds(method: Any, task: Any, people: Any) -> None:
    """Check that a method, a task and people have the right types.

    Raises:
        ConfigError: one has another type; the message says what to write instead.
    """
    if not isinstance(method, Method):
        raise ConfigError(
            f"the method must be one of vergence.methods, as FedAvg(); got {_type_text(method)}"
            f"{_instance_hint(method, Method)}"
        )
    if not isinstance(task, Task):
        hint = _instance_hint(task, Task)
        if isinstance(task, nn.Module) or (isinstance(task, type) and issubclass(task, nn.Module)):
            hint = ": wrap the network, vergence.task_from(lambda: ..., loss=...)"
        elif isinstance(task, Model) or (callable(task) and not isinstance(task, type)):
            hint = ": a network needs a loss: vergence.task_from(lambda: ..., loss=...)"
        raise ConfigError(
            f"the task must be one of vergence.tasks, or made by task_from; got {_type_text(task)}"
            f"{hint}"
        )
    if not isinstance(task.network, Model):
        raise ConfigError(
            f"the network of task {type(task).__name__} must be one of vergence.models; got "
            f"{_type_text(task.network)}: write a class Own(vergence.Model) whose build() returns "
            "yours"
        )
    if not isinstance(people, Dataset | Federation):
        raise ConfigError(
            f"people must be a data set of vergence.data or a Federation; got {_type_text(people)}"
            f"{_how_to_federate(people)}"
        )


def _type_text(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"


def _instance_hint(thing: Any, base: type) -> str:
    if isinstance(thing, str) and base is Method:
        try:
            name = find("methods", thing, Method).__name__
        except ConfigError as error:
            return f": {error}"
        return f": write vergence.methods.{name}()"
    if isinstance(thing, list | tuple) and base is Method:
        return ": write vergence.train_all(methods, task, people), and vergence.compare(runs)"
    if isinstance(thing, type) and issubclass(thing, base):
        return f": write {thing.__name__}(...), with its options"
    return ""


def _how_to_federate(people: Any) -> str:
    if isinstance(people, type) and issubclass(people, Dataset):
        return f": write {people.__name__}(), with its options"
    if hasattr(people, "iloc"):
        return ": write Federation.from_frame(frame, person=COLUMN)"
    if isinstance(people, TorchDataset):
        return (
            ": it does not say whose samples are whose; give a data set for each person, "
            "Federation.from_datasets({person: dataset, ...})"
        )
    several = list(people.values()) if isinstance(people, Mapping) else []
    if several and isinstance(several[0], TorchDataset):
        return ": write Federation.from_datasets(people)"
    hints = [hint for each in (people, *several[:1]) if (hint := loader_hint(each))]
    own = f"; {hints[0]}" if hints else ""
    return f": write Federation.from_arrays({{person: {{'x': inputs, 'y': targets}}, ...}}){own}"


def _describe_parts(
    method: Method,
    task: Task,
    people: Dataset | Federation,
    plan: Plan,
    label: str,
    root: str | None,
) -> tuple[Table, list[str]]:
    """Return the experiment's tables, and which of them cannot be read back into objects.

    Such a table only describes a Python object.
    """
    local = method.local
    parts: Mapping[str, tuple[Any, str, Callable[[], Table]]] = {
        "task": (task, "tasks", lambda: table_of(task, "network", "seed")),
        "model": (task.network, "models", lambda: table_of(task.network)),
        "federation": (people, "data", lambda: table_of(people)),
        "method": (method, "methods", lambda: method_table(method, local)),
    }
    table: Table = {}
    python = []
    for part, (thing, kind, options) in parts.items():
        try:
            if not _is_packaged(thing, kind):
                raise NotWritable
            table[part] = {"name": registry_name(thing), **options()}
        except NotWritable:
            table[part] = describe(thing)
            python.append(part)
    if root is not None:
        table["federation"]["root"] = root
    if label != table["method"]["name"]:
        table["method"]["label"] = label
    # Functions cannot be read back: they stand with the method, which then comes from Python.
    for name, function in local.functions.items():
        table["method"] |= {
            name: qualified_name(function),
            f"{name}_digest": behaviour_digest(function),
        }
    if local.functions and "method" not in python:
        python.append("method")
    table["local"] = local_table(local)
    try:
        table |= plan_tables(plan)
    except NotWritable as reason:
        raise ConfigError(f"the plan holds {reason}, which no experiment can say") from None
    if plan.privacy.robust is not None and not _is_packaged(plan.privacy.robust, "privacy"):
        python.append("run")
    # A subclass or a changed option may have a table that gives another object: it is compared.
    if not python:
        options = {key: value for key, value in table["task"].items() if key != "name"}
        bound = record_from_table(type(task), options, "task", network=task.network, seed=task.seed)
        python = list(_changed_parts(check(table), method, (bound, task), people, plan))
    return table, python


def _is_packaged(thing: Any, kind: str) -> bool:
    return type(thing).__module__.startswith(f"vergence.{kind}.")


def _changed_parts(
    experiment: Experiment, method: Method, tasks: tuple[Task, Task], people: Any, plan: Plan
) -> Iterator[str]:
    """Yield the parts of an experiment that differ from the Python objects behind its table.

    Args:
        experiment: the experiment, read back from its table.
        method: the method object.
        tasks: the task as read back, and the task object.
        people: the data object.
        plan: the plan object.
    """
    (again,) = experiment.methods.values()
    pairs = {
        "task": tasks,
        "model": (experiment.model, tasks[1].network),
        "federation": (experiment.dataset, people),
        "method": (again, method),
        "run": (experiment.plan, plan),
    }
    for part, (one, other) in pairs.items():
        if comparable(one) != comparable(other):
            yield part


def comparable(thing: Any) -> Any:
    """Convert a dataclass object to its class and fields, for comparison; tuples become lists."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return type(thing), {
            f.name: comparable(getattr(thing, f.name)) for f in fields(thing) if f.compare
        }
    if isinstance(thing, list | tuple):
        return [comparable(item) for item in thing]
    return thing


def describe(thing: Any) -> Table:
    """Return a table that describes a Python object: its name and its plain options."""
    if isinstance(thing, FunctionTask):
        return thing.describe()
    if isinstance(thing, FactoryModel):
        return {
            "name": "task_from",
            "factory": qualified_name(thing.factory),
            "head": list(thing.head),
        }
    if isinstance(thing, Federation):
        return {"name": thing.name, "object": f"a Federation of {len(thing.people)} people"}
    table: Table = {"name": f"{type(thing).__module__}:{type(thing).__qualname__}"}
    for part in fields(thing):
        value = getattr(thing, part.name)
        if part.name == "start" and value is None and isinstance(thing, Model):
            continue
        if part.name in ("network", "seed", "local") and isinstance(thing, Task | Method):
            continue
        try:
            table[part.name] = toml_value(value)
        except NotWritable:
            table[part.name] = f"a {type(value).__name__}"
    return table


def _network_marks(task: Task) -> Table:
    """Describe a network: its layers, and the digests of its initial and frozen parameters."""
    module = task.module()
    start, fixed = Params.of(module), fixed_arrays(module)
    return {
        "network": repr(module)[:SHOWN],
        "parameters": start.layout.n,
        "initial": digest(pack(start)),
        # A run's files do not hold them: another frozen backbone would give other predictions.
        **({"frozen": digest(pack(fixed))} if fixed else {}),
    }


def objects_in(method: Method, task: Task) -> Iterator[tuple[str, Any]]:
    """Yield (role, object) for the Python objects that another process would have to import."""
    yield "the method", type(method)
    yield "the task", type(task)
    yield "the network", type(task.network)
    if isinstance(task.network, FactoryModel):
        yield "the network's factory", task.network.factory
    yield from ((f"local.{name}", each) for name, each in method.local.functions.items())
    if isinstance(task, FunctionTask):
        yield from ((f"the {name}", function) for name, function in task.functions().items())


def refuse_ray(plan: Plan, objects: Iterator[tuple[str, Any]]) -> None:
    """Refuse Ray if one of its workers could not import an object by its name.

    Raises:
        ConfigError: names the object, and what to do.
    """
    # A forked process has every object of its parent. Ray's workers are started anew, and import an
    # object by its name, which a lambda does not have.
    if plan.engine != "ray":
        return
    for what, thing in objects:
        if not is_importable(thing):
            raise ConfigError(
                f"{what}, {qualified_name(thing)}, cannot be imported by name, and Ray would have "
                "to: put it into a module of its own, as def ... in mine.py, and import it from "
                "there; or train in processes of this machine, engine='simulator'"
            )


def plan_from(plan: Plan | None, **options: Any) -> Plan:
    """Return a plan in which these options replace its own; an option of None changes nothing.

    Raises:
        ConfigError: an option is out of range, or has the wrong type.
    """
    plan = plan or Plan()
    if not isinstance(plan, Plan):
        raise ConfigError(f"plan must be a vergence.Plan; got {_type_text(plan)}")
    new = {name: value for name, value in options.items() if value is not None}
    records = {name: new.pop(name, getattr(plan, name)) for name in OWN_TABLES}
    privacy = records["privacy"]
    if isinstance(privacy, Mapping):
        records["privacy"] = build_privacy(dict(privacy))
    for name, kind, public in (
        ("privacy", Privacy, "privacy"),
        ("presence", Participation, "participation"),
        ("early_stopping", EarlyStopping, "early_stopping"),
    ):
        if not isinstance(records[name], kind):
            raise ConfigError(
                f"{public} must be a vergence.{kind.__name__}; got {_type_text(records[name])}"
                f"{_as_option(kind, records[name])}"
            )
    if options.get("early_stopping") and not records["early_stopping"].patience:
        raise ConfigError(
            "early_stopping: patience is 0, with which a run never ends early: write "
            "vergence.EarlyStopping(patience=3), or leave early_stopping out"
        )
    own = {f.name: getattr(plan, f.name) for f in fields(Plan) if f.name not in OWN_TABLES}
    return record_from_table(Plan, {**own, **new}, "train", **records)


def plan_for(
    method: Method, people: Dataset | Federation, plan: Plan | None, **options: Any
) -> tuple[Plan, str]:
    """Return the plan of a run, and how long it trains if nobody said it; else "".

    Args:
        method: the method.
        people: the data.
        plan: the caller's plan, which has a number of rounds.
        options: options that replace its own, as in `plan_from`.

    Raises:
        ConfigError: an option is out of range, or has the wrong type.
    """
    whole = plan_from(plan, **options)
    if plan is not None or options.get("rounds") is not None:
        return whole, ""
    # Samples of a data set, and those that are generated on demand, are not looked at yet.
    validated = (
        not isinstance(people, Federation)
        or people.recipe is not None
        or any(len(splits.val) for splits in people.people.values())
    )
    return until_no_gain(whole, getattr(method, "closed_form", False), validated)


def _as_option(kind: type, value: Any) -> str:
    """Return a hint on how to write a record, if a number was given in its place; else ""."""
    option = {Participation: "cohort", EarlyStopping: "patience"}.get(kind)
    if not option or not isinstance(value, int | float):
        return ""
    shown = "..." if isinstance(value, bool) else value
    return f": write vergence.{kind.__name__}({option}={shown})"


def with_local(method: Method, local: LocalTraining | None) -> Method:
    """Return the method, and its `base` method, with these settings of local training.

    Raises:
        ConfigError: the method already has other settings of local training.
    """
    if local is None:
        return method
    if not isinstance(local, LocalTraining):
        raise ConfigError(
            "local must be a vergence.LocalTraining, as LocalTraining(lr=0.01); got "
            f"{_type_text(local)}"
        )
    if method.local not in (type(method).local, local):
        raise ConfigError(
            f"local is given twice, to {type(method).__name__} and to train: give it to one of them"
        )
    base = getattr(method, "base", None)
    below = {"base": with_local(base, local)} if isinstance(base, Method) else {}
    return replace(method, local=local, **below)
