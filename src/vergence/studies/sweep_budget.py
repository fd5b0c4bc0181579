"""Privacy budget that the trials of a sweep, or folds, spend, one by one and all together.

Each of them trains on the same people again, with its own noise, so that their spending adds up.

Used by `studies.merge_folds` and `studies.sweep`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from vergence.core.files import parse_json
from vergence.engine.plan import Plan
from vergence.engine.protections.built_in import BudgetedProtection, Spending
from vergence.errors import StateError
from vergence.experiment.privacy.register import budgets_of
from vergence.experiment.privacy.spent import NOT_COVERED
from vergence.privacy.dp.accounting import MOST
from vergence.privacy.release_log import FOLDER
from vergence.results.layout import TABLES
from vergence.results.read import table
from vergence.results.write import write_csv

SPENT = "spent.csv"
Trial = tuple[str, int, int]


def total_spending(
    budgets: Mapping[str, BudgetedProtection], rows: Iterable[Spending]
) -> dict[str, float]:
    """Return the spending of some runs together, by unit: that of the person who spent most."""
    found: dict[str, dict[str, list[tuple[float, float, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for unit, who, charges in rows:
        found[unit][who] += charges
    return {
        unit: max(map(budgets[unit].epsilon, people.values())) for unit, people in found.items()
    }


def spending_of_runs(plan: Plan, folders: Iterable[Path]) -> dict[str, float]:
    """Return the spending of finished runs of this plan, all seeds, as in `total_spending`."""
    budgets, books = budgets_of(plan), [folder / "state" / FOLDER for folder in folders]
    each = [(one, at, seed) for one in budgets.values() for at in books for seed in plan.seeds]
    return total_spending(
        budgets, (row for one, at, seed in each for row in one.spendings(at, seed))
    )


class Spendings:
    """The file spent.csv, with a line per trial, seed and person.

    Raises:
        StateError: an existing file is damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.budgets = path, budgets_of(plan)
        self.rows: dict[Trial, list[Spending]] = {}
        if path.is_file():
            self._read()

    def _read(self) -> None:
        try:
            for *key, unit, who, _, _, charges in table(self.path).itertuples(index=False):
                each = tuple((float(n), float(r), int(s)) for n, r, s in parse_json(charges))
                self.rows.setdefault(tuple(key), []).append(Spending(unit, who, each))
        # To begin a new file would forget what these people have lost already.
        except (ValueError, TypeError, StateError) as error:
            raise StateError(
                f"{self.path} is damaged ({error}), so that what was spent is not known; sweep "
                "into another --out: a copy would forget what was spent since"
            ) from None

    def add(self, trial: Trial, state: Path) -> None:
        """Write the spending of a trial's books; a repeated trial replaces its own lines."""
        budgets, folder = self.budgets.values(), state / FOLDER
        if not (found := [row for each in budgets for row in each.spendings(folder, trial[2])]):
            return
        self.rows[trial] = found
        lines = []
        for key, rows in self.rows.items():
            for unit, who, charges in rows:
                amount = f"{self.budgets[unit].epsilon(charges):.4g}"
                delta = f"{self.budgets[unit].delta:g}"
                # With the charges themselves: their epsilons do not simply add up.
                lines.append((*key, unit, who, amount, delta, json.dumps(charges)))
        write_csv(self.path, TABLES[SPENT], lines)

    def together(self) -> dict[str, float]:
        """Return the spending of all trials together, as in `total_spending`."""
        return total_spending(self.budgets, chain.from_iterable(self.rows.values()))

    def lines(self) -> list[str]:
        """Return lines for the screen and the winners' experiment files; none without privacy."""
        lines = []
        for unit, amount in self.together().items():
            much = f"{amount:.3g}" if math.isfinite(amount) else f"over {MOST:g}"
            lines.append(
                f"privacy: the {len(self.rows)} trials of this sweep, on the same people, spend "
                f"epsilon {much} together at delta {self.budgets[unit].delta:g} per {unit}; a run "
                "of the winners spends its own on top"
            )
        if lines:
            lines.append(
                "privacy: the choice among trials is a release of its own, by validation scores "
                f"without noise: no epsilon covers it; {NOT_COVERED}"
            )
        return lines
