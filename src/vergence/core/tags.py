"""Literal names of records in bytes and digests, which stay when a class or field is renamed.

Checkpoints, messages, signed terms and marks of noise contain names of records. The literal name is
written once at the class, so that the class itself can be renamed.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

T = TypeVar("T", bound=type)

_TAG, _FIELDS = "__tag__", "__field_tags__"


def tagged(name: str, **renamed: str) -> Callable[[T], T]:
    """Decorate a dataclass with the literal name that it has in packed states.

    Args:
        name: the record's name in packed states, whatever the name of its class.
        renamed: maps a field that has another name in packed states to that name.
    """

    def mark(kind: T) -> T:
        setattr(kind, _TAG, name)
        setattr(kind, _FIELDS, renamed)
        return kind

    return mark


def tag(kind: type) -> str:
    """Return a record's name in packed states: its literal tag, or else the class's name."""
    # A subclass must not inherit the tag: two records would have one name.
    return vars(kind).get(_TAG, kind.__name__)


def field_tags(kind: type) -> Iterator[tuple[str, str]]:
    """Yield every field of a dataclass with its name in packed states."""
    renamed: Mapping[str, str] = vars(kind).get(_FIELDS, {})
    return ((field.name, renamed.get(field.name, field.name)) for field in fields(kind))


def literal_text(value: object) -> str:
    """Return a value's text for a digest: its `repr`, with the literal names of records."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        shown = {field.name for field in fields(kind) if field.repr}
        parts = (
            f"{label}={literal_text(getattr(value, name))}"
            for name, label in field_tags(kind)
            if name in shown
        )
        return f"{tag(kind)}({', '.join(parts)})"
    match value:
        # A named tuple keeps its own `repr`, with the names of its fields.
        case tuple() if type(value) is tuple:
            return f"({', '.join(map(literal_text, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(literal_text, value))}]"
        case dict():
            return (
                "{"
                + ", ".join(f"{literal_text(k)}: {literal_text(v)}" for k, v in value.items())
                + "}"
            )
    return repr(value)
