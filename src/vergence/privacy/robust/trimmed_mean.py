"""Trimmed mean: the mean of every entry without its highest and lowest values."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.privacy.robust.base import attackers
from vergence.privacy.robust.trimming import MiddleValues
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class TrimmedMean(MiddleValues):
    """Add the mean of every entry without its f lowest and f highest values.

    With masks, all attackers may be among the few clients that share an entry. So f is computed
    from all replies of the round, and an entry with fewer than 2 f + 1 contributors is not changed.

    Args:
        attackers: fraction of a round's replies that may be malicious (the paper's beta); f is
            their number, rounded up.

    Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates",
    ICML 2018, Definition 2.
    """

    def cut(self, votes: UpdateMatrix) -> int:
        """Return f."""
        return attackers(self.attackers, len(votes))
