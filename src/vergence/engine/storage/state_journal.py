"""Journal of the file of each client's state: a table that grows by what a checkpoint changed."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import csv_of, cut, growing
from vergence.core.serialization import plain
from vergence.engine.storage.checkpoint_validation import MEND
from vergence.errors import StateError

SLACK = 1000
"""Lines beyond two per client after which the table is written anew."""


class StateRef(NamedTuple):
    """File and XXH3 digest of a client's state, and the share of entries it keeps to itself.

    A state is digested in every turn, to tell when it is damaged; XXH3 costs an eighth of SHA-256.
    The fingerprint of a finished seed is taken from SHA-256 digests.
    """

    file: str
    xxh3: str
    share: float | None


class JournalPosition(NamedTuple):
    """A journal as a checkpoint knows it: its file, and the length and SHA-256 that count."""

    file: str
    length: int
    sha: str


class StateJournal:
    """One seed's table `client,file,xxh3,share`; a client's last line counts.

    Rewriting it at every checkpoint would cost time with every client that ever took part.
    """

    def __init__(self, folder: Path, seed: int, generation: int = 0) -> None:
        self.folder, self.seed, self.generation = folder, seed, generation
        self.length, self.lines, self.sha = 0, 0, hashlib.sha256()

    @property
    def path(self) -> Path:
        """Its file."""
        return self.folder / f"seed{self.seed}.clients.{self.generation}.csv"

    def add(self, changed: Mapping[str, StateRef], filed: Mapping[str, StateRef]) -> StateJournal:
        """Write down what changed; return the journal to go on with, a new one now and then."""
        if self.lines + len(changed) > 2 * len(filed) + SLACK:
            fresh = StateJournal(self.folder, self.seed, self.generation + 1)
            fresh._append(filed)
            return fresh
        self._append(changed)
        return self

    def _append(self, filed: Mapping[str, StateRef]) -> None:
        data = csv_of((c, *entry) for c, entry in filed.items()).encode()
        if not self.length:
            self.path.unlink(missing_ok=True)
        with growing(self.path) as file:
            file.write(data)
        self.length += len(data)
        self.lines += len(filed)
        self.sha.update(data)

    @property
    def mark(self) -> JournalPosition:
        """Mark of the journal that a checkpoint keeps."""
        return JournalPosition(self.path.name, self.length, self.sha.hexdigest())

    @classmethod
    def reopen(
        cls, folder: Path, seed: int, mark: JournalPosition
    ) -> tuple[StateJournal, dict[str, StateRef]]:
        """Cut a journal to what a checkpoint knows, and return it with everybody's last line.

        Raises:
            StateError: it is missing, too short, or not what was written.
        """
        filed = read_journal(folder, mark)
        journal = cls(folder, seed, int(mark.file.split(".")[2]))
        data = journal.path.read_bytes()[: mark.length]
        cut(journal.path, mark.length)
        journal.length, journal.lines = mark.length, data.count(b"\n")
        journal.sha.update(data)
        return journal, filed


def read_journal(folder: Path, mark: JournalPosition) -> dict[str, StateRef]:
    """Return everybody's last line, up to the length that a checkpoint knows.

    Raises:
        StateError: it is missing, too short, or not what was written.
    """
    path = folder / mark.file
    try:
        data = path.read_bytes()[: mark.length]
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror})") from None
    if len(data) < mark.length:
        raise StateError(
            f"{path} is shorter than its checkpoint says ({mark.length} bytes); {MEND}"
        )
    sha = hashlib.sha256(data).hexdigest()
    if sha != mark.sha:
        raise StateError(
            f"{path} is damaged: its SHA-256 is {sha[:12]}..., the checkpoint says "
            f"{mark.sha[:12]}...; {MEND}"
        )
    try:
        return {
            client: StateRef(_name(file, client), xxh3, float(share) if share else None)
            for client, file, xxh3, share in csv.reader(io.StringIO(data.decode()))
        }
    except (ValueError, csv.Error) as error:
        raise StateError(f"{path} is no table of states ({plain(error)}); {MEND}") from None


def _name(file: str, client: str) -> str:
    """Return the name of a client's file; nothing that leads elsewhere is one."""
    if f".client.{client}." not in file or "/" in file or not file.isprintable():
        raise ValueError(f"'{file}' is no state of '{client}'")
    return file
