"""Privacy budget that the trials of a sweep spend, one by one and all together.

Every trial trains on the same people anew, with noise of its own: what they spend adds up.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vergence.core.files import parse_json
from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import sums_of
from vergence.errors import StateError
from vergence.experiment.privacy.spent import BESIDE
from vergence.privacy.dp.accounting import MOST, Charge, Ledger
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.privacy.split.defense import BottleneckCut, PixelCut
from vergence.privacy.split.sent_images import Released
from vergence.results.layout import TABLES
from vergence.results.read import table
from vergence.results.write import write_csv

SPENT = "spent.csv"
Trial = tuple[str, int, int]
Charges = tuple[tuple[float, float, int], ...]
"""Noise, sampling rate and number of releases; of masks the epsilon of a draw stands for noise, of
pictures what the dearest one has cost."""


class SweepSpent(NamedTuple):
    """Spending of one trial: its unit (person, sample, mask, picture, pixel), and its owner."""

    unit: str
    who: str
    charges: Charges


def spent(plan: Plan, seed: int, state: Path) -> list[SweepSpent]:
    """Privacy spending of a trial, by the logs in its folder of states; deleted with it."""
    privacy, folder, found = plan.privacy, state / FOLDER, []
    if privacy.user is not None:
        found.append(_ledger("person", "", folder / sums_of(seed)))
    kinds = [("sample", "client", privacy.solver), ("mask", "mask", privacy.mask)]
    for unit, kind, policy in kinds:
        books = sorted(folder.glob(f"seed*.{kind}.*.csv")) if policy is not None else []
        found += [_ledger(unit, _client(path), path) for path in books]
    if isinstance(cut := privacy.cut, BottleneckCut | PixelCut):
        unit = "picture" if isinstance(cut, BottleneckCut) else "pixel"
        for path in sorted(folder.glob("seed*.cut.*.csv")):
            dearest = Released(path, cut.cost).most
            found.append(SweepSpent(unit, _client(path), ((dearest, 1.0, 1),)))
    return found


def _ledger(unit: str, who: str, path: Path) -> SweepSpent:
    charges = ReleaseLog(path).ledger.charges
    return SweepSpent(unit, who, tuple((c.noise, c.rate, c.steps) for c in charges))


def _client(path: Path) -> str:
    return path.name.split(".", 2)[2].removesuffix(".csv")


def epsilon(plan: Plan, unit: str, charges: Sequence[tuple[float, float, int]]) -> float:
    """Epsilon of such charges together, whichever trials they are of."""
    privacy = plan.privacy
    if unit == "mask":
        assert privacy.mask is not None
        return privacy.mask.amounts((each, times) for each, _, times in charges)
    if unit in ("picture", "pixel"):
        assert privacy.cut is not None
        return privacy.cut.amounts(sum(cost for cost, _, _ in charges))
    alike: Counter[tuple[float, float]] = Counter()
    for noise, rate, steps in charges:
        alike[noise, rate] += steps
    ledger = Ledger(tuple(Charge(*what, steps) for what, steps in sorted(alike.items())))
    return ledger.epsilon(delta_of(plan, unit))


def delta_of(plan: Plan, unit: str) -> float:
    """At which delta a unit is counted."""
    privacy = plan.privacy
    policies = {
        "person": privacy.user,
        "sample": privacy.solver,
        "mask": privacy.mask,
        "picture": privacy.cut,
        "pixel": None,
    }
    return getattr(policies[unit], "delta", 0.0)


class Spendings:
    """spent.csv: a line per trial, seed and person, there before the trial's own books go.

    Raises:
        StateError: the file that is there is damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self.rows: dict[Trial, list[SweepSpent]] = {}
        if path.is_file():
            self._read()

    def _read(self) -> None:
        try:
            for *key, unit, who, _, _, charges in table(self.path).itertuples(index=False):
                each = tuple((float(n), float(r), int(s)) for n, r, s in parse_json(charges))
                self.rows.setdefault(tuple(key), []).append(SweepSpent(unit, who, each))
        except (ValueError, TypeError) as error:
            raise StateError(
                f"{self.path} is damaged ({error}), so that what was spent is not known; restore it"
            ) from None

    def add(self, trial: Trial, state: Path) -> None:
        """Write down what a trial's books say; one that is taken again takes its own place."""
        found = spent(self.plan, trial[2], state)
        if not found:
            return
        self.rows[trial] = found
        lines = []
        for key, rows in self.rows.items():
            for unit, who, charges in rows:
                amount = f"{epsilon(self.plan, unit, charges):.4g}"
                delta = f"{delta_of(self.plan, unit):g}"
                lines.append((*key, unit, who, amount, delta, json.dumps(charges)))
        write_csv(self.path, TABLES[SPENT], lines)

    def together(self) -> dict[str, float]:
        """Spending of all trials together, of each unit: of the person who has spent most."""
        found: dict[str, dict[str, list[tuple[float, float, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for rows in self.rows.values():
            for unit, who, charges in rows:
                found[unit][who] += charges
        return {
            unit: max(epsilon(self.plan, unit, each) for each in people.values())
            for unit, people in found.items()
        }

    def lines(self) -> list[str]:
        """Lines for the screen and the experiment of the winners; none without privacy."""
        told = []
        for unit, amount in self.together().items():
            much = f"{amount:.3g}" if math.isfinite(amount) else f"over {MOST:g}"
            told.append(
                f"privacy: the {len(self.rows)} trials of this sweep, on the same people, spend "
                f"epsilon {much} together at delta {delta_of(self.plan, unit):g} per {unit}; a run "
                "of the winners spends its own on top"
            )
        if told:
            told.append(
                "privacy: the choice among trials is a release of its own, by validation scores "
                f"without noise: no epsilon covers it; {BESIDE}"
            )
        return told
