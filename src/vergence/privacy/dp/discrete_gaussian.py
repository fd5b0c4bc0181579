"""Exact samples of the discrete Gaussian on the integers, from secret bits.

P(x) is exactly proportional to exp(-x^2 / (2 variance)). Floating point decides a comparison only
if the result is certain. About one comparison in a billion is decided with rational numbers and
more random bits instead. Since noise and updates are integers, no rounding error can reveal an
update.

Used by `privacy.dp.user_level`.

Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020,
Algorithms 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError
from vergence.privacy.keyed_noise import NoiseStream

Integers = NDArray[np.int64]
CLEAR = 1e-9
"""Relative error allowed to exp(-x); its true error is below 1e-11."""
CHUNK = 1 << 16
"""Largest number of samples that are drawn at a time."""
WIDEST = 2.0**48
"""Largest standard deviation; every sample then fits into a 64-bit integer."""


def discrete_gaussian(variance: Fraction, count: int, draws: NoiseStream) -> Integers:
    """Return samples of the discrete Gaussian, int64 `[count]`; zeros for variance 0.

    Raises:
        ConfigError: the variance is negative, or the standard deviation above 2^48.
    """
    if not 0 <= variance <= WIDEST**2:
        raise ConfigError(
            f"noise on integers needs a variance from 0 to 2^96; got {float(variance):g}"
        )
    if not variance:
        return np.zeros(count, np.int64)
    scale = math.isqrt(math.floor(variance)) + 1
    centre, wide = float(variance / scale), 2 * float(variance)

    def some(wanted: int) -> Integers:
        y = discrete_laplace(scale, wanted, draws)

        def exponent(i: int) -> Fraction:
            return (abs(int(y[i])) - variance / scale) ** 2 / (2 * variance)

        return y[_heads((np.abs(y) - centre) ** 2 / wide, exponent, draws)]

    return _filled(some, count)


def discrete_laplace(scale: int, count: int, draws: NoiseStream) -> Integers:
    """Return samples of the discrete Laplace distribution, int64 `[count]`.

    P(x) is proportional to exp(-|x| / scale). `discrete_gaussian` draws from it.
    """

    def some(wanted: int) -> Integers:
        u = _below(scale, wanted, draws)
        u = u[_heads(u / scale, lambda i: Fraction(int(u[i]), scale), draws)]
        size = u + scale * _geometric(len(u), draws)
        negative = (draws.words(len(u)) & np.uint64(1)).astype(bool)
        # -0 and 0 are the same number: without dropping one of them, 0 would come twice as often.
        return np.where(negative, -size, size)[~(negative & (size == 0))]

    return _filled(some, count)


def _geometric(count: int, draws: NoiseStream) -> Integers:
    """Return samples of a geometric distribution, int64 `[count]`.

    A sample is the number of heads before the first tail, where heads have probability exp(-1).
    """
    runs, going = np.zeros(count, np.int64), np.arange(count)
    while len(going):
        going = going[_heads(np.ones(len(going)), lambda _: Fraction(1), draws)]
        runs[going] += 1
    return runs


def _below(limit: int, count: int, draws: NoiseStream) -> Integers:
    """Return uniform integers from 0 to `limit` - 1, int64 `[count]`."""
    mask = np.uint64((1 << (limit - 1).bit_length()) - 1)

    def some(wanted: int) -> Integers:
        # Rejection and not a remainder: `words % limit` would prefer small numbers.
        tried = draws.words(2 * wanted) & mask
        return tried[tried < np.uint64(limit)].astype(np.int64)

    return _filled(some, count)


def _filled(some: Callable[[int], Integers], count: int) -> Integers:
    parts, have = [np.zeros(0, np.int64)], 0
    while have < count:
        parts.append(some(min(count - have, CHUNK) + 16))
        have += len(parts[-1])
    return np.concatenate(parts)[:count]


def _heads(
    x: NDArray[np.float64], exact: Callable[[int], Fraction], draws: NoiseStream
) -> NDArray[np.bool_]:
    """Toss one coin for each entry of x: heads (True) with probability exp(-x), exactly.

    Args:
        x: the exponents, as floating-point numbers.
        exact: returns the exponent of the coin with this index as a rational number. It is called
            if 64 random bits do not decide the coin.
        draws: random numbers.
    """
    chance, words = np.exp(-x), draws.words(len(x))
    uniform = words * 2.0**-64
    heads = uniform < chance
    # 2^-60 covers the rounding of 64-bit words to 53 bits.
    unclear = np.abs(uniform - chance) <= CLEAR * chance + 2.0**-60
    for i in np.flatnonzero(unclear):
        heads[i] = _below_exp(int(words[i]), exact(int(i)), draws)
    return heads


def _below_exp(word: int, x: Fraction, draws: NoiseStream) -> bool:
    """Return whether a uniform number in [0, 1) is below exp(-x).

    Its first 64 bits are `word`; further bits are drawn until the comparison is certain.
    """
    bits = 64
    # exp(-x) of a rational x > 0 is irrational: the loop ends, as enough bits decide.
    while x:
        with localcontext() as context:
            context.prec = bits // 3 + 30
            chance = (-Decimal(x.numerator) / Decimal(x.denominator)).exp()
            slack = Decimal(10) ** (-bits // 3 - 20)
            low, high = (Decimal(word + end) / Decimal(2**bits) for end in (0, 1))
            if high < chance - slack:
                return True
            if low > chance + slack:
                return False
        word, bits = (word << 64) | int(draws.words(1)[0]), bits + 64
    return True
