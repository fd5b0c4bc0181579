"""Defences at the cut from the command line: what is refused, told, and attacked."""

import csv
import json

import pytest

from tests.cli.commands import run, vergence, write
from tests.conftest import ROOT
from vergence.experiment import schema as config
from vergence.experiment.provenance import config_digest

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 2], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [3, 3], size = "9x15" }
method     = { name = "splitfed_u", cut = "conv3", last = "fc1" }
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.02 }
run        = { rounds = 2, evaluate_every = 0, workers = 1 }
"""
NARROW = 'privacy = { cut = { name = "bottleneck", epsilon = 8.0, FROZEN } }\n'


def test_methods_without_a_cut_are_refused_when_the_file_is_read(tmp_path):
    text = EYES.replace('{ name = "splitfed_u", cut = "conv3", last = "fc1" }', '"fedavg"')
    said = vergence("explain", write(tmp_path, text + NARROW.replace("FROZEN", "delta = 1e-5")))
    said.complains(2, "method 'fedavg': privacy.cut stands where a network is cut")


def test_a_defence_is_part_of_the_digest():
    table = config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml")
    other = {**table, "privacy": {"cut": {"name": "nopeek", "weight": 0.1}}}
    assert config_digest(table) != config_digest(other)


def test_the_budget_is_told_before_and_after(tmp_path):
    """Epsilon 8 is noise of 1.2 C for one release (privacy.md 4.4), sqrt(2) times that for two."""
    loose = EYES + NARROW.replace("FROZEN", "frozen = false")
    said = " ".join(vergence("explain", write(tmp_path, loose)).out.split())
    assert "smashed vectors (36 features) are cut to 1 and get noise of 1.698" in said
    assert "sent 2 times, through other layers each time: epsilon 8 at delta 1e-05 per" in said
    assert "not in updates of the clients' layers, labels" in said
    out = run(tmp_path, EYES + NARROW.replace("FROZEN", "frozen = true"))
    told = json.loads((out / "results.json").read_text())["privacy"]["picture"]
    assert told["epsilon"] == pytest.approx(8, rel=1e-6)
    assert "updates of the clients' layers" not in told["only"]
    assert vergence("verify", out).code == 0


def test_explain_says_whose_pictures_the_server_goes_by(tmp_path):
    ranged = EYES + 'privacy = { output_range = { root = "p01" } }\n'
    said = " ".join(vergence("explain", write(tmp_path, ranged)).out.split())
    assert "in which range p01's smashed data lie, in every round" in said


def test_explain_says_that_a_rule_sees_groups(tmp_path):
    text = EYES.replace('{ name = "splitfed_u", cut = "conv3", last = "fc1" }', '"fedavg"')
    rule = 'privacy = { robust = "median", aggregation = { groups = 3 } }\n'
    said = " ".join(vergence("explain", write(tmp_path, text + rule)).out.split())
    assert "the sum of every group of 3: median compares them" in said
    assert "every single update" not in said


@pytest.mark.slow
def test_a_defended_run_is_attacked_through_its_own_defence(tmp_path):
    """Noise that is new in every round is averaged over its two rounds; frozen layers' is not."""
    seen = {}
    for name, frozen in (("loose", "frozen = false"), ("still", "frozen = true")):
        out = run(tmp_path, EYES + NARROW.replace("FROZEN", frozen), out=name)
        assert vergence("privacy", "audit", out, "--quick").code == 0
        with (out / "audit" / "audit.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        seen[name] = [(line["what the server has"], line["seen"]) for line in lines[2:]]
        mse = [float(line["mse"]) for line in lines]
        assert mse[2] < 0.9 * mse[0]  # the same layers without it
        assert mse[-1] > 0.85 * mse[0]
        assert "trained with the run's defence" in (out / "audit" / "audit.md").read_text()
    bare = ("no defence, the same layers", "sent once")
    mine = "bottleneck, as in the run"
    assert seen["still"] == [bare, (mine, "sent once")]
    assert seen["loose"] == [bare, (mine, "sent once"), (mine, "sent 2 times")]


@pytest.mark.parametrize("halves", ["both", "client"])
def test_noise_on_single_samples_of_a_cut_network_runs_and_is_told(halves, tmp_path):
    """A run asks beforehand whether users' noise drowns the update; it has no user's noise."""
    noise = f'privacy = {{ solver = {{ noise = 1.0, delta = 1e-3, halves = "{halves}" }} }}\n'
    out = run(tmp_path, EYES.replace('_u", cut = "conv3", last = "fc1"', '"') + noise)
    told = json.loads((out / "results.json").read_text())["privacy"]["sample"]
    assert ("promises nothing" in told.get("only", "")) == (halves == "client")
    said = " ".join(vergence("explain", out / "config.toml").out.split())
    assert ("promises nothing" in said) == (halves == "client")
