"""Fixed-point numbers as integers modulo 2^64 (words), and their shares and bits.

Used by `deployment.private_inference.agreement`, `deployment.private_inference.client`,
`deployment.private_inference.party`, `deployment.private_inference.sharing`,
`privacy.inference.correlations` and `privacy.inference.shared_network`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError

FRACTION = 20
"""Bits after the binary point. A product has twice as many until it is truncated."""
LIMIT = 2.0 ** (62 - 2 * FRACTION)
"""Numbers, and sums of products before they are truncated, must be smaller than this."""
BITS = 64
Words = NDArray[np.uint64]
Packed = NDArray[np.uint8]
"""Bits, packed eight to a byte."""
Shares = NDArray[np.unsignedinteger]
"""Shares of a secret: words, whose sum modulo 2^64 is the secret; or packed bits, whose exclusive
or is the secret."""


def encode(values: NDArray[np.floating], steps: int = 1) -> Words:
    """Return numbers as words: fixed-point integers modulo 2^64, rounded.

    Args:
        values: the numbers.
        steps: 1: `FRACTION` bits after the binary point; 2: twice as many, as a product has.

    Raises:
        ConfigError: a number is too large or not finite; nothing is clipped.
    """
    values = np.asarray(values, np.float64)
    if not np.all(np.abs(values) < LIMIT):
        raise ConfigError(
            f"private prediction: numbers must be smaller than {LIMIT:g}, got "
            f"{np.abs(values).max():g}"
        )
    return np.rint(values * 2.0 ** (FRACTION * steps)).astype(np.int64).view(np.uint64)


def decode(words: Words) -> NDArray[np.float64]:
    """Return the numbers that words with `FRACTION` bits after the binary point stand for."""
    return words.view(np.int64).astype(np.float64) * 2.0**-FRACTION


def combined(shares: Sequence[Shares]) -> Shares:
    """Return the secret from all its shares: the sum of words, the exclusive or of packed bits."""
    join = np.add if shares[0].dtype == np.uint64 else np.bitwise_xor
    return join.reduce(np.stack(shares), 0)


def difference(secret: Shares, others: Sequence[Shares]) -> Shares:
    """Return the missing share of a secret, given all other shares."""
    if not others:
        return secret
    rest = combined(others)
    return secret - rest if secret.dtype == np.uint64 else secret ^ rest


def pack(bits: NDArray[np.generic]) -> Packed:
    """Return the bits of the last axis, packed eight to a byte."""
    return np.packbits(bits.astype(np.uint8), -1, bitorder="little")


def unpack(packed: Packed, count: int) -> Words:
    """Return the first `count` packed bits of the last axis, each as a word."""
    return np.unpackbits(packed, -1, count, bitorder="little").astype(np.uint64)


def planes(words: Words) -> Packed:
    """Return the bits of words `[n, m]`, packed, `[n, 64, m / 8]`.

    Row k of the 64 rows has bit k of all words; bit 0 is the lowest.
    """
    places = np.arange(BITS, dtype=np.uint64)[:, None]
    return pack(words[:, None] >> places & np.uint64(1))
