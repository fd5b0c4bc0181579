"""What an audit makes of numbers that people tell: those of the run, and real runs attacked."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from tests.cli.commands import run, vergence
from vergence.audit.disclosed_statistics import audit_statistics, class_counts, proxy_distances
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.experiment.trained_run import read_run
from vergence.reports.ethics.page import ethics
from vergence.training.sequential import Solver

CLIPS = """
task       = { name = "summary" }
model      = { name = "vslstm", features = 2, hidden = 2 }
federation = { name = "clip_synthetic", people = 4, clips = 5, features = 2 }
method     = { name = "cfedvs", clusters = 2, proxies = 2, per_frame = true }
local      = { optimizer = "sgd", epochs = 1, batch = 4 }
run        = { rounds = 1, evaluate_every = 0, workers = 1, solver = "sequential" }
"""
TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 4 }
methods    = [{ name = "fedgen", steps = 1, hidden = 4 },
              { name = "ap_fl", samples = 10, passes = 1, noise = 4, tune_epochs = 1 },
              { name = "cfedvs", label = "one_group", clusters = 1 }]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1, solver = "sequential" }
"""


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return run(tmp_path_factory.mktemp("clips"), CLIPS)


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    return run(tmp_path_factory.mktemp("toys"), TOY)


def said(saved, verb, message, samples):
    """Return what a client of these data says to a verb."""
    site = ClientContext("p00", samples, samples, saved.task, 0, RandomStream("run", 0))
    c = saved.method.client(saved.task)
    handler = getattr(saved.method, f"on_{verb}")
    return drive(handler(c, Message(verb, message), site), Solver(saved.task).compute)[1]


def test_distances_are_those_that_clients_of_the_run_tell(clips):
    saved = read_run(clips)
    data = saved.trained_on
    numbers, (cut, whole) = proxy_distances(saved, data)
    for row, splits in zip(numbers.asked, data.people.values(), strict=True):
        told = said(saved, "measure", {"proxies": saved.server.proxies}, splits.train)
        assert torch.allclose(row.float(), told.trees["distances"]["d"])
    assert numbers.bound >= whole.max() > numbers.bound / 2
    assert numbers.changes[0].sample == pytest.approx(2 * numbers.bound / 3)  # of three clips
    assert cut.shape == whole.shape == (12, 2)


def test_counts_are_those_that_clients_of_the_run_tell(toys):
    saved = read_run(toys / "ap_fl")
    data = saved.trained_on
    numbers = class_counts(saved.task, data)
    for row, splits in zip(numbers.asked, data.people.values(), strict=True):
        told = said(saved, "tell", {}, splits.train)
        assert row.tolist() == told.trees["counts"]["counts"].tolist()


def test_where_nobody_tells_numbers_nothing_is_found(toys):
    saved = read_run(toys / "one_group")
    assert audit_statistics(saved, saved.trained_on) == ([], [])
    saved = read_run(toys / "fedgen")
    data = saved.trained_on
    alone = replace(data, people={"p00": data.people["p00"]})
    assert audit_statistics(saved, alone) == (
        [],
        [("whose numbers they are", "there is nobody else")],
    )


@pytest.mark.slow
def test_an_audit_says_whose_distance_it_is_beside_chance_and_so_does_the_page(clips):
    found = vergence("privacy", "audit", clips, "--quick")
    assert found.code == 0, found.err
    with (clips / "audit" / "people.csv").open(newline="") as file:
        rates = {row["finds"]: row for row in csv.DictReader(file)}
    copied = rates["whose distance it is, by a copy of their videos; no noise, as in the run"]
    assert (copied["right"], copied["chance"]) == ("100% (40% to 100%)", "25%")
    hidden = rates["whose distance it is, by a copy of their videos; noise, epsilon 1 for a person"]
    assert float(hidden["low"]) < 0.5 < float(copied["value"])
    assert hidden["as_it_ran"] == "False"
    assert "clients send distances and models" in found.out
    ethics(clips)
    plan = json.loads((clips / "ethics.json").read_text())["plan"]
    assert {rate["what"] for rate in plan["rates"]} == set(rates)
    assert "how far each person's clips are from public ones" in plan["sees"][0][1]
    assert any(line.startswith("Names: how far") for line in plan["residual"])


@pytest.mark.slow
@pytest.mark.parametrize("label", ["fedgen", "ap_fl"])
def test_an_audit_says_whose_counts_of_classes_they_are(label, toys):
    found = vergence("privacy", "audit", toys / label, "--quick")
    assert found.code == 0, found.err
    assert "whether somebody has a class; no noise, as in the run" in found.out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CLIPS, "every person's reply of distances;"),
        (TOY, "every person's reply of model updates, counts;"),
        (TOY, "every person's reply of classifier, counts;"),
    ],
)
def test_explain_calls_no_number_an_update(text, line, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    told = vergence("explain", tmp_path / "a.toml")
    assert line in " ".join(told.out.split()), told.err
