"""What somebody meets who gives recipe "eyes" their own arrays: each fault says what to do."""

import numpy as np
import pytest
import torch

import vergence as vg
from tests.cli.commands import vergence
from tests.data.own_eyes import OURS, person
from vergence.errors import ConfigError
from vergence.models.small_eye import SmallEye

pytestmark = pytest.mark.slow

PLAN = """
recipe = "eyes"
MODEL
federation = { name = "ours.py", root = "ROOT" }
"""


def plan(folder, model="model = { features = 4, side = false }", **changes):
    """An experiment on three people's files in a folder, with some columns changed."""
    for seed, name in enumerate(("anna", "ben", "carl")):
        columns = {**person(seed)}
        for column, change in changes.items():
            columns[column] = change(columns[column])
        np.savez(folder / f"{name}.npz", **columns)
    (folder / "ours.py").write_text(OURS)
    path = folder / "plan.toml"
    path.write_text(PLAN.replace("ROOT", str(folder)).replace("MODEL", model))
    return path


def ran(path):
    return vergence("run", path, "--out", path.parent / "run")


def test_without_sides_the_option_is_named(tmp_path):
    said = ran(plan(tmp_path, ""))
    said.complains(2, "has no column 'side'", "set model.side = false, or give 0 for left and 1")
    columns = {name: column for name, column in person(0).items() if name != "pose"}
    people = vg.Federation.from_arrays({"anna": columns})
    with pytest.raises(ConfigError, match=r"no column 'pose'.*without head poses give zeros"):
        vg.train(people=people, **vg.recipe("eyes"))


def test_images_without_channels_are_told_from_images_of_another_size(tmp_path):
    flat = plan(tmp_path, image=lambda image: image[:, 0])
    ran(flat).complains(2, "[1, 9, 15], got [9, 15]; give images an axis of channels, image[:, Non")
    ran(plan(tmp_path, image=lambda image: image[:, :, 1:])).complains(
        2, "[1, 9, 15], got [1, 8, 15]; set model.image to their channels, height and width"
    )
    with pytest.raises(ConfigError, match=r"got \[2, 9, 15\]; give images an axis of channels"):
        SmallEye().build()(torch.zeros(2, 9, 15), torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (np.rad2deg, ("gaze reaches 1", "convert degrees with numpy.deg2rad")),
        (lambda gaze: gaze - np.array([2.2, 0]), ("pitch of gaze reaches 2.", "1.57 radians")),
    ],
)
def test_angles_that_no_eye_has_are_found_by_check_and_by_run(change, words, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    path = plan(tmp_path, gaze=change)
    ran(path).complains(3, "anna", *words)
    for told in (
        vergence("data", "check", tmp_path / "ours.py", "--root", tmp_path),
        vergence("data", "check", path, "--trust-code"),
    ):
        assert told.code == 3, told.err
        assert "1 check failed, see above" in told.err
        text = " ".join(told.out.replace("│", " ").split())
        assert all(word in text for word in ("anna", *words)), text


@pytest.mark.parametrize(("yaw", "warned"), [(0.0, False), (2.2, True)])
def test_people_who_look_away_are_a_note_and_others_none(yaw, warned, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    words = "yaw of gaze reaches 2.", "beyond 1.57 radians (90 degrees) people look away"
    path = plan(tmp_path, gaze=lambda gaze: gaze + np.array([0, yaw]))
    told, said = vergence("data", "check", tmp_path / "ours.py", "--root", tmp_path), ran(path)
    assert (told.code, said.code) == (0, 0)
    assert "angles in radians" in told.out
    for text in (" ".join(told.out.replace("│", " ").split()), said.err):
        assert all((word in text) == warned for word in words), text
    np.savez(tmp_path / "dora.npz", **person(9) | {"gaze": person(9)["gaze"] + np.array([0, yaw])})
    data = ("--trust-code", "--data", tmp_path / "dora.npz", "--out", tmp_path / "me")
    assert ("dora.npz: yaw of gaze" in vergence("adapt", tmp_path / "run", *data).err) == warned


def test_a_folder_that_is_no_run_names_the_run_above_or_beside(tmp_path):
    assert ran(plan(tmp_path)).code == 0
    inner, other = tmp_path / "run" / "fedridge", tmp_path / "rum"
    above = f"{tmp_path / 'run'} is a run directory: name it"
    beside = f"name a run directory, such as {tmp_path / 'run'}"
    for folder, words in ((inner, above), (other, beside)):
        out = ("--out", tmp_path / "x.onnx")
        vergence("export", folder, *out).complains(2, "no run directory", words)
        vergence("verify", folder).complains(2, words)
        vergence("compare", folder).complains(2, words)
        vergence("resume", folder).complains(2, words)
    said = vergence("explain", tmp_path / "run")
    said.complains(2, f"or that of the run: {tmp_path / 'run' / 'config.toml'}")
    text = vergence("explain", tmp_path / "run" / "config.toml", "--trust-code").out
    assert "Gram matrix" in text
