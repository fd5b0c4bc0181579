"""Clustering: K-means, separation of groups, and agreement of two groupings.

Used by `methods.clustered.cfedvs` and `methods.clustered.fedgroup`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import ClusterError, kmeans2

RESTARTS, STEPS = 20, 30


def kmeans(points: NDArray, k: int, rng: np.random.Generator) -> NDArray:
    """Return the group of every point, int `[points]`: the best of 20 starts by K-means++.

    The best start is the one of least inertia (`inertia`) after 30 steps; a start that leaves a
    group empty is skipped. If there are fewer than `k` different points, each makes a group.

    Args:
        points: `[points, d]`.
        k: how many groups.
        rng: randomness of the starts.

    Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    points = np.asarray(points, float)
    different, same = np.unique(points, axis=0, return_inverse=True)
    if len(different) <= k:
        return same.reshape(-1)
    best, least = same, np.inf
    # Every start of a series may leave a group empty.
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
    """Return the sum of squared distances of points `[points, d]` to the means of their groups.

    `kmeans` calls this.
    """
    groups = (points[labels == label] for label in np.unique(labels))
    return float(sum(((group - group.mean(0)) ** 2).sum() for group in groups))


def silhouette(distances: NDArray, labels: NDArray) -> float:
    """Return the silhouette score, -1 to 1: 1 where things lie far nearer to their own group.

    The reproduction of the CFed-VS paper computes it for groups of people.

    It is the mean of (b - a) / max(a, b), with a the mean distance to the other things of the group
    and b the smallest mean distance to another group. A group of one thing has 0, and so has a
    single group.

    Args:
        distances: `[things, things]`.
        labels: the group of each thing.

    Source: Rousseeuw, "Silhouettes", Journal of Computational and Applied Mathematics 20, 1987.
    """
    groups = np.unique(labels)
    if len(groups) < 2:
        return 0.0
    sums = np.stack([distances[:, labels == group].sum(1) for group in groups], 1)
    own, sizes = labels[:, None] == groups, np.array([(labels == g).sum() for g in groups])
    # Rousseeuw defines 0 for a group of one: there is no distance within it.
    alone = sizes[own.argmax(1)] == 1
    near = sums[own] / np.maximum(sizes[own.argmax(1)] - 1, 1)
    far = np.where(own, np.inf, sums / sizes).min(1)
    larger = np.maximum(near, far)
    found = np.divide(far - near, larger, out=np.zeros(len(labels)), where=(larger > 0) & ~alone)
    return float(found.mean())


def adjusted_rand(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """Return the adjusted Rand index of two groupings: 1 if identical, about 0 by chance.

    Benchmarks of clustered methods compare found groups with true groups by it.

    Two groupings that both leave all things alone, or put all of them together, agree.

    Source: Hubert and Arabie, "Comparing partitions", Journal of Classification 2, 1985,
    Equation 5.
    """
    # As text, since numpy cannot sort labels of several types.
    rows, columns = (np.unique(list(map(str, x)), return_inverse=True)[1] for x in (one, other))
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    both, of_one, of_other = (_pairs(x) for x in (table, table.sum(1), table.sum(0)))
    chance = of_one * of_other / max(_pairs(np.array([len(rows)])), 1.0)
    most = (of_one + of_other) / 2
    return 1.0 if most == chance else float((both - chance) / (most - chance))


def _pairs(counts: NDArray) -> float:
    return float((counts * (counts - 1) / 2).sum())
