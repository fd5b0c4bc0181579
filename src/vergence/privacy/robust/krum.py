"""Krum: the one update that is nearest to its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Attackers, Decision, RobustRule, attackers
from vergence.privacy.robust.distances import krum_scores, rejected
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class Krum(RobustRule):
    """Add the update with the smallest sum of squared distances to its n - f - 2 nearest others.

    n is the number of updates of the round. The server uses a single client's update. If people
    differ, as their gaze does, this costs accuracy even without attackers.

    Args:
        attackers: fraction of a round's replies that may be malicious; f is their number, rounded
            up. The rule needs n >= 2 f + 3.

    Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017, Section 4. Ties go to the first name.
    """

    attackers: Attackers = 0.2

    def fewest(self, clients: int) -> int:
        """Return 2 f + 3, the fewest replies that Krum needs."""
        return 2 * attackers(self.attackers, clients) + 3

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the update with the smallest Krum score."""
        scores = krum_scores(votes, attackers(self.attackers, len(votes)))
        best = np.argmin(scores, keepdims=True)
        out = rejected(votes, best, "krum: another update is nearer to its neighbours")
        return Decision(votes.only(best).mean(), 1.0, out)
