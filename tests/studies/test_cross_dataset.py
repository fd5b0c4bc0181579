"""`vergence study cross`: a line trained on one made-up crowd, tested on another."""

import csv
import io

import pytest
import torch
from rich.console import Console

from tests.cli.commands import TOY, run, vergence, write
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.studies.cross_dataset import cross


@pytest.fixture(scope="module")
def crowds(tmp_path_factory):
    """Runs of FedAvg, on the crowds of two seeds, and of methods that share less."""
    folder = tmp_path_factory.mktemp("cross")
    for name, method, *sets in (
        ("one", '"fedavg"'),
        ("two", '"fedavg"', "federation.seed=1"),
        ("long", '"fedavg"', "federation.seed=1", "run.rounds=4"),
        ("own", '"local_only"'),
        ("part", '"fedper", head = ["bias"]'),
    ):
        text = TOY.replace("METHODS", f"method = {{ name = {method} }}")
        config = write(folder, text, f"{name}.toml")
        start(load(config, sets), folder / name)
    return folder


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_model_is_scored_on_the_other_crowd(crowds, tmp_path):
    said = vergence("study", "cross", crowds / "one", crowds / "two", "--out", tmp_path)
    assert said.code == 0, said.err
    assert "Note" not in said.out, "they differ in their data alone"
    assert "trained on the row" in said.out
    rows = rows_of(tmp_path / "cross.csv")
    (found,) = [
        r
        for r in rows
        if r["trained_on"].endswith("/one")
        and r["tested_on"].endswith("/two")
        and (r["person"], r["metric"]) == ("p01", "error")
    ]
    model = read_run(crowds / "one", 0).server.model
    data = validate(load(crowds / "two" / "config.toml")).ready.people["p01"].test.columns
    error = data["x"] @ model["weight"][0] + model["bias"] - data["y"]
    assert float(found["value"]) == pytest.approx(
        float(torch.sqrt(error.square().mean())), rel=1e-6
    )


def test_own_data_keeps_the_scores_of_the_run(crowds, tmp_path):
    vergence("study", "cross", crowds / "one", crowds / "two", "--out", tmp_path)
    rows = rows_of(tmp_path / "cross.csv")
    own = {
        r["person"]: r["value"]
        for r in rows
        if r["trained_on"] == r["tested_on"]
        and r["trained_on"].endswith("/one")
        and r["metric"] == "error"
    }
    kept = rows_of(crowds / "one" / "people.csv")
    assert own == {
        r["person"]: r["value"] for r in kept if (r["evaluation"], r["metric"]) == ("P0", "error")
    }


def test_what_cannot_be_crossed_is_named(crowds, tmp_path):
    vergence("study", "cross", crowds / "one", "--out", tmp_path).complains(2, "two or more runs")
    said = vergence("study", "cross", crowds / "own", crowds / "two", "--out", tmp_path)
    said.complains(2, "local_only", "shares nothing", "never met", "fedavg")
    said = vergence("study", "cross", crowds / "part", crowds / "two", "--out", tmp_path)
    said.complains(2, "fedper", "shares only a part", "never met", "fedavg")


EYES = """
task       = { name = "gaze_angle", personal_prior = 1.0 }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 2, samples = 40, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


def test_strangers_are_scored_with_the_common_prior(tmp_path):
    one = run(tmp_path, EYES, out="one")
    two = run(tmp_path, EYES, "federation.seed=1", out="two")
    cross([one, two], tmp_path, Console(file=io.StringIO()))
    found = {
        r["person"]: float(r["value"])
        for r in rows_of(tmp_path / "cross.csv")
        if (r["trained_on"][-4:], r["tested_on"][-4:]) == ("/one", "/two")
        and r["metric"] == "angle_error_deg"
    }
    trained = read_run(one).on_data(read_run(two).ready)
    for person, value in found.items():
        served = trained.without_own_prior(person).measure(trained.server.model, person)
        own = trained.measure(trained.server.model, person)
        assert value == served["angle_error_deg"]
        assert abs(value - own["angle_error_deg"]) > 1e-3
    assert set(found) == {"p00", "p01"}


def test_what_else_differs_is_noted(crowds, tmp_path):
    said = vergence("study", "cross", crowds / "one", crowds / "long", "--out", tmp_path)
    assert said.code == 0, said.err
    (note,) = [line for line in said.out.splitlines() if line.startswith("Note: ")]
    assert note.startswith("Note: rounds differs: ")
    assert "/one has 3; " in note
    assert note.endswith("/long has 4")
