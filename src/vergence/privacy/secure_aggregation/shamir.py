"""Shamir shares of 32-byte secrets: `threshold` shares recover a secret, fewer reveal nothing.

Used by `privacy.secure_aggregation.pairwise`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from vergence.errors import ConfigError, StateError

PRIME = 2**256 + 297
"""The smallest prime above all 32-byte numbers."""
SECRET = 32
SHARE = 33
"""Bytes of a share."""


def split(secret: bytes, threshold: int, people: int) -> list[bytes]:
    """Split a secret into Shamir shares, one of 33 bytes for each of the people 1, 2, ...

    Share x is the value at x of a random polynomial of degree threshold - 1.

    Source: Shamir, "How to share a secret", 1979.

    Raises:
        ConfigError: the secret does not have 32 bytes, or the threshold is not in 1 ... people.
    """
    if len(secret) != SECRET or not 1 <= threshold <= people:
        raise ConfigError(
            f"shares are of 32 bytes, for a threshold in 1 ... people; got {len(secret)} bytes, "
            f"{threshold} of {people}"
        )
    terms = [int.from_bytes(secret)] + [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares: list[bytes] = []
    # Never at 0, where the polynomial's value is the secret itself.
    for x in range(1, people + 1):
        value = 0
        for term in reversed(terms):
            value = (value * x + term) % PRIME
        shares.append(value.to_bytes(SHARE))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """Return the 32-byte secret from Shamir shares.

    All given shares are used; there must be at least as many as the threshold.

    Args:
        shares: share of each person, by the person's number (from 1).

    Raises:
        StateError: a share has the wrong form, or the result does not fit into 32 bytes. Then a
            share is wrong, or there are too few shares.
    """
    secret = 0
    for x, share in shares.items():
        value = int.from_bytes(share)
        # A share at x = 0 would be taken for the secret whatever the others say.
        if len(share) != SHARE or value >= PRIME or not 0 < x < PRIME:
            raise StateError(f"shares: what person {x} gave is none")
        above, below = 1, 1
        for other in shares:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret = (secret + value * above * pow(below, -1, PRIME)) % PRIME
    if secret >> 8 * SECRET:
        raise StateError("shares: they give no secret; one is wrong, or there are too few")
    return secret.to_bytes(SECRET)
