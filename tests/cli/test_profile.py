"""`--profile`: where the seconds of a command went, workers' included, and nothing else changed."""

import csv
import json

import pytest

from tests.cli.commands import SEVERAL, vergence, write
from vergence import profiling
from vergence.profiling import PHASES, WAITING, Profile

METHODS = ("local_only", "fedavg", "fedcpf")


class Clock:
    """Clocks that go on when told, the wall's twice as fast as the processor's."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(profiling.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(profiling.time, "process_time", lambda: self.now / 2)

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_phase_within_another_stops_it(clock):
    profile = Profile("rest")
    with profile.counting("fedavg", "rest"), profile.counting("fedavg", "training"):
        clock.work(1)
        with profile.counting("fedavg", "checkpoints"):
            clock.work(10)
        clock.work(2)
    clock.work(100)
    assert profile.rows() == [
        ("", "rest", 100, 50),
        ("fedavg", "training", 3, 1.5),
        ("fedavg", "checkpoints", 10, 5),
        ("fedavg", "rest", 0, 0),
    ]


def test_waiting_is_divided_among_what_workers_were_at(clock):
    """Two workers busy for 6 + 2 s of a wait of 4 s: training takes three quarters of it."""
    profile = Profile("exchange")
    with profile.counting("", WAITING):
        clock.work(4)
    profile.add({"training": (3, 2.5), "scores": (1, 1)})
    profile.add({"training": (3, 3.0), "scores": (1, 1)})
    profile.settle()
    assert profile.rows() == [
        ("", "training", 3, 5.5),
        ("", "scores", 1, 2),
        ("", "exchange", 0, 2),
    ]


def test_a_worker_hands_over_what_it_spent_once(clock):
    profile = Profile(WAITING)
    clock.work(7)
    with profile.counting("", "exchange"):
        clock.work(2)
    assert profile.take_times() == {"exchange": (2, 1)}
    assert profile.take_times() == {}


def test_without_a_profile_a_phase_is_nothing():
    assert profiling.phase("training") is profiling.method("fedavg") is profiling.OFF
    assert profiling.take_times() == {}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    file = write(folder, SEVERAL.replace("workers = 1", "workers = 2"))
    said = {}
    for name, words in (("plain", ()), ("profiled", ("--profile",))):
        said[name] = vergence("run", file, "--out", folder / name, *words)
        assert said[name].code == 0
    return folder, said


def test_the_table_is_printed_and_kept(made):
    folder, said = made
    with (folder / "profiled" / "profile.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["phase"] for row in rows} <= set(PHASES)
    assert [*dict.fromkeys(row["method"] for row in rows)] == ["", *METHODS]
    for method in METHODS:  # trained in workers alone
        spent = {row["phase"]: float(row["cpu_seconds"]) for row in rows if row["method"] == method}
        assert spent["training"] > 0
    assert "Where the seconds went" in said["profiled"].out
    assert "of the wall time is neither training nor forward" in said["profiled"].out
    assert "Where the seconds went" not in said["plain"].out
    assert not (folder / "plain" / "profile.csv").exists()


def test_nothing_else_of_a_run_differs(made):
    folder, _ = made
    for method in METHODS:
        plain, profiled = (
            json.loads((folder / name / method / "results.json").read_text())["fingerprint"]
            for name in ("plain", "profiled")
        )
        assert plain == profiled
    assert "profile.csv" not in (folder / "profiled" / "SHA256SUMS").read_text()
    assert vergence("verify", folder / "profiled").code == 0


def test_a_command_that_fails_leaves_no_profile_behind(tmp_path):
    vergence("run", "toy", "--set", "run.rounds=-1", "--out", tmp_path / "out", "--profile")
    assert profiling.active is None
    assert not (tmp_path / "out" / "profile.csv").exists()
