"""Dataclass instances made from tables of an experiment file, with checks of keys and values.

The error messages for a misspelt key, and for a value of the wrong type, come from this module.

Used in `api`, `cli`, `experiment` and `studies`.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from vergence.core.naming import shown_integer
from vergence.core.options import T, check_ranges
from vergence.errors import ConfigError, nearest
from vergence.experiment.registry import REMOVED_OPTIONS, present_name

WHOLE = 2**63
"""Whole numbers must be in [-WHOLE, WHOLE), as torch takes no more than 64 bits."""
_PLAIN = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "the name of a file",
}
_MANY = {
    int: "whole numbers",
    float: "numbers",
    bool: "true or false",
    str: "texts",
}


def record_from_table(record: type[T], table: Any, where: str, **arguments: Any) -> T:
    """Build a dataclass from a table of an experiment file.

    Args:
        record: the dataclass.
        table: values of its fields, by name.
        where: the table's name, for messages.
        arguments: values of further fields, which the table must not set.

    Raises:
        ConfigError: a key is unknown, a value does not fit its field, or a field without a default
            is missing.
    """
    assert is_dataclass(record)
    hints = typing.get_type_hints(record)
    known = [f.name for f in fields(record) if f.name not in arguments]
    values = dict(arguments)
    for key, value in as_table(table, where).items():
        key = present_name(where, key)
        if key in values and key in known:
            raise ConfigError(f"{where}: '{key}' is given twice, once under a former name")
        if key not in known:
            if advice := REMOVED_OPTIONS.get((where, key)):
                raise ConfigError(f"{where}: no key '{key}' any more: {advice}")
            untyped = _untyped_hint(record, key)
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, known)}{untyped}")
        if isinstance(hints[key], type) and is_dataclass(hints[key]):
            values[key] = record_from_table(hints[key], value, f"{where}.{key}")
            continue
        if isinstance(value, str):
            value = present_name(f"{where} {key}", value)
        try:
            values[key] = fitting(hints[key], value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {key} {error}") from None
    missing = [
        f.name
        for f in fields(record)
        if f.name not in values and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: '{missing[0]}' must be given")
    made = record(**values)
    check_ranges(made, where)
    return made


def as_table(value: Any, where: str) -> dict[str, Any]:
    """Return a copy of a table of an experiment file.

    Raises:
        ConfigError: the value is not a table.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table, got {value!r}")
    return dict(value)


def _untyped_hint(record: type, key: str) -> str:
    """Return a hint for a message if `key` is a dataclass's attribute that lacks an annotation.

    Return "" if there is no such attribute.
    """
    value = vars(record).get(key)
    if key.startswith("_") or value is None or callable(value) or hasattr(value, "__get__"):
        return ""
    typed = f"{key}: {type(value).__name__} = {value!r}"
    return f"; '{key}' of {record.__name__} has no type, as options need: write `{typed}`"


def check_numbers(value: Any, where: str) -> None:
    """Check that whole numbers have 64 bits, as TOML says; `where` names the file or the option.

    Raises:
        ConfigError: a number is larger. Printing it could end in an error, too.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            check_numbers(part, f"{where}, {key[:50]}")
    elif isinstance(value, list):
        for part in value:
            check_numbers(part, where)
    elif isinstance(value, int) and value.bit_length() > 63:
        raise ConfigError(
            f"{where}: a whole number must be below 2^63 = {WHOLE}; got {shown_integer(value)}"
        )


def fitting(hint: Any, value: Any) -> Any:
    """Convert a value of a table to the type of an annotation, such as a list to a tuple.

    Texts and booleans are never converted to numbers.

    Args:
        hint: the annotation.
        value: the value.

    Raises:
        ConfigError: the value does not fit, is not finite, or is a whole number of more than 64
            bits. The message says what is wanted, and what was given.
    """
    # TOML and Python have whole numbers of any size, which no other message could print.
    for number in _numbers(value):
        if isinstance(number, int) and not -WHOLE <= number < WHOLE:
            raise ConfigError(f"must be below 2^63 = {WHOLE}; got {shown_integer(number)}")
    try:
        result = TypeAdapter(hint).validate_python(value)
    except (ValidationError, PydanticSchemaGenerationError):
        raise ConfigError(f"must be {wanted(hint)}; got {value!r}{_instead(hint, value)}") from None
    # Pydantic would accept "1" and true for the number 1.
    if _became_number(value, result):
        raise ConfigError(f"must be {wanted(hint)}; got {value!r}")
    # TOML has nan and inf.
    if not all(map(math.isfinite, _numbers(result))):
        raise ConfigError(f"must be finite; got {value!r}")
    return result


def wanted(hint: Any) -> str:
    """Describe in words the values that an annotation allows, such as `a list of whole numbers`."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is typing.Literal:
        return _either([repr(part) for part in parts])
    if origin in (typing.Union, types.UnionType):
        kinds = [part for part in parts if part is not types.NoneType]
        return _either([wanted(part) for part in kinds if part is not int or float not in kinds])
    if origin is tuple and parts[-1] is Ellipsis:
        return f"a list of {_several(parts[0])}"
    if origin is tuple:
        same = len(set(parts)) == 1
        return f"a list of {len(parts)} {_several(parts[0])}" if same else "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table of {_several(parts[1])}"
    return "a list" if origin is list else "a table"


def _several(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return wanted(hint)
    return _MANY.get(hint) or f"values, each {wanted(hint)}"


def _either(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def _instead(hint: Any, value: Any) -> str:
    """Return a hint for a message if a list with this single value would be right, else ""."""
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    if isinstance(value, list | dict) or len(text) >= 100:
        return ""
    with suppress(ConfigError):
        fitting(hint, [value])
        return f": write [{text}]"
    return ""


def _became_number(before: Any, after: Any) -> bool:
    """Return whether a conversion made a number from a text or a boolean.

    `before` and `after` are the value before and after the conversion.
    """
    if isinstance(after, Mapping):
        return any(_became_number(before.get(key), value) for key, value in after.items())
    if isinstance(after, list | tuple):
        return any(map(_became_number, before, after))
    number = isinstance(after, int | float) and not isinstance(after, bool)
    return number and isinstance(before, bool | str)


def _numbers(value: Any) -> list[int | float]:
    if isinstance(value, Mapping):
        return _numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) else []
