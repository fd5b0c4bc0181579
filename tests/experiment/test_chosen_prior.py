"""A person's own prior with an exponent chosen for each person, in whole runs of several methods.

Training knows nothing of it, so states are those of a run without a prior, bit for bit.
"""

import csv
import io
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from rich.console import Console

import vergence
from tests.cli.commands import run
from vergence.experiment.schema import read
from vergence.experiment.trained_run import read_run
from vergence.metrics.personal_priors import FOLDS, ROW, whole_prior
from vergence.model_tools.onnx_export import TOLERANCE, export
from vergence.models.glc import glc_vit
from vergence.reports.explain import explain
from vergence.tasks.gaze_map import EXPONENTS
from vergence.video.predict_maps import heat_maps

ROOT = Path(__file__).resolve().parents[2]
MAPS = """
task       = { name = "gaze_map", sigma = 0.05, score_from = "f1_best", OPTIONS }
model      = { name = "glc_features", grid = [6, 8], width = 8 }
federation = { name = "osie", images = 60, viewers = [0, 1, 2], size = [64, 48] }
methods    = ["local_only", "fedavg", { name = "fedcpf", rate = 0.2 }, "fedper", "ditto"]
local      = { optimizer = "sgd", steps = 2, batch = 4, lr = 1e-3 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
EYES = """
task       = { name = "gaze_angle", personal_prior = "auto" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [4, 4], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
CLIPS = """
task       = { name = "gaze_map", personal_prior = "auto" }
model      = MODEL
federation = { name = "ego_synthetic", people = 2, clips = 12, windows = 1, size = 32 }
method     = "fedper"
local      = { optimizer = "sgd", steps = 1, batch = 4, lr = 0.05 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""
CHOSEN, NONE = ('personal_prior = "auto"', "personal_prior = 0.0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {
        options: run(tmp_path_factory.mktemp("maps"), MAPS.replace("OPTIONS", options))
        for options in (CHOSEN, NONE)
    }


def exponents(trained):
    """Person -> exponent that validation data chose for the final model."""
    found = {}
    for person in trained.ready.clients:
        rows = trained.tune_prior(trained.model(person), person).test.columns[ROW]
        found[person] = EXPONENTS[int(rows[0]) // (FOLDS + 1)]
    return found


def test_every_method_trains_as_without_a_prior_bit_for_bit(runs):
    for label in ("local_only", "fedavg", "fedcpf", "fedper", "ditto"):
        with_it, without = (vergence.open_run(folder / label) for folder in runs.values())
        assert with_it.fingerprint == without.fingerprint, label


def test_people_are_scored_with_the_exponent_of_their_own_choice(runs):
    for label in ("local_only", "fedavg", "fedper"):
        trained = read_run(runs[CHOSEN] / label)
        bare = read_run(runs[NONE] / label)
        chosen = exponents(trained)
        assert any(chosen.values()), "else nothing is tested"
        scores = vergence.open_run(runs[CHOSEN] / label).scores["nss"]
        for person, exponent in chosen.items():
            params, test = trained.model(person), bare.ready.people[person].test
            heat = (bare.outputs(params, test).double()).flatten(2).softmax(2)
            prior = whole_prior(trained.tune_prior(params, person).test).double()
            powered = heat * prior.exp().flatten()
            powered = powered / powered.sum(2, keepdim=True)
            logits = powered.log().view(*heat.shape[:2], *prior.shape)
            wanted = bare.task.metrics(logits, test)["nss"]
            assert scores[person] == pytest.approx(wanted, rel=1e-5)
            assert bool(prior.any()) is (exponent > 0)


def test_scores_of_samples_are_those_of_the_same_maps(runs):
    folder = runs[CHOSEN] / "fedavg"
    with (folder / "samples.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["person"] == "v01"]
    weights = [float(row["counted"]) for row in rows]
    mean = np.average([float(row["value"]) for row in rows], weights=weights)
    assert vergence.open_run(folder).scores["nss"]["v01"] == pytest.approx(mean)


def test_a_finished_run_predicts_with_the_exponent_and_strangers_with_none(runs):
    finished = vergence.open_run(runs[CHOSEN] / "fedavg")
    trained = read_run(runs[CHOSEN] / "fedavg")
    chosen = exponents(trained)
    person = next(who for who, exponent in chosen.items() if exponent)
    raw = trained.loaded.raw.people[person].test
    found = finished.predict(person, raw)
    params = trained.model(person)
    served = trained.outputs(params, trained.tune_prior(params, person).test)
    torch.testing.assert_close(found, served)
    plain = vergence.open_run(runs[NONE] / "fedavg").predict(None, raw)
    torch.testing.assert_close(finished.predict(None, raw), plain)
    assert not torch.allclose(found, plain)
    strange = trained.unseen_client(person, [w for w in trained.ready.clients if w != person])
    bare = read_run(runs[NONE] / "fedavg").unseen_client(person, ["v02"])["newcomer"]
    assert strange["newcomer"]["nss"] == pytest.approx(bare["nss"])


def test_an_exported_file_holds_what_was_chosen(tmp_path):
    folder = run(tmp_path, EYES)
    trained = read_run(folder)
    params = trained.model("p00")
    served = {who: trained.tune_prior(params, who).test for who in trained.ready.clients}
    person = next(who for who, test in served.items() if test.columns[ROW].any())
    raw = trained.loaded.raw.people[person].test
    first = raw.take(slice(0, 1))
    out = tmp_path / "own.onnx"
    made = export(folder, out, Console(file=io.StringIO()), person)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: first[name].numpy() for name in made.inputs})
    ours = trained.outputs(params, served[person])[:1].numpy()
    assert np.abs(found - ours).max() <= TOLERANCE
    bare = trained.outputs(params, trained.ready.people[person].test)[:1].numpy()
    assert np.abs(found - bare).max() > 1e-4


def test_a_client_that_is_alone_with_its_data_chooses_alike(tmp_path):
    """A deployment's client prepares its own data, and knows of nobody else's."""
    trained = read_run(run(tmp_path, EYES))
    raw = trained.loaded.raw.only(["p01"])
    alone = trained.on_data(trained.task.prepare(trained.task.network.prepare(raw)))
    params = trained.model("p01")
    assert alone.measure(params, "p01") == trained.measure(params, "p01")


@pytest.mark.parametrize(
    "model",
    [
        '{ name = "glc_causal", grid = [4, 4], width = 8, heads = 2 }',
        '{ name = "glc_vit", preset = "tiny64" }',
    ],
)
def test_predicted_videos_and_scores_have_the_same_prior(tmp_path, monkeypatch, model):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    text = CLIPS.replace("MODEL", model)
    text = text.replace(", size = 32", "") if "glc_vit" in model else text
    trained = read_run(run(tmp_path, text))
    person = next(who for who, exponent in exponents(trained).items() if exponent)
    first, params = torch.tensor([0]), trained.model(person)
    found = heat_maps(trained, trained.loaded.raw.people[person].test.subset(first), person)

    def apart(served):
        """The largest difference from maps of these samples, of their largest value."""
        logits = trained.outputs(params, served.test.subset(first)).double()
        maps = logits.flatten(2).softmax(2).view(logits.shape)[0].numpy()
        return np.abs(found[: len(maps)] - maps).max() / maps.max()

    assert apart(trained.tune_prior(params, person)) < 0.01
    assert apart(trained.ready.people[person]) > 0.1


def settled(folder, options, more=""):
    """The amount of prior in the table, and in the task, of an experiment with these options."""
    (folder / "one.toml").write_text(MAPS.replace(", OPTIONS", options) + more)
    experiment = vergence.load_experiment(folder / "one.toml")
    return experiment.table["task"]["personal_prior"], experiment.task(0).personal_prior


def test_maps_have_the_prior_unless_a_protection_or_the_file_forbids_it(tmp_path):
    solver = "[privacy]\nsolver = { noise = 1.0, clip = 1.0, delta = 1e-5 }\n"
    assert settled(tmp_path, "") == ("auto", "auto")
    assert settled(tmp_path, ", personal_prior = 0.0") == (0.0, 0.0)
    assert settled(tmp_path, "", solver) == (0.0, 0.0)


@pytest.mark.slow
def test_a_run_directory_that_says_nothing_of_a_prior_has_none(runs, tmp_path):
    """It is older than the default, and its models must predict as before."""
    text = (runs[NONE] / "fedavg" / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("personal_prior = 0.0\n", ""))
    assert "personal_prior" not in (tmp_path / "config.toml").read_text()
    # Without a run's files it is an experiment of somebody who calls it so.
    assert vergence.load_experiment(tmp_path / "config.toml").task(0).personal_prior == "auto"
    facts = (runs[NONE] / "fedavg" / "provenance.json").read_bytes()
    (tmp_path / "provenance.json").write_bytes(facts)
    assert vergence.load_experiment(tmp_path / "config.toml").task(0).personal_prior == 0.0


@pytest.mark.slow
def test_a_task_in_python_gets_the_prior_too_and_opens_its_run(tmp_path):
    network = vergence.models.GLCFeatures(grid=(6, 8), width=8)
    task = vergence.tasks.GazeMap(network, sigma=0.05, score_from="f1_best")
    people = vergence.data.OSIE(images=60, viewers=(0, 1, 2), size=(64, 48))
    local = vergence.LocalTraining(steps=1, batch=4, lr=1e-3)
    how = {"rounds": 1, "evaluate_every": 0, "workers": 1, "local": local, "progress": False}
    vergence.train(vergence.methods.FedAvg(), task, people, out=tmp_path / "run", **how)
    again = vergence.open_run(tmp_path / "run", task=task)
    assert again.experiment.task(0).personal_prior == "auto"


def test_explain_says_what_the_prior_tells_of_a_person(tmp_path):
    said = io.StringIO()
    for options in ("", ", personal_prior = 0.0"):
        settled(tmp_path, options)
        experiment = vergence.load_experiment(tmp_path / "one.toml")
        explain(experiment, Console(file=said))
    assert said.getvalue().count("own prior: everybody's predictions use where this person") == 1


def test_shipped_experiments_name_their_prior():
    """So that their fingerprints and tables do not move with the default."""
    folders = (ROOT / "experiments", ROOT / "src" / "vergence" / "experiments")
    for path in sorted(path for folder in folders for path in folder.glob("*.toml")):
        task = read(path).get("task", {})
        assert task.get("name") != "gaze_map" or "personal_prior" in task, path.name
