"""`vergence privacy audit`: a small split run attacked, and runs that it refuses."""

import csv

import pytest

from tests.cli.commands import run, vergence

TOY = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
methods    = ["fedavg"]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 3, workers = 1 }
"""
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 4, samples = 60, days = [3, 3], size = "9x15" }
methods    = ["splitfed", "splitfed_u"]
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.02 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("audit"), EYES)


@pytest.mark.slow
def test_a_split_run_is_attacked_before_and_after(folder):
    said = vergence("privacy", "audit", folder / "splitfed", "--quick", "--person", "p02")
    assert said.code == 0, said.err
    with (folder / "splitfed" / "audit" / "audit.csv").open(newline="") as file:
        lines = {(r["what the server has"], r["seen"]): r for r in csv.DictReader(file)}
    mse = {key: float(line["mse"]) for key, line in lines.items()}
    mean = mse["nothing: the mean of the others", ""]
    bare = mse["no defence, as in the run", "sent once"]
    once, often = (mse["PixelDP l = 0.5", f"sent {n}"] for n in ("once", "10 times"))
    assert bare < 0.5 * mean
    assert bare < often < once < 1.2 * mean
    assert mean < mse["nothing: another picture of theirs", ""]
    page = (folder / "splitfed" / "audit" / "audit.md").read_text()
    assert "pictures of p02 from smashed data" in page
    assert (folder / "splitfed" / "audit" / "audit.png").stat().st_size > 1000


@pytest.mark.slow
def test_people_are_named_and_gaze_is_read_where_it_is_not_sent(folder):
    """The methods are the same network: only what is sent beside smashed data differs."""
    found = {}
    for method in ("splitfed", "splitfed_u"):
        said = vergence("privacy", "audit", folder / method, "--quick")
        assert said.code == 0, said.err
        with (folder / method / "audit" / "people.csv").open(newline="") as file:
            found[method] = {r["finds"]: float(r["value"]) for r in csv.DictReader(file)}
        assert "who it was" in (folder / method / "audit" / "audit.md").read_text()
    for lines in found.values():
        assert lines["who: from a frame"] > 0.35
    assert "who: from gaze labels alone, which are sent" in found["splitfed"]
    assert found["splitfed_u"]["where: gaze, which is not sent"] < 15


@pytest.mark.slow
def test_a_run_that_stopped_early_is_attacked(tmp_path):
    """Shadow runs stop by the same rule; replayed rounds are the first ones."""
    until = ("early_stopping.patience=1", "run.evaluate_every=1", "run.rounds=3")
    sets = (*until, 'methods=["fedavg"]', "run.seeds=[0]", "federation.samples=20")
    out = run(tmp_path, TOY, *sets)
    audited = vergence("privacy", "audit", out / "fedavg", "--quick")
    assert audited.code == 0, audited.err
    assert (out / "fedavg" / "audit" / "audit.md").is_file()


def test_somebody_unknown_is_refused(folder):
    vergence("privacy", "audit", folder / "splitfed", "--person", "p9").complains(
        2, "no person 'p9'"
    )
