"""Marks of clients' folders, which show that a folder was put back from a copy.

A client's promises rest on the books in its folder: what it answered, gave to sums and spent. A
copy of the folder forgets what came after it. So a mark outside of the folder holds the number of
lines of every book, and the head of a hash chain over these lines. A book that is shorter than its
mark says, or has other lines, went back.

A book is on the disk before its mark, and the mark before what the book covers leaves the machine.
So a process that is killed at any moment leaves a book that is as long as its mark says, or longer.

Used by `deployment.joined_node`, `deployment.launcher`, `deployment.secure_sum_client`,
`deployment.teacher_quota`, `engine.secure_sum_attempts`, `experiment.privacy.register` and
`privacy.release_log`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from vergence.core.files import make_durable_folder, open_for_append, parse_json, write_whole
from vergence.errors import StateError
from vergence.system.file_locks import lock

VARIABLE = "VERGENCE_STATE"
"""Environment variable that names the folder with this user's marks."""
BOOKS = ("asked.csv", "sum.spent", "ledger.seed*.json", "privacy/seed*.csv")
"""Books of a client's folder, and of the folders of its runs' states."""
BookEnd = tuple[int, str]
"""Number of a book's lines, and the head of the hash chain over them, in hexadecimal digits."""


class RolledBack(StateError):
    """Raised for a folder that is behind its mark, or has books and no mark."""


def state_folder() -> Path:
    """Return the folder for files of this user that must stay: that of `VERGENCE_STATE`, if set.

    Raises:
        StateError: the variable is not set, and the user has no home folder.
    """
    if home := os.environ.get(VARIABLE):
        return Path(home)
    # Not the folder of caches, which may be removed at any time.
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Application Support"
        else:
            base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    # Of a user whom a container does not know, for example.
    except RuntimeError:
        raise StateError(
            f"this user has no home folder: let {VARIABLE} name a folder that may be written and "
            "stays"
        ) from None
    return Path(base) / "vergence"


def write_mark(path: Path, data: bytes) -> None:
    """Write a mark, which only its owner can read; it is on the disk when this returns.

    Raises:
        StateError: it cannot be written.
    """
    try:
        make_durable_folder(path.parent, 0o700)
        write_whole(path, data, lasting=True, secret=True)
    except OSError as error:
        raise StateError(
            f"{path} cannot be written ({error.strerror}), and without it nothing leaves this "
            f"machine: let {VARIABLE} name a folder that may be written and stays"
        ) from None


def chain_head(lines: Iterable[bytes]) -> str:
    """Return the head of a hash chain over a book's lines: each link covers all lines before it."""
    head = b""
    for line in lines:
        head = sha256(head + sha256(line).digest()).digest()
    return head.hex()


def number_in(ledger: bytes, key: str) -> int:
    """Return a whole number in a client's ledger; 0 if it is not there, or the file is damaged."""
    try:
        return int(parse_json(ledger)[key])
    except (ValueError, TypeError, LookupError):
        return 0


@dataclass(frozen=True)
class Mark:
    """What is known of a client's folder outside of it.

    Attributes:
        books: the end of each book, by its path inside the folder.
        rounds: the last round that was asked for, by run (see `FolderMark.run_of`).
        after: for a folder that was put back, the last round that is never answered again, by run.
        lost: number of lines that a book lost when the folder was put back.
    """

    books: Mapping[str, BookEnd] = field(default_factory=dict)
    rounds: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)


