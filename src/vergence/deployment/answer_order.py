"""Order in which a server reads its clients' answers, and answers that wait for their turn.

Used by `deployment.remote_clients`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO

MEMORY = 128 << 20
"""Largest number of bytes of waiting answers in memory; further ones wait in a file."""


def reading_order(
    groups: Sequence[int], ahead: int, arrivals: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield the number of each answer, with that of its group, as soon as it may be read.

    The answers of a group are read in the order of their numbers, as the order of additions decides
    the last bits of a sum. At most `ahead` groups are open at the same time, so that the memory for
    their sums does not grow with the number of clients.

    Args:
        groups: number of answers in each group; answers are numbered group after group, from 0.
        ahead: number of groups, from the first unfinished one, whose answers may be read.
        arrivals: numbers of answers, each when it has arrived.
    """
    ends = list(accumulate(groups))
    places, first, here = [0, *ends[:-1]], 0, set[int]()
    for number in arrivals:
        here.add(number)
        group = first
        while group < min(first + ahead, len(ends)):
            while places[group] < ends[group] and places[group] in here:
                here.remove(places[group])
                yield group, places[group]
                places[group] += 1
            # The window moves on, and answers that wait behind it may be read in the same pass.
            if group == first and places[group] == ends[group]:
                first += 1
            group += 1


class WaitingAnswers:
    """Answers that have arrived and wait to be read: some in memory, others in an unnamed file.

    `folder` is the folder of the file, which disappears with this process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.room = folder, MEMORY
        self.answers: dict[int, bytes | Exception] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.file: IO[bytes] | None = None

    def put(self, number: int, answer: bytes | Exception) -> None:
        """Store an answer, or the reason why there is none, under a number."""
        if isinstance(answer, bytes) and len(answer) > self.room:
            try:
                # An answer can wait for a slow client of its group for minutes: in memory, those of
                # hundreds of clients would need as many copies of the model.
                if self.file is None:
                    self.file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
                self.places[number] = self.file.seek(0, 2), self.file.write(answer)
                return
            # A full disk must not end the round: there may be memory enough.
            except OSError:
                self.places.pop(number, None)
        self.answers[number] = answer
        self.room -= len(answer) if isinstance(answer, bytes) else 0

    def __getitem__(self, number: int) -> bytes | Exception:
        """Return the answer with this number, or the reason why there is none."""
        if number in self.answers:
            return self.answers[number]
        start, size = self.places[number]
        assert self.file is not None
        self.file.seek(start)
        return self.file.read(size)

    def discard(self, number: int) -> None:
        """Forget an answer that has been read."""
        answer = self.answers.pop(number, b"")
        self.room += len(answer) if isinstance(answer, bytes) else 0

    def close(self) -> None:
        """Remove the file."""
        if self.file is not None:
            self.file.close()
