"""A run's CSV tables, which grow by whole rows, with the SHA-256 of their content.

Used by `engine.storage.run_directory`, `experiment.checksums`, `results.layout` and
`unlearning.data_footprint`.
"""

# Rows are digested as they are written, and a file is read again only on resume. So a digit that
# changed in the middle, or zeros that a power cut left, are noticed before they are used.

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vergence.core.files import JsonObject, csv_of, open_for_append, truncate_file
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

OPTIONAL = {
    "curves.csv": ("seed", "round", "evaluation", "person", "metric", "value"),
    "events.csv": ("seed", "round", "time", "client", "turn", "version", "age", "event", "took"),
}
"""Columns of tables that begin with their first rows: runs that evaluate between rounds have
curves.csv, unless protections hide people; runs with a virtual clock have events.csv."""

OLDER = (
    "the checkpoint is of an older version, without the SHA-256 of its tables: go on with that "
    "version, or start a new run elsewhere"
)
# Tables are read piece by piece: those of long runs may not fit into memory.
CHUNK = 1 << 20


Marks = dict[str, dict[str, int] | dict[str, str]]
"""Part of a manifest: `tables` has the length of each table, `digests` the SHA-256."""


@dataclass
class WrittenRows:
    """Length in bytes and SHA-256 of the rows that a table has so far."""

    length: int = 0
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Add appended bytes to the length and the SHA-256."""
        self.length += len(data)
        self.sha.update(data)


class TableFiles:
    """The tables in one run's folder.

    Attributes:
        folder: the folder.
        written: table -> length and SHA-256 of its rows. Rows are added before they are known to be
            on the disk, as a failed append ends the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, WrittenRows] = {}

    def begin(self) -> None:
        """Write the header lines of a new run's tables."""
        for name in (*OPTIONAL, *TABLES):
            (self.folder / name).unlink(missing_ok=True)
        for name, columns in TABLES.items():
            self._grow(name, [columns])

    def reopen(self, manifest: JsonObject) -> None:
        """Cut the tables to their lengths in a checkpoint; refuse tables that were changed.

        Raises:
            StateError: a table is missing, too short, or changed; or the checkpoint has no digests.
        """
        if "digests" not in manifest:
            raise StateError(f"{self.folder}: {OLDER}")
        self.written = verified_rows(self.folder, manifest)
        for name, written in self.written.items():
            truncate_file(self.folder / name, written.length)
        for name in OPTIONAL.keys() - self.written.keys():
            (self.folder / name).unlink(missing_ok=True)

    def append(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        """Add rows to a table."""
        # A table of `OPTIONAL` begins with its first rows, and not with the run.
        head = [OPTIONAL[name]] if name in OPTIONAL and name not in self.written else []
        self._grow(name, [*head, *rows])

    def _grow(self, name: str, rows: Iterable[Sequence[object]]) -> None:
        data = csv_of(rows).encode()
        with open_for_append(self.folder / name) as file:
            file.write(data)
        self.written.setdefault(name, WrittenRows()).add(data)

    @property
    def marks(self) -> Marks:
        """Lengths and digests of the tables, for a checkpoint."""
        return _marks(self.written)


def verified_rows(folder: Path, manifest: JsonObject) -> dict[str, WrittenRows]:
    """Compare each table with a checkpoint, up to the length that the checkpoint records.

    Returns:
        Table -> length and SHA-256 up to that length, for the tables whose digest is in the
        checkpoint.

    Raises:
        StateError: a table is missing, too short, or changed.
    """
    rows = {}
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
        rows[name] = written
    return rows


def read(path: Path, length: int) -> WrittenRows:
    """Return the length and SHA-256 of the first `length` bytes of a table.

    If the table is shorter, its whole content is used.
    """
    written = WrittenRows()
    with path.open("rb") as file:
        while data := file.read(min(CHUNK, length - written.length)):
            written.add(data)
    return written


def header_marks() -> Marks:
    """Return the lengths and digests of a new run's tables, which have a header line alone."""
    written = {name: WrittenRows() for name in TABLES}
    for name, columns in TABLES.items():
        written[name].add(csv_of([columns]).encode())
    return _marks(written)


def measured(folder: Path) -> Marks:
    """Return the present lengths and digests of a folder's tables, for a checkpoint."""
    there = [name for name in (*TABLES, *OPTIONAL) if (folder / name).is_file()]
    return _marks({name: read(folder / name, (folder / name).stat().st_size) for name in there})


def _marks(written: Mapping[str, WrittenRows]) -> Marks:
    """Return the tables' lengths and digests in the form that manifests have."""
    return {
        "tables": {name: table.length for name, table in written.items()},
        "digests": {name: table.sha.hexdigest() for name, table in written.items()},
    }
