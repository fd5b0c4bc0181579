"""Which clients share pads in a large secure sum: neighbours on a ring in random order.

With pads between all pairs, the work of a sum grows with the square of the number of people. Here
each client has pads, and Shamir shares, with some dozens of neighbours only: the `reach` people
before it and after it on a ring. Nobody can choose the order of the ring. Every client commits to a
random number before anybody knows who takes part, and the order follows from all these numbers.

Why it hides replies, up to a probability of 2^-40 per sum. Let at most c of any `reach` neighbours
in a row collude with the server, which may lie, and may let vanish whom it wants after it knows the
order. Two honest people who are in the sum and at most `reach` places apart share a pad that nobody
else can compute. So the honest people in the sum fall into parts only where the ring has gaps of at
least `reach` places with nobody honest who is in the sum. Of a person at the edge of a gap at most
`reach` + 1 + c holders of shares help to open its own pad: itself, those on its other side, and
colluding ones in the gap. The threshold of shares is one more, so this pad stays closed, and with
it every sum over a part. If there are no parts, the server learns the sum over all or nothing. Both
secrets of one person need more holders who collude than there are among its neighbours. Who was
shown another roster or another order can open no box with a share, so it holds none, and a list is
signed by more than two thirds of one roster: people in a gap help with nothing in another sum.

Who colludes is decided before the order is known. Somebody who could win over whom he likes after
it needs c + 1 neighbours of the right people.

Source: Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead", CCS 2020,
Section 3: a Harary graph over a random order.
Differs: there the server draws the order, and vanished clients do not depend on it. Here neither is
assumed, at the price of a higher threshold and about a third more neighbours.

Used by `privacy.secure_aggregation.pairwise`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from functools import cache
from math import ceil, comb
from typing import NamedTuple

from vergence.privacy.secure_aggregation.session import joined, listed

ATTEMPTS = 8
"""Largest number of orders that a client helps to draw for one sum."""
# A server that lies may draw `ATTEMPTS` orders and take the one that suits it.
UNSAFE = 2.0**-40 / ATTEMPTS
"""Largest probability that in a given order more people in a row collude than are allowed for."""
UNLUCKY = 2.0**-20
"""Largest probability that so many neighbours of somebody vanish that a sum is not opened."""


class Ring(NamedTuple):
    """A ring of people, each with pads and shares with its neighbours.

    Attributes:
        reach: number of neighbours before a person, and after a person.
        threshold: number of Shamir shares that recover a secret of a person, of the 2 `reach` + 1
            that the person and its neighbours hold.
    """

    reach: int
    threshold: int


@cache
def ring(people: int, colluders: int, dropouts: float) -> Ring | None:
    """Return the smallest ring that is safe; None: everybody must have pads with everybody.

    Args:
        people: number of people in the sum.
        colluders: largest number of them who collude with the server.
        dropouts: share of people who may vanish at random during a sum.
    """
    vanish = ceil(dropouts * people)
    for reach in range(1, (people - 1) // 2):
        most = most_in_a_row(people, colluders, reach)
        if (spare := reach - 1 - most) >= 0:
            unlucky = people * more_than(spare, people - 1, vanish, 2 * reach)
            if unlucky <= UNLUCKY:
                return Ring(reach, reach + 2 + most)
    return None


def most_in_a_row(people: int, colluders: int, reach: int) -> int:
    """Return how many of any `reach` neighbours in a row on a random ring may collude.

    With a probability of at most `UNSAFE` there are more somewhere on the ring.
    """

    def is_safe(most: int) -> bool:
        return people * more_than(most, people, colluders, reach) <= UNSAFE

    return bisect_left(range(min(reach, colluders)), True, key=is_safe)


def more_than(limit: int, people: int, marked: int, sample: int) -> float:
    """Return the probability of more than `limit` marked people in a random sample of `sample`.

    Source: the hypergeometric distribution.
    """
    ways = range(limit + 1, min(sample, marked) + 1)
    return sum(comb(marked, k) * comb(people - marked, sample - k) for k in ways) / comb(
        people, sample
    )


def order(numbers: Mapping[str, bytes], about: bytes) -> list[str]:
    """Return the names in the order of the ring.

    Args:
        numbers: the random number of each person, 32 bytes, by name.
        about: digest that binds the order to one attempt at a sum and the keys in it.
    """
    seed = hashlib.sha256(joined([b"vergence ring", about, listed(numbers)])).digest()
    return sorted(numbers, key=lambda name: hashlib.sha256(seed + name.encode()).digest())


def neighbours(ring_order: list[str], reach: int) -> dict[str, frozenset[str]]:
    """Return each person's neighbours, by name: `reach` people before it and `reach` after it."""
    people, twice = len(ring_order), ring_order + ring_order + ring_order
    return {
        name: frozenset(twice[at - reach : at] + twice[at + 1 : at + reach + 1])
        for at, name in enumerate(twice[people : 2 * people], people)
    }
