"""Journal of the files of clients' states: each checkpoint appends lines for changed states.

Used in `deployment`, `engine` and `unlearning`.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import csv_of, open_for_append, truncate_file
from vergence.core.serialization import printable
from vergence.engine.storage.checkpoint_validation import MEND
from vergence.errors import StateError

# Lines beyond two per client after which the table is written anew. It stays within twice its
# shortest length, and a run with few clients does not rewrite it at every checkpoint.
SLACK = 1000


class StateRef(NamedTuple):
    """Reference to the file of a client's state.

    Attributes:
        file: name of the file.
        xxh3: digest of its bytes.
        share: fraction of the parameters that are personal; None: the method has no mask.
    """

    # A state is digested in every turn, to notice damage; XXH3 costs an eighth of SHA-256. The
    # fingerprint of a finished seed is made of SHA-256 digests.

    file: str
    xxh3: str
    share: float | None


class JournalPosition(NamedTuple):
    """Position in a journal, stored in a checkpoint: file, length in bytes, SHA-256 so far."""

    file: str
    length: int
    sha: str


class StateJournal:
    """One seed's table `client,file,xxh3,share`; a client's last line gives its present state."""

    # It grows: rewriting it at every checkpoint would take time for every client that ever took
    # part.

    def __init__(self, folder: Path, seed: int, generation: int = 0) -> None:
        self.folder, self.seed, self.generation = folder, seed, generation
        self.length, self.lines, self.sha = 0, 0, hashlib.sha256()

    @property
    def path(self) -> Path:
        """Path of the table."""
        return self.folder / f"seed{self.seed}.clients.{self.generation}.csv"

    def add(self, changed: Mapping[str, StateRef], filed: Mapping[str, StateRef]) -> StateJournal:
        """Append lines for the states that changed; return the journal to use from now on.

        If the journal has become long, a new journal with one line per client takes its place.

        Args:
            changed: client -> reference, for states that changed since the last checkpoint.
            filed: client -> reference, for the states of all clients.
        """
        if self.lines + len(changed) > 2 * len(filed) + SLACK:
            return self.renewed(filed)
        self._append(changed)
        return self

    def renewed(self, filed: Mapping[str, StateRef]) -> StateJournal:
        """Begin a new journal, with one line for each client; return it."""
        fresh = StateJournal(self.folder, self.seed, self.generation + 1)
        fresh._append(filed)
        return fresh

    def _append(self, filed: Mapping[str, StateRef]) -> None:
        data = csv_of((c, *entry) for c, entry in filed.items()).encode()
        if not self.length:
            self.path.unlink(missing_ok=True)
        with open_for_append(self.path) as file:
            file.write(data)
        self.length += len(data)
        self.lines += len(filed)
        self.sha.update(data)

    @property
    def mark(self) -> JournalPosition:
        """The position to write into a checkpoint."""
        return JournalPosition(self.path.name, self.length, self.sha.hexdigest())

    @classmethod
    def reopen(
        cls, folder: Path, seed: int, mark: JournalPosition
    ) -> tuple[StateJournal, dict[str, StateRef]]:
        """Cut a journal to its length in a checkpoint; return it and each client's state reference.

        Raises:
            StateError: the journal is missing, too short, or changed.
        """
        filed = read_journal(folder, mark)
        journal = cls(folder, seed, int(mark.file.split(".")[2]))
        data = journal.path.read_bytes()[: mark.length]
        truncate_file(journal.path, mark.length)
        journal.length, journal.lines = mark.length, data.count(b"\n")
        journal.sha.update(data)
        return journal, filed


def read_journal(folder: Path, mark: JournalPosition) -> dict[str, StateRef]:
    """Return client -> reference to its state, from the first part of a journal.

    A checkpoint's position says how long this part is.

    Raises:
        StateError: the journal is missing, too short, or changed.
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
        raise StateError(f"{path} is no table of states ({printable(error)}); {MEND}") from None


def _name(file: str, client: str) -> str:
    """Return the file name of a client's state, if the name is permitted.

    Raises:
        ValueError: the name is that of another client's file, or leads out of the folder.
    """
    # A journal that somebody changed could name a file outside of the folder, or another client's.
    if f".client.{client}." not in file or "/" in file or not file.isprintable():
        raise ValueError(f"'{file}' is no state of '{client}'")
    return file
