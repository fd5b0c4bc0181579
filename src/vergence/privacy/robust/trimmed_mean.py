"""Trimmed mean: the mean of every entry without its highest and lowest values."""

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
class TrimmedMean(RobustRule):
    """Add the mean of every entry without its f lowest and f highest values.

    With masks, all attackers may be among the few clients that share an entry. So f is computed
    from all replies of the round, and an entry with fewer than 2 f + 1 contributors is not changed.

    Args:
        attackers: fraction of a round's replies that may be malicious (the paper's beta); f is
            their number, rounded up.

    Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates",
    ICML 2018, Definition 2.
    """

    attackers: Attackers = 0.2

    entrywise: ClassVar[bool] = True

    def fewest(self, clients: int) -> int:
        """Return 2 f + 1, so that one value is left after trimming."""
        return 2 * attackers(self.attackers, clients) + 1

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the trimmed mean of every entry, and its number of contributors as weight.

        Both are 0 for an entry with too few contributors.
        """
        row = middle(votes, attackers(self.attackers, len(votes)))
        enough = votes.counts >= self.fewest(len(votes))
        return Decision(np.where(enough, row, 0), np.where(enough, votes.counts, 0))
