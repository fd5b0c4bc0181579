"""Literal names of records in bytes and digests, which renaming a class or a field leaves alone.

Checkpoints, messages, signed terms and marks of noise hold names of records. Those are written once
beside the class, so that the class itself may be called what its readers call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

_TAG, _FIELDS = "__tag__", "__field_tags__"


def tagged(name: str, **renamed: str) -> Callable[[T], T]:
    """Decorator that gives a dataclass its literal name in bytes.

    Args:
        name: what the record is called in bytes, whatever its class is called.
        renamed: for a field that is called otherwise in bytes, its name there.
    """

    def mark(kind: T) -> T:
        setattr(kind, _TAG, name)
        setattr(kind, _FIELDS, renamed)
        return kind

    return mark


def tag(kind: type) -> str:
    """Name of a record in bytes: its literal tag, or the name of a class that has none."""
    return vars(kind).get(_TAG, kind.__name__)


def field_tags(kind: type) -> Iterator[tuple[str, str]]:
    """Every field of a dataclass, and what it is called in bytes."""
    renamed: Mapping[str, str] = vars(kind).get(_FIELDS, {})
    return ((field.name, renamed.get(field.name, field.name)) for field in fields(kind))


def spelled(value: Any) -> str:
    """Text of a value for a digest: its `repr`, with the literal names of records."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        shown = {field.name for field in fields(kind) if field.repr}
        parts = (
            f"{said}={spelled(getattr(value, name))}"
            for name, said in field_tags(kind)
            if name in shown
        )
        return f"{tag(kind)}({', '.join(parts)})"
    match value:
        case tuple() if type(value) is tuple:
            return f"({', '.join(map(spelled, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(spelled, value))}]"
        case dict():
            return "{" + ", ".join(f"{spelled(k)}: {spelled(v)}" for k, v in value.items()) + "}"
    return repr(value)
