"""Log of privacy releases, a file that only grows: a line is there before the release is.

A state may be rolled back, by a resume or by whoever says which of a client's states counts; a book
is not. The same release again (a turn that is taken again, with the same noise) is one line.
"""

from __future__ import annotations

import csv
import math
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import add_line, csv_of, make_folder, settle, untorn, write_whole
from vergence.errors import StateError
from vergence.privacy.dp.accounting import Charge, Ledger
from vergence.privacy.dp.budget import Budget
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.masking import SEED, new_seed
from vergence.system.file_access import is_open_to_others

FOLDER = "privacy"
"""Where a run's secret and books lie, in its folder of states."""
NAME = "secret"
BOOKS = "privacy.books"
"""Beside that folder: the names of its secret and books, so that one that is gone is missed."""


class Release(NamedTuple):
    """A release: which draw of people or frames it is of, what it is known by, and its noise."""

    draw: str
    mark: str
    noise: float
    rate: float
    steps: int


class ReleaseLog:
    """The releases of one secret's holder.

    Raises:
        StateError: the file is damaged, or gone.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists() and path.name in noted(path.parent):
            raise _gone(path)
        self.path = path
        self.entries: list[Release] = []
        data = path.read_bytes() if path.exists() else b""
        # What follows the last whole line is no release: its writer died, or has yet to end it.
        whole = data[: untorn(data)]
        try:
            for draw, mark, noise, rate, steps in csv.reader(whole.decode().splitlines()):
                entry = Release(draw, mark, float(noise), float(rate), int(steps))
                Charge(*entry[2:])
                self.entries.append(entry)
        except (ValueError, StateError) as error:
            raise StateError(
                f"{path} is damaged ({error}): what was spent is not known; restore it"
            ) from None

    def __contains__(self, mark: str) -> bool:
        return any(entry.mark == mark for entry in self.entries)

    def with_(self, entry: Release) -> Ledger:
        """Return the account with one more release."""
        return account([*self.entries, entry])

    @property
    def ledger(self) -> Ledger:
        """The account of all releases."""
        return account(self.entries)

    def charge(self, entry: Release, budget: Budget) -> None:
        """Write a release down before it is one, once, if a budget allows it.

        Raises:
            StateError: it would spend more than that, or was there with other noise.
        """
        if entry.mark in self:
            if entry not in self.entries:
                raise StateError(
                    f"'{entry.mark}' was released before with other noise: nothing more is said of "
                    "it; start a new run elsewhere"
                )
            return
        if budget.epsilon is not None:
            after = self.with_(entry).epsilon(budget.delta)
            if not after <= budget.epsilon * (1 + 1e-9):
                raise StateError(
                    f"the privacy budget is spent: a sum of round {entry.draw} would make epsilon "
                    f"{after:.3g}, and {budget.epsilon:g} is allowed; what is done is kept"
                )
        self.enter(entry)

    def enter(self, entry: Release) -> None:
        """Write a release down, before it is one."""
        self.entries.append(entry)
        # The line must outlast a blackout, as the release will.
        add_line(self.path, csv_of([entry]).removesuffix("\n"))
        if len(self.entries) == 1:
            note(self.path)


def account(entries: list[Release]) -> Ledger:
    """Ledger of the privacy cost of releases.

    Those of one draw share who is in it: k of them with noise z are one with noise z / sqrt(k).
    """
    draws: dict[str, list[Release]] = defaultdict(list)
    for entry in (each for each in entries if math.isfinite(each.noise)):  # others cost nothing
        draws[entry.draw].append(entry)
    alike: Counter[tuple[float, float]] = Counter()
    for shared in draws.values():
        noise = sum(entry.noise**-2 for entry in shared) ** -0.5 if len(shared) > 1 else None
        first = shared[0]
        alike[noise or first.noise, first.rate] += first.steps
    return Ledger(tuple(Charge(*what, steps) for what, steps in sorted(alike.items())))


def noted(folder: Path) -> list[str]:
    """Names of the secret and the books that were begun in a folder."""
    register = folder.with_name(BOOKS)
    if folder.name != FOLDER or not register.exists():
        return []
    return register.read_text(encoding="utf-8").split("\n")


def note(path: Path) -> None:
    """Note that a secret or a book was begun, so that it is missed where it is gone.

    Several processes may do so at once.
    """
    if path.parent.name != FOLDER:
        return
    register = path.parent.with_name(BOOKS)
    with register.open("ab") as file:
        file.write(f"\n{path.name}\n".encode())  # apart from a line that was torn
        file.flush()
        os.fsync(file.fileno())
    settle(register.parent)


def refuse_missing(folder: Path) -> None:
    """Refuse to go on where the secret or a book that was begun is gone: none is not an empty one.

    Raises:
        StateError: names it.
    """
    for name in noted(folder):
        if name and not (folder / name).exists():
            raise _gone(folder / name)


def _gone(path: Path) -> StateError:
    return StateError(
        f"{path} is missing, and this run has begun it: what was spent, and on which noise, is not "
        "known without it; restore it, or start a new run elsewhere"
    )


def secret_in(folder: Path) -> NoiseKey:
    """Return the secret of a folder, a fresh one if it has none; only its owner may read it.

    Raises:
        StateError: it is damaged, or others may read it; it or a book that was begun is gone.
    """
    path = folder / NAME
    refuse_missing(folder)
    make_folder(folder, 0o700)
    if not path.exists():
        if book := next(folder.glob("seed*.csv"), None):  # other noise on what it says was released
            raise StateError(
                f"{path} is missing, and {book.name} lies there: restore it, or start a new run "
                "elsewhere"
            )
        write_whole(path, new_seed(), lasting=True, secret=True)
        note(path)
    if is_open_to_others(path):
        raise StateError(f"{path} can be read by others, who could take the noise off: chmod 600")
    key = path.read_bytes()
    if len(key) != SEED:
        raise StateError(f"{path} is damaged: {len(key)} bytes instead of {SEED}; restore it")
    return NoiseKey(key)
