"""Fixed-point numbers as signed 64-bit words inside a prime field, where no sum or mask wraps.

The field is that of 2^127 - 1. A ring of 2^64 would be quicker and is what fast protocols use, but
a truncation there is now and then wrong by 2^44, and a message authentication code needs a larger
ring beside it. Here a word, even under a mask of 60 bits more, stays below the prime, so every
truncation is right to one step; and a field's code is forged with probability 2^-126.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.masking import new_seed, stream

PRIME = 2**127 - 1
BITS = 64
"""Of every shared number with its sign, products that are not yet truncated among them."""
STATISTICAL = 60
"""Bits by which a mask is longer than what it hides: all opened masked numbers look alike but for
2^-60."""
Field = NDArray[np.object_]
"""Whole numbers from 0 to PRIME - 1."""


@dataclass(frozen=True)
class FixedPoint:
    """Numbers as multiples of 2^-`fraction`, ties to even.

    A product of two has twice the fraction until it is truncated, and must fit into 64 bits: with
    20 bits numbers and sums of products up to 2^23 do.
    """

    fraction: int = 20

    def __post_init__(self) -> None:
        if not 1 <= self.fraction <= 30:
            raise ConfigError(f"fixed point: 1 to 30 bits after the point; got {self.fraction}")

    @property
    def limit(self) -> float:
        """Numbers are smaller than this, and so must be every sum of products."""
        return 2.0 ** (BITS - 1 - 2 * self.fraction)

    def encode(self, values: NDArray, steps: int = 1) -> Field:
        """Return numbers as field elements; `steps=2` with the fraction of a product.

        Raises:
            ConfigError: a number is too large or not finite; nothing is clipped.
        """
        values = np.asarray(values, np.float64)
        if not np.all(np.abs(values) < self.limit):
            raise ConfigError(
                f"fixed point: numbers must be smaller than {self.limit:g}, "
                f"got {np.abs(values).max():g}"
            )
        whole = np.rint(values * 2.0 ** (self.fraction * steps)).astype(np.int64)
        return whole.astype(object) % PRIME

    def decode(self, elements: Field) -> NDArray[np.float64]:
        """Return the numbers of field elements."""
        return signed(elements).astype(np.float64) * 2.0**-self.fraction


def signed(elements: Field) -> Field:
    """Return field elements as whole numbers around 0."""
    return (elements + PRIME // 2) % PRIME - PRIME // 2


def drawn(shape: tuple[int, ...], bits: int = 127) -> Field:
    """Return uniform numbers of up to 127 bits, from the system's randomness through ChaCha20.

    Of 127 bits the remainder by the prime is taken: 0 is twice as likely, by 2^-127.
    """
    size = int(np.prod(shape))
    low, high = np.frombuffer(stream(new_seed(), 16 * size), "<u8").reshape(2, size)
    found: Field = (low >> np.uint64(max(64 - bits, 0))).astype(object)
    if bits > 64:
        found = found + ((high >> np.uint64(128 - bits)).astype(object) << 64)
    return (found % PRIME if bits == 127 else found).reshape(shape)
