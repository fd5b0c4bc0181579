"""Messages of a secure sum by pairwise pads (`pairwise.py`), and checks that everybody makes.

Used by `deployment.secure_sum_client`, `deployment.secure_sum_server`,
`engine.secure_sum_attempts`, `engine.secure_sums`, `privacy.secure_aggregation.client_checkpoint`
and `privacy.secure_aggregation.pairwise`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vergence.core.tags import tagged
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Refused,
    SentMessage,
    SessionMessage,
    SessionParams,
    joined,
    listed,
    statement,
    summary,
)


@tagged("Pairwise")
@dataclass(frozen=True)
class PairwiseParams(SessionParams):
    """Terms of a sum under pairwise pads, where `threshold` shares also recover a secret.

    The threshold must be more than two thirds of the clients that advertised keys, which clients
    check.
    """


@tagged("Advert")
@dataclass(frozen=True)
class Advert(SentMessage):
    """A client's public keys for one attempt: one for boxes, and one for pairwise seeds."""

    box_key: bytes
    pad_key: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("advert", self.terms, self.sender, self.box_key, self.pad_key)


@tagged("Roster")
@dataclass(frozen=True)
class Roster(SessionMessage):
    """Everybody's keys."""

    adverts: tuple[Advert, ...]


@tagged("Shares")
@dataclass(frozen=True)
class Shares(SentMessage):
    """A client's shares of its two secrets, in a box for each other client, and a commitment."""

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
    """The boxes that other clients closed for one client."""

    boxes: Mapping[str, bytes]


@tagged("Masked")
@dataclass(frozen=True)
class Masked(SentMessage):
    """A client's words, hidden by pads, 8 bytes each."""

    words: bytes
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("words", self.terms, self.sender, summary(self.words))


@tagged("Survivors")
@dataclass(frozen=True)
class Survivors(SessionMessage):
    """Names of the clients whose words were received."""

    names: tuple[str, ...]


@tagged("Agreed")
@dataclass(frozen=True)
class Agreed(SentMessage):
    """A client's signature over the lists of clients and keys that it saw."""

    signature: bytes


@tagged("Agreements")
@dataclass(frozen=True)
class Agreements(SessionMessage):
    """Signatures of all clients that agreed on who is in the sum."""

    signatures: Mapping[str, bytes]


@tagged("Unmask")
@dataclass(frozen=True)
class Unmask(SentMessage):
    """Shamir shares: of mask seeds of clients in the sum, and of mask keys of dropouts."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]
    signature: bytes = b""

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return statement("unmask", self.terms, self.sender, listed(self.seeds), listed(self.keys))


@dataclass(frozen=True)
class Total:
    """The sum of all words, and the names of those who are in it."""

    words: Words
    names: tuple[str, ...]


def check_roster(adverts: Mapping[str, Advert], terms: PairwiseParams) -> None:
    """Check that a roster is neither too small nor too large, and that no key occurs twice.

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
    keys = [key for advert in adverts.values() for key in (advert.box_key, advert.pad_key)]
    # Two clients with one key would share their pads, which the server could then cancel.
    if len(set(keys)) != len(keys):
        raise Refused("lists: a key is there twice")


def share_numbers(adverts: Collection[str]) -> dict[str, int]:
    """Return the number of each client's Shamir shares, from 1, by name."""
    return {name: number for number, name in enumerate(sorted(adverts), 1)}


def view_digest(
    terms: bytes, adverts: Mapping[str, Advert], sharers: Collection[str], names: Collection[str]
) -> bytes:
    """Return a digest of what a client saw: all keys, who shared secrets, and who is in the sum."""
    keys = listed({name: a.box_key + a.pad_key for name, a in adverts.items()})
    lists = [joined(name.encode() for name in sorted(some)) for some in (sharers, names)]
    return hashlib.sha256(joined([terms, keys, *lists])).digest()