class FolderMark:
    """The mark of one client's or aggregator's folder.

    Args:
        folder: the folder.
        run: name of the deployment, which no other deployment has.
        client: name of the client or aggregator.
        home: folder of marks; None: that of this user.
    """

    def __init__(self, folder: Path, run: str, client: str, home: Path | None = None) -> None:
        name = sha256(f"{run} {client}".encode()).hexdigest()[:32]
        self.folder, self.path = folder, (home or state_folder() / "marks") / f"{name}.json"
        self.mark, self.run = Mark(), ""

    def run_of(self, place: Path, seed: int) -> str:
        """Return the name in `Mark` of the run whose states are in the folder `place`."""
        return f"{place.relative_to(self.folder).as_posix()} {seed}"

    def end(self, name: str, count: int | None = None) -> BookEnd:
        """Return the end of a book; with `count`, what it was after so many lines."""
        path = self.folder / name
        data = path.read_bytes() if path.exists() else b""
        if path.suffix != ".json":
            lines = data.split(b"\n")[:-1][:count]
            return len(lines), chain_head(lines)
        # A ledger is replaced, and counts how often; older ones did not.
        saves = number_in(data, "saves")
        if count is not None and saves > count:
            return count, self.mark.books[name][1]
        return saves, chain_head([data] if data else [])

    def books_at(self, place: Path, question: str) -> tuple[int, int, bytes]:
        """Return how far the run's contributions are, whose record lies in the folder `place`.

        Returns:
            The last round that was asked for in the run that is under way, the number of entries,
            and the head of the chain over the entries up to the one named `question`.
        """
        path = place / "sum.spent"
        lines = path.read_bytes().split(b"\n")[:-1]
        names = [line.partition(b" ")[2].decode() for line in lines]
        lost = self.mark.lost.get(path.relative_to(self.folder).as_posix(), 0)
        head = bytes.fromhex(chain_head(lines[: names.index(question) + 1]))
        return self.mark.rounds.get(self.run, -1), len(lines) + lost, head

    def ends(self) -> dict[str, BookEnd]:
        """Return the ends of all books in the folder that have an entry."""
        places = (self.folder, *self.folder.glob("state/*/*"))
        paths = [path for place in places for book in BOOKS for path in place.glob(book)]
        names = [path.relative_to(self.folder).as_posix() for path in sorted(paths)]
        return {name: end for name in names if (end := self.end(name)) != (0, "")}

    def _read(self) -> bool:
        """Read the mark; return whether there is one."""
        try:
            table = parse_json(self.path.read_bytes())
            books = {name: (int(n), str(head)) for name, (n, head) in table.pop("books").items()}
            self.mark = Mark(books, **table)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        return True

    def _write(self, mark: Mark) -> None:
        write_mark(self.path, json.dumps(asdict(mark)).encode())
        self.mark = mark

    def check(self, begins: bool = True) -> None:
        """Compare the folder with its mark.

        With `begins`, a folder without any book gets a mark: a process that is killed after the
        first line of a book, and before the next mark, would otherwise leave a book without one.

        Raises:
            RolledBack: the folder is behind its mark, or has books and no mark.
        """
        if not self._read():
            if books := self.ends():
                raise RolledBack(
                    f"{self.folder} has {next(iter(books))} and no mark in {self.path.parent}, so "
                    "it may be a copy, which forgets what was answered later; if nothing but the "
                    f"mark is lost: `vergence deploy join FOLDER --restored`; else start a new run"
                    f" (a container: let {VARIABLE} name a folder that stays)"
                )
            if begins:
                self._write(Mark())
            return
        for name, (count, head) in self.mark.books.items():
            found = self.end(name, count)
            if found != (count, head):
                what = "other entries" if found[0] == count else f"{found[0]} of {count} entries"
                raise RolledBack(
                    f"{self.folder} is damaged or was put back from a copy: {name} has {what} that "
                    f"its mark in {self.path.parent} knows, and a server could ask again what was "
                    "answered since; start a new run, or answer later rounds alone: `vergence "
                    "deploy join FOLDER --restored`"
                )

    def commit(self, run: str = "", round: int = -1) -> None:
        """Write the ends of all books before what they cover leaves this machine.

        `round` is the round that was asked for in the run `run`; "": none.

        Raises:
            StateError: the mark cannot be written.
        """
        try:
            file = open_for_append(self.path.with_suffix(".lock"))
        except OSError as error:
            raise StateError(f"{self.path} cannot be locked ({error.strerror})") from None
        # Another run of this folder may write at the same time, and must not be forgotten.
        with file:
            lock(file)
            self._read()
            known = {run: max(round, self.mark.rounds.get(run, -1))} if run else {}
            mark = replace(self.mark, books=self.ends(), rounds={**self.mark.rounds, **known})
            if mark != self.mark:
                self._write(mark)

    def refuse_answered(self, run: str, round: int) -> None:
        """Refuse a round that a folder may have answered before it was put back.

        Raises:
            RolledBack: the round is not after the last known one.
        """
        last = self.mark.after.get(run)
        if last is not None and round <= last:
            raise RolledBack(
                f"this client's folder was put back from a copy, and may have answered round "
                f"{round} before: it takes part after round {last}"
            )

    def accept(self) -> None:
        """Let a folder that was put back go on, in rounds after the last one that is known.

        Raises:
            RolledBack: rounds or budgets are not known well enough.
        """
        marked, ends = self._read(), self.ends()
        books = {**ends, **self.mark.books}
        ledgers = [Path(name) for name in books if name.endswith(".json")]
        places = [path.parent for path in ledgers]
        for name, (count, head) in books.items():
            # What ledgers and contributions say of rounds is not asked again in later rounds; a
            # budget that was spent is gone in all of them.
            by_round = name.endswith((".json", "sum.spent")) and Path(name).parent in places
            if not by_round and (not marked or self.end(name, count) != (count, head)):
                raise RolledBack(
                    f"{self.folder} lost entries of {name}, and what they said is not known: start "
                    "a new run"
                )
        rounds = dict(self.mark.rounds)
        for path in (path for path in ledgers if path.as_posix() in ends):
            run = f"{path.parent.as_posix()} {path.stem.rpartition('seed')[2]}"
            last = number_in((self.folder / path).read_bytes(), "last_round")
            rounds[run] = max(rounds.get(run, 0), last)
        lost = {
            name: max(0, count + self.mark.lost.get(name, 0) - ends.get(name, (0, ""))[0])
            for name, (count, _) in self.mark.books.items()
        }
        self._write(Mark(ends, rounds, {**self.mark.after, **rounds}, lost))
