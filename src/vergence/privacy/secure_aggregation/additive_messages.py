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
    NO_BOOKS,
    BookState,
    SentMessage,
    SessionMessage,
    SessionParams,
    joined,
    listed,
    signed_books,
    statement,
    summary,
)
from vergence.privacy.secure_aggregation.threshold import MOST_BITS


@tagged("Shared")
@dataclass(frozen=True)
class AdditiveParams(SessionParams):
    """Parameters of an attempt at a sum by additive shares, on which all parties agree.

    A word is an integer modulo 2^64. A gated word is opened only if at least `threshold` clients
    contributed to it; aggregators find this out by lookups in tables, without opening the count.

    Args:
        aggregators: 2 to 4 names. The first aggregator gets a share as long as the reply; each of
            the others gets a 32-byte seed of its share.
        gated: number of gated words; these are the first words of a reply.
        count_bits: number of lowest bits of a gated word that hold the number of contributors.
        dealer: name of the party that makes the tables: not an aggregator if there are 2
            aggregators, else one of them.
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
        """Names of the aggregators that look up tables: all except the dealer."""
        return tuple(name for name in self.aggregators if name != self.dealer)


@tagged("Opening")
@dataclass(frozen=True)
class Opening(SentMessage):
    """An aggregator's public key for one attempt; clients encrypt shares for it with this key."""

    key: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("opening", self.terms, self.sender, self.key)


@tagged("Openings")
@dataclass(frozen=True)
class Openings(SessionMessage):
    """The public keys of all aggregators, sent to clients."""

    openings: tuple[Opening, ...]


@tagged("Part")
@dataclass(frozen=True)
class SharePart(SentMessage):
    """A client's share of its reply for one aggregator, encrypted.

    Attributes:
        to: name of the aggregator.
        box: the share, encrypted for this aggregator.
        signature: the client's signature.
        books: how far the client's books are; aggregators notice if its folder went back.
    """

    to: str
    box: bytes
    signature: bytes = b""
    books: BookState = NO_BOOKS

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        what = (self.to.encode(), summary(self.box), *signed_books(self.books))
        return statement("part", self.terms, self.sender, *what)


@tagged("Contribution")
@dataclass(frozen=True)
class Contribution(SentMessage):
    """All shares of a client's reply, one for each aggregator."""

    parts: tuple[SharePart, ...]


@tagged("Parts")
@dataclass(frozen=True)
class AggregatorParts(SessionMessage):
    """The shares that clients sent for one aggregator."""

    parts: tuple[SharePart, ...]


@tagged("Held")
@dataclass(frozen=True)
class HeldParts(SentMessage):
    """Lists the clients whose shares an aggregator holds.

    Attributes:
        names: names of the clients.
        opening: digest of the message with the aggregator's public key.
        signature: the aggregator's signature.
    """

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
    """The lists of all aggregators; a client that is on every list is in the sum.

    Attributes:
        helds: each aggregator's list of the clients whose shares it holds.
        openings: the public keys of all aggregators.
    """

    helds: tuple[HeldParts, ...]
    openings: tuple[Opening, ...] = ()


@tagged("Boxes")
@dataclass(frozen=True)
class ShownCounts(SentMessage):
    """Encrypted messages of the threshold on contributors, from one party to the others.

    Attributes:
        step: `tables`: the sender is the dealer, and sends each aggregator its share of the lookup
            tables. `shown`: the sender is an aggregator, and sends its share of the blinded counts.
        boxes: the encrypted message for each recipient, by name.
        signature: the sender's signature.
    """

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
    """Confirms a step in which the sender has nothing else to send."""


@tagged("Relayed")
@dataclass(frozen=True)
class Relayed(SessionMessage):
    """Encrypted messages of other parties; the recipient can decrypt those addressed to it."""

    boxes: tuple[ShownCounts, ...]


@tagged("Looked")
@dataclass(frozen=True)
class LookedUp(SentMessage):
    """A party's share of the bits that say which entries have enough contributors.

    Attributes:
        bits: the share, one bit per entry, eight to a byte.
        before: digest of all messages up to the dealer's tables.
        shown: digest of the messages with blinded counts. The dealer does not see the counts, and
            compares the digests of all parties.
        signature: the party's signature.
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
    """An aggregator's share of the words of the sum that are opened.

    Attributes:
        words: the share, 8 bytes per word.
        before: digest of all messages before this one.
        signature: the aggregator's signature.
    """

    words: bytes
    before: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("opened", self.terms, self.sender, self.before, summary(self.words))


@dataclass(frozen=True)
class SharedTotal:
    """The result of a secure sum by additive shares.

    Attributes:
        words: the sum, uint64 `[words]`; 0 for words that were not opened.
        names: names of the clients whose replies are in the sum.
        opened: which of the gated words were opened, `[gated]`.
    """

    words: Words
    names: tuple[str, ...]
    opened: NDArray[np.bool_]
