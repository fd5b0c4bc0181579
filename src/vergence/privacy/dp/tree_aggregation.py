"""Tree aggregation (DP-FTRL): noise on sums over rounds, for people who come when they like.

The sum of all rounds so far is made of few nodes: rounds 1 to 6 are 1 to 4 and 5 to 6. Every node
has its own noise, and the sum up to a round has that of its nodes, however many rounds it is of.
No draw of people is assumed: what counts is in how many rounds one person may be.

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
    """Return the nodes that add up to `rounds` rounds.

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
    """Return the nodes whose noise is added (1) or removed (-1) between two sums over rounds."""
    old, new = nodes(before, restart), nodes(now, restart)
    coming = [(1, node) for node in new if node not in old]
    return coming + [(-1, node) for node in old if node not in new]


def squared(rounds: int, turns: int, restart: int = 0) -> int:
    """Return the largest sum of squares that one person can add to all nodes, in clip bounds.

    The person is in at most `turns` rounds, in the worst position. With noise z in every node, the
    mechanism is Gaussian with mu = sqrt(squared) / z.
    """
    best = (0,)
    for _, size in nodes(rounds, restart):
        best = _together(best, _complete(size.bit_length() - 1, turns), turns)
    return max(best)


@lru_cache
def _complete(height: int, turns: int, alone: bool = True) -> tuple[int, ...]:
    """Return a person's largest sum of squares in a tree of 2^height rounds, by turns.

    A right half never occurs `alone` in a sum: once it is full, its parent replaces it.
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
