"""FLTrust: updates are believed as far as they point where the server's own data points."""

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

    g_0 is the server's own update, trained as clients train on a few samples that it trusts (`root`
    of `RobustRule.combine`). If nobody is trusted, the round adds nothing.

    Args:
        root: the person whose data the server trusts, who is asked in every round and has no vote.

    Source: Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping",
    NDSS 2021, Equations 2 to 4.
    """

    root: str = ""

    rooted: ClassVar[bool] = True

    @property
    def trusted(self) -> str:
        """The person whose update is g_0."""
        return self.root

    @property
    def assumes(self) -> str:
        """Assumption that the trusted person is honest and has data that suit everybody."""
        return f"{self.root} is honest, and what is learned there is good for everybody"

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Weigh updates by trust."""
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
