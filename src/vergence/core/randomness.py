"""Randomness keyed by purpose: the same key gives the same numbers, in every process and order.

Used in most packages.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


class RandomStream:
    """A name in a tree of random streams: (run, seed, client, round, purpose, ...).

    A stream has no state: each call returns the same generator, so a resumed, repeated or
    reordered turn draws the same numbers.

    Examples:
        >>> int(RandomStream("run", 0).child("p03", 7).numpy().integers(100))
        61
    """

    __slots__ = ("key",)

    def __init__(self, *key: str | int) -> None:
        self.key = key

    def child(self, *more: str | int) -> RandomStream:
        """Return the stream below this one."""
        return RandomStream(*self.key, *more)

    def number(self) -> int:
        """Return this stream's 63-bit number."""
        # Python's own `hash` of a text differs from process to process.
        digest = hashlib.blake2b(repr(self.key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def numpy(self) -> np.random.Generator:
        """Return a fresh counter-based numpy generator."""
        return np.random.Generator(np.random.Philox(self.number()))

    def torch(self) -> torch.Generator:
        """Return a fresh torch generator."""
        return torch.Generator().manual_seed(self.number())
