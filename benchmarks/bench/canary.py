"""`benchmarks.bench canary`: epsilon proved beside epsilon claimed, of DP-SGD as a run takes it.

Sixteen ordinary samples and one whose gradient is at its bound, or in its place one that pulls
nowhere; a linear network, two steps, all samples in each. Every training has fresh noise. Who knows
the canary says from the trained parameters whether it was there, and how often that is right and
wrong proves an epsilon that is spent at least (`benchmarks.bench.canary_audit`).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.bench.canary_audit import CanaryResult, audit
from vergence.core.client import ClientContext
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.errors import ConfigError, StateError
from vergence.models.linear import Linear
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import Release
from vergence.tasks.toy import ToyTask

DELTA, STEPS = 1e-5, 2
NOISES = (0.3, 0.5, 1.0, 2.0, 8**0.5)
CANARY = torch.tensor([9.0, 9.0, 1.0]) / 163**0.5
"""Where the canary, x = (9, 9) and a target far above, pulls weights and bias."""


class Unbooked(DpSolver):
    """A solver without a book: thousands of trainings are no run's budget."""

    def _spend(self, client: str, entry: Release, samples: int) -> None:
        pass


class Silent(Unbooked):
    """One that forgets its noise, and is to be caught."""

    def noise(self, samples: int) -> float:
        """Return next to none."""
        return 1e-6


class Row(NamedTuple):
    """A noise, whether it was left out, the epsilon claimed for it, and what was proved."""

    noise: float
    silent: bool
    claimed: float
    found: CanaryResult


def claimed(noise: float) -> float:
    """Return the epsilon of a sample that is in every step: mu = sqrt(steps) / noise."""
    return gaussian_epsilon(math.sqrt(STEPS) / noise, DELTA)


def trainer(
    folder: Path, noise: float, kind: type[Unbooked] = Unbooked
) -> Callable[[bool, int], float]:
    """Return what trains with or without the canary, and says how far it was pulled its way.

    Args:
        folder: for the solver's secret.
        noise: multiplier.
        kind: of the solver.
    """
    task, draws = ToyTask(Linear(2)), torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 2, generator=draws), torch.randn(16, generator=draws)
    local = LocalTraining(
        optimizer="sgd", steps=STEPS, batch=17, lr=0.1, momentum=0.0, weight_decay=0.0
    )
    solver = kind(task, DpSgd(noise=noise), folder, 0, [TrainingPass(local, 1.0, 1)])
    kinds = {
        present: Samples(
            {
                "x": torch.cat([x, torch.full((1, 2), 9.0 * present)]),
                "y": torch.cat([y, torch.tensor([1e6 * present])]),
            }
        )
        for present in (True, False)
    }

    def train(present: bool, run: int) -> float:
        solver.secret = NoiseKey(bytes(32)).child(present, run)
        data = kinds[present]
        site = ClientContext("p00", data, data, task, 0, RandomStream("audit"))
        got = solver.train(site, Fit(task.init(), data, local), RandomStream("audit", run))
        return float(torch.cat([got.params["weight"].flatten(), got.params["bias"]]) @ CANARY)

    return train


def measured(noise: float, runs: int, silent: bool = False) -> Row:
    """Train with and without the canary, `runs` times each."""
    with tempfile.TemporaryDirectory(prefix="vergence-canary-") as folder:
        train = trainer(Path(folder), noise, Silent if silent else Unbooked)
        return Row(noise, silent, claimed(noise), audit(train, runs, DELTA))


def run(console: Console, runs: int) -> None:
    """Print the table.

    Raises:
        ConfigError: fewer than 4 runs.
        StateError: more is proved than is claimed: a mistake in this software.
    """
    if runs < 4:
        raise ConfigError(f"--runs takes 4 trainings of either kind or more; got {runs}")
    torch.set_num_threads(1)
    rows = [measured(noise, runs) for noise in NOISES] + [measured(NOISES[-1], runs, silent=True)]
    table = Table("noise", "epsilon claimed", "proved at least", "right", "wrong")
    for row in rows:
        table.add_row(
            f"{row.noise:.2f}{', left out' if row.silent else ''}",
            f"{row.claimed:.2f}",
            f"{row.found.epsilon:.2f}",
            f"{row.found.hits:.1%}",
            f"{row.found.alarms:.1%}",
        )
    console.print(table)
    console.print(
        Text(
            f"{runs} trainings with the canary and {runs} without; delta {DELTA:g}; bounds of "
            "Clopper and Pearson, 95 %, on the half of them on which no threshold was chosen."
        )
    )
    broken = [row.noise for row in rows if not row.silent and row.found.epsilon > row.claimed]
    if broken:
        raise StateError(f"more is proved than claimed at noise {broken}: report this mistake")
