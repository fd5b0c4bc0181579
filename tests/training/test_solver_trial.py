"""The choice of a solver: when it is measured, what is not, and that it says why."""

import re

import pytest

from tests.engine.learners import TASKS, Odd, eyes, numbers
from vergence.core.local_training import LocalTraining
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle
from vergence.tasks.toy import ToyTask
from vergence.training import solver_trial
from vergence.training.solver_trial import choose_solver
from vergence.training.stacked import Unstackable

LOCAL = LocalTraining(optimizer="sgd", batch=10, lr=0.01)
DATA = [numbers(20, client) for client in range(3)]
MLP = TASKS["mlp"][0]


class Told(solver_trial._Trial):
    """A trial whose clock says what the test wants."""

    one, several = 1e-3, 1e-3

    def sequence(self, clients: int) -> float:
        super().sequence(1)
        return self.one

    def stack(self) -> float:
        super().stack()
        return self.several


def test_a_clear_winner_is_taken(monkeypatch):
    monkeypatch.setattr(solver_trial, "_Trial", Told)
    monkeypatch.setattr(Told, "several", 0.5e-3)
    choice = choose_solver(MLP, LOCAL, [20] * 100, DATA)
    assert (choice.solver, choice.chunk) == ("stacked", solver_trial.CHUNK)
    assert choice.reason == (
        "measured 1.00 ms per client one by one, 0.50 ms in stacks of 25: 2.00 times as fast, "
        "1.25 is needed"
    )
    assert choice.timings == {"sequential": 1e-3, "stacked": 0.5e-3}


def test_a_narrow_winner_is_not(monkeypatch):
    """1.00 / 0.81 = 1.23."""
    monkeypatch.setattr(solver_trial, "_Trial", Told)
    monkeypatch.setattr(Told, "several", 0.81e-3)
    choice = choose_solver(MLP, LOCAL, [20] * 100, DATA)
    assert (choice.solver, choice.chunk) == ("sequential", 1)
    assert "1.23 times as fast" in choice.reason


def test_a_long_step_ends_the_trial(monkeypatch):
    """50 ms for two steps of one client."""
    monkeypatch.setattr(solver_trial, "_Trial", Told)
    monkeypatch.setattr(Told, "one", 50e-3)
    choice = choose_solver(MLP, LOCAL, [20] * 100, DATA)
    assert choice.solver == "sequential"
    assert choice.reason == "a step takes 25.0 ms, too long for stacking to pay"


def test_a_real_trial_measures_both():
    choice = choose_solver(MLP, LOCAL, [20] * 100, DATA)
    assert choice.timings["sequential"] > 0
    assert choice.timings["stacked"] > 0
    faster = choice.timings["sequential"] / choice.timings["stacked"] >= solver_trial.CLEARLY
    assert choice.solver == ("stacked" if faster else "sequential")


@pytest.mark.parametrize(
    ("task", "sizes", "data", "reason"),
    [
        (GazeAngle(LeNet((3, 4))), [20] * 50, [eyes(20, 0)], "convolutions, which stacking makes"),
        (MLP, [20] * 7 + [19] * 7 + [0] * 50, DATA, "7 clients .* too few for stacks of 8"),
        (MLP, [], DATA, "0 clients .* too few"),
        (MLP, [20] * 50, [], "no client's data at hand"),
        (
            ToyTask(Odd()),
            [20] * 50,
            DATA,
            "Peeking cannot be stacked: .*; use the sequential solver",
        ),
    ],
)
def test_what_is_not_measured(task, sizes, data, reason):
    choice = choose_solver(task, LOCAL, sizes, data)
    assert (choice.solver, choice.chunk) == ("sequential", 1)
    assert "stacked" not in choice.timings
    assert re.search(reason, choice.reason)


def test_big_parameters_are_not_stacked(monkeypatch):
    """A network of 6 x 16 + 16 + 16 = 128 float32 entries, and room for five."""
    monkeypatch.setattr(solver_trial, "BLOCKS_BYTES", 5 * 128 * 4)
    assert (
        "8 clients' parameters are more than" in choose_solver(MLP, LOCAL, [20] * 50, DATA).reason
    )


def test_what_is_asked_for_is_taken():
    lenet = GazeAngle(LeNet((3, 4)))
    assert choose_solver(MLP, LOCAL, [20] * 50, DATA, "sequential").reason == "asked for"
    choice = choose_solver(lenet, LOCAL, [20] * 9, [eyes(20, 0)], "stacked")
    assert (choice.solver, choice.chunk, choice.reason) == ("stacked", 8, "asked for")
    with pytest.raises(Unstackable, match="Peeking cannot be stacked"):
        choose_solver(ToyTask(Odd()), LOCAL, [20] * 50, DATA, "stacked")
