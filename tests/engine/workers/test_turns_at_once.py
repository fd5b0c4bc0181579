"""Turns of a large network in one process: one thread trains, others compute with the results.

Bits are those of one turn after the other, also with dropout, whose zeros come from a generator
that all threads share.
"""

import threading
import time

import pytest

from tests.engine.learners import LOCALS
from tests.engine.test_gpu_runs import DROPPING
from tests.engine.toys import run_toy
from vergence.engine import round_loop
from vergence.engine.client_runner import ClientRunner
from vergence.errors import ConfigError
from vergence.methods.fedcpf import FedCPF
from vergence.training.sequential import Solver

pytestmark = pytest.mark.slow
METHOD = FedCPF(local=LOCALS["plain"], rate=0.2)
PLAN = {"people": 6, "rounds": 3, "task": DROPPING, "checkpoint_every": 0}


@pytest.fixture(autouse=True)
def _large(monkeypatch) -> None:
    """Let every network count as a large one, on a machine with three cores."""
    monkeypatch.setattr(round_loop, "LARGE", 0)
    monkeypatch.setattr(round_loop, "cpu_count", lambda: 3)


def one_after_the_other(monkeypatch, path):
    """Return the fingerprint of a run whose turns are in the calling thread."""
    with monkeypatch.context() as patch:
        patch.setattr(round_loop, "TURNS_AT_ONCE", 1)
        return run_toy(path, METHOD, **PLAN).fingerprint


def test_a_reply_is_settled_while_the_next_turn_trains(tmp_path, monkeypatch):
    """The first reply waits for the beginning of the second training of its round."""
    expected = one_after_the_other(monkeypatch, tmp_path / "a")
    second, fits, fit, settle = threading.Event(), [], Solver.fit, ClientRunner.settle

    def fitting(self, *rest):
        fits.append(None)
        if len(fits) == 2:
            second.set()
        return fit(self, *rest)

    def settling(self, *rest):
        assert second.wait(60)
        return settle(self, *rest)

    monkeypatch.setattr(Solver, "fit", fitting)
    monkeypatch.setattr(ClientRunner, "settle", settling)
    assert run_toy(tmp_path / "b", METHOD, **PLAN).fingerprint == expected


def test_one_thread_at_a_time_trains(tmp_path, monkeypatch):
    expected = one_after_the_other(monkeypatch, tmp_path / "a")
    inside, names, most, fit = [], set(), [], Solver.fit

    def fitting(self, *rest):
        inside.append(None)
        names.add(threading.current_thread().name)
        most.append(len(inside))
        # Long enough for another thread, if it were let in.
        time.sleep(0.005)
        result = fit(self, *rest)
        inside.pop()
        return result

    monkeypatch.setattr(Solver, "fit", fitting)
    assert run_toy(tmp_path / "b", METHOD, **PLAN).fingerprint == expected
    assert max(most) == 1
    assert len(names) > 1


def test_a_handler_that_builds_a_network_draws_no_number_of_a_training(tmp_path, monkeypatch):
    expected = one_after_the_other(monkeypatch, tmp_path / "a")
    settle = ClientRunner.settle

    def settling(self, *rest):
        for _ in range(20):
            self.worker.task.init()
        return settle(self, *rest)

    monkeypatch.setattr(ClientRunner, "settle", settling)
    assert run_toy(tmp_path / "b", METHOD, **PLAN).fingerprint == expected


def test_an_error_in_a_thread_ends_the_run(tmp_path, monkeypatch):
    def failing(*_):
        raise ConfigError("no such thing")

    monkeypatch.setattr(Solver, "fit", failing)
    with pytest.raises(ConfigError, match="no such thing"):
        run_toy(tmp_path, METHOD, **PLAN)
    assert not [t for t in threading.enumerate() if t.name.startswith("turns")]


@pytest.mark.parametrize("plan", [{"workers": 2}, {"engine": "bytes"}])
def test_turns_of_other_runs_are_in_the_calling_thread(plan, tmp_path, monkeypatch):
    names, settle = set(), ClientRunner.settle

    def settling(self, *rest):
        names.add(threading.current_thread().name)
        return settle(self, *rest)

    monkeypatch.setattr(ClientRunner, "settle", settling)
    run_toy(tmp_path, METHOD, **PLAN, **plan)
    assert not [name for name in names if name.startswith("turns")]
