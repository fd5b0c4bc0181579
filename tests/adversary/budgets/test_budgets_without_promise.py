"""Budgets that promise nothing, or that no accountant can count, are refused before a run."""

from pathlib import Path

import pytest

from tests.cli.commands import ONE, Said, vergence, write
from vergence.errors import VergenceError
from vergence.privacy.dp import accounting
from vergence.privacy.dp.accounting import Charge, cross_checked

FEDAVG = ONE.replace('{ name = "fedcpf", rate = 0.2 }', '"fedavg"')


def told(folder: Path, table: str) -> Said:
    try:
        return vergence("explain", write(folder, FEDAVG), "--set", f"privacy.{table}")
    except Exception as error:  # what would be a traceback
        return Said(1, "", repr(error))


def published(charge: Charge, delta: float) -> dict[str, float] | None:
    try:
        return cross_checked([charge], delta)
    except VergenceError:
        return None


def test_an_epsilon_that_one_accountant_finds_infinite_is_not_published():
    """PRV's closed form says 2.25 at this delta; PLD's tails are wider than that."""
    assert published(Charge(4.0), 1e-20) is None


def test_nor_one_whose_count_was_given_up(monkeypatch: pytest.MonkeyPatch):
    """A grid that is too large is not made: infinite stands for what was not counted."""
    pytest.importorskip("opacus", reason="needs the extra 'dp'")
    monkeypatch.setattr(accounting, "POINTS", 10, raising=False)
    assert published(Charge(4.0625, 0.5, 2), 1e-5) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("user={epsilon=8, delta=0.4}", ["privacy.user", "delta must be below 1 / 3", "people"]),
        ("user={epsilon=8, delta=0.999}", ["privacy.user", "delta must be below 1 / 3"]),
        ("user={epsilon=8, delta=1e-320}", ["privacy.user", "delta must be >= 1e-12"]),
        ("solver={noise=1.0, delta=0.03}", ["privacy.solver", "below 1 / 36", "training samples"]),
        ("solver={noise=1.0, delta=1e-320}", ["privacy.solver", "delta must be >= 1e-12"]),
        (
            "solver={noise=1.0, clip=1e300}",
            ["privacy.solver", "clip must be >= 1e-09 and <= 1e+09"],
        ),
        ("user={noise=1e-9}", ["privacy.user", "hides nobody"]),
        ("solver={noise=1e-3}", ["privacy.solver", "hides nobody"]),
    ],
)
def test_a_promise_that_promises_nothing_is_refused(table: str, words: list[str], tmp_path: Path):
    told(tmp_path, table).complains(2, *words)


@pytest.mark.parametrize("table", ["user={epsilon=8, delta=0.3}", "user={epsilon=8}"])
def test_a_usual_one_is_taken(table: str, tmp_path: Path):
    assert told(tmp_path, table).code == 0
