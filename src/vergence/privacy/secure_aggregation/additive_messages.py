"""Messages of a secure sum by additive shares (`additive.py`).

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.core.tags import tagged
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.session import (
    SentMessage,
    SessionMessage,
    SessionParams,
    joined,
    listed,
    statement,
    summary,
)
from vergence.privacy.secure_aggregation.threshold import MOST_BITS


@tagged("Shared")
@dataclass(frozen=True)
class AdditiveParams(SessionParams):
    """Terms of a sum by secret shares.

    Args:
        aggregators: 2 to 4 names; the first aggregator gets the long parts.
        gated: number of words, counted from the first, that are opened only with `threshold`
            contributors.
        count_bits: number of lowest bits of these words, which hold the number of contributors.
        dealer: who makes the tables: with 2 aggregators, another party; with more, one of them.
    """

    aggregators: tuple[str, ...] = ()
    gated: int = 0
    count_bits: int = 0
    dealer: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= len(set(self.aggregators)) == len(self.aggregators) <= 4:
            raise ConfigError(f"a sum on shares has 2 to 4 aggregators; got {self.aggregators}")
        if not self.gated:
            return
        if not 0 < self.gated <= self.words or not self.threshold < 1 << self.count_bits:
            raise ConfigError(
                f"a threshold of {self.threshold} on {self.gated} of {self.words} words, counted "
                f"in {self.count_bits} bits, is none; it must be less than 2^bits"
            )
        # Every bit more doubles the dealer's tables.
        if self.count_bits > MOST_BITS:
            raise ConfigError(
                f"a threshold on shares is for up to {2**MOST_BITS - 1} people; leave it out, or "
                "sum over groups of so many"
            )
        if not self.dealer or (self.dealer in self.aggregators) is (len(self.aggregators) == 2):
            raise ConfigError(
                f"a threshold on shares needs three who do not tell each other; '{self.dealer}' "
                f"beside {self.aggregators} leaves two"
            )

    @property
    def parties(self) -> tuple[str, ...]:
        """Aggregators that look up tables, if any words are gated."""
        return tuple(name for name in self.aggregators if name != self.dealer)


@tagged("Opening")
@dataclass(frozen=True)
class Opening(SentMessage):
    """An aggregator's public key for one attempt."""

    key: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("opening", self.terms, self.sender, self.key)


@tagged("Openings")
@dataclass(frozen=True)
class Openings(SessionMessage):
    """The aggregators' keys."""

    openings: tuple[Opening, ...]


@tagged("Part")
@dataclass(frozen=True)
class SharePart(SentMessage):
    """A client's part for one aggregator, in a box."""

    to: str
    box: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        what = (self.to.encode(), summary(self.box))
        return statement("part", self.terms, self.sender, *what)


@tagged("Contribution")
@dataclass(frozen=True)
class Contribution(SentMessage):
    """All parts of a client's reply."""

    parts: tuple[SharePart, ...]


@tagged("Parts")
@dataclass(frozen=True)
class AggregatorParts(SessionMessage):
    """The clients' parts for one aggregator."""

    parts: tuple[SharePart, ...]


@tagged("Held")
@dataclass(frozen=True)
class HeldParts(SentMessage):
    """Lists the clients whose parts an aggregator has, with a digest of its key for boxes."""

    names: tuple[str, ...]
    opening: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        names = joined(name.encode() for name in self.names)
        return statement("held", self.terms, self.sender, self.opening, names)


@tagged("Helds")
@dataclass(frozen=True)
class HeldByAll(SessionMessage):
    """All aggregators' lists of clients; a client that is on every list is in the sum."""

    helds: tuple[HeldParts, ...]
    openings: tuple[Opening, ...] = ()


@tagged("Boxes")
@dataclass(frozen=True)
class ShownCounts(SentMessage):
    """Boxes with a dealer's tables (`step` is `tables`) or a party's blinded counts (`shown`)."""

    step: str
    boxes: Mapping[str, bytes]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement(self.step, self.terms, self.sender, listed(self.boxes))


@tagged("Ready")
@dataclass(frozen=True)
class Ready(SentMessage):
    """Confirmation of a party that has nothing to send in this step."""


@tagged("Relayed")
@dataclass(frozen=True)
class Relayed(SessionMessage):
    """Boxes of other aggregators; the recipient can open the box that was closed for it."""

    boxes: tuple[ShownCounts, ...]


@tagged("Looked")
@dataclass(frozen=True)
class LookedUp(SentMessage):
    """A party's share of the bits that say which entries have enough contributors.

    `before` is the transcript up to the dealer's tables, `shown` a digest of the blinded counts:
    the dealer, who does not see the counts, compares the digests.
    """

    bits: bytes
    before: bytes
    shown: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        said = (self.before, self.shown, summary(self.bits))
        return statement("looked", self.terms, self.sender, *said)


@tagged("Lookups")
@dataclass(frozen=True)
class Lookups(SessionMessage):
    """All parties' shares of the bits that say which entries have enough contributors."""

    looked: tuple[LookedUp, ...]


@tagged("Opened")
@dataclass(frozen=True)
class OpenedShare(SentMessage):
    """An aggregator's share of the sum's opened words; `before` is the transcript."""

    words: bytes
    before: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("opened", self.terms, self.sender, self.before, summary(self.words))


@dataclass(frozen=True)
class SharedTotal:
    """The sum, with 0 where it stayed closed; who is in it; and which gated words were opened."""

    words: Words
    names: tuple[str, ...]
    opened: NDArray[np.bool_]
