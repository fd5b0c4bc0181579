"""Norm bound: no update may be longer than the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Decision, RobustRule
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class NormBound(RobustRule):
    """Add the mean of the updates, each clipped to a bound on its norm.

    The mean of an entry is over the clients that contribute to it.

    Args:
        bound: largest L2 norm of an update over all trees. None: the median norm of the round's
            updates. If fewer than half of the clients are malicious, they can move this median only
            within the range of honest norms.

    Source: Sun et al., "Can you really backdoor federated learning?", 2019, Section 5.
    """

    bound: Annotated[float, Gt(0)] | None = None

    entrywise: ClassVar[bool] = True

    @property
    def assumes(self) -> str:
        """Assumption in words: malicious updates of at most this norm do no harm."""
        much = "the median norm" if self.bound is None else f"norm {self.bound:g}"
        return f"what few liars add with updates of {much} does no harm: none is left out"

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the mean of the clipped updates, and each entry's contributors as weight."""
        norms = votes.norms()
        bound = float(np.median(norms)) if self.bound is None else self.bound
        factor = np.minimum(1, bound / np.maximum(norms, np.finfo(float).tiny))
        total = np.zeros(votes.entries)
        for values, by in zip(votes.values, factor, strict=True):
            total += by * values
        row = (total / np.maximum(votes.counts, 1)).astype(votes.values.dtype)
        return Decision(row, float(len(votes)) if votes.present is None else votes.counts)
