"""Tree aggregation (DP-FTRL): noise on sums over rounds, without sampling of people.

The sum of all rounds so far is a sum of few nodes of a binary tree: rounds 1 to 6 are the nodes 1
to 4 and 5 to 6. Every node has its own noise. The sum up to a round has the noise of its nodes
only, however many rounds it contains. People need not be sampled: the guarantee depends on the
number of rounds that one person may take part in.

Used by `engine.protections.user_level` and `privacy.config`.

Source: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
2021, Algorithm 1, and Appendix D for many participations; trees: Dwork et al., "Differential
privacy under continual observation", STOC 2010. Differs: no variance reduction (Honaker).
"""

from __future__ import annotations

from functools import lru_cache

Node = tuple[int, int]
"""First round of a node, from 0, and the number of rounds that it sums."""


def nodes(rounds: int, restart: int = 0) -> list[Node]:
    """Return the nodes whose sum is the sum over the first `rounds` rounds.

    A new tree begins every `restart` rounds; with 0, one tree has all rounds.
    """
    parts, start, end = list[Node](), 0, rounds
    while start < end:
        remaining = min(end - start, restart - start % restart if restart else end)
        size = 1 << (remaining.bit_length() - 1)
        parts.append((start, size))
        start += size
    return parts


def steps(before: int, now: int, restart: int = 0) -> list[tuple[int, Node]]:
    """Return the changes of noise between the sums over `before` and over `now` rounds.

    A change is a sign and a node: the node's noise is added (1) or removed (-1).
    """
    old, new = nodes(before, restart), nodes(now, restart)
    coming = [(1, node) for node in new if node not in old]
    return coming + [(-1, node) for node in old if node not in new]


def squared(rounds: int, turns: int, restart: int = 0) -> int:
    """Return the squared sensitivity of a tree over `rounds` rounds to one person.

    It is the largest sum, over all nodes, of the squared norms that a person adds to them, in units
    of the squared clip bound. The person takes part in at most `turns` rounds, at the worst
    positions. A new tree begins every `restart` rounds, or never if it is 0. With noise z (in clip
    bounds) in every node, the mechanism is Gaussian with mu = sqrt(squared) / z.
    """
    best = (0,)
    for _, size in nodes(rounds, restart):
        best = _together(best, _complete(size.bit_length() - 1, turns), turns)
    return max(best)


@lru_cache
def _complete(height: int, turns: int, alone: bool = True) -> tuple[int, ...]:
    """Return a person's largest sums of squares in a full tree of 2^height rounds.

    Entry n is for n rounds in which the person takes part, from 0 to at most `turns`. The root
    counts only if it occurs `alone` in a sum over rounds. The right half of a node never
    occurs alone: once the half is full, the node replaces both halves.
    """
    below = (0, 0)
    if height:
        left, right = (_complete(height - 1, turns, side) for side in (True, False))
        below = _together(left, right, turns)
    return tuple(most + alone * count**2 for count, most in enumerate(below))


def _together(one: tuple[int, ...], other: tuple[int, ...], turns: int) -> tuple[int, ...]:
    most = min(len(one) + len(other) - 2, turns)
    return tuple(
        max(one[a] + other[n - a] for a in range(n + 1) if a < len(one) and n - a < len(other))
        for n in range(most + 1)
    )
