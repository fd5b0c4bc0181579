"""How tables become records: names are module names, values are checked against annotations."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vergence.errors import ConfigError, nearest

T = TypeVar("T")


def find(kind: str, name: str, base: type[T]) -> type[T]:
    """Return the only `base` subclass of the module with this name, or of a .py file."""
    if not isinstance(name, str):
        raise ConfigError(f"a name must be text, like those in {kind}; got {name!r}")
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"vergence_file_{Path(name).stem}", name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise ConfigError(f"no file at {name}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look up their annotations there
        spec.loader.exec_module(module)
    else:
        # Importing all of a kind, to list their names, takes a third of a second.
        module = importlib.import_module(f"vergence.{kind}.{name}") if exists(kind, name) else None
        if module is None or not offered(module, base):
            known = names(kind, base)
            what = "data set" if kind == "data" else kind.removesuffix("s")
            raise ConfigError(f"no {what} named '{name}'{nearest(name, known)}")
    return only(module, base)


def exists(kind: str, name: str) -> bool:
    """Tell whether there is a module of this name, without importing it."""
    package = importlib.import_module(f"vergence.{kind}")
    return any(info.name == name for info in pkgutil.iter_modules(package.__path__))


def offered(module: types.ModuleType, base: type[T]) -> list[type[T]]:
    """Return the subclasses of `base` that a module defines."""
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]


def only(module: types.ModuleType, base: type[T]) -> type[T]:
    """Return the one subclass of `base` that a module defines."""
    found = offered(module, base)
    if len(found) != 1:
        raise ConfigError(f"{module.__name__} must define exactly one {base.__name__}")
    return found[0]


def names(kind: str, base: type) -> list[str]:
    """Return the names of one kind: the modules that define a `base` subclass."""
    package = importlib.import_module(f"vergence.{kind}")
    found = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"vergence.{kind}.{info.name}")
        if offered(module, base):
            found.append(info.name)
    return found


def bind(record: type[T], table: Any, where: str, **given: Any) -> T:
    """Build a dataclass from a table; unknown keys and unfit values are errors."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    assert is_dataclass(record)
    hints = typing.get_type_hints(record)
    known = [f.name for f in fields(record) if f.name not in given]
    values = dict(given)
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, known)}")
        if isinstance(hints[key], type) and is_dataclass(hints[key]):
            values[key] = bind(hints[key], value, f"{where}.{key}")
            continue
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"{where}: {key}: {reason}; got {value!r}") from None
    needed = [f for f in fields(record) if f.default is MISSING and f.default_factory is MISSING]
    missing = [f.name for f in needed if f.name not in values]
    if missing:
        raise ConfigError(f"{where}: '{missing[0]}' must be given")
    return record(**values)
