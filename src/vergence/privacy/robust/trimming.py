"""Base of rules that take the mean of the middle values of every entry.

Used by `privacy.robust.median` and `privacy.robust.trimmed_mean`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vergence.core.randomness import RandomStream
from vergence.privacy.robust.base import Attackers, Decision, RobustRule, attackers
from vergence.privacy.robust.update_matrix import UpdateMatrix


@dataclass(frozen=True)
class MiddleValues(RobustRule):
    """Base of rules that leave out as many of an entry's lowest values as of its highest.

    With masks, all attackers may be among the few clients that share an entry. So an entry with
    fewer than 2 f + 1 contributors is not changed.

    Args:
        attackers: fraction of a round's replies that may be malicious; f is their number, rounded
            up.
    """

    attackers: Attackers = 0.2

    entrywise: ClassVar[bool] = True

    @abstractmethod
    def cut(self, votes: UpdateMatrix) -> NDArray[np.integer] | int:
        """Return the number of values to leave out at each end; `decide` calls this.

        It is an array `[entries]` if the number differs between entries.
        """

    def fewest(self, clients: int) -> int:
        """Return 2 f + 1, so that more honest clients than attackers contribute to an entry."""
        return 2 * attackers(self.attackers, clients) + 1

    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the mean of every entry's middle values, and its contributors as weight.

        Both are 0 for an entry with too few contributors.
        """
        row = middle(votes, self.cut(votes))
        enough = votes.counts >= self.fewest(len(votes))
        return Decision(np.where(enough, row, 0), np.where(enough, votes.counts, 0))


def middle(votes: UpdateMatrix, cut: NDArray[np.integer] | int) -> NDArray[np.floating]:
    """Return the mean of every entry without its lowest and highest values, `[entries]`.

    The mean is over the clients that contribute to the entry; it is 0 if no value is left.

    Args:
        votes: the clients' updates.
        cut: number of values to leave out at each end; an array if it differs between entries.
    """
    row = np.zeros(votes.entries, votes.values.dtype)
    ranks = np.arange(len(votes))[:, None]
    cuts = np.broadcast_to(cut, (votes.entries,))
    for part in votes.blocks():
        values = votes.values[:, part]
        if votes.present is not None:
            # Clients that do not share an entry are ranked last, outside of `counts`.
            values = np.where(votes.present[:, part], values, np.inf)
        ordered = np.sort(values, axis=0)
        inside = (ranks >= cuts[part]) & (ranks < votes.counts[part] - cuts[part])
        total = np.where(inside, ordered, 0).sum(axis=0, dtype=np.float64)
        row[part] = total / np.maximum(inside.sum(axis=0), 1)
    return row
