"""What travels in a sum on shares (`additive_sharing.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError
from vergence.privacy.ring import Words
from vergence.privacy.terms import Terms, joined, listed, statement, summary
from vergence.privacy.threshold_gate import MOST_BITS


@dataclass(frozen=True)
class Shared(Terms):
    """Terms of a sum on shares.

    Args:
        aggregators: 2 to 4 names; the first gets the long parts.
        gated: so many words from the first on are opened only with `least` contributors or more.
        least: that threshold.
        count_bits: the lowest bits of these words, which hold the number of contributors.
        dealer: who makes the tables; one of more than 2 aggregators, somebody else beside 2.
    """

    aggregators: tuple[str, ...] = ()
    gated: int = 0
    least: int = 0
    count_bits: int = 0
    dealer: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= len(set(self.aggregators)) == len(self.aggregators) <= 4:
            raise ConfigError(f"a sum on shares has 2 to 4 aggregators; got {self.aggregators}")
        if not self.gated:
            return
        if not 0 < self.gated <= self.words or not 2 <= self.least < 1 << self.count_bits:
            raise ConfigError(
                f"a threshold of {self.least} on {self.gated} of {self.words} words, counted in "
                f"{self.count_bits} bits, is none; at least 2, and less than 2^bits"
            )
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
        """Who looks up, where there is a gate."""
        return tuple(name for name in self.aggregators if name != self.dealer)


@dataclass(frozen=True)
class Opening:
    """An aggregator's public key for one attempt."""

    terms: bytes
    sender: str
    key: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        return statement("opening", self.terms, self.sender, self.key)


@dataclass(frozen=True)
class Openings:
    """The aggregators' keys."""

    terms: bytes
    openings: tuple[Opening, ...]


@dataclass(frozen=True)
class Part:
    """A client's part for one aggregator, in a box."""

    terms: bytes
    sender: str
    to: str
    box: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        what = (self.to.encode(), summary(self.box))
        return statement("part", self.terms, self.sender, *what)


@dataclass(frozen=True)
class Contribution:
    """All parts of a client."""

    terms: bytes
    sender: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Parts:
    """The clients' parts for one aggregator."""

    terms: bytes
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Held:
    """Whose parts an aggregator has."""

    terms: bytes
    sender: str
    names: tuple[str, ...]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        names = joined(name.encode() for name in self.names)
        return statement("held", self.terms, self.sender, names)


@dataclass(frozen=True)
class Helds:
    """Whose parts everybody has; who has sent all is in."""

    terms: bytes
    helds: tuple[Held, ...]
    openings: tuple[Opening, ...] = ()


@dataclass(frozen=True)
class Boxes:
    """A box for each of some others: `step` is `tables` or `shown`."""

    terms: bytes
    sender: str
    step: str
    boxes: Mapping[str, bytes]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        return statement(self.step, self.terms, self.sender, listed(self.boxes))


@dataclass(frozen=True)
class Ready:
    """Nothing to say yet."""

    terms: bytes
    sender: str


@dataclass(frozen=True)
class Relayed:
    """Boxes of others, of which one aggregator can open its own."""

    terms: bytes
    boxes: tuple[Boxes, ...]


@dataclass(frozen=True)
class Looked:
    """A party's share of which entries have enough contributors."""

    terms: bytes
    sender: str
    bits: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        return statement("looked", self.terms, self.sender, summary(self.bits))


@dataclass(frozen=True)
class Lookups:
    """All parties' shares of that."""

    terms: bytes
    looked: tuple[Looked, ...]


@dataclass(frozen=True)
class Opened:
    """An aggregator's share of the sum, where it may be opened."""

    terms: bytes
    sender: str
    words: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """What the signature covers."""
        return statement("opened", self.terms, self.sender, summary(self.words))


@dataclass(frozen=True)
class SharedTotal:
    """The sum, 0 where it stayed closed; who is in it; and which gated words were opened."""

    words: Words
    names: tuple[str, ...]
    opened: NDArray[np.bool_]
