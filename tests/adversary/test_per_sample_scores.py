"""Scores of single samples (samples.csv) of a run that hides people: told of, and sent nowhere."""

import json

import pytest

from tests.cli.commands import vergence, write
from vergence.monitoring.mlflow_export import FILES

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 4 }
federation = { name = "eye_synthetic", people = 3, samples = 40, size = "9x15" }
method     = { name = "fedavg" }
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
privacy    = { user = { noise = 4.0 } }
"""
TABLES = ("samples.csv", "prior_samples.csv")


@pytest.fixture
def run(tmp_path):
    said = vergence("run", write(tmp_path, EYES), "--out", tmp_path / "a")
    assert said.code == 0, said.err
    return tmp_path / "a"


def test_the_page_says_that_they_are_kept(run):
    assert (run / "samples.csv").is_file()
    assert vergence("privacy", "ethics", run).code == 0
    plan = json.loads((run / "ethics.json").read_text())["plan"]
    said = "person by person, and of some also picture by picture"
    assert any(said in each for each in plan["unprotected"])


def test_nothing_of_single_samples_is_published():
    assert not {*FILES} & {*TABLES}


def test_who_is_erased_is_in_none(run, tmp_path):
    assert all("p01" in (run / table).read_text() for table in TABLES)
    vergence("privacy", "forget", run, "p01", "--out", tmp_path / "n", "--shadows", 0, "--erase")
    assert not any("p01" in (run / table).read_text() for table in TABLES)
