"""Coordinate-wise median: the median of every entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.privacy.robust.trimming import MiddleValues
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class Median(MiddleValues):
    """Add the median of every entry over the clients that contribute to it.

    For an even number of clients it is the mean of the middle two values. With masks, all attackers
    may be among the few clients that share an entry. So an entry with fewer than 2 f + 1
    contributors is not changed.

    Args:
        attackers: fraction of a round's replies that may be malicious; f is their number, rounded
            up.

    Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates",
    ICML 2018, Definition 1.
    """

    def cut(self, votes: UpdateMatrix) -> NDArray[np.integer]:
        """Return the number of values on each side of the median, for every entry."""
        return np.maximum((votes.counts - 1) // 2, 0)
