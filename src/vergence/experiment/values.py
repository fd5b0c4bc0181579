"""Values of experiment files: what fits an annotation, and what is wanted, in words."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from vergence.errors import ConfigError

WHOLE = 2**63
"""Whole numbers lie in [-WHOLE, WHOLE): more bits than these torch does not take."""
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


def fitting(hint: Any, value: Any) -> Any:
    """The value as its annotation wants it: a list as a tuple, a whole number as a real one.

    No text or switch becomes a number.

    Raises:
        ConfigError: says what is wanted, and what it got.
    """
    try:
        found = TypeAdapter(hint).validate_python(value)
    except (ValidationError, PydanticSchemaGenerationError):
        raise ConfigError(f"must be {wanted(hint)}; got {value!r}{_instead(hint, value)}") from None
    if _became_number(value, found):
        raise ConfigError(f"must be {wanted(hint)}; got {value!r}")
    for number in _numbers(found):
        if isinstance(number, float) and not math.isfinite(number):
            raise ConfigError(f"must be finite; got {value!r}")
        if isinstance(number, int) and not -WHOLE <= number < WHOLE:
            raise ConfigError(f"must be below 2^63 = {WHOLE}; got {value!r}")
    return found


def wanted(hint: Any) -> str:
    """Values that an annotation allows, in words: `a list of whole numbers`."""
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
    """Text to write where a list of one was meant."""
    whole = wanted(hint)
    if not whole.startswith("a list of") or isinstance(value, list | dict):
        return ""
    text = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return f": write [{text}]" if len(text) < 100 else ""


def _became_number(given: Any, found: Any) -> bool:
    """True if a number was made of a text or of a switch."""
    if isinstance(found, Mapping):
        return any(_became_number(given.get(key), value) for key, value in found.items())
    if isinstance(found, list | tuple):
        return any(map(_became_number, given, found))
    number = isinstance(found, int | float) and not isinstance(found, bool)
    return number and isinstance(given, bool | str)


def _numbers(found: Any) -> list[int | float]:
    if isinstance(found, Mapping):
        return _numbers(list(found.values()))
    if isinstance(found, list | tuple):
        return [number for part in found for number in _numbers(part)]
    return [found] if isinstance(found, int | float) else []
