"""residuals.json of a run: variances by sums over people, and what reads it or says of it."""

import json
from dataclasses import replace

import pytest
import torch

import vergence as vg
from tests.cli.commands import run, vergence
from vergence.adaptation.adapted_run import adapt_to, open_source
from vergence.adaptation.fine_tuning import SHARED
from vergence.adaptation.other_people import RESIDUAL, residual_prior
from vergence.adaptation.own_data import OwnData
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError, StateError
from vergence.experiment.newcomers import (
    RESIDUALS,
    has_residuals,
    read_residuals,
    write_residuals,
)
from vergence.experiment.schema import load
from vergence.experiment.trained_run import read_run
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.results.read import read
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import RATIOS, ResidualKernel, evidence
from vergence.unlearning.data_footprint import erase, remains

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 6, samples = 60, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, seeds = [3, 5], evaluate_every = 0, workers = 1 }
"""
SUMS = """
[privacy.aggregation]
name = "pairwise"
min_contributors = 3
"""
NOISE = """
[privacy.user]
clip = 1.0
noise = 1.0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("eyes"), EYES)


@pytest.fixture(scope="module")
def newcomer():
    parts = EyeSynthetic(people=7, samples=60, days=(3, 3), size="9x15").load().people["p06"]
    return OwnData("me", parts.train, "samples")


def variances(folder, seed):
    kernel = read_residuals(folder, seed)
    assert kernel is not None
    return kernel.variances


def test_variances_are_fitted_to_sums_over_peoples_validation_samples(trained):
    for seed in (3, 5):
        one = read_run(trained, seed)
        total = torch.zeros(3 * len(torch.cartesian_prod(*map(torch.tensor, RATIOS))) + 1).double()
        for person, splits in one.ready.people.items():
            val = splits.val
            assert isinstance(one.task, GazeAngle)
            outputs = one.outputs(one.model(person), val)
            total += evidence(outputs, val.columns["gaze"], one.task.kernel_inputs(val))
        assert torch.allclose(variances(trained, seed), ResidualKernel.of(total).variances)
    assert not torch.equal(variances(trained, 3), variances(trained, 5))
    assert read_residuals(trained, 4) is None


def test_the_file_has_no_numbers_of_single_people_and_is_sealed(trained):
    whole = json.loads((trained / RESIDUALS).read_text())
    assert {key: entry.keys() for key, entry in whole.items()} == {
        seed: {"people", "variances"} for seed in ("3", "5")
    }
    assert {entry["people"] for entry in whole.values()} == {6}
    assert RESIDUALS in (trained / "SHA256SUMS").read_text()


@pytest.fixture(scope="module")
def corrected(trained, newcomer, tmp_path_factory):
    """A model with a kernel of one sample, and the source of its variances."""
    source = open_source(trained, None, seed=5)
    return source, adapt_to(source, newcomer, tmp_path_factory.mktemp("me") / "me", samples=1)


def test_adapt_reads_the_variances_of_its_seed(trained, corrected):
    source, made = corrected
    kernel = source.fitted[RESIDUAL]
    assert isinstance(kernel, ResidualKernel)
    assert torch.equal(kernel.variances, variances(trained, 5))
    assert made.choice.way == RESIDUAL


def test_a_persons_crops_are_no_start_of_a_run_and_export_names_them(corrected, tmp_path):
    """A run would send its starting model to everybody."""
    folder = corrected[1].folder
    network = (
        'name = "personal_eye", shared = { name = "small_eye", channels = [4, 4], hidden = 8 }'
    )
    config = tmp_path / "start.toml"
    config.write_text(
        EYES.replace(
            'name = "small_eye", channels = [4, 4], hidden = 8', f"{network}, START"
        ).replace("START", f'samples = 1, inputs = 138, start = "{folder}"')
    )
    with pytest.raises(ConfigError, match=r"one person, whose crops are among its parameters"):
        load(config)
    with pytest.raises(ConfigError, match=r"crops are among its parameters"):
        vg.open_run(folder).common_model()
    said = vergence("export", folder, "--out", tmp_path / "me.onnx")
    assert said.code == 0, said.err
    assert "the inputs of samples (pixels and head poses) of 'me': give it to nobody" in said.out


def test_without_the_file_one_sample_changes_nothing(newcomer, tmp_path):
    out = run(tmp_path, EYES.replace("people = 6", "people = 4"))
    assert not (out / RESIDUALS).exists()
    made = adapt_to(open_source(out, None), newcomer, tmp_path / "me", samples=1)
    assert made.choice.way == SHARED


