"""Names of methods, data sets and settings, nouns after numbers, and values by their key.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
PACKAGE = __name__.partition(".")[0]
FROM_FILE = "vergence_file_"
"""Begins the names of modules that are a user's own Python files."""
IRREGULAR = {"person": "people", "new person": "new people", "reply": "replies"}
"""Plurals that do not end in the singular and s."""


def registry_name(thing: object) -> str:
    """Return the name of a class, or of an instance's class, in experiments and tables.

    The name of a class of this package is its module's name. Another class is named `module:Class`.
    """
    # With the class: somebody's `lab.fedavg:Mine` must not pass for this package's `fedavg`.
    kind = thing if isinstance(thing, type) else type(thing)
    if kind.__module__.partition(".")[0] == PACKAGE:
        return kind.__module__.rpartition(".")[2]
    return f"{kind.__module__.removeprefix(FROM_FILE)}:{kind.__qualname__}"


def shown_integer(number: int) -> str:
    """Return a whole number as text; of one that has hundreds of digits, the first ones."""
    # Python refuses to write one of more than 4300 decimal digits, but not in hexadecimal ones.
    bits = number.bit_length()
    return str(number) if bits < 1000 else f"{number:#x}"[:20] + f"... ({bits} bits)"


def plural(count: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is one.

    Examples:
        >>> plural(1, "seed"), plural(2, "round"), plural(1, "person"), plural(0, "person")
        ('1 seed', '2 rounds', '1 person', '0 people')
    """
    return f"{count} {noun if count == 1 else IRREGULAR.get(noun, f'{noun}s')}"


def list_names(names: Sequence[str], most: int = 5) -> str:
    """Return names for a message, with commas: the first `most`, and how many more there are.

    Examples:
        >>> list_names(["p00", "p01", "p02"], most=2)
        'p00, p01 and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def dotted(
    table: Mapping[str, Any],
    above: str = "",
    nested: Callable[[object], bool] = lambda value: isinstance(value, Mapping),
) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables by dotted name, such as `local.lr`.

    Args:
        table: the table.
        above: prefix of the names.
        nested: returns whether a value is a table whose values are yielded, and not itself.
    """
    for key, value in table.items():
        if nested(value):
            yield from dotted(value, f"{above}{key}.", nested)
        else:
            yield f"{above}{key}", value


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in the order of the pairs; keys by their first pair."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
