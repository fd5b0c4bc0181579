"""Dataclasses of options as tables of an experiment file: the inverse of `record_from_table`.

Used by `adaptation.adapted_run`, `api.from_objects`, `api.reopened`, `experiment.schema` and
`studies.comparability`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.tags import IN_CONFIG
from vergence.core.task import StartingModel
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.experiment.packaged import Table
from vergence.privacy.config import Privacy
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

TABLES = {
    "presence": Participation(),
    "delivery": Delivery(),
    "wire": Compression(),
    "pruning": Gradual(0.0),
    "early_stopping": EarlyStopping(),
}
"""Fields of a plan that have their own tables in an experiment file, with their defaults."""
OWN_TABLES = (*TABLES, "privacy", "poison", "silos")


class NotWritable(Exception):
    """Raised for a value that no experiment file can hold."""


def table_of(record: Any, *leave: str) -> Table:
    """Return the fields of a record that differ from their defaults or are `IN_CONFIG`, as a table.

    Args:
        record: a dataclass instance.
        leave: names of fields to leave out.

    Raises:
        NotWritable: no experiment file can hold one of the values.
    """
    parts = [part for part in fields(record) if part.init and part.name not in leave]
    values = {part.name: getattr(record, part.name) for part in parts}
    return {
        p.name: toml_value(values[p.name])
        for p in parts
        if values[p.name] != default_of(p) or IN_CONFIG in p.metadata
    }


def default_of(part: Field[Any]) -> Any:
    """Return the default of a dataclass field, which its factory may make; MISSING if none."""
    if part.default is not MISSING:
        return part.default
    return part.default_factory() if part.default_factory is not MISSING else MISSING


def toml_value(value: Any) -> Any:
    """Convert a value to one that TOML can hold.

    Raises:
        NotWritable: no experiment file can hold the value.
    """
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, StartingModel):
        return value.run
    if isinstance(value, tuple | list | frozenset):
        # A set has another order in every process, and a config must have the same bytes.
        return [toml_value(v) for v in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Mapping):
        return {str(k): toml_value(v) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return table_of(value)
    raise NotWritable(f"a {type(value).__name__}")


def rule_table(rule: EarlyStopping) -> Table:
    """Return the table `early_stopping` of an experiment file; without the rule it is empty.

    `restore_best` stands in it even if it is the default, as configs of older runs lack it.
    """
    return {**table_of(rule), "restore_best": rule.restore_best} if rule.patience else {}


def local_table(local: LocalTraining) -> Table:
    """Return the table `local` of an experiment file, without Python functions.

    Optimiser and learning rate stand in it even if they are the defaults.

    Raises:
        NotWritable: no experiment file can hold one of the options.
    """
    named = {} if callable(local.optimizer) else {"optimizer": local.optimizer}
    return {**named, **table_of(local, *local.functions)}


def method_table(method: Method, local: LocalTraining) -> Table:
    """Return the table of a method in an experiment file.

    Args:
        method: the method.
        local: options of local training of the whole experiment; the table has only the method's
            options that differ from them.

    Raises:
        NotWritable: no experiment file can hold one of its options.
    """
    entry = {"name": registry_name(method), **table_of(method, "local", "base")}
    base = getattr(method, "base", None)
    if isinstance(base, Method):
        entry["base"] = method_table(base, method.local)
    if method.local != local:
        own = {f.name: getattr(method.local, f.name) for f in fields(LocalTraining)}
        entry["local"] = {
            name: toml_value(value) for name, value in own.items() if value != getattr(local, name)
        }
    return entry


def with_config_options(entry: str | Table, method: Method) -> str | Table:
    """Return a method's entry with its `IN_CONFIG` options, and those of the method it extends.

    Args:
        entry: the method's name, or its table.
        method: the method that it names.
    """
    table = {"name": entry} if isinstance(entry, str) else entry
    options = {
        part.name: getattr(method, part.name)
        for part in fields(method)
        if IN_CONFIG in part.metadata and part.name not in table
    }
    if "base" in table:
        base = with_config_options(table["base"], getattr(method, "base", method))
        options |= {"base": base} if base != table["base"] else {}
    return {**table, **options} if options else entry


def plan_tables(plan: Plan) -> Table:
    """Return the tables of a plan for an experiment file, by name.

    These are `run`, and tables such as `presence` and `privacy` if they differ from their defaults.
    `vergence.train` writes them into the run's config.

    Raises:
        NotWritable: no experiment file can hold one of the options.
    """
    run = {"rounds": plan.rounds, "seeds": list(plan.seeds), **table_of(plan, *OWN_TABLES)}
    tables: Table = {"run": run}
    for name, default in TABLES.items():
        record = getattr(plan, name)
        if record != default:
            tables[name] = rule_table(record) if name == "early_stopping" else table_of(record)
    if plan.privacy != Privacy():
        tables["privacy"] = privacy_table(plan.privacy)
    if plan.poison is not None:
        tables["poison"] = {"attack": plan.poison.attack, **table_of(plan.poison)}
    if plan.silos:
        tables["silos"] = {lab: list(people) for lab, people in plan.silos.labs.items()}
    return tables


def privacy_table(privacy: Privacy) -> Table:
    """Return the table `privacy` of an experiment file.

    Raises:
        NotWritable: no experiment file can hold one of the options.
    """
    table: Table = {}
    for part in fields(privacy):
        record = getattr(privacy, part.name)
        if record is None or record == ():
            continue
        if part.name == "own":
            table["own"] = [{"name": registry_name(own), **table_of(own)} for own in record]
            continue
        options = table_of(record)
        if part.name == "robust":
            options = {"name": registry_name(record), **options}
        elif hasattr(record, "name"):
            options = {"name": record.name, **options}
        table[part.name] = options
    return table
