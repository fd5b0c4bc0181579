"""Messages of a secure sum by pairwise pads (`pairwise.py`), and checks of both sides.

Used by `deployment.secure_sum_client`, `deployment.secure_sum_server`,
`engine.secure_sum_attempts`, `engine.secure_sums`, `privacy.secure_aggregation.client_checkpoint`
and `privacy.secure_aggregation.pairwise`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from vergence.core.tags import LATER, tagged
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.session import (
    NO_BOOKS,
    Aborted,
    BookState,
    Refused,
    SentMessage,
    SessionMessage,
    SessionParams,
    joined,
    listed,
    signed_books,
    statement,
    summary,
)


@tagged("Pairwise")
@dataclass(frozen=True)
class PairwiseParams(SessionParams):
    """Parameters of an attempt at a sum by pairwise pads, on which all parties agree.

    `threshold` must be more than two thirds of the clients that sent keys; every client checks
    this. Where everybody has pads with everybody, it is also the number of Shamir shares that
    recover a secret.

    Attributes:
        colluders: largest number of clients who collude with the server; then clients have pads
            with neighbours only (`neighbours.py`). None: everybody has pads with everybody.
        dropouts: share of the clients that may vanish during a sum, for the number of neighbours.
    """

    colluders: int | None = field(default=None, metadata={LATER: True})
    dropouts: float = field(default=0.05, metadata={LATER: True})


@tagged("Advert")
@dataclass(frozen=True)
class Advert(SentMessage):
    """A client's public keys for one attempt.

    Attributes:
        box_key: key with which other clients encrypt Shamir shares for this client.
        pad_key: key from which this client and another one derive the seed of their pairwise pad.
        signature: the client's signature.
        promise: commitment to the client's random number for the order of the ring; empty where
            everybody has pads with everybody.
        books: how far the client's books are; the others notice if its folder went back.
    """

    box_key: bytes
    pad_key: bytes
    signature: bytes = b""
    promise: bytes = b""
    books: BookState = NO_BOOKS

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        more = (*((self.promise,) if self.promise else ()), *signed_books(self.books))
        return statement("advert", self.terms, self.sender, self.box_key, self.pad_key, *more)


@tagged("Roster")
@dataclass(frozen=True)
class Roster(SessionMessage):
    """The public keys of all clients, sent to every client."""

    adverts: tuple[Advert, ...]


@tagged("Reveal")
@dataclass(frozen=True)
class Reveal(SentMessage):
    """A client's random number for the order of the ring, 32 bytes.

    The client sends it after it was shown the keys of everybody who takes part.
    """

    number: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("reveal", self.terms, self.sender, self.number)


@tagged("Numbers")
@dataclass(frozen=True)
class RandomNumbers(SessionMessage):
    """The random numbers of all clients, by name; the order of the ring follows from them."""

    numbers: Mapping[str, bytes]


@tagged("Shares")
@dataclass(frozen=True)
class Shares(SentMessage):
    """Shamir shares of a client's two secrets, encrypted for the other clients.

    Attributes:
        commitment: commitment to the seed of the client's own pad.
        boxes: the encrypted shares for each other client, by name.
        signature: the client's signature.
    """

    commitment: bytes
    boxes: Mapping[str, bytes]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("shares", self.terms, self.sender, self.commitment, listed(self.boxes))


@tagged("Delivery")
@dataclass(frozen=True)
class RelayedShares(SessionMessage):
    """The encrypted Shamir shares for one client, by sender.

    Attributes:
        boxes: the encrypted shares.
        sharers: names of all clients that sent shares to their neighbours; empty where everybody
            has pads with everybody, as then these are the senders of `boxes`.
    """

    boxes: Mapping[str, bytes]
    sharers: tuple[str, ...] = ()


@tagged("Masked")
@dataclass(frozen=True)
class Masked(SentMessage):
    """A client's reply, hidden by pads.

    Attributes:
        words: integers modulo 2^64, 8 bytes each.
        signature: the client's signature.
    """

    words: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("words", self.terms, self.sender, summary(self.words))


@tagged("Survivors")
@dataclass(frozen=True)
class Survivors(SessionMessage):
    """Names of the clients whose hidden replies the server received."""

    names: tuple[str, ...]


@tagged("Agreed")
@dataclass(frozen=True)
class Agreed(SentMessage):
    """A client's signature over the keys and lists of clients that the server showed to it."""

    signature: bytes


@tagged("Agreements")
@dataclass(frozen=True)
class Agreements(SessionMessage):
    """Signatures of all clients that agreed on who is in the sum, by client."""

    signatures: Mapping[str, bytes]


@tagged("Unmask")
@dataclass(frozen=True)
class Unmask(SentMessage):
    """Shamir shares that one client holds of other clients' secrets, for removing pads.

    Attributes:
        seeds: shares of the seeds of the own pads, for clients in the sum, by client.
        keys: shares of the private keys for pairwise pads, for clients that dropped out, by client.
        signature: the sender's signature.
    """

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("unmask", self.terms, self.sender, listed(self.seeds), listed(self.keys))


@dataclass(frozen=True)
class Total:
    """The result of a secure sum by pairwise pads.

    Attributes:
        words: the sum, uint64 `[words]`.
        names: names of the clients whose replies are in the sum.
    """

    words: Words
    names: tuple[str, ...]


def check_roster(adverts: Mapping[str, Advert], terms: PairwiseParams) -> None:
    """Check the number of clients that sent keys, and that no key occurs twice.

    Raises:
        Aborted: there are too few clients, or the threshold is too low for their number.
        Refused: a key occurs twice.
    """
    many = len(adverts)
    if many < terms.threshold:
        raise Aborted(f"too few: {many} have keys, and {terms.threshold} are needed")
    if 3 * terms.threshold <= 2 * many:
        raise Aborted(
            f"threshold: {terms.threshold} of {many} is not more than two thirds: a server could "
            "learn both secrets of one client"
        )
    if terms.colluders is not None and 2 * terms.threshold - many <= terms.colluders:
        raise Aborted(
            f"threshold: with {terms.threshold} of {many}, {terms.colluders} who collude with a "
            "server could show one client two lists"
        )
    keys = [key for advert in adverts.values() for key in (advert.box_key, advert.pad_key)]
    # Two clients with one key would share their pads, which the server could then cancel.
    if len(set(keys)) != len(keys):
        raise Refused("lists: a key is there twice")


def view_digest(
    terms: bytes,
    adverts: Mapping[str, Advert],
    sharers: Collection[str],
    names: Collection[str],
    ring_order: Sequence[str] = (),
) -> bytes:
    """Return a digest of the keys and lists that the server showed to a client.

    Args:
        terms: digest of the attempt's parameters.
        adverts: all clients' public keys, by client.
        sharers: names of the clients that sent shares of their secrets.
        names: names of the clients that are in the sum.
        ring_order: all clients in the order of the ring; empty where there is none.
    """
    # With the books: who is no neighbour of a client on a ring does not check its signature.
    shown = {n: a.box_key + a.pad_key + joined(signed_books(a.books)) for n, a in adverts.items()}
    keys = listed(shown)
    lists = [joined(name.encode() for name in sorted(some)) for some in (sharers, names)]
    lists += [joined(name.encode() for name in ring_order)] if ring_order else []
    return hashlib.sha256(joined([terms, keys, *lists])).digest()
