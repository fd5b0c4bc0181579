"""Numbers as 64-bit words whose sums are exact: fixed point, with the weight in the same word.

Words are added modulo 2^64. From the low end a word holds: how many people contributed (0 or 1 of
each), their weight, and the value, as two's complement in all bits above:

    | value * 2^fraction, signed | weight | contributors |
      64 - weight - count bits     bits     bits

The fields of a sum are the sums of the fields, since each is wide enough for `people` of its
largest entry. The contributors lie lowest so that an additive share of a word, cut to these bits,
is a share of their number: a threshold on them needs no carry (`threshold.py`).

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vergence.core.tags import tagged
from vergence.errors import ConfigError

Words = NDArray[np.uint64]
BITS = 64
HALF = np.uint64(32)
CHUNK = 1 << 14
"""Numbers that become words at a time."""
FLOAT32_POWERS = 64
"""Powers of two that scale numbers in float32; what is scaled by them stays below 2^63."""
SMALLEST = 1e-30
"""The smallest limit: far above where floating point thins out."""


class RangeFault(ConfigError):
    """Raised for a number that a word cannot hold: the contribution is refused, never clipped."""


@tagged("Packing")
@dataclass(frozen=True)
class Packing:
    """Encoding of numbers as words, for at most `people` contributors.

    Numbers are rounded to a multiple of 2^-`fraction`, ties to even, so that a number gives the
    same word everywhere. `fraction` is as large as the sum of `people` numbers of size `limit`
    allows.

    Args:
        limit: the largest |weight * update| (>= 1e-30). A larger one is refused, never clipped.
        people: largest number of contributors to a sum (>= 1).
        counted: whether a word also holds a weight and a count of contributors; else it holds only
            the value.
        heaviest: the largest weight of an entry, a whole number; 1: weights are 0 and 1, and the
            number of contributors is their sum.
        name: name of the numbers, for messages.
        bits: bits of an entry: 64, or 32 with two entries in a word (`paired`).

    Raises:
        ConfigError: this number of people, with these weights and values, does not fit into these
            bits.
    """

    limit: float
    people: int
    counted: bool = False
    heaviest: int = 1
    name: str = "model"
    bits: int = BITS

    def __post_init__(self) -> None:
        if not (SMALLEST <= self.limit < math.inf and self.people >= 1 and self.heaviest >= 1):
            raise ConfigError(
                f"'{self.name}': a range needs a limit of at least {SMALLEST:g}, and people and "
                f"weights of at least 1; got {self.limit}, {self.people}, {self.heaviest}"
            )
        if self.value_bits < 8 or self.fraction < 0:
            raise ConfigError(
                f"'{self.name}': {self.people} people, weights up to {self.heaviest} and numbers "
                f"up to {self.limit:g} do not fit into {self.bits} bits; lower the largest "
                "weight or number"
            )

    @property
    def count_bits(self) -> int:
        """Number of bits for the count of contributors."""
        return self.people.bit_length() if self.counted else 0

    @property
    def weight_bits(self) -> int:
        """Number of bits for the sum of weights; 0 if that is the number of contributors."""
        if not self.counted or self.heaviest == 1:
            return 0
        return (self.people * self.heaviest).bit_length()

    @property
    def value_bits(self) -> int:
        """Number of bits for the sum of values, including its sign."""
        return self.bits - self.weight_bits - self.count_bits

    @cached_property
    def fraction(self) -> int:
        """Number of bits after the point."""
        most = ((1 << (self.value_bits - 1)) - 1) // self.people
        limit = Fraction(self.limit)
        bits = math.floor(math.log2(most / limit)) + 1 if most else -1
        while bits >= 0 and round(limit * 2**bits) > most:
            bits -= 1
        return bits

    @property
    def step(self) -> float:
        """Distance of neighbouring values; a single value is off by at most half of it."""
        return 2.0**-self.fraction

    def encode(
        self,
        values: NDArray[np.floating],
        weights: NDArray[np.generic] | int | None = None,
        out: Words | None = None,
    ) -> Words:
        """Return numbers as words, in `out` if that is given.

        Args:
            values: weight * update `[n]`, 0 where the weight is 0.
            weights: weights of all entries `[n]`, or one weight for all; whole numbers, or truth
                values. They are given only if words hold weights.
            out: array `[n]` for the words; None: a new array.

        Raises:
            RangeFault: a number or a weight is too large, not whole, or not finite.
            ConfigError: weights are given for words that hold none, or are missing for words that
                hold them.
        """
        values = np.asarray(values)
        words = np.empty(len(values), np.uint64) if out is None else out
        whole, scale = words.view(np.int64), 2.0**self.fraction
        # A power of two scales exactly, in float32 too, unless it is too large for it.
        exact = values.dtype == np.float32 and self.fraction < FLOAT32_POWERS
        # Pieces that stay in the cache: three times as fast.
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK].astype(np.float32 if exact else np.float64)
            # A number beyond the limit would carry into the next contributor's room: one client
            # could change the sum at will. `not <=` refuses NaN too. The limit is compared as a
            # Python number: NumPy would round it to float32, in some cases up.
            if not max(float(part.max()), -float(part.min())) <= self.limit:
                # The message does not say how large: a server could send model after model and
                # read the client's numbers off the refusals.
                raise RangeFault(
                    f"range: '{self.name}' holds more than {self.limit:g}, the largest allowed"
                )
            part *= scale
            whole[start : start + CHUNK] = np.rint(part, part)
        if self.counted is (weights is None):
            raise ConfigError(f"'{self.name}': words that count need weights, and only those do")
        if weights is None:
            return words
        whole = self._whole(np.broadcast_to(weights, values.shape))
        # A value without a weight would shift the mean of the others, and of an entry that nobody
        # counts it would be somebody's own number.
        if np.any(values[whole == 0]):
            raise RangeFault(f"range: '{self.name}' holds numbers where its weight is 0")
        words <<= np.uint64(self.weight_bits + self.count_bits)
        if self.weight_bits:
            words += (whole << np.uint64(self.count_bits)) + (whole != 0)
        else:
            words += whole
        return words

    def _whole(self, weights: NDArray[np.generic]) -> Words:
        if weights.dtype == np.bool_:
            return weights.astype(np.uint64)
        low, high = float(weights.min(initial=0)), float(weights.max(initial=0))
        if not 0 <= low <= high <= self.heaviest:
            raise RangeFault(
                f"range: '{self.name}' is weighed by {low if low < 0 else high:g}, and whole "
                f"numbers from 0 to {self.heaviest} are allowed"
            )
        whole = weights.astype(np.uint64)
        if not np.array_equal(whole, weights):
            raise RangeFault(
                f"range: '{self.name}' is weighed by a fraction, and weights inside a word are "
                "whole numbers"
            )
        return whole

    def values(self, words: Words) -> NDArray[np.float64]:
        """Return the values of words or of their sum; exact below 2^53 steps, else rounded once."""
        whole = words.view(np.int64) >> (self.weight_bits + self.count_bits)
        return whole.astype(np.float64) * self.step

    def weights(self, words: Words) -> NDArray[np.int64]:
        """Return the sums of weights in words."""
        width = self.weight_bits or self.count_bits
        shift = np.uint64(self.count_bits if self.weight_bits else 0)
        return ((words >> shift) & np.uint64((1 << width) - 1)).view(np.int64)

    def contributors(self, words: Words) -> NDArray[np.int64]:
        """Return the numbers of people who contributed to words."""
        return (words & np.uint64((1 << self.count_bits) - 1)).view(np.int64)


def withheld(words: Words, packing: Packing, least: int) -> Words:
    """Return a sum with 0 in place of the words with fewer than `least` contributors.

    So a simulation, which sees all counts, opens the same words as the protocol with shares.
    """
    return np.where(packing.contributors(words) >= least, words, np.uint64(0))


def paired(entries: Words, out: Words | None = None) -> Words:
    """Return entries of 32 bits as half as many words: the first half low, the second high.

    Sums of such words contain the sums of both halves, since the carry out of a low half follows
    from its own bits. Words are written to `out` if that is given.
    """
    half = -(-len(entries) // 2)
    words, both = np.empty(half, np.uint64) if out is None else out, len(entries) - half
    np.left_shift(entries[half:], HALF, out=words[:both])
    words[:both] += entries[:both]
    words[both:] = entries[both:half]
    return words


def unpaired(words: Words, count: int) -> Words:
    """Undo `paired` for `count` entries, or for sums of entries that fit into 32 bits."""
    low = (words << HALF).view(np.int64) >> np.int64(HALF)
    high = (words.view(np.int64) - low) >> np.int64(HALF)
    return np.concatenate([low, high[: count - len(words)]]).view(np.uint64)


def sent(words: Words) -> bytes:
    """Return words in the form in which they are sent, 8 bytes each."""
    return words.astype("<u8", copy=False).tobytes()


def received(data: bytes) -> Words:
    """Return words that were received, as a read-only array."""
    return np.frombuffer(data, "<u8")
