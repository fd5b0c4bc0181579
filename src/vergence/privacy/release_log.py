"""What was released so far, in a file that only grows: a line is there before the release is.

A state may be rolled back, by a resume or by whoever says which of a client's states counts; a book
is not. The same release again (a turn that is taken again, with the same noise) is one line.
"""

from __future__ import annotations

import csv
import io
import math
import stat
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import add_line, make_folder, write_whole
from vergence.errors import StateError
from vergence.privacy.dp.accounting import Charge, Ledger
from vergence.privacy.dp.budget import Budget
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.secure_aggregation.masking import SEED, new_seed

FOLDER = "privacy"
"""Where a run's secret and books lie, in its folder of states."""
NAME = "secret"


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
        StateError: the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Release] = []
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        if torn:  # its writer died; what it was about to release it did not
            with path.open("r+b") as file:
                file.truncate(len(f"{whole}\n".encode()) if whole else 0)
        try:
            for draw, mark, noise, rate, steps in csv.reader(whole.splitlines()):
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
            StateError: it would spend more than that.
        """
        if entry.mark in self:
            return
        if budget.epsilon is not None:
            after = self.with_(entry).epsilon(budget.delta)
            if after > budget.epsilon * (1 + 1e-9):
                raise StateError(
                    f"the privacy budget is spent: a sum of round {entry.draw} would make epsilon "
                    f"{after:.3g}, and {budget.epsilon:g} is allowed; what is done is kept"
                )
        self.enter(entry)

    def enter(self, entry: Release) -> None:
        """Write a release down, before it is one."""
        self.entries.append(entry)
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(entry)
        add_line(self.path, line.getvalue())  # it must outlast a blackout, as the release will


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


def secret_in(folder: Path) -> NoiseKey:
    """Return the secret of a folder, a fresh one if it has none; only its owner may read it.

    Raises:
        StateError: it is damaged, or others may read it.
    """
    path = folder / NAME
    make_folder(folder, 0o700)
    if not path.exists():
        write_whole(path, new_seed(), lasting=True, secret=True)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise StateError(f"{path} can be read by others, who could take the noise off: chmod 600")
    key = path.read_bytes()
    if len(key) != SEED:
        raise StateError(f"{path} is damaged: {len(key)} bytes instead of {SEED}; restore it")
    return NoiseKey(key)
