"""Threshold on contributors per entry, tested on secret shares: counts are never opened.

Several parties hold additive shares of every entry's count of contributors, modulo m = 2^bits. A
dealer knows none of the counts. For every entry it makes a table of the m truth values
[count >= least], rotates the table by a random number rho, and splits it into shares, one for each
party. The parties open count + rho, which is uniformly distributed. Each party reads its share of
the table at this position. Only the bits that were read are opened.

This is secure if parties and dealer follow the protocol and the dealer reveals rho to nobody: a
party could simulate everything it sees from the bits that are opened. If the dealer has a share of
the counts itself, it also rotates the tables by this share.

Used by `engine.secure_sums`, `privacy.secure_aggregation.additive` and
`privacy.secure_aggregation.additive_messages`.

Source: one-time truth tables, Ishai et al., "On the power of correlated randomness in secure
computation", TCC 2013, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vergence.privacy.secure_aggregation.masking import derived, new_seed, stream

Counts = NDArray[np.uint8]
Table = NDArray[np.unsignedinteger]
MOST_BITS = 6
"""Largest number of bits of a count: a table has 2^bits bits, which fit into 64 bits."""


def deal(
    n: int, bits: int, least: int, parties: int, salt: bytes, share: Counts | None = None
) -> tuple[list[bytes], bytes]:
    """Make the rotated lookup tables of [count >= least] and split them into shares.

    Args:
        n: number of entries, each with a table.
        bits: bits of a count (1 ... 6).
        least: the threshold.
        parties: number of parties that look up counts.
        salt: binds the seeds to an attempt.
        share: the dealer's own share of the counts `[n]`, if it has one.

    Returns:
        A seed for each party, and the last party's share of the tables as bytes. The other parties
        derive their shares from their seeds.
    """
    seeds = [new_seed() for _ in range(parties)]
    turn = np.zeros(n, np.uint8) if share is None else -share
    for seed in seeds:
        turn += blind(seed, n, salt)
    m, kind = 1 << bits, _kind(bits)
    turn = (turn & (m - 1)).astype(kind)
    whole = (1 << m) - 1
    passing = kind(whole & ~((1 << least) - 1))
    table = (passing << turn) | (passing >> (-turn & kind(m - 1)))
    table &= kind(whole)
    for seed in seeds[:-1]:
        table ^= hidden_table(seed, n, bits, salt)
    return seeds, table.astype(table.dtype.newbyteorder("<"), copy=False).tobytes()


def blind(seed: bytes, n: int, salt: bytes) -> Counts:
    """Return the random numbers `[n]` that a party adds to its share of the counts.

    They hide the share before the party shows it to the others.
    """
    return np.frombuffer(stream(derived(seed, salt, "gate counts"), n), np.uint8)


def hidden_table(seed: bytes, n: int, bits: int, salt: bytes) -> Table:
    """Return the share of the n lookup tables that a party derives from its seed.

    It is an array `[n]` of one integer per entry. Bit c of the integer is read if the opened sum of
    count and random rotation is c.
    """
    kind = np.dtype(_kind(bits)).newbyteorder("<")
    return np.frombuffer(stream(derived(seed, salt, "gate tables"), n * kind.itemsize), kind)


def read_table(data: bytes, bits: int) -> Table:
    """Return the last party's share of the lookup tables, `[n]`, from the dealer's bytes."""
    return np.frombuffer(data, np.dtype(_kind(bits)).newbyteorder("<"))


def shown_counts(share: Counts, seed: bytes, bits: int, salt: bytes) -> Counts:
    """Return a party's share of the blinded counts: its share of the counts plus random numbers."""
    return (share + blind(seed, len(share), salt)) & np.uint8((1 << bits) - 1)


def looked_up(table: Table, shown: Sequence[Counts], bits: int) -> NDArray[np.uint8]:
    """Return a party's share of the bits [count >= least], eight entries to a byte.

    Args:
        table: the party's share of the lookup tables, `[n]`.
        shown: the shares of the blinded counts of all parties, each `[n]`.
        bits: bits of a count.
    """
    at = np.zeros(len(table), np.uint8)
    for counts in shown:
        at += counts
    at &= np.uint8((1 << bits) - 1)
    kind = table.dtype.type
    return np.packbits((table >> at.astype(kind)).astype(np.uint8) & 1)


def passing(bits: Sequence[NDArray[np.uint8]], n: int) -> NDArray[np.bool_]:
    """Return which of the n entries have enough contributors, from all parties' shares of bits."""
    return np.unpackbits(np.bitwise_xor.reduce(list(bits)), count=n).view(np.bool_)


def _kind(bits: int) -> type[np.unsignedinteger]:
    # The smallest integer with a bit for each of 2^bits counts.
    return {4: np.uint16, 5: np.uint32, 6: np.uint64}.get(bits, np.uint8)
