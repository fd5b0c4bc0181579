"""Krum scores: distances of every update to its nearest neighbours.

Used by `privacy.robust.dnc`, `privacy.robust.krum` and `privacy.robust.multi_krum`.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from vergence.privacy.robust.update_matrix import UpdateMatrix


def krum_scores(votes: UpdateMatrix, f: int) -> NDArray[np.float64]:
    """Return the Krum score of each of the n updates, `[clients]`.

    The score is the sum of the squared distances to the n - f - 2 nearest other updates.

    Args:
        votes: the updates.
        f: number of clients that may be malicious.

    Source: Blanchard et al., NeurIPS 2017, Section 4.
    """
    distance = scipy.spatial.distance
    squared = np.zeros((len(votes), len(votes)))
    for part in votes.blocks():
        values = votes.values[:, part].astype(np.float64)
        squared += distance.squareform(distance.pdist(values, "sqeuclidean"))
    # A vector is not its own neighbour: without this every score would contain a distance of 0.
    np.fill_diagonal(squared, np.inf)
    return np.sort(squared, axis=1)[:, : len(votes) - f - 2].sum(axis=1)


def rejected(votes: UpdateMatrix, survivors: NDArray[np.intp], reason: str) -> dict[str, str]:
    """Return the clients whose row indices are not among `survivors`, each with the reason."""
    rows = set(survivors.tolist())
    return {c: reason for i, c in enumerate(votes.clients) if i not in rows}
