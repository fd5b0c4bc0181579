"""Coordinate-wise median: the median of every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Attackers, Decision, RobustRule, attackers
from vergence.privacy.robust.trimming import middle
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class Median(RobustRule):
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

    attackers: Attackers = 0.2

    entrywise: ClassVar[bool] = True

    def fewest(self, clients: int) -> int:
        """Return 2 f + 1, so that there are more honest clients than attackers."""
        return 2 * attackers(self.attackers, clients) + 1

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the median of every entry, and its number of contributors as weight.

        Both are 0 for an entry with too few contributors.
        """
        row = middle(votes, np.maximum((votes.counts - 1) // 2, 0))
        enough = votes.counts >= self.fewest(len(votes))
        return Decision(np.where(enough, row, 0), np.where(enough, votes.counts, 0))
