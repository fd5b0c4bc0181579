"""Means of the middle values of every entry: what median and trimmed mean have in common.

Used by `privacy.robust.median` and `privacy.robust.trimmed_mean`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vergence.privacy.robust.update_matrix import UpdateMatrix


def middle(votes: UpdateMatrix, cut: NDArray[np.integer] | int) -> NDArray[np.floating]:
    """Return the mean of every entry without its lowest and highest values, `[entries]`.

    The mean is over the clients that contribute to the entry; it is 0 if no value is left.

    Args:
        votes: the clients' updates.
        cut: number of values to leave out at each end; an array if it differs between entries.
    """
    row = np.zeros(votes.entries, votes.values.dtype)
    ranks = np.arange(len(votes))[:, None]
    cuts = np.broadcast_to(cut, (votes.entries,))
    for part in votes.blocks():
        values = votes.values[:, part]
        if votes.present is not None:
            # Clients that do not share an entry are ranked last, outside of `counts`.
            values = np.where(votes.present[:, part], values, np.inf)
        ordered = np.sort(values, axis=0)
        inside = (ranks >= cuts[part]) & (ranks < votes.counts[part] - cuts[part])
        total = np.where(inside, ordered, 0).sum(axis=0, dtype=np.float64)
        row[part] = total / np.maximum(inside.sum(axis=0), 1)
    return row
