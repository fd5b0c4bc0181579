"""Randomness keyed by purpose: the same key gives the same numbers, in every process and order.

Used in most packages.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


class RandomStream:
    """A source of random numbers that depend only on a key, such as (run, seed, client, purpose).

    A stream has no state: each call returns a new generator that gives the same numbers. Work of a
    client that is resumed, repeated or done in another order therefore draws the same numbers.

    Examples:
        >>> int(RandomStream("run", 0).child("p03", 7).numpy().integers(100))
        61
    """

    __slots__ = ("key",)

    def __init__(self, *key: str | int) -> None:
        self.key = key

    def child(self, *more: str | int) -> RandomStream:
        """Return the stream whose key is this stream's key followed by `more`."""
        return RandomStream(*self.key, *more)

    def number(self) -> int:
        """Return a 63-bit integer that depends only on the key."""
        # Python's own `hash` of a text differs from process to process.
        digest = hashlib.blake2b(repr(self.key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def numpy(self) -> np.random.Generator:
        """Return a new counter-based numpy generator, seeded by the key."""
        return np.random.Generator(np.random.Philox(self.number()))

    def torch(self) -> torch.Generator:
        """Return a new torch generator, seeded by the key."""
        return torch.Generator().manual_seed(self.number())
