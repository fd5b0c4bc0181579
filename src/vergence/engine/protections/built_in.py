"""Bases of the protections that settings of `privacy` ask for, with a budget or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from vergence.privacy.dp.accounting import Charge, Ledger
from vergence.privacy.hooks import ProtectedRun, Protection
from vergence.privacy.release_log import ReleaseLog

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

Charges = tuple[tuple[float, float, int], ...]
"""Noise, sampling rate and number of releases; of masks the epsilon of a draw stands for noise, of
pictures what the dearest one has cost."""


class Spending(NamedTuple):
    """Spending in one run: its unit (person, sample, mask, picture, pixel), and its owner."""

    unit: str
    who: str
    charges: Charges


@dataclass(frozen=True)
class BuiltInProtection(Protection):
    """A protection of one setting of `privacy`.

    Attributes:
        plan: of the run.
        policy: value of the setting.
    """

    plan: Plan
    policy: Any

    def check(self, run: ProtectedRun) -> None:
        """Refuse what cannot be forecast."""
        self.forecast(run)


class BudgetedProtection(BuiltInProtection):
    """A protection whose releases stand in logs, one of a client or of a seed.

    Attributes:
        unit: of data that it hides.
        kind: of its logs, as their names say it.
    """

    unit: ClassVar[str] = ""
    kind: ClassVar[str] = ""

    @property
    def delta(self) -> float:
        """Delta at which it is counted."""
        return getattr(self.policy, "delta", 0.0)

    def logs(self, folder: Path) -> list[Path]:
        """Logs of a run that lie in a folder; in a deployment they lie with the clients."""
        return sorted(folder.glob(f"seed*.{self.kind}.*.csv"))

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Charges of a run of one seed, by the logs in a folder."""
        return [self.entered(owner(path), path) for path in self.logs_of(folder, seed)]

    def logs_of(self, folder: Path, seed: int) -> list[Path]:
        """Logs of one seed."""
        return [path for path in self.logs(folder) if path.name.startswith(f"seed{seed}.")]

    def entered(self, who: str, path: Path) -> Spending:
        """Charges that a log holds."""
        charges = ReleaseLog(path).ledger.charges
        return Spending(self.unit, who, tuple((c.noise, c.rate, c.steps) for c in charges))

    def epsilon(self, charges: Sequence[tuple[float, float, int]]) -> float:
        """Epsilon of such charges together, whichever runs they are of."""
        alike: Counter[tuple[float, float]] = Counter()
        for noise, rate, steps in charges:
            alike[noise, rate] += steps
        ledger = Ledger(tuple(Charge(*what, steps) for what, steps in sorted(alike.items())))
        return ledger.epsilon(self.delta)


def owner(path: Path) -> str:
    """Client whose log lies at a path."""
    return path.name.split(".", 2)[2].removesuffix(".csv")
