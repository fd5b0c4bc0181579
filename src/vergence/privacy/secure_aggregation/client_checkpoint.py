"""Checkpoint of a client between two messages of a sum under pairwise pads; all of it is secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vergence.core.tags import tagged
from vergence.privacy.secure_aggregation.pairwise import STEPS, PairwiseClient
from vergence.privacy.secure_aggregation.pairwise_messages import Advert, PairwiseParams


@tagged("Pending")
@dataclass(frozen=True)
class Pending:
    """An attempt under way: which step is next, secrets, and what the client was shown.

    Its `repr` leaves the secrets out: it may end up in a log.
    """

    terms: PairwiseParams
    step: int
    box_key: bytes = field(repr=False)
    pad_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    adverts: tuple[Advert, ...]
    held: Mapping[str, bytes] = field(repr=False)
    names: tuple[str, ...]


def pending(client: PairwiseClient) -> Pending:
    """State that a client needs to go on with its attempt, except for its words."""
    return Pending(
        client.terms,
        len(STEPS) - len(client.steps),
        client.box_key.private_bytes_raw(),
        client.pad_key.private_bytes_raw(),
        client.seed,
        tuple(client.adverts.values()),
        client.held,
        tuple(client.names),
    )


def resume(client: PairwiseClient, kept: Pending) -> PairwiseClient:
    """Let a client, new for the same terms and words, go on with an attempt."""
    client.box_key = X25519PrivateKey.from_private_bytes(kept.box_key)
    client.pad_key = X25519PrivateKey.from_private_bytes(kept.pad_key)
    client.seed, client.held = kept.seed, dict(kept.held)
    client.adverts = {advert.sender: advert for advert in kept.adverts}
    client.names = frozenset(kept.names)
    del client.steps[: kept.step]
    return client
