"""FLTrust: an update's weight grows with its cosine to the update on the server's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Decision, RobustRule
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class FLTrust(RobustRule):
    """Add sum_i TS_i ||g_0|| / ||g_i|| g_i / sum_i TS_i, with TS_i = max(0, cos(g_i, g_0)).

    g_i are the clients' updates. g_0 is the update of a person whose data the server trusts (`root`
    of `RobustRule.combine`). If all trust scores TS_i are 0, the round adds nothing.

    Args:
        root: name of the trusted person. This person is asked in every round; the update only
            serves as g_0.

    Source: Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping",
    NDSS 2021, Equations 2 to 4.
    """

    root: str = ""

    rooted: ClassVar[bool] = True

    @property
    def trusted(self) -> str:
        """Name of the trusted person, whose update is g_0."""
        return self.root

    @property
    def assumes(self) -> str:
        """Assumption in words: the trusted person is honest, and the data suit everybody."""
        return f"{self.root} is honest, and what is learned there is good for everybody"

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the mean, weighted by trust scores, of updates scaled to the norm of `root`."""
        assert root is not None
        length, norms = float(np.linalg.norm(root.astype(np.float64))), votes.norms()
        along = np.array([float(np.dot(v.astype(np.float64), root)) for v in votes.values])
        scale = np.where(norms * length > 0, norms * length, np.inf)
        trust = np.maximum(along / scale, 0)
        total = np.zeros(votes.entries)
        for values, much, norm in zip(votes.values, trust, norms, strict=True):
            # Every update is scaled to the root's length: a longer one gains no influence.
            if much:
                total += (much * length / norm) * values
        out = {
            client: "fltrust: does not point where the server's own update points"
            for client, much in zip(votes.clients, trust, strict=True)
            if not much
        }
        if not trust.any():
            return Decision(np.zeros(votes.entries, votes.values.dtype), 0.0, out)
        row = (total / trust.sum()).astype(votes.values.dtype)
        return Decision(row, float(np.count_nonzero(trust)), out)
