"""User-level differential privacy: a person's whole update is bounded, and the sum gets noise.

Every reply is shortened to the norm `clip`, over all its trees together, and counts once, whatever
weights the method wanted. It is put on a grid of integers, and the sum of all gets discrete
Gaussian noise of `noise` * `clip`: drawn by whoever adds up, or in shares by the clients, so that
nobody ever sees the sum without noise. The server divides by the number of people it expected,
which is public, not by those who came.

Used by `engine.protections.user_level`, `engine.secure_sums` and `privacy.config`.

Source: McMahan et al., "Learning differentially private recurrent language models", ICLR 2018;
integers: Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism for federated
learning with secure aggregation", ICML 2021. Differs: values are rounded towards zero, which never
makes a vector longer, so that the bound holds without their rotation and its inflation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from vergence.core.aggregation import Aggregate
from vergence.core.messages import Reply, weighted_entries
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.errors import ConfigError
from vergence.privacy.dp.discrete_gaussian import Integers, discrete_gaussian
from vergence.privacy.keyed_noise import NoiseKey

SAME = 1e-12
"""Log ratio of chances up to which two distributions are the same for any purpose."""
WHOLE = {torch.float32: 2**24, torch.float64: 2**53}
"""Up to here every integer is a number of this type, and so is every sum."""


@dataclass(frozen=True)
class UserLevel(NamedOptions, label="user_level"):
    """Clipping bound and noise that hide one person, on a grid of integers.

    Args:
        clip: C, the largest L2 norm of one person's update, over all trees.
        noise: z; the noise on the sum has standard deviation z C.
        bits: a grid of at least 2^(bits - 1) steps per C; sums of 2^(24 - bits) people are exact in
            float32.
        shares: number of clients that each add a share of the noise; 1: the aggregator adds all of
            it.
        people: largest number of people whose bounded updates one reply adds up (those of a lab).
    """

    clip: Annotated[float, Gt(0)]
    noise: Annotated[float, Ge(0)]
    bits: Annotated[int, Interval(ge=4, le=40)] = 16
    shares: Annotated[int, Ge(1)] = 1
    people: Annotated[int, Ge(1)] = 1

    @property
    def step(self) -> float:
        """Width of the grid: a power of two, so that multiples of it are exact."""
        return 2.0 ** (math.ceil(math.log2(self.clip)) - self.bits)

    @property
    def reach(self) -> float:
        """Size that an entry with noise never reaches: 16 standard deviations above the bound."""
        return self.clip * (self.people + 16 * self.noise)

    @property
    def variance(self) -> Fraction:
        """Variance of the noise on the sum, in steps squared."""
        return (Fraction(self.noise) * Fraction(self.clip) / Fraction(self.step)) ** 2

    def bounded(self, answer: Reply, among: int = 1) -> Reply:
        """Return a reply of norm at most `clip / among`, on the grid; it counts once in each tree.

        Entries of weight 0 stay erased; which they are does not travel. Replies of so many people
        that are bounded `among` them add up to one of norm at most `clip`.
        """
        updates = {
            name: weighted_entries(answer.weight_of(name), update.layout).keep(update)
            for name, update in answer.trees.items()
        }
        norm = math.sqrt(sum(float(u.flat.double().square().sum()) for u in updates.values()))
        # 1 - 1e-9: rounding must not leave the vector longer than the bound that noise hides.
        factor = (1.0 if norm <= self.clip else self.clip / norm * (1 - 1e-9)) / among
        trees = {
            n: u.like(((u.flat.double() * factor / self.step).trunc() * self.step).to(u.flat))
            for n, u in updates.items()
        }
        # Weight 1 for everybody: a number of samples as weight would tell of a person's data.
        return Reply(trees, 1.0, answer.metrics)

    def integers(self, update: Tensor) -> Integers:
        """Return a tree of a bounded reply, or of a sum of replies, as integers for secure sums.

        Raises:
            ConfigError: the tree is not on the grid.
        """
        steps = update.double() / self.step
        if not torch.equal(steps, steps.round()):
            raise ConfigError("noise on integers needs updates that were bounded; these are not")
        return steps.to(torch.int64).numpy()

    def share(self, count: int, secret: NoiseKey) -> Integers:
        """Return one client's share of the noise on a tree of `count` entries.

        For one entry, the sum of `shares` such numbers is within `gap` of the discrete Gaussian.
        """
        return discrete_gaussian(self.variance / self.shares, count, secret.draws())

    def check_shares(self) -> None:
        """Check that shares of the noise add up to noise of the right distribution.

        Raises:
            ConfigError: the grid is too coarse for that.
        """
        if (apart := gap(self.variance / self.shares, self.shares)) > SAME:
            raise ConfigError(
                f"noise in {self.shares} shares on a grid of {self.bits} bits is not the noise it "
                f"should be (log ratio up to {apart:.2g}); take a larger privacy.user.bits"
            )

    def noised(
        self,
        whole: Aggregate,
        expected: float,
        *secrets: NoiseKey,
        less: Sequence[NoiseKey] = (),
        most: int = 0,
    ) -> Aggregate:
        """Return a sum of bounded replies with noise, as the mean over `expected` people.

        Metrics, which no noise protects, are dropped.

        Args:
            whole: the sum of replies that `bounded` made.
            expected: number of people whom a round asks, or its mean if they are drawn; it is
                public and does not depend on who answers.
            secrets: secrets of this run, round and request; equal secrets draw equal noise, and the
                noise of several secrets adds up.
            less: secrets of the noise to subtract because an earlier sum already contains it.
            most: largest number of people in the sum, if replies add up several.

        Raises:
            ConfigError: the number of people does not fit the grid, or the noise is drawn in
                shares.
        """
        if self.shares > 1:
            raise ConfigError(f"noise in {self.shares} shares is drawn by clients, not on the sum")
        totals: dict[str, Params] = {}
        for name, total in whole.totals.items():
            self.fits(max(math.ceil(expected), whole.count, most), total.flat.dtype)
            n = total.layout.n
            noise = sum(self.share(n, secret.child(name)) for secret in secrets)
            noise = noise - sum(self.share(n, secret.child(name)) for secret in less)
            noised = (self.integers(total.flat) + noise) * self.step
            totals[name] = total.like(torch.from_numpy(noised).to(total.flat))
        return self.divided(totals, expected)

    def divided(self, totals: Mapping[str, Params], expected: float) -> Aggregate:
        """Return noisy sums as the mean over `expected` people.

        The number of people who answered is not used: it would show a person's absence.
        """
        return Aggregate(dict(totals), dict.fromkeys(totals, float(expected)), round(expected), {})

    def unbounded(self, trees: Mapping[str, Params]) -> bool:
        """True if a remote reply is longer than `people * clip`, or off the grid."""
        flats = [tree.flat.double() for tree in trees.values()]
        norm = math.sqrt(sum(float(flat.square().sum()) for flat in flats))
        steps = [flat / self.step for flat in flats]
        return norm > self.people * self.clip or not all(torch.equal(s, s.round()) for s in steps)

    def fits(self, people: int, kind: torch.dtype = torch.float32) -> None:
        """Check that sums of `people` people are exact.

        Raises:
            ConfigError: they are not; the message names a grid on which they would be.
        """
        exact = WHOLE.get(kind, 0)
        if people * 2**self.bits > exact:
            raise ConfigError(
                f"sums of {people} people on a grid of {self.bits} bits are not exact in {kind}; "
                f"take privacy.user.bits <= {max(exact, 1).bit_length() - 1 - people.bit_length()}"
            )


def gap(variance: Fraction, shares: int) -> float:
    """Bound on the log ratio of probabilities between a sum of discrete Gaussians and a single one.

    The bound is negligible once the variance per share is a few steps.

    Source: Kairouz et al., ICML 2021, Theorem 1 (tau), where each share has this variance.
    """
    each = 2 * math.pi**2 * float(variance)
    return 10 * float(np.sum([math.exp(-each * k / (k + 1)) for k in range(1, shares)]))
