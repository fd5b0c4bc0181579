"""Append-only log of the pictures that a client sent, and of the state of its layers then.

Used by `engine.protections.split_defense`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from vergence.privacy.release_log import Release, ReleaseLog

Cost = Callable[[float], float]
"""Function from a release's noise, as a multiple of the sensitivity, to its privacy cost."""


class Released:
    """One client's releases, each with pictures, the version of the layers, and the noise.

    A picture that is sent again through the same layers has the same noise, and is not recorded
    again.
    """

    def __init__(self, path: Path, cost: Cost) -> None:
        self.book, self.cost = ReleaseLog(path), cost
        self.sent: dict[str, set[int]] = defaultdict(set)
        self.costs: dict[int, float] = defaultdict(float)
        for entry in self.book.entries:
            self._count(entry)
        self.size = self._length()

    @property
    def current(self) -> bool:
        """Return whether no other process has written to the log since it was read."""
        return self.size == self._length()

    @property
    def most(self) -> float:
        """Largest cost of a picture so far."""
        return max(self.costs.values(), default=0.0)

    def new(self, images: Sequence[int], version: str) -> list[int]:
        """Return the pictures among `images` that have not yet been sent through these layers."""
        sent = self.sent.get(version, ())
        return [image for image in images if image not in sent]

    def after(self, images: Sequence[int], multiple: float) -> float:
        """Return the largest cost among some pictures after one more release of each."""
        return max((self.costs.get(i, 0.0) for i in images), default=0.0) + self.cost(multiple)

    def enter(self, images: Sequence[int], version: str, multiple: float) -> None:
        """Record a release that is about to be made."""
        entry = Release(" ".join(map(str, images)), version, multiple, 1.0, 1)
        self.book.enter(entry)
        self._count(entry)
        self.size = self._length()

    def _count(self, entry: Release) -> None:
        for image in map(int, entry.draw.split()):
            self.sent[entry.mark].add(image)
            self.costs[image] += self.cost(entry.noise)

    def _length(self) -> int:
        return self.book.path.stat().st_size if self.book.path.exists() else 0


def book_of(seed: int, client: str) -> str:
    """Return the name of a client's log."""
    return f"seed{seed}.cut.{client}.csv"
