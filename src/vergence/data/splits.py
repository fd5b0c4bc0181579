"""Splits of samples, days or images into training, validation and test.

Used throughout `data`.
"""

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
"""Fractions of the whole for training, validation and test, with sum 1."""
Side = Annotated[int, Interval(ge=16, le=4096)]
FrameSize = tuple[Side, Side]
"""Width and height of pictures in pixels."""


@dataclass(frozen=True)
class SplitOptions(NamedOptions):
    """Options of data sets whose samples are split into training, validation and test.

    Attributes:
        shares: fractions of the samples for training, validation and test.
        split_seed: seed of the split, if it is random.
    """

    shares: Shares = (0.7, 0.1, 0.2)
    split_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.shares)

    @property
    def percent(self) -> str:
        """The shares in percent, such as 70/10/20."""
        return "/".join(f"{100 * share:.0f}" for share in self.shares)


@dataclass(frozen=True)
class PeopleOptions(SplitOptions):
    """Options of data sets in which each person's samples are split.

    Attributes:
        people: names of the people to load, in this order; default: all.
    """

    people: tuple[str, ...] | None = None

    def people_to_load(self, known: Collection[str], what: str) -> tuple[str, ...]:
        """Return the people to load; `known` are all people in the data.

        Raises:
            DataError: one of `people` is not in the data; `what` is the message's word for a
                person.
        """
        for person in self.people or ():
            if person not in known:
                raise DataError(f"unknown {what} '{person}'{nearest(person, known)}")
        return tuple(known) if self.people is None else self.people


def check_shares(shares: Shares) -> None:
    """Check that shares are three positive numbers with sum 1.

    Raises:
        ConfigError: the shares are something else.
    """
    if len(shares) != 3 or min(shares) <= 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(
            f"shares must be three positive numbers (train, val, test) with sum 1, got {shares}"
        )


def part_sizes(count: int, shares: Shares, what: str) -> tuple[int, int, int]:
    """Return how many of `count` items are for training, for validation and for test.

    Raises:
        DataError: a part would be empty; `what` names the items in the message.
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
    """Split row numbers at random into training, validation and test; return the three parts.

    Each block of row numbers is split by the same shares. The parts are sorted.

    Raises:
        DataError: a block is too small for the shares; `what` names its items in the message.
    """
    dealt: list[list[np.ndarray]] = [[], [], []]
    for block in blocks:
        _, val, test = part_sizes(len(block), shares, what)
        # Test rows come first: other shares of training and validation leave them the same.
        shuffled = rng.permutation(block)
        for part, rows in zip(dealt, np.split(shuffled, [test, test + val])[::-1], strict=True):
            part.append(rows)
    train, validation, tested = (np.sort(np.concatenate(part)) for part in dealt)
    return train, validation, tested


def deal_in_order(
    counts: np.ndarray, shares: Shares, what: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split whole groups (days, sessions) in order: the first for training, the last for test.

    The two cuts are chosen so that the parts' numbers of samples come nearest to the shares.

    Args:
        counts: number of samples of each group, `[groups]`.
        shares: fractions of all samples for the three parts.
        what: the groups' name in the error message, such as "sessions of p00".

    Returns:
        Numbers of the groups for training, for validation and for test.

    Raises:
        DataError: there are fewer than three groups.
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
