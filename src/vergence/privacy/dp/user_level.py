"""User-level differential privacy: a person's whole update is bounded, and the sum gets noise.

Every reply is clipped to the norm `clip` over all its trees together, and counts with weight 1,
whatever weights the method wanted. It is rounded to a grid of integers. The sum of all replies gets
discrete Gaussian noise of standard deviation `noise` * `clip`. Either the aggregator draws this
noise, or each client draws a share of it; with shares nobody ever sees the sum without noise. The
server divides by the expected number of people, which is public, and not by the number of replies.

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
"""Largest log ratio of probabilities at which two distributions count as equal."""
WHOLE = {torch.float32: 2**24, torch.float64: 2**53}
"""For each type: up to this size all integers, and so all sums of integers, are exact."""


@dataclass(frozen=True)
class UserLevel(NamedOptions, label="user_level"):
    """Clipping bound and noise that hide one person, on a grid of integers.

    Args:
        clip: C, the largest L2 norm of one person's update, over all its parameter trees.
        noise: z; the noise on the sum has standard deviation z C.
        bits: bits of the grid: the range from 0 to C has between 2^(bits - 1) and 2^bits steps. In
            float32, sums of up to 2^(24 - bits) people are exact.
        shares: number of clients that each add a share of the noise; 1: the aggregator adds all of
            the noise.
        people: largest number of people whose bounded updates one reply adds up; 1 unless a reply
            is a lab's.
    """

    clip: Annotated[float, Gt(0)]
    noise: Annotated[float, Ge(0)]
    bits: Annotated[int, Interval(ge=4, le=40)] = 16
    shares: Annotated[int, Ge(1)] = 1
    people: Annotated[int, Ge(1)] = 1

    @property
    def step(self) -> float:
        """Step of the grid: a power of two, so that its multiples are exact in floating point."""
        return 2.0 ** (math.ceil(math.log2(self.clip)) - self.bits)

    @property
    def reach(self) -> float:
        """Upper limit for an entry with noise: 16 standard deviations above the bound."""
        return self.clip * (self.people + 16 * self.noise)

    @property
    def variance(self) -> Fraction:
        """Variance of the noise on the sum, in steps squared."""
        return (Fraction(self.noise) * Fraction(self.clip) / Fraction(self.step)) ** 2

    def bounded(self, answer: Reply, among: int = 1) -> Reply:
        """Return a reply of norm at most `clip / among`, rounded towards zero to the grid.

        Each tree of the reply has weight 1. Entries of weight 0 become 0, and the reply does not
        say which entries these are.

        Args:
            answer: one person's reply.
            among: number of people whose replies together have norm at most `clip`.
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
        """Return a tree's entries as integers: multiples of the grid's step, int64 `[entries]`.

        The tree is one of a bounded reply or of a sum of bounded replies.

        Raises:
            ConfigError: the tree is not on the grid.
        """
        steps = update.double() / self.step
        if not torch.equal(steps, steps.round()):
            raise ConfigError("noise on integers needs updates that were bounded; these are not")
        return steps.to(torch.int64).numpy()

    def share(self, count: int, secret: NoiseKey) -> Integers:
        """Return one client's share of the noise on a tree, int64 `[count]`, in grid steps.

        For each entry, the clients' shares add up to nearly discrete Gaussian noise. `gap` bounds
        the log ratio of the two distributions.
        """
        return discrete_gaussian(self.variance / self.shares, count, secret.draws())

    def check_shares(self) -> None:
        """Check that shares of the noise add up to noise of the right distribution.

        Raises:
            ConfigError: the distribution is wrong, as the grid is too coarse.
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
        """Add noise to a sum of bounded replies; return it as the mean over `expected` people.

        Metrics are dropped, as no noise protects them.

        Args:
            whole: the sum of replies that `bounded` made.
            expected: number of people whom a round asks, or the mean of this number if people are
                sampled; it is public and does not depend on who answers.
            secrets: keys of the noise for this run, round and request; equal keys give equal noise,
                and the noise of several keys adds up.
            less: keys of noise that is subtracted, because an earlier sum already contains it.
            most: largest number of people in the sum, if a reply adds up several people.

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
        """Return noisy sums as an aggregate whose weights and count are `expected` people.

        The number of people who answered is not used: it would reveal that a person is absent.
        """
        return Aggregate(dict(totals), dict.fromkeys(totals, float(expected)), round(expected), {})

    def unbounded(self, trees: Mapping[str, Params]) -> bool:
        """Return whether a reply's norm is above `people * clip`, or an entry is off the grid."""
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
    """Bound the log ratio of probabilities of a sum of discrete Gaussians and a single one.

    The bound is negligible if the variance of a share is at least a few squared steps.

    Args:
        variance: variance of each share, in squared steps of the grid.
        shares: number of shares in the sum.

    Source: Kairouz et al., ICML 2021, Theorem 1 (tau).
    """
    each = 2 * math.pi**2 * float(variance)
    return 10 * float(np.sum([math.exp(-each * k / (k + 1)) for k in range(1, shares)]))
