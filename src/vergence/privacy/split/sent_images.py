"""Append-only log of the pictures that a client sent, each with the version of its layers.

Used by `engine.protections.split_defense`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from vergence.privacy.release_log import Release, ReleaseLog

Cost = Callable[[float], float]
"""Function of a release's noise, divided by the sensitivity; it returns the privacy cost."""


class Released:
    """Log of the pictures whose outputs one client sent, with their privacy costs.

    A release is a batch of pictures, sent through one version (state) of the client's layers with
    noise. A picture that is sent again through the same version gets the same noise, and is not
    recorded again.

    Args:
        path: file of the log.
        cost: privacy cost of one release, from its noise.
    """

    def __init__(self, path: Path, cost: Cost) -> None:
        self.book, self.cost = ReleaseLog(path, own_mark=False), cost
        self.sent: dict[str, set[int]] = defaultdict(set)
        self.costs: dict[int, float] = defaultdict(float)
        for entry in self.book.entries:
            self._count(entry)
        self.size = self._length()

    @property
    def current(self) -> bool:
        """True if no other process has written to the log file since this object read it."""
        return self.size == self._length()

    @property
    def most(self) -> float:
        """Largest privacy cost of a picture so far."""
        return max(self.costs.values(), default=0.0)

    def new(self, images: Sequence[int], version: str) -> list[int]:
        """Return the pictures among `images` not yet sent through this version of the layers."""
        sent = self.sent.get(version, ())
        return [image for image in images if image not in sent]

    def after(self, images: Sequence[int], multiple: float) -> float:
        """Return the largest privacy cost of these pictures after one more release of each.

        `multiple` is the scale of the noise, divided by the sensitivity.
        """
        return max((self.costs.get(i, 0.0) for i in images), default=0.0) + self.cost(multiple)

    def enter(self, images: Sequence[int], version: str, multiple: float) -> None:
        """Write a release of these pictures to the log, before it is made.

        Args:
            images: numbers of the pictures in the client's data.
            version: identifier of the state of the client's layers.
            multiple: scale of the noise, divided by the sensitivity.
        """
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
    """Return the file name of a client's log."""
    return f"seed{seed}.cut.{client}.csv"
