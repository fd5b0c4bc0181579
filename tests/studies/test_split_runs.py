"""`run.split_seeds`: a run per split, merged; a person of one split counts once."""

import json

import numpy as np
import pytest

import vergence as vg
from tests.cli.commands import TOY, vergence, write
from tests.conftest import ROOT
from vergence.errors import ConfigError, StateError
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.results.read import read, table

PICTURES = """
task       = { name = "gaze_map", criterion = "kl", sigma = 0.05 }
model      = { name = "glc_features", grid = [6, 8], width = 8 }
federation = { name = "osie", images = 20, viewers = [0, 1, 2], size = [64, 48] }
methods    = ["local_only", "fedavg"]
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, seeds = [0], split_seeds = [0, 3], evaluate_every = 0, workers = 1 }
"""
PEOPLE = TOY.replace("METHODS", 'methods = ["local_only", "fedavg"]')


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    said = vergence("run", write(folder, PICTURES), "--out", folder / "out").out
    return folder / "out", said


def test_a_person_is_the_mean_over_splits(pictures):
    out, said = pictures
    assert "NSS over 2 splits" in vergence("compare", out).out
    assert "over 3 people, 1 seed" in said
    parts = [read(out / f"split{seed}" / "fedavg").runs[0].scores("nss") for seed in (0, 3)]
    merged = read(out / "fedavg").runs[0]
    for person, value in merged.scores("nss").items():
        assert value == pytest.approx((parts[0][person] + parts[1][person]) / 2)
    means = [float(np.mean([*part.values()])) for part in parts]
    assert merged.results["splits"]["nss"]["std"] == pytest.approx(
        abs(means[0] - means[1]) / 2**0.5
    )
    assert merged.results["harmed_vs_local"] is not None


def test_turns_are_means_over_all_splits(pictures):
    """Each of three people once, with the mean of the examples that it has on the two splits."""
    out, _ = pictures
    names = [out / f"split{seed}" / "fedavg" / "turns.csv" for seed in (0, 3)]
    first, second = (table(name).groupby("client").bytes_up.sum() for name in names)
    merged = table(out / "fedavg" / "turns.csv").groupby("client").bytes_up.sum()
    assert merged.to_dict() == ((first + second) / 2).to_dict()
    assert merged.sum() > 0


def test_it_is_verified_resumed_and_shown(pictures):
    out, _ = pictures
    assert "fedavg seed 0: " in vergence("verify", out).out
    assert "over 3 people, 1 seed" in vergence("resume", out).out
    assert "fedavg, split 3" in vergence("status", out).out
    assert vergence("status", out / "fedavg").out.count("finished") == 2
    vergence("resume", out / "fedavg").complains(2, "merged over splits", f"go on with is {out}")
    merged = vergence("export", out / "fedavg", "--out", out / "m.onnx")
    merged.complains(2, "name one of", "split0")
    path = out / "split3" / "fedavg" / "people.csv"
    kept = path.read_text()
    path.write_text(kept.replace("nss", "NSS"))
    vergence("verify", out).complains(2, "people.csv")
    path.write_text(kept)


def test_an_interrupted_one_goes_on_to_the_same_bits(tmp_path, pictures):
    experiment = load(write(tmp_path, PICTURES))

    def stop(report):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(report)

    seen = []
    with pytest.raises(vg.PartialRun, match="resume=True"):
        vg.run_experiment(experiment, tmp_path / "out", on_round=stop, progress=False)
    assert not (tmp_path / "out" / "fedavg").exists()
    runs = vg.run_experiment(experiment, tmp_path / "out", resume=True, progress=False)
    there = read(pictures[0] / "fedavg").runs[0].results["fingerprint"]
    assert runs["fedavg"].record.results["fingerprint"] == there
    with pytest.raises(StateError, match="split0"):
        runs["fedavg"].model("v00")


