"""Option records written as tables of an experiment file: the other way round than `bind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.naming import called
from vergence.core.task import StartingModel
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.privacy.config import Privacy
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

Table = dict[str, Any]
TABLES = {
    "presence": Participation(),
    "delivery": Delivery(),
    "wire": Compression(),
    "pruning": Gradual(0.0),
}
"""The fields of a plan that have tables of their own, with what they are where nothing is said."""
OWN_TABLES = (*TABLES, "privacy", "poison", "silos")


class NotWritable(Exception):
    """A value that no experiment file can hold."""


def table_of(record: Any, *leave: str) -> Table:
    """The fields of a record that differ from their defaults.

    Args:
        record: a dataclass instance.
        leave: fields to leave out.

    Raises:
        NotWritable: a value is none of an experiment file.
    """
    parts = [part for part in fields(record) if part.init and part.name not in leave]
    found = {part.name: getattr(record, part.name) for part in parts}
    return {p.name: toml_value(found[p.name]) for p in parts if found[p.name] != _default(p)}


def _default(part: Field[Any]) -> Any:
    if part.default is not MISSING:
        return part.default
    return part.default_factory() if part.default_factory is not MISSING else MISSING


def toml_value(value: Any) -> Any:
    """A value as TOML holds it.

    Raises:
        NotWritable: it is none of an experiment file.
    """
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, StartingModel):
        return value.run
    if isinstance(value, tuple | list | frozenset):
        return [toml_value(v) for v in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Mapping):
        return {str(k): toml_value(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return table_of(value)
    raise NotWritable(f"a {type(value).__name__}")


def method_table(method: Method, local: LocalTraining) -> Table:
    """A method's entry where `local` is the experiment's.

    Raises:
        NotWritable: an option is none of an experiment file.
    """
    entry = {"name": called(method), **table_of(method, "local", "base")}
    base = getattr(method, "base", None)
    if isinstance(base, Method):
        entry["base"] = method_table(base, method.local)
    if method.local != local:
        own = {f.name: getattr(method.local, f.name) for f in fields(LocalTraining)}
        entry["local"] = {
            name: toml_value(value) for name, value in own.items() if value != getattr(local, name)
        }
    return entry


def plan_tables(plan: Plan) -> Table:
    """The tables of a plan: `run`, and those beside it that say anything.

    Raises:
        NotWritable: an option is none of an experiment file.
    """
    run = {"rounds": plan.rounds, "seeds": list(plan.seeds), **table_of(plan, *OWN_TABLES)}
    found: Table = {"run": run}
    for name, nothing in TABLES.items():
        record = getattr(plan, name)
        if record != nothing:
            found[name] = table_of(record)
    if plan.privacy != Privacy():
        found["privacy"] = privacy_table(plan.privacy)
    if plan.poison is not None:
        found["poison"] = {"attack": plan.poison.attack, **table_of(plan.poison)}
    if plan.silos:
        found["silos"] = {lab: list(people) for lab, people in plan.silos.labs.items()}
    return found


def privacy_table(privacy: Privacy) -> Table:
    """The table `privacy`.

    Raises:
        NotWritable: an option is none of an experiment file.
    """
    found: Table = {}
    for part in fields(privacy):
        record = getattr(privacy, part.name)
        if record is None or record == ():
            continue
        if part.name == "own":
            found["own"] = [{"name": called(own), **table_of(own)} for own in record]
            continue
        options = table_of(record)
        if part.name == "robust":
            options = {"name": called(record), **options}
        elif hasattr(record, "name"):
            options = {"name": record.name, **options}
        found[part.name] = options
    return found
