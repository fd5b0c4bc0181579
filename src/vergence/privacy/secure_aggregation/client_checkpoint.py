"""Secret checkpoint of a client between two messages of a secure sum by pairwise pads.

Used by `deployment.secure_sum_client`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vergence.core.tags import tagged
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient, steps_of
from vergence.privacy.secure_aggregation.pairwise_messages import Advert, PairwiseParams


# In bytes `shares` is called as in checkpoints that were written before.
@tagged("Pending", shares="held")
@dataclass(frozen=True)
class Pending:
    """A client's state in an attempt at a secure sum by pairwise pads.

    The object's `repr` may end up in a log, and so omits the secrets.

    Attributes:
        terms: parameters of the attempt.
        step: number of the server's messages that were answered.
        box_key: private key with which messages from other clients are decrypted.
        pad_key: private key from which the seeds of pairwise pads follow.
        seed: seed of the client's own pad.
        adverts: all clients' public keys.
        shares: the Shamir shares of other clients' secrets, by client.
        names: names of the clients that are in the sum.
        number: the client's random number for the order of the ring.
        sharers: names of all clients that sent shares to their neighbours.
        order: all clients in the order of the ring; empty where there is none.
    """

    terms: PairwiseParams
    step: int
    box_key: bytes = field(repr=False)
    pad_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    adverts: tuple[Advert, ...]
    shares: Mapping[str, bytes] = field(repr=False)
    names: tuple[str, ...]
    number: bytes = field(default=b"", repr=False)
    sharers: tuple[str, ...] = ()
    order: tuple[str, ...] = ()


def pending(client: PairwiseClient) -> Pending:
    """Return the state that a client needs to continue its attempt, without its words."""
    return Pending(
        client.terms,
        len(steps_of(client.terms)) - len(client.steps),
        client.box_key.private_bytes_raw(),
        client.pad_key.private_bytes_raw(),
        client.seed,
        tuple(client.adverts.values()),
        client.shares,
        tuple(client.names),
        client.number,
        tuple(client.sharers),
        tuple(client.order),
    )


def resume(client: PairwiseClient, state: Pending) -> PairwiseClient:
    """Set a new client to a checkpoint, so that it continues the attempt; return the client.

    The client must have the checkpoint's terms and the same words as before.
    """
    client.box_key = X25519PrivateKey.from_private_bytes(state.box_key)
    client.pad_key = X25519PrivateKey.from_private_bytes(state.pad_key)
    client.seed, client.shares = state.seed, dict(state.shares)
    client.adverts = {advert.sender: advert for advert in state.adverts}
    client.names, client.number = frozenset(state.names), state.number
    client.sharers, client.order = frozenset(state.sharers), list(state.order)
    # Steps that were answered are gone: answering one twice could give both secrets of a client.
    del client.steps[: state.step]
    return client
