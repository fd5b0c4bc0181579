"""Experiment files that nobody means: one clear line and the documented code, or a real result."""

import csv
import importlib
from pathlib import Path

import pytest

from tests.adversary.files.experiment_files import BASE, CASES, LONE, Case, outcome
from tests.cli.commands import Said, vergence

NAMED = {case.name: case for case in CASES}
ENDED = (
    f"run.seeds=[{2**70}]",
    "own method: a syntax error",
    "own method: raises",
    "own method: not UTF-8",
    "own method: sys.exit(0)",
    "privacy.user={clip=inf, epsilon=8}",
    "privacy.user={clip=1e-320, epsilon=8}",
    "privacy.user={epsilon=1e-300}",
    "privacy.user={epsilon=inf}",
    "privacy.user={epsilon=1e300}",
    "privacy.user={noise=1e-9}",
    "privacy.solver.noise=1e-3",
    "federation.root=" + "x" * 24 + "... (5016 letters)",
)
"""What ended in a traceback, or in nothing at all."""
ACCEPTED = (
    "local.lr=inf",
    "local.weight_decay=inf",
    "local.weight_decay=1e300",
    "local={lr=1e30, epochs=20}",
    "run.rounds=true",
    'run.seeds=["0"]',
    "run.seeds=[true]",
    "privacy.user={epsilon=8, delta=0.999}",
    "privacy.solver={noise=0.02, clip=1e300}",
    'methods=[{name="fedavg", label="--help"}]',
    'methods=[{name="fedavg", label="a\\nb"}]',
    'presence.gone={"p0\\n0"=1}',
    "ten thousand methods",
    "federation.people=1000000000",
)
"""What nobody means and was taken, or answered in two lines."""


@pytest.mark.parametrize("name", [*ENDED, *ACCEPTED])
def test_each_that_was_found_has_its_line(name: str, tmp_path: Path):
    case = NAMED[name]
    assert outcome(case, tmp_path).faults(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:50])
def test_all(case: Case, tmp_path: Path):
    assert outcome(case, tmp_path).faults(case) == []


def test_there_are_as_many_as_were_tried():
    assert len(NAMED) == len(CASES) >= 87


def test_what_is_written_to_disk_before_a_budget_is_refused(tmp_path: Path):
    """No run is left behind that a `resume` would go on with."""
    for name in ("privacy.solver.noise=1e-3", "privacy.user={noise=1e-9}"):
        outcome(NAMED[name], tmp_path)
        assert not (tmp_path / "out" / "config.toml").exists()


# --- a run in which nobody's reply counted


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("local={lr=1e30, epochs=20}", "finite: "),
        ("presence.lost=1.0", "lost"),
    ],
)
def test_a_run_that_learned_nothing_says_why_and_keeps_what_it_has(
    name: str, reason: str, tmp_path: Path
):
    found = outcome(NAMED[name], tmp_path)
    with (tmp_path / "out" / "turns.csv").open(newline="") as file:
        assert not [row for row in csv.DictReader(file) if row["status"] == "ok"]
    assert found.code == 5
    assert f": {reason}" in found.err
    assert found.results
    assert "nobody" not in found.out  # and no table of the untrained model


def test_resuming_it_says_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    outcome(NAMED["presence.lost=1.0"], tmp_path)
    monkeypatch.chdir(tmp_path)
    vergence("resume", "out").complains(5, "nobody's reply counted", "lost")


@pytest.mark.parametrize("method", ["local_only", "fedavg_ft"])
def test_who_sends_metrics_alone_has_learned_something(method: str, tmp_path: Path):
    case = Case("a method", text=LONE.replace("fedavg", method), code=0)
    assert outcome(case, tmp_path).faults(case) == []


def test_one_method_of_two_that_learned_nothing_ends_the_run_when_the_other_is_done(tmp_path: Path):
    bad = '{ name = "fedavg", label = "bad", local = { lr = 1e30, epochs = 20 } }'
    text = BASE.replace("METHODS", f'methods = [{bad}, "local_only"]')
    case = Case("two methods", text=text, code=5, says=("bad, seed 0", "finite: "))
    assert outcome(case, tmp_path).faults(case) == []
    assert (tmp_path / "out" / "local_only" / "results.json").is_file()


# --- what is said of commands and of one's own files


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], ["'trian'", "did you mean 'run'"]),
        (["resum"], ["did you mean 'resume'"]),
        (["data", "chek"], ["'data chek'", "did you mean 'check'"]),
        (["privacy", "forget", "toy", "p00"], ["privacy forget needs --out", "such as --out"]),
        (["model", "prune", "toy"], ["model prune needs --out", "such as --out"]),
    ],
)
def test_what_was_meant_stands_first(words: list[str], says: list[str]):
    said: Said = vergence(*words)
    said.complains(2, *says)
    assert said.err.index("did you mean" if "did you mean" in said.err else "needs") < 60


def test_a_camera_is_no_video():
    video = importlib.import_module("vergence.data.io.video")
    with pytest.raises(Exception, match="a camera's number is not taken"):
        video.Video.open(Path("0"))


def test_a_torch_data_set_is_no_split():
    torch = importlib.import_module("torch")
    site = importlib.import_module("vergence.core.federation")
    errors = importlib.import_module("vergence.errors")
    part = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3))
    refused = None
    try:
        site.Splits(part, part, part)
    except errors.ConfigError as error:
        refused = str(error)
    assert refused is not None
    assert "TensorDataset" in refused
    assert "Samples({'x'" in refused


def test_lenet_names_the_small_network_for_small_crops_alone():
    torch = importlib.import_module("torch")
    lenet = importlib.import_module("vergence.models.lenet")
    said = {}
    for shape in ((1, 1, 9, 15), (1, 4)):
        try:
            lenet.LeNet().build()(torch.zeros(shape), torch.zeros(1, 2))
        except Exception as error:
            said[shape] = str(error)
    assert "small_eye" in said[1, 1, 9, 15]
    assert "takes eye patches" in said[1, 4]
    assert "small_eye" not in said[1, 4]
