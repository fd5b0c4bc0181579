"""Krum scores: distances of every update to its nearest neighbours."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from vergence.privacy.robust.update_matrix import UpdateMatrix


def krum_scores(votes: UpdateMatrix, f: int) -> NDArray[np.float64]:
    """Return s(i), the sum of squared distances of update i to its n - f - 2 nearest others.

    Source: Blanchard et al., NeurIPS 2017, Section 4.
    """
    distance = scipy.spatial.distance
    apart = np.zeros((len(votes), len(votes)))
    for part in votes.blocks():
        values = votes.values[:, part].astype(np.float64)
        apart += distance.squareform(distance.pdist(values, "sqeuclidean"))
    np.fill_diagonal(apart, np.inf)  # a vector is not its own neighbour
    return np.sort(apart, axis=1)[:, : len(votes) - f - 2].sum(axis=1)


def rejected(votes: UpdateMatrix, kept: NDArray[np.intp], reason: str) -> dict[str, str]:
    """Return the clients whose rows were not kept, with the reason."""
    chosen = set(kept.tolist())
    return {c: reason for i, c in enumerate(votes.clients) if i not in chosen}
