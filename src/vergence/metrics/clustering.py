"""Clustering: K-means, separation of groups, and agreement of two groupings."""

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


def silhouette(distances: NDArray, labels: NDArray) -> float:
    """Silhouette score: nearness of things to their own group against the next, -1 to 1.

    The mean of (b - a) / max(a, b), a the mean distance to the others of one's group and b the
    least mean distance to those of another; 0 for who is alone, and where there is one group.

    Args:
        distances: `[things, things]`.
        labels: the group of each.

    Source: Rousseeuw, "Silhouettes", Journal of Computational and Applied Mathematics 20, 1987.
    """
    groups = np.unique(labels)
    if len(groups) < 2:
        return 0.0
    sums = np.stack([distances[:, labels == group].sum(1) for group in groups], 1)
    own, sizes = labels[:, None] == groups, np.array([(labels == g).sum() for g in groups])
    alone = sizes[own.argmax(1)] == 1
    near = sums[own] / np.maximum(sizes[own.argmax(1)] - 1, 1)
    far = np.where(own, np.inf, sums / sizes).min(1)
    larger = np.maximum(near, far)
    found = np.divide(far - near, larger, out=np.zeros(len(labels)), where=(larger > 0) & ~alone)
    return float(found.mean())


def adjusted_rand(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Agreement of two groupings of the same things: 1 if identical, about 0 by chance.

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
