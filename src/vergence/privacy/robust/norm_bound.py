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
    """Add the mean of the updates, each shortened to the bound; entries over their contributors.

    Args:
        bound: largest L2 norm over all trees; None: the median norm of the round's updates, which
            attackers who are fewer than half can move only within the range of honest norms.

    Source: Sun et al., "Can you really backdoor federated learning?", 2019, Section 5.
    """

    bound: Annotated[float, Gt(0)] | None = None

    entrywise: ClassVar[bool] = True

    @property
    def assumes(self) -> str:
        """Assumption on how far a malicious client may move the mean."""
        much = "the median norm" if self.bound is None else f"norm {self.bound:g}"
        return f"what few liars add with updates of {much} does no harm: none is left out"

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Shorten the updates and average them."""
        norms = votes.norms()
        bound = float(np.median(norms)) if self.bound is None else self.bound
        factor = np.minimum(1, bound / np.maximum(norms, np.finfo(float).tiny))
        total = np.zeros(votes.entries)
        for values, by in zip(votes.values, factor, strict=True):
            total += by * values
        row = (total / np.maximum(votes.counts, 1)).astype(votes.values.dtype)
        return Decision(row, float(len(votes)) if votes.present is None else votes.counts)
