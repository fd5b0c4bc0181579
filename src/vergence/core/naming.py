"""What methods, tasks, networks and data sets are called in experiments: as their modules are."""

from __future__ import annotations


def called(thing: object) -> str:
    """Return the name of the module that an instance's class, or a class, is of."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__module__.rpartition(".")[2]
