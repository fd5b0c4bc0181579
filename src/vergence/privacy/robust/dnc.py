"""DnC (divide and conquer): removes outliers along the direction in which updates differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Attackers, Decision, RobustRule, attackers
from vergence.privacy.robust.distances import rejected
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class DnC(RobustRule):
    """Add the mean of the updates that are not outliers in any repetition.

    Each repetition takes `sample` entries at random, centres the updates, and projects them on the
    top right singular vector. The c f updates with the largest squared projections are outliers. If
    every update is an outlier in at least one repetition, the round adds nothing.

    Args:
        attackers: fraction of a round's replies that may be malicious; f (the paper's m) is their
            number, rounded up.
        remove: c, the number of updates removed per attacker.
        draws: number of repetitions, the paper's niters.
        sample: b, the number of entries in a repetition; all entries if there are fewer.

    Source: Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning
    attacks and defenses for federated learning", NDSS 2021, Algorithm 2.
    """

    attackers: Attackers = 0.2
    remove: Annotated[float, Gt(0)] = 1.0
    draws: Annotated[int, Ge(1)] = 1
    sample: Annotated[int, Ge(1)] = 10_000

    def fewest(self, clients: int) -> int:
        """Return the fewest replies that the rule needs, for a round of `clients` replies.

        There must be more honest clients than attackers, and one update must be left.
        """
        return max(2 * attackers(self.attackers, clients), self.removed(clients)) + 1

    def removed(self, clients: int) -> int:
        """Return how many updates a repetition removes: c f, rounded up."""
        # Products of whole results must not be rounded up because of their last bit: 2.2 * 5.
        return math.ceil(self.remove * attackers(self.attackers, clients) - 1e-9)

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the mean of the updates that no repetition finds to be outliers."""
        good = np.ones(len(votes), bool)
        for draw in range(self.draws):
            # Drawn anew in each round: an attacker who knew the entries would change only others.
            rng = stream.child("dnc", draw).numpy()
            entries = np.sort(
                rng.choice(votes.entries, min(self.sample, votes.entries), replace=False)
            )
            scores = outliers(votes.values[:, entries])
            good[np.argsort(scores, kind="stable")[len(votes) - self.removed(len(votes)) :]] = False
        survivors = np.flatnonzero(good)
        outlying = rejected(votes, survivors, "dnc: an outlier where updates differ most")
        if not len(survivors):
            return Decision(np.zeros(votes.entries, votes.values.dtype), 0.0, outlying)
        return Decision(votes.only(survivors).mean(), float(len(survivors)), outlying)


def outliers(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the squared projection of each centred row on the top right singular vector.

    `values` is `[clients, entries]`; the result is `[clients]`.
    """
    centred = values.astype(np.float64) - values.mean(axis=0, dtype=np.float64)
    left, strength, _ = np.linalg.svd(centred, full_matrices=False)
    return (left[:, 0] * strength[0]) ** 2
