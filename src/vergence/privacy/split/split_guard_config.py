"""The table `privacy.split_guard`: rate of false labels, and consequences of what is found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from vergence.privacy.split.split_guard import SplitGuard, Verdict

FOUND, NOT_FOUND, AGAIN = 1, 0, 2
"""Of a block: whether the answer to the lie was the odd one out; found, but not at first hearing.
"""


@dataclass(frozen=True)
class SplitGuardConfig(SplitGuard):
    """The table `privacy.split_guard`.

    Args:
        every: batches in a block, one of which has false labels.
        by: standard deviations by which labels are moved.
        expected: how often an honest server's answer to a lie is the odd one out.
        missed: probability of trusting a server that ignores labels.
        accused: probability of accusing an honest one, over a whole run.
        act: a client that accuses goes on, and the results say so (`report`), or takes no further
            turn (`stop`).
    """

    act: Literal["report", "stop"] = "report"

    def read(self, blocks: Iterable[int]) -> tuple[Verdict, int, float]:
        """Return the verdict on blocks, how many were heard, and the likelihood ratio.

        After `trusted` a new test begins; `accused` stays.
        """
        found, not_found = self.evidence
        verdict: Verdict = "open"
        ratio, heard, trusted = 0.0, 0, 0
        for block in blocks:
            if block == AGAIN:
                continue
            heard += 1
            ratio += found if block == FOUND else not_found
            if self.accuses(ratio, trusted):
                return "accused", heard, math.exp(ratio)
            if ratio >= -math.log(self.missed):
                verdict, ratio, trusted = "trusted", 0.0, trusted + 1
        return verdict, heard, math.exp(ratio)
