"""Dealing samples, days or images to the training, validation and test part."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Interval

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError, DataError, nearest

Shares = tuple[float, float, float]
"""Parts of the whole for training, validation and test, in this order."""
Side = Annotated[int, Interval(ge=16, le=4096)]
FrameSize = tuple[Side, Side]
"""Width and height of pictures in pixels."""


@dataclass(frozen=True)
class SplitOptions(NamedOptions):
    """Options of data sets whose samples are dealt to three parts.

    Attributes:
        shares: parts of the samples for training, validation and test.
        split_seed: of the dealing, where it is random.
    """

    shares: Shares = (0.7, 0.1, 0.2)
    split_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares)

    @property
    def percent(self) -> str:
        """The shares as a reader of the results sees them."""
        return "/".join(f"{100 * share:.0f}" for share in self.shares)


@dataclass(frozen=True)
class PeopleOptions(SplitOptions):
    """Options of data sets that are dealt within each person.

    Attributes:
        people: whom to load, in this order; default: all.
    """

    people: tuple[str, ...] | None = None

    def chosen(self, known: Collection[str], what: str) -> tuple[str, ...]:
        """People to load, out of those that there are.

        Raises:
            DataError: one that is asked for is not there; `what` says what people are called.
        """
        for person in self.people or ():
            if person not in known:
                raise DataError(f"unknown {what} '{person}'{nearest(person, known)}")
        return tuple(known) if self.people is None else self.people


def check_shares(shares: Shares) -> None:
    """Accept three shares that make a whole.

    Raises:
        ConfigError: not three positive numbers with sum 1.
    """
    if len(shares) != 3 or min(shares) <= 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(
            f"shares must be three positive numbers (train, val, test) with sum 1, got {shares}"
        )


def part_sizes(count: int, shares: Shares, what: str) -> tuple[int, int, int]:
    """Numbers out of `count` that go to training, validation and test.

    Raises:
        DataError: a part would be empty; `what` says of what there are too few.
    """
    val, test = round(shares[1] * count), round(shares[2] * count)
    sizes = (count - val - test, val, test)
    if min(sizes) < 1:
        raise DataError(
            f"{what}: {count} are too few for shares {shares}, the parts would hold {sizes}; "
            "give more data or larger shares"
        )
    return sizes


def deal_at_random(
    blocks: list[np.ndarray], shares: Shares, rng: np.random.Generator, what: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deal row numbers at random, with the same shares in every block.

    Raises:
        DataError: a block is too small for the shares.
    """
    dealt: list[list[np.ndarray]] = [[], [], []]
    for block in blocks:
        _, val, test = part_sizes(len(block), shares, what)
        shuffled = rng.permutation(block)
        for part, rows in zip(dealt, np.split(shuffled, [test, test + val])[::-1], strict=True):
            part.append(rows)
    train, held, tested = (np.sort(np.concatenate(part)) for part in dealt)
    return train, held, tested


def deal_in_order(
    counts: np.ndarray, shares: Shares, what: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deal consecutive groups (days, sessions) whole: the first to training, the last to test.

    The two cuts are the ones whose cumulative sample counts come nearest to the shares.

    Args:
        counts: samples of each group, `[groups]`.
        shares: parts of all samples.
        what: whose groups these are, for the message.

    Returns:
        Group numbers of the three parts.

    Raises:
        DataError: fewer than three groups.
    """
    groups = len(counts)
    if groups < 3:
        raise DataError(
            f"{what}: {groups} are too few to keep training, validation and test apart "
            "(needs 3); leave this person out with the option people"
        )
    ends = np.cumsum(counts)
    wanted = np.array([shares[0], shares[0] + shares[1]]) * ends[-1]
    cuts = [(a, b) for a in range(1, groups - 1) for b in range(a + 1, groups)]
    first, second = min(
        cuts, key=lambda c: abs(ends[c[0] - 1] - wanted[0]) + abs(ends[c[1] - 1] - wanted[1])
    )
    everything = np.arange(groups)
    return everything[:first], everything[first:second], everything[second:]
