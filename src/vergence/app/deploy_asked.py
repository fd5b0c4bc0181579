"""How many made-up samples an owner's teacher answers: counted, limited and written down.

The count is a file in the client's folder that only grows, and no state: whoever asks decides which
state counts, but not what was asked.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vergence.core.wire import Message
from vergence.engines.errand import Errand
from vergence.errors import StateError

FILE = "asked.csv"
COLUMNS = ("time", "mark", "what", "samples")
MINUTE = 60.0
MADE = "made"
"""The tree that holds made-up samples, a row each."""


@dataclass(frozen=True)
class Asked:
    """The book of questions of one client's folder.

    Attributes:
        folder: where it lies, as `asked.csv`.
        most: samples answered in all; 0: any number.
        a_minute: samples answered in a minute; 0: any number.
        clock: seconds since 1970.
    """

    folder: Path
    most: int = 0
    a_minute: int = 0
    clock: Callable[[], float] = time.time

    def count(self, errand: Errand, mark: str) -> None:
        """Write an errand's samples down before they are answered; the same errand counts once.

        Raises:
            StateError: more than this client answers, in all or in a minute.
        """
        samples = sum(rows(message) for message in (errand.message, *errand.then))
        if not samples:
            return
        entries, now = self.entries(), self.clock()
        if any(known == mark for _, known, _ in entries):
            return
        before = sum(number for _, _, number in entries)
        where = f"in {self.folder / 'deploy.toml'}"
        if self.most and before + samples > self.most:
            raise StateError(
                f"this client answers {self.most:,} samples in all, has answered {before:,} and is "
                f"asked about {samples:,} more; only its owner can raise answers_in_all {where}"
            )
        lately = [(at, number) for at, _, number in entries if 0 <= now - at < MINUTE]
        if self.a_minute and sum(number for _, number in lately) + samples > self.a_minute:
            wait = MINUTE - now + min((at for at, _ in lately), default=now)
            raise StateError(
                f"this client answers {self.a_minute:,} samples a minute and is asked about "
                f"{samples:,} more; ask again in {wait:.0f} s, in smaller questions, or have its "
                f"owner raise answers_a_minute {where}"
            )
        self._enter(now, mark, f"{errand.message.verb} {errand.stamp}", samples)

    def entries(self) -> list[tuple[float, str, int]]:
        """Return time, mark and number of all that was answered; a torn last line is none.

        Raises:
            StateError: the file is damaged: what was asked is not known.
        """
        path = self.folder / FILE
        if not path.exists():
            return []
        whole = path.read_text(errors="replace").rpartition("\n")[0]
        try:
            found = list(csv.reader(whole.splitlines()))[1:]
            return [(float(at), mark, int(number)) for at, mark, _, number in found]
        except ValueError as error:
            raise StateError(
                f"{path} is damaged ({error}): what was asked is not known, and nothing more is "
                "answered; restore it"
            ) from None

    def _enter(self, now: float, mark: str, what: str, samples: int) -> None:
        path = self.folder / FILE
        fresh = not path.exists()
        with path.open("a", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            if fresh:
                lines.writerow(COLUMNS)
            lines.writerow((f"{now:.3f}", mark, what, samples))
            file.flush()
            os.fsync(file.fileno())


def rows(message: Message) -> int:
    """Return how many made-up samples a message asks about."""
    tree = message.trees.get(MADE)
    return 0 if tree is None else max((len(t) for t in tree.values() if t.ndim), default=0)
