"""A run goes on with another presence trace, by which turns are counted from the beginning."""

import csv

import pytest

from vergence.errors import PartialRun, StateError
from vergence.experiment.run import RoundCallback, resume, start
from vergence.experiment.schema import load

ROUNDS, PEOPLE = 6, 4
TEXT = f"""
task = {{ name = "toy" }}
model = {{ name = "linear" }}
federation = {{ name = "toy", people = {PEOPLE} }}
method = "fedavg"
local = {{ optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }}
presence = {{ trace = "trace.csv" }}
privacy = {{ user = {{ clip = 0.5, noise = 4.0, turns = 2 }} }}
run = {{ rounds = {ROUNDS}, evaluate_every = 0, workers = 1, solver = "sequential" }}
"""


def write(folder, present):
    rows = [
        [f"p{person:02d}", at, *[int(at in present)] * 2]
        for person in range(PEOPLE)
        for at in range(ROUNDS)
    ]
    with (folder / "trace.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["client", "round", "idle", "charging"], *rows])


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run whose experiment and trace lie in another folder than one works in, stopped at 3."""
    (folder := tmp_path / "experiment").mkdir()
    (folder / "x.toml").write_text(TEXT)
    write(folder, {0, 1})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def stop(report):
        if report.round == 3:
            raise KeyboardInterrupt

    with pytest.raises((PartialRun, KeyboardInterrupt)):
        start(load(folder / "x.toml"), folder / "out", RoundCallback(on_round=stop))
    return folder


def test_a_run_does_not_go_on_with_another_trace(begun):
    write(begun, {4, 5})
    with pytest.raises(StateError, match="made with other config"):
        resume(load(begun / "out" / "config.toml"), begun / "out")


def test_a_run_goes_on_with_its_own_trace_and_nobody_takes_a_turn_too_many(begun):
    resume(load(begun / "out" / "config.toml"), begun / "out")
    with (begun / "out" / "turns.csv").open() as file:
        taken = [row["client"] for row in csv.DictReader(file) if row["status"] == "ok"]
    assert {taken.count(person) for person in taken} == {2}
