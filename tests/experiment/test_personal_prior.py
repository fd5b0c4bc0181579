"""A personal prior in whole runs: sums stay what they are, and what cannot take one says so."""

import io
import tomllib

import numpy as np
import onnxruntime
import pytest
from rich.console import Console

from tests.cli.commands import run
from vergence.deployment.joined_node import deployable
from vergence.engine.protections.setup import client_hooks
from vergence.errors import ConfigError
from vergence.experiment.schema import check
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import prepare_data, validate
from vergence.model_tools.onnx_export import TOLERANCE, export

EYES = """
task       = { name = "gaze_angle", personal_prior = 1.0 }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 40, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "interpolation"]
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
DP = {"name": "dp_sgd", "clip": 1.0, "epsilon": 2.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("prior"), EYES)


def test_the_prior_is_no_parameter_so_no_message_holds_it(folder):
    trained = read_run(folder / "fedavg")
    bare = type(trained.task)(trained.task.network)
    assert trained.task.init().layout == bare.init().layout
    assert trained.server.model.layout == bare.init().layout


def test_people_of_one_model_are_served_differently_and_strangers_by_the_common_prior(folder):
    trained = read_run(folder / "fedavg")
    test = trained.loaded.raw.people["p00"].test
    one, other, new = (
        trained.outputs(trained.newcomer(), trained.with_personal_prior(test, who))
        for who in ("p00", "p01", None)
    )
    assert not np.allclose(one, other)
    assert not np.allclose(one, new)
    known = trained.measure(trained.newcomer(), "p00")
    strange = trained.unseen_client("p00", ["p01", "p02"])["P0"]
    assert known["angle_error_deg"] != strange["angle_error_deg"]
    scored = trained.task.metrics(new, test)
    assert strange["angle_error_deg"] == pytest.approx(scored["angle_error_deg"])


def test_an_exported_file_holds_the_prior_of_its_person(folder, tmp_path):
    answers = {}
    trained = read_run(folder / "fedavg")
    test = trained.ready.people["p00"].test
    for person in ("p00", None):
        out, screen = tmp_path / f"{person}.onnx", io.StringIO()
        made = export(folder / "fedavg", out, Console(file=screen), person)
        assert made.inputs == ("image", "pose")
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        first = {name: test.take(slice(0, 1))[name].numpy() for name in made.inputs}
        answers[person] = session.run(None, first)[0]
        facts = session.get_modelmeta().custom_metadata_map
        assert ("'p00'" in facts.get("personal_prior", "")) is (person is not None)
        assert ("give it to nobody else" in screen.getvalue()) is (person is not None)
    ours = trained.outputs(trained.model("p00"), test)[:1].numpy()
    assert np.abs(answers["p00"] - ours).max() <= TOLERANCE
    assert np.abs(answers[None] - ours).max() > 1e-4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"method": {"name": "splitfed"}},
            r"'splitfed'.*personal_prior is applied on the client after",
        ),
        (
            {"method": {"name": "fedavg"}, "privacy": {"solver": DP}},
            r"personal_prior puts all of a person's samples into what each.*privacy\.user",
        ),
    ],
)
def test_what_cannot_take_a_prior_says_so(changes, said):
    table = {k: v for k, v in tomllib.loads(EYES).items() if k != "methods"} | changes
    with pytest.raises(ConfigError, match=said):
        validate(check(table))


def test_a_deployment_refuses_what_a_simulation_refuses(tmp_path):
    """Its clients check by themselves: nobody validates the data of all."""
    table = {k: v for k, v in tomllib.loads(EYES).items() if k != "methods"}
    table |= {"method": {"name": "fedavg"}, "privacy": {"solver": DP}}
    with pytest.raises(ConfigError, match="personal_prior puts all of a person's samples"):
        deployable(check(table))
    experiment = check(table)
    task, (method,) = experiment.task(0), experiment.methods.values()
    ready = prepare_data(experiment, task, experiment.federation())
    with pytest.raises(ConfigError, match="personal_prior puts all of a person's samples"):
        client_hooks(experiment.plan, method, task, ready, tmp_path)
    split = {**table, "method": {"name": "splitfed"}, "privacy": {}}
    with pytest.raises(ConfigError, match="personal_prior is applied on the client after"):
        deployable(check(split))
