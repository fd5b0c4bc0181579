"""Multi-Krum: the mean of the updates that are nearest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Attackers, Decision, RobustRule, attackers
from vergence.privacy.robust.distances import krum_scores, rejected
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class MultiKrum(RobustRule):
    """Add the mean of the m = n - f - 2 updates with the smallest Krum scores.

    The Krum score of an update is the sum of its squared distances to the n - f - 2 nearest other
    updates of the round; n is the number of updates.

    Args:
        attackers: fraction of a round's replies that may be malicious; f is their number, rounded
            up. The rule needs n >= 2 f + 3.

    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017, Section 4 and "Multi-Krum" of Section 6; m as in El Mhamdi et al., "The
    hidden vulnerability of distributed learning in Byzantium", ICML 2018. Ties go to the first
    name.
    """

    attackers: Attackers = 0.2

    def fewest(self, clients: int) -> int:
        """Return 2 f + 3, the fewest replies that Krum needs."""
        return 2 * attackers(self.attackers, clients) + 3

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the mean of the m updates with the smallest Krum scores."""
        f = attackers(self.attackers, len(votes))
        scores = krum_scores(votes, f)
        best = np.sort(np.argsort(scores, kind="stable")[: len(votes) - f - 2])
        out = rejected(votes, best, "multi_krum: other updates are nearer to their neighbours")
        return Decision(votes.only(best).mean(), float(len(best)), out)
