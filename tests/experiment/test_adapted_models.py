"""Models of methods that train before they predict: whose data made them, and in which numbers."""

import tomllib

import pytest

from tests.cli.commands import run
from vergence.errors import ConfigError
from vergence.experiment.schema import check
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.model_tools.onnx_export import params_and_probe
from vergence.results.read import read

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
method     = { name = "reptile", episodes = 2, inner_steps = 2 }
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 1, workers = 1, precision = "half" }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("adapted"), EYES)


def test_a_newcomer_gets_the_model_that_is_sent_and_nobody_s_own(folder):
    trained = read_run(folder)
    params, _ = params_and_probe(trained, None)
    assert params.flat.equal(trained.server.model.flat)
    assert not params.flat.equal(trained.model("p00").flat)


def test_models_are_those_that_were_scored_in_half_precision_too(folder):
    trained = read_run(folder)
    scored = read(folder).runs[0].scores("angle_error_deg")
    found = {
        p: trained.measure(trained.model(p), p)["angle_error_deg"] for p in trained.ready.clients
    }
    assert found == scored


@pytest.mark.parametrize("name", ["fedgen", "ap_fl"])
def test_methods_with_made_up_features_refuse_a_personal_prior(name):
    table = tomllib.loads(EYES) | {"method": {"name": name}}
    table["task"] = {"name": "gaze_angle", "personal_prior": 1.0}
    table["model"] = {**table["model"], "pose": False}
    with pytest.raises(ConfigError, match=f"{name} trains on made-up features"):
        validate(check(table))
