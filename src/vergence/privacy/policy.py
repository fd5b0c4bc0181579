"""How a run protects people beyond what its method does: the table `privacy`."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.privacy.rule import Rule


@dataclass(frozen=True)
class Privacy:
    """One field for every means; nothing is done that is not asked for.

    Attributes:
        robust: stands in for the weighted sum of a round; None: the sum.
    """

    robust: Rule | None = None
