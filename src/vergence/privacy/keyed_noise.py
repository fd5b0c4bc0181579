"""Noise derived from a secret key: the same purpose always gives the same noise.

A run's secret is 32 random bytes from the operating system. Noise depends on this secret and on a
purpose (such as the round and the client). A client that repeats its work after a resume therefore
draws the same noise: fresh noise for the same release could be averaged away. Training seeds, which
are published, are not used.

Used in `attacks`, `audit`, `engine` and `privacy`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.privacy.secure_aggregation.masking import SEED, derived, new_seed, stream

GRID = 16
"""Noise is a multiple of 2^(e - 16), where 2^e is the largest power of two up to its scale."""
CHUNK = 1 << 16
"""Number of entries that get their noise at a time."""
ONE = np.uint64(0x3FF0000000000000)
"""The bits of 1.0 in float64."""
NoiseKind = Literal["gaussian", "laplace"]


class NoiseKey:
    """A secret key from which keys for single purposes are derived; its `repr` hides the key."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def new(cls) -> NoiseKey:
        """Return a fresh key from the random numbers of the operating system."""
        return cls(new_seed())

    def child(self, *purpose: str | int) -> NoiseKey:
        """Return the key for one purpose; the parent key cannot be computed from it."""
        # The parts are spelled by `repr`: joined without quotes, ("1", "23") and ("12", "3") would
        # share their noise, and the difference of two releases would be free of it.
        return NoiseKey(derived(self._key, bytes(SEED), repr(purpose)))

    def draws(self) -> NoiseStream:
        """Return the sequence of random numbers that this key gives, from its beginning."""
        return NoiseStream(self)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the first `count` random integers of 64 bits, uint64 `[count]`."""
        return np.frombuffer(stream(self._key, 8 * count), dtype="<u8")

    def __repr__(self) -> str:
        # A key in a log or a traceback would let a reader subtract the noise.
        return "NoiseKey(...)"


class NoiseStream:
    """Sequence of random numbers from a secret key; every call returns new numbers."""

    __slots__ = ("_calls", "_secret")

    def __init__(self, secret: NoiseKey) -> None:
        self._secret, self._calls = secret, 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return random integers of 64 bits, uint64 `[count]`."""
        self._calls += 1
        return self._secret.child("draw", self._calls).words(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return uniform numbers in (0, 1), `[count]`; all are odd multiples of 2^-53."""
        odd = (self.words(count) >> np.uint64(12)).astype(np.float64) * 2 + 1
        return odd * 2.0**-53

    def gaussian(self, count: int) -> NDArray[np.float64]:
        """Return standard normal numbers `[count]`, with absolute values below 8.6."""
        return _normal(self, count).numpy()

    def laplace(self, count: int) -> NDArray[np.float64]:
        """Return numbers of the Laplace distribution of scale 1, `[count]`."""
        one, other = np.log(self.uniform(2 * count)).reshape(2, count)
        return one - other

    def standard(self, kind: NoiseKind, count: int) -> NDArray[np.float64]:
        """Return numbers `[count]` of the distribution `kind`, with scale 1."""
        return self.gaussian(count) if kind == "gaussian" else self.laplace(count)

    def gumbel(self, count: int) -> NDArray[np.float64]:
        """Return numbers of the Gumbel distribution of scale 1, `[count]`."""
        return -np.log(-np.log(self.uniform(count)))


def hidden(values: Tensor, scale: float, noise: NDArray[np.float64]) -> Tensor:
    """Return values plus noise of this scale, rounded to multiples of a step.

    The last bits of a floating-point sum can reveal the value to which noise was added. Multiples
    of a step that does not depend on the values do not reveal it. The sum is rounded, which is
    post-processing and costs no privacy; rounding before the noise is added could increase the
    sensitivity. Gradients pass through unchanged.

    Args:
        values: tensor of floating-point numbers, of any shape.
        scale: standard deviation (Gaussian) or scale (Laplace), > 0.
        noise: noise of scale 1, one number for each value, in the order of `values.flatten()`.

    Source of the attack: Mironov, "On significance of the least significant bits for differential
    privacy", CCS 2012.
    """
    # The step depends on the scale alone, which is public: a step that followed the values would
    # show their size.
    step = grid(scale)
    steps = torch.from_numpy(noise).mul(scale).view(values.shape).add_(values.detach())
    steps.div_(step).round_()
    return (steps * step).to(values) + (values - values.detach())  # plus 0, with a gradient


def grid(scale: float) -> float:
    """Return the rounding step for noise of this scale, and for values with such noise.

    It is a power of two, more than 2^-17 and at most 2^-16 of the scale.
    """
    return 2.0 ** (math.floor(math.log2(scale)) - GRID)


def add_noise(flat: Tensor, deviation: float, draws: NoiseStream) -> Tensor:
    """Add Gaussian noise to a vector in place, rounded as by `hidden`; return the vector.

    With a standard deviation of 0 the vector stays unchanged.
    """
    if not deviation:
        return flat
    step = grid(deviation)
    for part in flat.split(CHUNK):
        noise = _normal(draws, len(part)).to(part.device).mul_(deviation / step)
        part.copy_(noise.add_(part, alpha=1 / step).round_().mul_(step))
    return flat


def _normal(draws: NoiseStream, count: int) -> Tensor:
    """Return standard normal numbers, float64 `[count]`.

    Source: Box and Muller, 1958; torch's kernels are four times as fast as an inverse CDF.
    """
    pairs = (count + 1) // 2
    words = draws.words(pairs + (pairs + 1) // 2)
    # 52 bits behind the exponent of 1: a number in [1, 2), half a step above which lies none.
    above = ((words[:pairs] >> np.uint64(12)) | ONE).view(np.float64)
    radius = torch.from_numpy(above).sub_(1 - 2.0**-53).log_().mul_(-2).sqrt_()
    turns = words[pairs:].view("<u4")[:pairs].astype(np.float64)
    angle = torch.from_numpy(turns).add_(0.5).mul_(2 * math.pi / 2**32)
    normal = torch.empty(2, pairs, dtype=torch.float64)
    torch.cos(angle, out=normal[0])
    torch.sin(angle, out=normal[1])
    return normal.mul_(radius).view(-1)[:count]
