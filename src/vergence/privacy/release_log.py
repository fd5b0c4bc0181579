"""Append-only log of privacy releases: each is on disk before it leaves the machine.

A release is something that a client discloses under a privacy guarantee, such as a noisy sum. A
resume, or a malicious server, may set a client's state back to an earlier one; the log is never set
back. A release that is repeated with the same noise stays one line.

Used in most packages.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import (
    add_line,
    complete_length,
    csv_of,
    make_durable_folder,
    settle,
    write_whole,
)
from vergence.core.naming import by_key, plural
from vergence.core.serialization import digest
from vergence.errors import StateError
from vergence.privacy.dp.accounting import Charge, Ledger, ledger_of
from vergence.privacy.dp.budget import Budget
from vergence.privacy.folder_marks import state_folder, write_mark
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.masking import SEED, new_seed
from vergence.system.file_access import is_open_to_others

FOLDER = "privacy"
"""Name of the folder with a run's secret and release logs, inside its folder of states."""
NAME = "secret"
BOOKS = "privacy.books"
"""Register: a file next to `FOLDER` that lists the folder's files, so that deletion is noticed."""
ANEW = "start a new run elsewhere, as a copy would forget what was spent since"


class Release(NamedTuple):
    """One privacy release, a line of the log: a sum of sampled units with Gaussian noise.

    A unit is a person or a frame.

    Attributes:
        draw: name of the sample of units; releases with the same name are about the same units.
        mark: identifier of the release. A second release with this identifier costs nothing if it
            has the same noise.
        noise: standard deviation of the noise, as a multiple of the sensitivity.
        rate: probability that a unit is in the sample.
        steps: number of equal releases that this line stands for.
    """

    draw: str
    mark: str
    noise: float
    rate: float
    steps: int


class ReleaseLog:
    """Log of all releases whose noise was drawn from one secret.

    A file that does not exist is an empty log.

    A copy of the log, put back later, would forget what was released since. So the log has a mark:
    a second copy of its lines in `state_folder()`, which is written before a release is made. If
    the mark or the secret was removed too, nothing shows that the log was put back. The mark is for
    the log's path and, if there is one, for the secret in its folder: whoever deletes log and
    secret, and begins again with a new secret, has another mark.

    Args:
        path: file of the log.
        own_mark: whether the log has a mark. It needs none in a run, whose checkpoint knows its
            logs, and in a deployment, where `FolderMark` knows them.

    Raises:
        StateError: the file is damaged; it lacks lines that its mark has, or has others; or it is
            listed in the register and missing.
    """

    def __init__(self, path: Path, *, own_mark: bool = True) -> None:
        self.path, self.own_mark = path, own_mark
        # Before the log is read, to which another process may add lines at this moment.
        known = self._marked_lines()
        # Who deletes the log would get the whole budget again: a missing log is not an empty one.
        if not path.exists() and path.name in noted(path.parent):
            raise _gone(path)
        self.entries: list[Release] = []
        whole = _whole_lines(path)
        self._refuse_older(whole, known)
        try:
            for draw, mark, noise, rate, steps in csv.reader(whole.decode().splitlines()):
                entry = Release(draw, mark, float(noise), float(rate), int(steps))
                # Its checks refuse numbers (NaN, a rate of 0) that would count as costing nothing.
                Charge(*entry[2:])
                self.entries.append(entry)
        except (ValueError, StateError) as error:
            raise StateError(
                f"{path} is damaged ({error}): what was spent is not known; {ANEW}"
            ) from None

    def __contains__(self, mark: str) -> bool:
        return any(entry.mark == mark for entry in self.entries)

    def with_(self, entry: Release) -> Ledger:
        """Return the ledger of all releases so far and of one more release."""
        return account([*self.entries, entry])

    @property
    def ledger(self) -> Ledger:
        """Privacy cost of all releases."""
        return account(self.entries)

    def charge(self, entry: Release, budget: Budget) -> None:
        """Write a release to the log before it is made, if the budget allows it.

        Raises:
            StateError: the release would exceed the budget, or was made before with other noise.
        """
        if entry.mark in self:
            # The same values with a second draw of noise: a server that gets both averages them.
            if entry not in self.entries:
                raise StateError(
                    f"'{entry.mark}' was released before with other noise: nothing more is said of "
                    "it; start a new run elsewhere"
                )
            # The process that wrote the line may have been killed before it wrote the mark.
            self._write_mark()
            return
        if budget.epsilon is not None:
            after = self.with_(entry).epsilon(budget.delta)
            # `not <=` and not `>`: a NaN must not pass. 1e-9 is for rounding: noise
            # that follows from this budget spends it exactly.
            if not after <= budget.epsilon * (1 + 1e-9):
                raise StateError(
                    f"the privacy budget is spent: a sum of round {entry.draw} would make epsilon "
                    f"{after:.3g}, and {budget.epsilon:g} is allowed; what is done is kept"
                )
        self.enter(entry)

    def enter(self, entry: Release) -> None:
        """Write a release to the log before it is made, without a look at any budget."""
        self.entries.append(entry)
        # The line must survive a power failure, as the release will: it is flushed to the disk.
        add_line(self.path, csv_of([entry]).removesuffix("\n"))
        if len(self.entries) == 1:
            note(self.path)
        self._write_mark()

    @property
    def _mark(self) -> Path:
        secret = self.path.with_name(NAME)
        key = secret.read_bytes() if secret.exists() else b""
        name = digest(str(self.path.resolve()).encode(), key)[:32]
        return state_folder() / "marks" / f"{name}.csv"

    def _marked_lines(self) -> bytes:
        # To who only reads the log, a mark that cannot be read is as good as none.
        with suppress(OSError, StateError):
            return self._mark.read_bytes() if self.own_mark else b""
        return b""

    def _write_mark(self) -> None:
        if self.own_mark:
            known, lines = self._marked_lines(), _whole_lines(self.path)
            # Taken for none, it would be replaced, and forget what a log that was put back lacks.
            if not known and os.path.lexists(self._mark):
                raise StateError(
                    f"{self._mark} cannot be read, and without it nothing leaves this machine: "
                    "make it a file that you may read, or start a new run elsewhere"
                )
            # The log may have been put back since this object read it.
            self._refuse_older(lines, known)
            if lines != known:
                write_mark(self._mark, lines)

    def _refuse_older(self, lines: bytes, known: bytes) -> None:
        if not lines.startswith(known):
            every = known.splitlines()
            lost = len({*every} - {*lines.splitlines()})
            raise StateError(
                f"{self.path} is damaged or was put back from a copy: it lacks {lost} of "
                f"{plural(len(every), 'release')}; copy {self._mark}, which has all of them, to "
                "its place, or start a new run elsewhere"
            )


