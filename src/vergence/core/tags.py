"""Fixed names of dataclasses (records) in saved bytes and in digests.

Checkpoints, messages, signed terms and digests (for example of noise) contain names of records. The
fixed name is written once, in the decorator of the class, so that the class itself can be renamed.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

T = TypeVar("T", bound=type)

_TAG, _FIELDS = "__tag__", "__field_tags__"
LATER = "later"
"""Mark, in a field's metadata, of an option that is younger than digests: at its default it is in
none, so that these stay as they were."""
IN_CONFIG = "in config"
"""Mark, in a field's metadata, of an option whose default has changed: a run's config names it even
at its default, so that the config means the same when the default changes again."""


def tagged(name: str, **renamed: str) -> Callable[[T], T]:
    """Decorate a dataclass with the fixed name that it has in packed states (saved bytes).

    Args:
        name: the record's name in packed states; it stays if the class is renamed.
        renamed: field -> its name in packed states, for fields whose names differ.
    """

    def mark(kind: T) -> T:
        setattr(kind, _TAG, name)
        setattr(kind, _FIELDS, renamed)
        return kind

    return mark


def tag(kind: type) -> str:
    """Return a dataclass's name in packed states: its tag; without a tag, the class's name."""
    # A subclass must not inherit the tag: two records would have one name.
    return vars(kind).get(_TAG, kind.__name__)


def field_tags(kind: type) -> Iterator[tuple[str, str]]:
    """Yield every field of a dataclass: its name in Python, and its name in files and messages."""
    renamed: Mapping[str, str] = vars(kind).get(_FIELDS, {})
    return ((field.name, renamed.get(field.name, field.name)) for field in fields(kind))


def literal_text(value: object) -> str:
    """Return a value's text for a digest: its `repr`, with the fixed names of dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        shown = {
            field.name
            for field in fields(kind)
            if field.repr
            and not (LATER in field.metadata and getattr(value, field.name) == field.default)
        }
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
