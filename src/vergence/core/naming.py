"""Names of methods, tasks, networks and data sets in experiments: those of their modules."""

from __future__ import annotations

PACKAGE = __name__.partition(".")[0]
FROM_FILE = "vergence_file_"
"""Begins the names of modules that are a user's own Python files."""


def called(thing: object) -> str:
    """Name of an instance's class, or of a class: this package's module, or `module:Class`.

    Somebody's own `lab.fedavg:Mine` must not pass for this package's `fedavg` in a table.
    """
    kind = thing if isinstance(thing, type) else type(thing)
    if kind.__module__.partition(".")[0] == PACKAGE:
        return kind.__module__.rpartition(".")[2]
    return f"{kind.__module__.removeprefix(FROM_FILE)}:{kind.__qualname__}"