def account(entries: list[Release]) -> Ledger:
    """Return the ledger with the privacy cost of releases.

    Releases with the same `draw` are about the same people or frames: k releases with noise z cost
    as much as one release with noise z / sqrt(k).
    """
    # Infinite noise marks a release that tells nothing: it costs nothing.
    draws = by_key((entry.draw, entry) for entry in entries if math.isfinite(entry.noise))
    return ledger_of(
        (
            sum(e.noise**-2 for e in shared) ** -0.5 if len(shared) > 1 else shared[0].noise,
            shared[0].rate,
            shared[0].steps,
        )
        for shared in draws.values()
    )


def _whole_lines(path: Path) -> bytes:
    """Return a file up to the end of its last complete line."""
    # What follows the last whole line is no release: its writer died, or has yet to end it.
    data = path.read_bytes() if path.exists() else b""
    return data[: complete_length(data)]


def noted(folder: Path) -> list[str]:
    """Return the names of files (secret, release logs) that a folder's register lists.

    The list is empty if the folder has no register; it may hold empty names.
    """
    register = folder.with_name(BOOKS)
    if folder.name != FOLDER or not register.exists():
        return []
    return register.read_text(encoding="utf-8").split("\n")


def note(path: Path) -> None:
    """Write the name of a new secret or release log into the register of its folder.

    If the file is deleted later, the register shows it. Several processes may call this at once.
    """
    if path.parent.name != FOLDER:
        return
    register = path.parent.with_name(BOOKS)
    with register.open("ab") as file:
        # The first line break keeps the name off a line that a dying process left unfinished.
        file.write(f"\n{path.name}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    settle(register.parent)


def refuse_missing(folder: Path) -> None:
    """Raise an error if a folder's register lists a secret or release log that is missing.

    Raises:
        StateError: a file is missing; the message names it.
    """
    for name in noted(folder):
        if name and not (folder / name).exists():
            raise _gone(folder / name)


def log_ends(folder: Path) -> dict[str, tuple[int, str]]:
    """Return, for each release log in a folder, its length in whole lines' bytes and their SHA-256.

    The key is the file's name. A checkpoint holds this, so that a log that was put back shows.
    """
    logs = {path.name: _whole_lines(path) for path in sorted(folder.glob("seed*.csv"))}
    return {name: (len(lines), digest(lines)) for name, lines in logs.items()}


def refuse_older(folder: Path, ends: Mapping[str, tuple[int, str]]) -> None:
    """Raise an error if a release log does not begin as `log_ends` said earlier.

    Raises:
        StateError: a log is missing, lost lines, or has others; the message names it.
    """
    for name, (length, sha) in ends.items():
        path = folder / name
        # `refuse_missing` says it of logs in its list, which may have been deleted with the log.
        if not path.exists():
            raise _gone(path)
        if digest(path.read_bytes()[:length]) != sha:
            raise StateError(
                f"{path} is damaged or was put back from a copy: it lacks releases that the "
                f"run's checkpoint knows; {ANEW}"
            )


def _gone(path: Path) -> StateError:
    return StateError(
        f"{path} is missing, and this run has begun it: what was spent, and on which noise, is not "
        f"known without it; {ANEW}"
    )


def secret_in(folder: Path) -> NoiseKey:
    """Return the secret key of a folder; create the folder and the key if they do not exist.

    Only the owner of the file may have permission to read it.

    Raises:
        StateError: the file is damaged, others may read it, or it is missing although the folder
            has release logs. Or a file that the folder's register lists is missing.
    """
    path = folder / NAME
    refuse_missing(folder)
    make_durable_folder(folder, 0o700)
    if not path.exists():
        # A fresh secret would put new noise on releases that are in the log: two of the same
        # values with different noise can be averaged.
        if book := next(folder.glob("seed*.csv"), None):
            raise StateError(
                f"{path} is missing, and {book.name} lies there: its noise cannot be drawn again; "
                "start a new run elsewhere"
            )
        write_whole(path, new_seed(), lasting=True, secret=True)
        note(path)
    if is_open_to_others(path):
        raise StateError(f"{path} can be read by others, who could take the noise off: chmod 600")
    key = path.read_bytes()
    if len(key) != SEED:
        raise StateError(f"{path} is damaged: {len(key)} bytes instead of {SEED}; {ANEW}")
    return NoiseKey(key)
