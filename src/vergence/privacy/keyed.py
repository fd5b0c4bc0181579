"""Noise from a secret: the same purpose gives the same noise, and nobody else can know it.

A run's secret is 32 bytes of the system's randomness; what is drawn is bound to it and to a purpose
(round, client, ...), so that a turn that is taken again after a resume draws the same noise: fresh
noise for the same release would be averaged away. Training seeds never reach it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.privacy.pads import SEED, derived, new_seed, stream

GRID = 16
"""Noise and what it hides are multiples of 2^-16 of the noise's scale, or of twice that."""


class Secret:
    """A key in a tree of keys; its `repr` tells nothing."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def new(cls) -> Secret:
        """Return a fresh secret of the system's randomness."""
        return cls(new_seed())

    def child(self, *purpose: str | int) -> Secret:
        """Return the secret for a purpose, which tells nothing about this one."""
        return Secret(derived(self._key, bytes(SEED), repr(purpose)))

    def draws(self) -> Draws:
        """Return this secret's numbers, from the first on."""
        return Draws(self)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the first words of 64 random bits."""
        return np.frombuffer(stream(self._key, 8 * count), dtype="<u8")

    def __repr__(self) -> str:
        return "Secret(...)"


class Draws:
    """Random numbers one after the other; every call takes new ones."""

    __slots__ = ("_calls", "_secret")

    def __init__(self, secret: Secret) -> None:
        self._secret, self._calls = secret, 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return words of 64 random bits."""
        self._calls += 1
        return self._secret.child("draw", self._calls).words(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return numbers in (0, 1), odd multiples of 2^-53."""
        odd = (self.words(count) >> np.uint64(12)).astype(np.float64) * 2 + 1
        return odd * 2.0**-53

    def gaussian(self, count: int) -> NDArray[np.float64]:
        """Return standard normal numbers, at most 8.6 in size.

        Source: Box and Muller, 1958; torch's kernels are four times as fast as an inverse CDF.
        """
        pairs = (count + 1) // 2
        radius = torch.from_numpy(self.uniform(pairs)).log_().mul_(-2).sqrt_()
        turns = self.words((pairs + 1) // 2).view("<u4")[:pairs].astype(np.float64)
        angle = torch.from_numpy(turns).add_(0.5).mul_(2 * math.pi / 2**32)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].numpy()

    def laplace(self, count: int) -> NDArray[np.float64]:
        """Return numbers of the Laplace distribution of scale 1."""
        one, other = np.log(self.uniform(2 * count)).reshape(2, count)
        return one - other

    def gumbel(self, count: int) -> NDArray[np.float64]:
        """Return numbers of the Gumbel distribution of scale 1."""
        return -np.log(-np.log(self.uniform(count)))


def hidden(values: Tensor, scale: float, noise: NDArray[np.float64]) -> Tensor:
    """Return values with noise of this scale, both on one grid of integers.

    The numbers that floating point can reach by adding betray what was added to; multiples of a
    step that does not depend on the values do not. Values are rounded towards zero, so that no
    norm grows; gradients pass as if there were nothing.

    Args:
        values: any shape, floating.
        scale: standard deviation (Gaussian) or scale (Laplace), > 0.
        noise: as many numbers of scale 1.

    Source of the attack: Mironov, "On significance of the least significant bits for differential
    privacy", CCS 2012.
    """
    step = 2.0 ** (math.floor(math.log2(scale)) - GRID)
    steps = torch.from_numpy(noise).mul(scale / step).round_().view(values.shape)
    steps += (values.detach().double() / step).trunc()
    return (steps * step).to(values) + (values - values.detach())  # plus 0, with a gradient
