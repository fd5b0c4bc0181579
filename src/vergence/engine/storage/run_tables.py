"""A run's tables: files that grow by whole rows, and the SHA-256 of what was written to them.

What is appended is digested as it is written; a file is read again on resume alone. So a digit that
changed in the middle, or zeros that a power cut left, are found before anything is made of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vergence.core.files import csv_of, cut, growing
from vergence.engine.storage.checkpoint_validation import MEND
from vergence.errors import StateError

TABLES = {
    "rounds.csv": (
        "seed",
        "round",
        "evaluation",
        "metric",
        "value",
        "bytes_up",
        "bytes_down",
        "seconds",
        "personal_fraction",
    ),
    "people.csv": ("seed", "person", "evaluation", "metric", "value"),
    "turns.csv": (
        "seed",
        "round",
        "client",
        "verb",
        "tree",
        "bytes_up",
        "bytes_down",
        "examples",
        "weight",
        "steps",
        "personal_fraction",
        "status",
    ),
}

EVENTS = {
    "events.csv": ("seed", "round", "time", "client", "turn", "version", "age", "event", "took"),
}
"""A table of runs with a virtual clock only."""

OLDER = (
    "the checkpoint is of an older version, without the SHA-256 of its tables: go on with that "
    "version, or start a new run elsewhere"
)
CHUNK = 1 << 20
"""Bytes of a table that are read at a time."""


@dataclass
class WrittenRows:
    """Extent of a table so far: its length in bytes, and their running SHA-256."""

    length: int = 0
    sha: Any = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Take in what was appended."""
        self.length += len(data)
        self.sha.update(data)


class TableFiles:
    """The tables of one run's folder.

    `written` is as if every row were on the disk: after an append that failed, the run is over.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, WrittenRows] = {}

    def begin(self) -> None:
        """Write the heads of a new run's tables."""
        for name in EVENTS:
            (self.folder / name).unlink(missing_ok=True)
        for name, columns in TABLES.items():
            (self.folder / name).unlink(missing_ok=True)
            self._grow(name, [columns])

    def reopen(self, manifest: Mapping[str, Any]) -> None:
        """Cut the tables to what a checkpoint knows, if all are as it says; else cut none.

        Raises:
            StateError: one is missing, too short, or not what was written.
        """
        if "digests" not in manifest:
            raise StateError(f"{self.folder}: {OLDER}")
        self.written = kept(self.folder, manifest)
        for name, written in self.written.items():
            cut(self.folder / name, written.length)
        for name in EVENTS.keys() - self.written.keys():
            (self.folder / name).unlink(missing_ok=True)

    def append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows to a table; one of `EVENTS` begins with its first rows."""
        head = [EVENTS[name]] if name in EVENTS and name not in self.written else []
        self._grow(name, [*head, *rows])

    def _grow(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        data = csv_of(rows).encode()
        with growing(self.folder / name) as file:
            file.write(data)
        self.written.setdefault(name, WrittenRows()).add(data)

    @property
    def marks(self) -> dict[str, dict[str, Any]]:
        """Marks of the tables that a checkpoint keeps: their lengths and digests."""
        return _marks(self.written)


def kept(folder: Path, manifest: Mapping[str, Any]) -> dict[str, WrittenRows]:
    """Compare tables with a checkpoint, each up to the length that it knows.

    Returns:
        What each holds up to there. Nothing of tables whose digests the checkpoint does not know.

    Raises:
        StateError: one is missing, too short, or not what was written.
    """
    found = {}
    for name, sha in manifest.get("digests", {}).items():
        path, length = folder / name, manifest["tables"][name]
        written = read(path, length) if path.is_file() else WrittenRows()
        if written.length < length:
            raise StateError(
                f"{path} is missing or shorter than its checkpoint says ({length} bytes); {MEND}"
            )
        if written.sha.hexdigest() != sha:
            raise StateError(
                f"{path} is damaged: the SHA-256 of its first {length} bytes is "
                f"{written.sha.hexdigest()[:12]}..., the checkpoint says {sha[:12]}...; {MEND}"
            )
        found[name] = written
    return found


def read(path: Path, length: int) -> WrittenRows:
    """Read the beginning of a table, or as much of it as there is."""
    written = WrittenRows()
    with path.open("rb") as file:
        while data := file.read(min(CHUNK, length - written.length)):
            written.add(data)
    return written


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """Measure the tables that a folder holds now, whoever wrote them, for a checkpoint."""
    there = [name for name in (*TABLES, *EVENTS) if (folder / name).is_file()]
    return _marks({name: read(folder / name, (folder / name).stat().st_size) for name in there})


def _marks(written: Mapping[str, WrittenRows]) -> dict[str, dict[str, Any]]:
    return {
        "tables": {name: table.length for name, table in written.items()},
        "digests": {name: table.sha.hexdigest() for name, table in written.items()},
    }
