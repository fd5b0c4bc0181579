"""A sweep of private runs: what its trials spend on the same people is added up, and said."""

import csv
import io
import math
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.commands import vergence, write
from vergence.experiment.schema import load
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.studies.sweep import show, sweep

TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 6, samples = 40 }
methods    = ["fedavg", "fedprox"]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, workers = 1, solver = "sequential", evaluate_every = 0 }
privacy    = { PRIVACY }
sweep      = { space = { "local.lr" = [0.02, 0.1] }, seeds = [0, 1] }
"""
USER = "user = { clip = 1.0, noise = 4.0 }"
TRAININGS = 2 * 2 * 2
"""Methods, settings, seeds."""
ROUNDS, DELTA = 2, 1e-5


def swept(folder: Path, privacy: str):
    found = sweep(load(write(folder, TOY.replace("PRIVACY", privacy))), folder / "out")
    text = io.StringIO()
    show(found, Console(file=text, width=300))
    return folder / "out", text.getvalue()


def rows(out: Path):
    path = out / "spent.csv"
    assert path.is_file(), "nothing says what the trials spent"
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_trials_spend_adds_up_and_is_said_wherever_a_winner_is_named(tmp_path: Path):
    """By hand: 8 trainings of 2 rounds with noise 4 are one Gaussian of mu = sqrt(16) / 4 = 1."""
    out, screen = swept(tmp_path, USER)
    whole = gaussian_epsilon(math.sqrt(TRAININGS * ROUNDS) / 4.0, DELTA)
    alone = gaussian_epsilon(math.sqrt(ROUNDS) / 4.0, DELTA)
    assert whole > 2 * alone
    said = f"epsilon {whole:.3g} together at delta 1e-05 per person"
    assert said in screen
    assert "choice among trials" in screen
    assert "without noise: no epsilon covers it" in screen
    told = rows(out)
    assert len(told) == TRAININGS
    assert {float(row["epsilon"]) for row in told} == {float(f"{alone:.4g}")}
    for best in (out / "best.toml", out / "best" / "fedavg.toml"):
        text = best.read_text()
        assert said in text
        assert text.startswith("# privacy: ")
        tomllib.loads(text)
    assert load(out / "best.toml").tuning is not None
    ran = vergence("run", out / "best.toml", "--out", tmp_path / "run").out
    assert "a sweep chose its settings" in ran


@pytest.mark.slow
def test_masks_add_up_too(tmp_path: Path):
    privacy = 'mask = { epsilon = 1.0, of = "entry" }'
    text = TOY.replace("PRIVACY", privacy)
    text = text.replace('"fedavg", "fedprox"', '{ name = "fedcpf", rate = 0.4 }')
    found = sweep(load(write(tmp_path, text)), tmp_path / "out")
    told = rows(tmp_path / "out")
    assert {row["unit"] for row in told} == {"mask"}
    each = max(float(row["epsilon"]) for row in told)
    screen = io.StringIO()
    show(found, Console(file=screen, width=300))
    amount = float(screen.getvalue().partition("spend epsilon ")[2].split()[0])
    assert each < amount <= 4 * each + 0.01


@pytest.mark.slow
def test_a_sweep_that_is_gone_on_with_forgets_nothing(tmp_path: Path, monkeypatch):
    """Stopped after every third trial: the same lines in the end, and the same sum."""
    from vergence.errors import PartialRun
    from vergence.studies import sweep as module

    honest, begun = module.run_trial, []

    def stopping(*args):
        begun.append(1)
        if len(begun) % 3 == 0:
            raise KeyboardInterrupt
        return honest(*args)

    whole, screen = swept(tmp_path, USER)
    (tmp_path / "again").mkdir()
    monkeypatch.setattr(module, "run_trial", stopping)
    path, out = write(tmp_path / "again", TOY.replace("PRIVACY", USER)), tmp_path / "again" / "out"
    for _ in range(9):
        try:
            found = sweep(load(path), out)
            break
        except PartialRun:
            continue
    assert rows(out) == rows(whole)
    text = io.StringIO()
    show(found, Console(file=text, width=300))
    lines = [line for line in screen.splitlines() if line.startswith("privacy: ")]
    assert lines
    assert [line for line in text.getvalue().splitlines() if line.startswith("privacy: ")] == lines


def test_a_sweep_without_privacy_says_nothing_of_it(tmp_path: Path):
    out, screen = swept(tmp_path, 'aggregation = "plain"')
    assert "privacy: " not in screen
    assert not (out / "spent.csv").exists()
    assert not (out / "best.toml").read_text().startswith("#")


@pytest.mark.slow
def test_samples_add_up_too(tmp_path: Path):
    pytest.importorskip("opacus", reason="needs the extra 'dp'")
    out, screen = swept(tmp_path, "solver = { noise = 2.0 }")
    told = rows(out)
    assert {row["unit"] for row in told} == {"sample"}
    assert len(told) == TRAININGS * 6
    each = max(float(row["epsilon"]) for row in told)
    amount = float(screen.partition("spend epsilon ")[2].split()[0])
    assert 1.5 * each < amount < TRAININGS * each
