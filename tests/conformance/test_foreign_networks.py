"""Networks and tasks from Python: adapted, opened again, exported and calibrated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

import vergence as vg
from tests.cli.commands import vergence
from vergence.adaptation.fine_tuning import SHARED
from vergence.adaptation.other_people import RESIDUAL
from vergence.model_tools.onnx_export import opened_again
from vergence.models.personal_eye import PersonalEye
from vergence.models.small_eye import SmallEye

pytestmark = pytest.mark.slow
PEOPLE, ROWS = 5, 60


def regression(person: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Samples of y = w x + a, where the offset a is the person's number."""
    rng = np.random.default_rng(person)
    x = rng.normal(size=(rows, 4)).astype("float32")
    return {"x": x, "y": x @ np.array([[1], [-1], [0.5], [2]], dtype="float32") + person}


def classes(person: int) -> dict[str, np.ndarray]:
    """Pictures with a bright quarter, whose number is the class; from person 5 on, the next one."""
    rng = np.random.default_rng(person)
    label = rng.integers(0, 4, ROWS)
    x = 0.1 * rng.normal(size=(ROWS, 1, 8, 8)).astype("float32")
    for row, quarter in enumerate(label):
        x[row, 0, 4 * (quarter // 2) :, 4 * (quarter % 2) :][:4, :4] += 1
    return {"x": x, "y": (label + (person >= PEOPLE)) % 4}


class Named(nn.Module):
    """A network with an output by name, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 8).requires_grad_(False)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.frozen(x).relu()
        return {"hidden": hidden, "logits": self.last(hidden)}


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Refuse single samples, as many metrics do."""
    assert len(targets) > 1
    return (outputs.argmax(1) == targets).float().mean()


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


@dataclass(frozen=True)
class Foreign:
    """A task from Python, and what makes a person's samples."""

    task: Callable[[], Any]
    samples: Callable[[int], dict[str, np.ndarray]]


FOREIGN = {
    "regression": Foreign(lambda: vg.task_from(layers, mse_loss), regression),
    "classes": Foreign(
        lambda: vg.task_from(
            convolutions, cross_entropy, {"accuracy": accuracy}, lower_is_better=False
        ),
        classes,
    ),
    "named output": Foreign(lambda: vg.task_from(Named, l1_loss, outputs="logits"), regression),
}


@pytest.fixture(scope="module", params=FOREIGN)
def trained(request, tmp_path_factory):
    foreign = FOREIGN[request.param]
    people = {f"p{person}": foreign.samples(person) for person in range(PEOPLE)}
    run = vg.train(
        vg.methods.FedAvg(),
        foreign.task(),
        vg.Federation.from_arrays(people),
        rounds=3,
        local=vg.LocalTraining(lr=0.01, optimizer="adamw"),
        out=tmp_path_factory.mktemp("foreign") / "run",
        workers=1,
        progress=False,
    )
    return foreign, run


@pytest.fixture(scope="module")
def mine(trained, tmp_path_factory):
    foreign, run = trained
    own = foreign.samples(PEOPLE + 3)
    return run.adapt(own, out=tmp_path_factory.mktemp("adapted") / "me"), own


def test_adaptation_learns_the_person(trained, mine):
    _, run = trained
    me, own = mine
    about = me.record.provenance["adapted"]
    assert about["way"] != SHARED
    assert about["errors"][about["way"]] < about["errors"][SHARED]
    task = me.experiment.task(0)
    target = torch.as_tensor(own["y"])
    errors = [float(task.loss_function(each.predict(None, own["x"]), target)) for each in (run, me)]
    assert errors[1] < 0.9 * errors[0]


def test_an_adapted_run_is_opened_with_the_task_alone(trained, mine, tmp_path):
    foreign, _ = trained
    me, own = mine
    for folder in (me.folder, me.save(tmp_path / "moved").folder):
        again = vg.open_run(folder, task=foreign.task())
        assert torch.equal(again.predict(None, own["x"]), me.predict(None, own["x"]))
        assert again.verify() == me.verify()
    with pytest.raises(vg.StateError, match="another task"):
        vg.open_run(me.folder, task=vg.task_from(layers, nn.SmoothL1Loss()))


def test_the_exported_file_answers_as_the_run_does(mine, tmp_path):
    me, own = mine
    made = me.export(tmp_path / "me.onnx", batch="dynamic")
    assert made.inputs == ("x",)
    (answer,) = opened_again(made.path.read_bytes()).run(None, {"x": own["x"][:7]})
    expected = me.predict(None, own["x"][:7]).numpy()
    assert answer == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_calibration_measures_new_people(trained):
    foreign, run = trained
    new = {f"n{person}": foreign.samples(PEOPLE + person) for person in range(2)}
    errors = run.calibrate(vg.Federation.from_arrays(new), counts=(0, 9))
    assert list(errors.columns) == [0, 9]
    chosen = errors.xs("adapt, as it chooses", level="way")
    assert sorted(chosen.index) == ["n0", "n1"]
    lower = run.experiment.task(0).lower_is_better
    gain = (chosen[0] - chosen[9]) * (1 if lower else -1)
    assert gain.mean() > 0
    with pytest.raises(vg.ConfigError, match="'p1' took part"):
        run.calibrate(vg.Federation.from_arrays({"p1": foreign.samples(1)}))


def test_commands_name_the_python_calls(trained, tmp_path):
    _, run = trained
    own = regression(9)
    np.savez(tmp_path / "mine.npz", x=own["x"], y=own["y"])
    for words in (
        ("adapt", run.folder, "--data", tmp_path / "mine.npz", "--out", tmp_path / "me"),
        ("export", run.folder, "--out", tmp_path / "me.onnx"),
        ("study", "calibrate", run.folder, "--out", tmp_path / "a.png"),
    ):
        said = vergence(*words)
        assert said.code == 2
        for call in ("vergence.open_run(FOLDER, task=...", "adapt(samples)", "export(FILE)"):
            assert call in " ".join(said.err.split())


@dataclass(frozen=True)
class OwnEye(vg.Model):
    """An eye network of the user's own, in a task of the package."""

    width: int = 4

    def build(self) -> nn.Module:
        return SmallEye(channels=(self.width, self.width), hidden=8).build()


def test_an_own_network_in_a_named_task_gets_the_residual_kernel(tmp_path):
    whole = vg.data.EyeSynthetic(people=7, samples=60, days=(3, 3), size="9x15").load()
    task = vg.tasks.GazeAngle(OwnEye())
    run = vg.train(
        vg.methods.FedAvg(),
        task,
        whole.only(whole.clients[:6]),
        rounds=1,
        local=vg.LocalTraining(lr=0.01, optimizer="adamw"),
        out=tmp_path / "run",
        workers=1,
        progress=False,
    )
    own = whole.people["p06"].train
    me = run.adapt(own.subset(torch.tensor([0])), out=tmp_path / "me")
    assert me.record.provenance["adapted"]["way"] == RESIDUAL
    assert isinstance(me.experiment.model, PersonalEye)
    again = vg.open_run(tmp_path / "me", task=task)
    assert torch.equal(again.predict(None, own), me.predict(None, own))
    assert not torch.equal(run.predict(None, own), me.predict(None, own))
    with pytest.raises(vg.StateError, match="another model"):
        vg.open_run(tmp_path / "me", task=vg.tasks.GazeAngle(OwnEye(8)))
    with pytest.raises(vg.ConfigError, match="its correction is one person's"):
        me.adapt(own, person="you")
