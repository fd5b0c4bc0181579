"""Numbers as 64-bit words whose sums are exact: fixed point, with the weight in the same word.

Words are added modulo 2^64. From the lowest bit on, a word holds the number of contributors (0 or 1
for one person), their weight, and the value, which takes all remaining bits as two's complement:

    | value * 2^fraction, signed | weight | contributors |
      64 - weight - count bits     bits     bits

The fields of a sum are the sums of the fields, since each field is wide enough for the sum over
`people` people. The number of contributors is in the lowest bits, so that these bits of an additive
share are an additive share of this number: a threshold on it needs no carry (`threshold.py`).

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
"""Number of values that are encoded as words at a time."""
FLOAT32_POWERS = 64
"""Values are scaled in float32, which is exact, if `Packing.fraction` is below this number."""
SMALLEST = 1e-30
"""The smallest allowed `limit`, far above the smallest normal float32."""


class RangeFault(ConfigError):
    """Raised for a number that a word cannot hold; the reply is refused, and nothing is clipped."""


@tagged("Packing")
@dataclass(frozen=True)
class Packing:
    """Encoding of numbers as words (integers modulo 2^64), for sums over at most `people` people.

    Numbers are rounded to a multiple of 2^-`fraction`, ties to even, so that a number gives the
    same word on every machine. `fraction` is the largest one at which the sum of `people` numbers
    of size `limit` fits.

    Args:
        limit: the largest absolute value of weight * update (>= 1e-30). A larger number is refused,
            never clipped.
        people: largest number of contributors to a sum (>= 1).
        counted: whether a word also holds a weight and a count of contributors, besides the value.
        heaviest: the largest weight of an entry, an integer. With 1, weights are 0 or 1, and their
            sum is the number of contributors.
        name: name of the numbers, for error messages.
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
        """Number of bits for the sum of weights; 0 if words hold no weights, or only 0 and 1."""
        if not self.counted or self.heaviest == 1:
            return 0
        return (self.people * self.heaviest).bit_length()

    @property
    def value_bits(self) -> int:
        """Number of bits for the sum of values, including its sign."""
        return self.bits - self.weight_bits - self.count_bits

    @cached_property
    def fraction(self) -> int:
        """Number of bits after the binary point."""
        most = ((1 << (self.value_bits - 1)) - 1) // self.people
        limit = Fraction(self.limit)
        bits = math.floor(math.log2(most / limit)) + 1 if most else -1
        while bits >= 0 and round(limit * 2**bits) > most:
            bits -= 1
        return bits

    @property
    def step(self) -> float:
        """Distance of neighbouring values; rounding changes a value by at most half of it."""
        return 2.0**-self.fraction

    def encode(
        self,
        values: NDArray[np.floating],
        weights: NDArray[np.generic] | int | None = None,
        out: Words | None = None,
    ) -> Words:
        """Return numbers as words, uint64 `[n]`.

        Args:
            values: weight * update `[n]`, 0 where the weight is 0.
            weights: weights of all entries `[n]`, or one weight for all; integers, or truth values.
                They are given only if words hold weights.
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
        # As Python's numbers: floats would round integers above 2^53, in some cases down.
        low, high = weights.min(initial=0).item(), weights.max(initial=0).item()
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
        """Return the values in words, or in a sum of words, `[n]`.

        A value is exact up to 2^53 steps, and rounded once beyond.
        """
        whole = words.view(np.int64) >> (self.weight_bits + self.count_bits)
        return whole.astype(np.float64) * self.step

    def weights(self, words: Words) -> NDArray[np.int64]:
        """Return the weights in words, or in a sum of words, `[n]`."""
        width = self.weight_bits or self.count_bits
        shift = np.uint64(self.count_bits if self.weight_bits else 0)
        return ((words >> shift) & np.uint64((1 << width) - 1)).view(np.int64)

    def contributors(self, words: Words) -> NDArray[np.int64]:
        """Return the number of people who contributed to each word of a sum, `[n]`."""
        return (words & np.uint64((1 << self.count_bits) - 1)).view(np.int64)


def withheld(words: Words, packing: Packing, least: int) -> Words:
    """Return a sum of words, with 0 in place of words with fewer than `least` contributors.

    A simulation sees all counts. With this function it opens the same words as the protocol on
    secret shares.
    """
    return np.where(packing.contributors(words) >= least, words, np.uint64(0))


def paired(entries: Words, out: Words | None = None) -> Words:
    """Return entries of 32 bits as half as many words of 64 bits; `unpaired` undoes it.

    The first half of the entries is in the low 32 bits, the second half in the high 32 bits. A sum
    of such words contains the sums of both halves: the carry out of the low bits can be computed
    from them. Words are written to `out` if it is given.
    """
    half = -(-len(entries) // 2)
    words, both = np.empty(half, np.uint64) if out is None else out, len(entries) - half
    np.left_shift(entries[half:], HALF, out=words[:both])
    words[:both] += entries[:both]
    words[both:] = entries[both:half]
    return words


def unpaired(words: Words, count: int) -> Words:
    """Return the `count` entries of words that `paired` made, or their sums for a sum of words.

    A sum of entries must fit into 32 bits. `ReplyLayout.aggregate` calls this on the opened sum.
    """
    low = (words << HALF).view(np.int64) >> np.int64(HALF)
    high = (words.view(np.int64) - low) >> np.int64(HALF)
    return np.concatenate([low, high[: count - len(words)]]).view(np.uint64)


def sent(words: Words) -> bytes:
    """Return words as the bytes that are sent: 8 bytes each, lowest byte first."""
    return words.astype("<u8", copy=False).tobytes()


def received(data: bytes) -> Words:
    """Return the words in bytes that were received, as a read-only array."""
    return np.frombuffer(data, "<u8")
