"""A run of `fedridge` on one's own npz files: who is a new person, and what they get."""

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

import vergence as vg
from tests.cli.commands import vergence
from tests.data.own_eyes import OURS, person
from vergence.core.data import Samples, SharedRows, Splits
from vergence.experiment.newcomers import same_samples
from vergence.model_tools.onnx_export import opened_again

pytestmark = pytest.mark.slow

PLAN = """
recipe = "eyes"
model = { features = 20, own_centres = 30, side = false }
federation = { name = "ours.py", root = "ROOT/eyes" }
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("ours")
    (root / "eyes").mkdir()
    for seed, name in enumerate(("anna", "ben", "carl")):
        np.savez(root / "eyes" / f"{name}.npz", **person(seed))
    np.savez(root / "dora.npz", **person(9))
    (root / "ours.py").write_text(OURS)
    (root / "plan.toml").write_text(PLAN.replace("ROOT", str(root)))
    said = vergence("run", root / "plan.toml", "--out", root / "run")
    assert said.code == 0, said.err
    return root


@pytest.fixture(scope="module")
def dora(root):
    """What `adapt` prints for a new person with nine of forty samples."""
    said = adapt(root, root / "dora.npz", "--samples", 9)
    assert said.code == 0, said.err
    return said


def adapt(root, data, *more):
    out = root / f"me-{data.stem}"
    return vergence("adapt", root / "run", "--trust-code", "--data", data, "--out", out, *more)


@pytest.mark.parametrize("more", [(), ("--person", "anna")])
def test_a_participant_is_refused_by_the_name_of_their_file(root, more):
    said = adapt(root, root / "eyes" / "anna.npz", "--samples", 9, *more)
    said.complains(2, "'anna' took part in", "--person anna", "name somebody else of this name")


@pytest.mark.parametrize("more", [(), ("--person", "zoe")])
def test_a_participant_under_another_name_is_refused_by_their_samples(root, more):
    """Some of their samples, in another order and other number types, among others' samples."""
    anna, zoe = np.load(root / "eyes" / "anna.npz"), person(7)
    order = np.random.default_rng(0).permutation(40)[:12]
    mixed = {name: np.concatenate([zoe[name][:5], anna[name][order]]) for name in zoe}
    mixed["pose"] = mixed["pose"].astype(np.float64)
    np.savez(root / "zoe.npz", **mixed)
    said = adapt(root, root / "zoe.npz", *more)
    said.complains(2, "zoe.npz: 12 of 17 samples are those of 'anna', who took part in")


def test_a_participant_is_refused_in_python(root):
    arrays = dict(np.load(root / "eyes" / "ben.npz"))
    run = vg.open_run(root / "run", trust_code=True)
    with pytest.raises(vg.ConfigError, match=r"40 of 40 samples are those of 'ben', who took"):
        run.adapt(arrays)
    arrays["gaze"] = arrays["gaze"].astype(np.float32)
    with pytest.raises(vg.ConfigError, match=r"'new' has samples of 'ben', who took part"):
        run.calibrate(vg.Federation.from_arrays({"new": arrays}), counts=(0, 2))


def test_without_the_data_of_the_run_names_decide_and_a_note_says_so(root):
    np.savez(root / "zoe.npz", **person(0))
    (root / "eyes").rename(root / "gone")
    try:
        said = adapt(root, root / "gone" / "anna.npz")
        said.complains(2, "'anna' took part in")
        said = adapt(root, root / "zoe.npz", "--samples", 9)
    finally:
        (root / "gone").rename(root / "eyes")
    assert said.code == 0
    assert "its data are not here" in said.err
    assert "names alone say whether somebody took part" in said.err


def test_what_several_people_saw_identifies_nobody():
    """Two viewers of the same two pictures; a third, who looked elsewhere, and one of the two."""
    pictures = torch.arange(24.0).view(2, 3, 2, 2)

    def viewer(*gaze):
        columns = {"ids": torch.tensor([0, 1]), "y": torch.tensor(gaze)}
        return Samples(columns, {"frames": SharedRows(pictures, "ids")})

    first, other = viewer(1.0, 2.0), viewer(3.0, 4.0)
    people = {"a": Splits(first, first, first), "b": Splits(other, other, other)}
    task = SimpleNamespace(input_columns=("frames",), labels=(), scored_columns=("y",))
    assert same_samples(people, first, task) == {"a": 2}
    assert same_samples(people, viewer(5.0, 6.0), task) == {}
    assert same_samples(people, viewer(3.0, 6.0), task) == {"b": 1}
    task.scored_columns = ()
    assert same_samples(people, first, task) == {}
    moved = Samples({"ids": torch.tensor([1, 0]), "y": torch.tensor([3.0, 4.0])}, dict(first.banks))
    task.scored_columns = ("y",)
    assert same_samples(people, moved, task) == {}
    task = SimpleNamespace(input_columns=("prepared",), labels=(), scored_columns=())
    assert same_samples({"a": people["a"]}, first, task) == {}


def test_adapt_prints_the_score_on_the_other_samples_and_what_comes_next(root, dora):
    mine = vg.open_run(root / "me-dora").scores["angle_error_deg"]["me"]
    other = np.setdiff1d(np.arange(40), ((np.arange(9) + 0.5) * 40 / 9).astype(int))
    arrays = {name: np.float32(column[other]) for name, column in person(9).items()}
    run = vg.open_run(root / "run", trust_code=True)
    predicted = run.predict(None, {**arrays, "image": arrays["image"].astype(np.uint8)})
    task = run.experiment.task(0)
    truth = Samples({"gaze": torch.tensor(arrays["gaze"])})
    shared = task.metrics(predicted, truth)["angle_error_deg"]
    expected = f"On the other 31 samples: angular error (°) {mine:.2f}, {shared:.2f} unchanged."
    assert expected in dora.out
    assert f"next: vergence export {root / 'me-dora'} --out" in dora.out


def test_a_newcomer_gets_the_common_part_as_a_file(root, tmp_path):
    said = vergence("export", root / "run", "--trust-code", "--out", tmp_path / "new.onnx")
    assert said.code == 0, said.err
    assert "give it to nobody else" not in said.out
    session = opened_again((tmp_path / "new.onnx").read_bytes())
    one = {name: person(9)[name][:1] for name in ("image", "pose")}
    wanted = vg.open_run(root / "run", trust_code=True).predict(None, one).numpy()
    assert np.abs(wanted).max() > 1e-3
    assert session.run(None, one)[0] == pytest.approx(wanted, abs=1e-5)


def test_without_a_common_part_there_is_no_file_for_newcomers(root):
    out = root / "alone"
    said = vergence("run", root / "plan.toml", "--out", out, "--set", "method.common=false")
    assert said.code == 0, said.err
    said = vergence("export", out, "--trust-code", "--out", out / "new.onnx")
    said.complains(2, "no whole model for a newcomer", "choose --person among anna, ben, carl")


@pytest.mark.usefixtures("dora")
def test_an_adapted_run_names_the_method_of_its_run(root, tmp_path):
    me = root / "me-dora"
    assert json.loads((me / "results.json").read_text())["method"] == "fedridge"
    for batch, shape in (("dynamic", "[batch, 2]"), (4, "[4, 2]")):
        said = vergence("export", me, "--out", tmp_path / "me.onnx", "--batch", batch)
        assert said.code == 0, said.err
        model = onnx.load(tmp_path / "me.onnx")
        about = {entry.key: entry.value for entry in model.metadata_props}
        assert about["method"] == "fedridge"
        assert about["output gaze"].startswith(f"float32 {shape}")
