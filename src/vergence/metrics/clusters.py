"""Who is alike: K-means, and how well two groupings agree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import ClusterError, kmeans2

RESTARTS, STEPS = 20, 30


def kmeans(points: NDArray, k: int, rng: np.random.Generator) -> NDArray:
    """Return the group of every point, int `[points]`: the best of 20 starts by K-means++.

    The best is that of least inertia (`inertia`) after 30 steps; a start that leaves a group empty
    is passed over for the next. Fewer than `k` different points make a group each.

    Args:
        points: `[points, d]`.
        k: how many groups.
        rng: of the starts.

    Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    points = np.asarray(points, float)
    different, same = np.unique(points, axis=0, return_inverse=True)
    if len(different) <= k:
        return same.reshape(-1)
    best, least = same, np.inf
    while not np.isfinite(least):
        for _ in range(RESTARTS):
            try:
                _, labels = kmeans2(points, k, iter=STEPS, minit="++", missing="raise", rng=rng)
            except ClusterError:
                continue
            if (spread := inertia(points, labels)) < least:
                best, least = labels, spread
    return best


def inertia(points: NDArray, labels: NDArray) -> float:
    """Return the sum of squared distances of points `[points, d]` to the means of their groups."""
    groups = (points[labels == label] for label in np.unique(labels))
    return float(sum(((group - group.mean(0)) ** 2).sum() for group in groups))


def adjusted_rand(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Return how well two groupings of the same things agree: 1 as one, about 0 by chance.

    Source: Hubert and Arabie, "Comparing partitions", Journal of Classification 2, 1985,
    Equation 5. Two groupings that cannot differ (all alone, all together) agree.
    """
    rows, columns = (np.unique(list(map(str, x)), return_inverse=True)[1] for x in (one, other))
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    both, of_one, of_other = (_pairs(x) for x in (table, table.sum(1), table.sum(0)))
    chance = of_one * of_other / max(_pairs(np.array([len(rows)])), 1.0)
    most = (of_one + of_other) / 2
    return 1.0 if most == chance else float((both - chance) / (most - chance))


def _pairs(counts: NDArray) -> float:
    return float((counts * (counts - 1) / 2).sum())
