"""Fixed-point numbers as integers modulo 2^64, and shares and bits of them.

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
"""Bits after the point. A product has twice as many until it is truncated."""
LIMIT = 2.0 ** (62 - 2 * FRACTION)
"""Numbers, and sums of products before they are truncated, must be smaller than this."""
BITS = 64
Words = NDArray[np.uint64]
Packed = NDArray[np.uint8]
"""Eight bits a byte."""
Shares = NDArray[np.unsignedinteger]
"""Words add up to a secret modulo 2^64; packed bits give it by exclusive or."""


def encode(values: NDArray[np.floating], steps: int = 1) -> Words:
    """Return numbers as rounded words; `steps=2` uses the fraction of a product.

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
    """Return the numbers that words stand for."""
    return words.view(np.int64).astype(np.float64) * 2.0**-FRACTION


def combined(shares: Sequence[Shares]) -> Shares:
    """Return the secret from all its shares: the sum of words, the exclusive or of packed bits."""
    join = np.add if shares[0].dtype == np.uint64 else np.bitwise_xor
    return join.reduce(np.stack(shares), 0)


def difference(secret: Shares, others: Sequence[Shares]) -> Shares:
    """Return the last share of a secret whose other shares are drawn at random."""
    if not others:
        return secret
    rest = combined(others)
    return secret - rest if secret.dtype == np.uint64 else secret ^ rest


def pack(bits: NDArray[np.generic]) -> Packed:
    """Pack the bits of the last axis, eight to a byte."""
    return np.packbits(bits.astype(np.uint8), -1, bitorder="little")


def unpack(packed: Packed, count: int) -> Words:
    """Unpack the first `count` bits of the last axis, one to a word."""
    return np.unpackbits(packed, -1, count, bitorder="little").astype(np.uint64)


def planes(words: Words) -> Packed:
    """Return the bits of words `[n, m]` ordered by place, `[n, 64, m / 8]`, lowest place first."""
    places = np.arange(BITS, dtype=np.uint64)[:, None]
    return pack(words[:, None] >> places & np.uint64(1))