def test_code_in_an_interrupted_one_does_not_run_unasked(tmp_path):
    """Its config is a run folder's, perhaps somebody else's, from its first byte on."""
    code = (ROOT / "src" / "vergence" / "models" / "linear.py").read_text()
    (tmp_path / "mine.py").write_text(code)
    file = write(tmp_path, PEOPLE.replace('"linear"', '"mine.py"'))

    def stop(_):
        raise KeyboardInterrupt

    experiment = load(file, ["run.split_seeds=[0, 1]"], trust_code=True)
    with pytest.raises(vg.PartialRun):
        vg.run_experiment(experiment, tmp_path / "out", on_round=stop, progress=False)
    vergence("resume", tmp_path / "out").complains(2, "mine.py is Python code", "--trust-code")
    assert vergence("resume", tmp_path / "out", "--trust-code").code == 0


def test_people_of_generator_seeds_are_different_people(tmp_path):
    out = tmp_path / "out"
    sets = ["--set", "run.split_seeds=[0, 1, 2]", "--set", "run.rounds=1"]
    said = vergence("run", write(tmp_path, PEOPLE), "--out", out, *sets).out
    merged = read(out / "fedavg").runs[0]
    assert merged.people[:4] == ["p00@0", "p01@0", "p02@0", "p00@1"]
    assert len(merged.people) == merged.results["clients"] == 9
    assert "over 9 people" in said
    own = read(out / "split2" / "fedavg").runs[0].scores("error")
    assert merged.scores("error")["p01@2"] == own["p01"]
    assert all({*people} == {*merged.people} for people in read(out).priors.values())


def test_what_takes_one_split_says_so(tmp_path):
    file = write(tmp_path, PICTURES)
    experiment = load(file)
    with pytest.raises(ConfigError, match="a single run takes one split"):
        start(experiment, tmp_path / "a")
    vergence("study", "evaluate", "within", file, "--out", tmp_path / "b").complains(
        2, "protocol within takes one split"
    )
    sweep = ["--set", 'sweep={space={"local.lr"=[0.1, 0.2]}}']
    vergence("study", "sweep", file, "--out", tmp_path / "c", *sweep).complains(2, "a sweep")
    clients = ["--clients", "v00,v01,v02", "--address", "a.example:1"]
    vergence("deploy", "init", file, *clients, "--out", tmp_path / "d").complains(2, "a deployment")
    assert "once for each of 2" in vergence("explain", file).out


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ("run.split_seeds=[1]", "two or more different numbers"),
        ("run.split_seeds=[1, 1]", "two or more different numbers"),
        ("privacy.solver={name='dp_sgd', clip=1.0, noise=1.0}", "release of its own"),
        ("methods=[{name='fedavg', label='split4'}]", "another label"),
    ],
)
def test_what_cannot_be_merged(tmp_path, sets, said):
    with pytest.raises(ConfigError, match=said):
        vg.run_experiment(load(write(tmp_path, PICTURES), [sets]), progress=False)


def test_one_method_has_a_folder_of_its_own(tmp_path):
    text = PEOPLE.replace("methods = [", 'method = "fedavg" #')
    out = tmp_path / "out"
    vg.run_experiment(load(write(tmp_path, text), ["run.split_seeds=[4, 5]"]), out, progress=False)
    told = json.loads((out / "fedavg" / "results.json").read_text())
    assert [*told["split_folders"]] == ["4", "5"]


def test_train_takes_splits_of_a_data_set_that_a_file_can_name():
    task, plan = vg.tasks.ToyTask(vg.models.Linear()), vg.Plan(rounds=1, split_seeds=(0, 1))
    run = vg.train(vg.methods.FedAvg(), task, vg.data.Toy(people=2), plan=plan, progress=False)
    assert run.people == ["p00@0", "p01@0", "p00@1", "p01@1"]
    people = {"a": {"x": np.ones((20, 4)), "y": np.ones(20)}}
    own = vg.Federation.from_arrays(people)
    with pytest.raises(ConfigError, match="these are Python objects"):
        vg.train(vg.methods.FedAvg(), task, own, plan=plan, progress=False)