def test_secure_sums_change_nothing_and_other_protections_forbid_it(trained, tmp_path):
    sums = run(tmp_path, EYES + SUMS, out="sums")
    assert json.loads((sums / RESIDUALS).read_text()).keys() == {"3", "5"}
    noisy = run(tmp_path, EYES.replace("seeds = [3, 5]", "seeds = [3]") + NOISE, out="noise")
    assert not (noisy / RESIDUALS).exists()
    ways = {
        folder: has_residuals(experiment.plan, next(iter(experiment.methods.values())), task)
        for folder in (trained, sums, noisy)
        for experiment in [read_run(folder).experiment]
        for task in [experiment.task(0)]
    }
    assert ways == {trained: True, sums: True, noisy: False}


@pytest.mark.parametrize(
    "bad", ["{", '{"3": {"people": 6}}', '{"3": {"people": 6, "variances": [[-1, 0, 0, 0, 0, 1]]}}']
)
def test_a_damaged_file_is_refused(trained, tmp_path, bad):
    copy = vg.open_run(trained).save(tmp_path / "copy").folder
    (copy / RESIDUALS).write_text(bad)
    with pytest.raises(StateError, match=RESIDUALS):
        read_residuals(copy, 3)
    with pytest.raises(StateError, match=RESIDUALS):
        open_source(copy, None)


def test_a_file_that_the_run_did_not_write_is_refused(trained, tmp_path):
    few = run(tmp_path, EYES.replace("people = 6", "people = 4"))
    assert read_residuals(few, 3) is None
    (few / RESIDUALS).write_bytes((trained / RESIDUALS).read_bytes())
    with pytest.raises(StateError, match=r"residuals\.json was put there after"):
        open_source(few, None)


def test_secure_sums_of_more_people_have_residuals_of_as_many(trained, tmp_path):
    config = tmp_path / "sums.toml"
    config.write_text(EYES + SUMS.replace("3", "6"))
    explained = " ".join(vergence("explain", config).out.replace("│", " ").split())
    assert "nothing of fewer than 6 people" in explained
    assert "from sums over at least 6 people's" in explained
    one = read_run(trained, 3)
    privacy = Privacy(aggregation=SecureAggregationConfig(min_contributors=6))
    plan = replace(one.experiment.plan, privacy=privacy)
    one = replace(one, experiment=replace(one.experiment, plan=plan))
    write_residuals(tmp_path, [one])
    assert read_residuals(tmp_path, 3) is not None
    people = dict(one.ready.people)
    people["p05"] = replace(people["p05"], val=people["p05"].val.subset(torch.arange(0)))
    # The file of the model before must not stay, either.
    write_residuals(tmp_path, [one.on_data(replace(one.ready, people=people))])
    assert not (tmp_path / RESIDUALS).exists()


def test_priors_leave_out_people_whose_model_diverged():
    total = torch.ones(3 * len(torch.cartesian_prod(*map(torch.tensor, RATIOS))) + 1).double()
    broken = total * torch.nan
    kernel = residual_prior([total, broken, total])[RESIDUAL]
    assert torch.equal(kernel.variances, ResidualKernel.of(2 * total).variances)
    assert residual_prior([broken]) == {}


def test_a_model_that_diverged_has_no_residuals_and_ends_its_run(tmp_path):
    """Its angles are so large that sums of their squares have lost all other numbers."""
    out = run(tmp_path, EYES.replace("lr = 0.05", "lr = 1e7").replace("[3, 5]", "[3]"))
    assert (out / "SHA256SUMS").is_file()
    assert not (out / RESIDUALS).exists()


def test_explain_and_the_ethics_page_say_so_where_it_is_written(trained, tmp_path):
    plain, noisy = tmp_path / "plain.toml", tmp_path / "noisy.toml"
    plain.write_text(EYES)
    noisy.write_text(EYES + NOISE)
    assert RESIDUALS in vergence("explain", plain).out
    assert RESIDUALS not in vergence("explain", noisy).out
    assert vergence("privacy", "ethics", trained).code == 0
    assert RESIDUALS in (trained / "ethics.html").read_text()


def test_forgetting_somebody_removes_the_file(trained, tmp_path):
    copy = vg.open_run(trained).save(tmp_path / "copy").folder
    assert any(RESIDUALS in line for line in remains(read(copy).runs[0], "p01"))
    erase(copy, "p01")
    assert not (copy / RESIDUALS).exists()
