"""Base classes of built-in protections, with a privacy budget or without.

Used in `engine` and `studies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from vergence.privacy.dp.accounting import Ledger, ledger_of
from vergence.privacy.hooks import ProtectedRun, Protection
from vergence.privacy.release_log import ReleaseLog

if TYPE_CHECKING:
    from vergence.engine.plan import Plan

Charges = tuple[tuple[float, float, int], ...]
"""Each entry is a noise multiplier, a sampling rate and a number of releases.

For masks, the epsilon of one random choice stands in place of the noise multiplier. For pictures,
the privacy cost of the picture with the highest cost stands there."""


class Spending(NamedTuple):
    """Budget spent in one run.

    Attributes:
        unit: unit of data: person, lab, sample, mask, picture or pixel.
        who: client whose budget it is; empty if the budget is kept for a seed, and not for a
            client.
        charges: noise, sampling rate and number of the releases (see `Charges`).
    """

    unit: str
    who: str
    charges: Charges


@dataclass(frozen=True)
class BuiltInProtection(Protection):
    """Base of built-in protections, each of which stands for one setting of `privacy`.

    Attributes:
        plan: the plan.
        policy: value of the setting.
    """

    plan: Plan
    policy: object

    def check(self, run: ProtectedRun) -> None:
        """Refuse a run for which the protection's forecast fails."""
        self.forecast(run)


class BudgetedProtection(BuiltInProtection):
    """Base of protections with a privacy budget, whose releases are logged.

    A log belongs to a client or to a seed.

    Attributes:
        unit: unit of data that the protection hides.
        kind: word in the file names of the protection's logs.
    """

    unit: ClassVar[str] = ""
    kind: ClassVar[str] = ""

    @property
    def delta(self) -> float:
        """The delta at which epsilon is computed."""
        return getattr(self.policy, "delta", 0.0)

    def logs(self, folder: Path) -> list[Path]:
        """Return the paths of a run's release logs in a folder.

        In a deployment the logs are on the clients' machines.
        """
        return sorted(folder.glob(f"seed*.{self.kind}.*.csv"))

    def planned(self, run: ProtectedRun) -> list[Spending]:
        """Return the budgets that one seed of a run will spend, known before the run begins."""
        raise NotImplementedError

    def spendings(self, folder: Path, seed: int) -> list[Spending]:
        """Return the budgets that one seed spent, one per log in a folder."""
        return [self.entered(owner(path), path) for path in self.logs_of(folder, seed)]

    def logs_of(self, folder: Path, seed: int) -> list[Path]:
        """Return the paths of one seed's release logs."""
        return [path for path in self.logs(folder) if path.name.startswith(f"seed{seed}.")]

    def entered(self, who: str, path: Path) -> Spending:
        """Return the releases in a log as a budget spent by the client `who`."""
        return Spending(self.unit, who, charges_of(ReleaseLog(path).ledger))

    def epsilon(self, charges: Sequence[tuple[float, float, int]]) -> float:
        """Return the epsilon of all releases in `charges` together, from one run or several."""
        return ledger_of(charges).epsilon(self.delta)


def charges_of(ledger: Ledger) -> Charges:
    """Return the charges of a ledger as plain numbers."""
    return tuple((c.noise, c.rate, c.steps) for c in ledger.charges)


def owner(path: Path) -> str:
    """Return the client whose log is at a path."""
    return path.name.split(".", 2)[2].removesuffix(".csv")
