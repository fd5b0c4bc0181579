"""Points on the screen: found again from nine targets, by a network whose answers are biased."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from tests.cli.commands import vergence
from tests.live.fabricated import EYES, STREAM, dots, write_eyes, write_model
from vergence.data.eye_images.normalization import vectors
from vergence.errors import DataError
from vergence.live.calibration import CalibrationPlan
from vergence.live.camera import CameraOptions
from vergence.live.command import EyeOptions, OutputOptions, start
from vergence.live.gaze_models import open_model
from vergence.live.screen_point import NEEDED, fitted_screen

PLAN = CalibrationPlan(300.0, 200.0)
BIASED = """
<ir_version: 9, opset_import: ["" : 18]>
eye (uint8[1,1,36,60] image, float[1,2] pose) => (float[1,2] gaze)
{
    off = Constant<value_floats=[0.05, -0.08]>()
    gaze = Add(pose, off)
}
"""
"""A network that answers what stands in `pose`, and is wrong by 3 and 5 degrees."""


def calibration(path, far=600.0, drop=(), **changed):
    """Write a file as `--calibrate` does, of an eye before the camera that looks at each target.

    What the eye does stands in `pose`, where the network of these tests reads it.
    """
    places, centre = PLAN.places_mm, np.array([0.0, 0.0, far])
    toward = places - centre
    toward /= np.linalg.norm(toward, axis=1, keepdims=True)
    pitch, yaw = np.arcsin(-toward[:, 1]), np.arctan2(-toward[:, 0], -toward[:, 2])
    gaze = np.stack([pitch, yaw], 1).astype(np.float32)
    assert np.allclose(vectors(gaze), toward, atol=1e-6)
    table = {
        "image": np.zeros((9, 1, 36, 60), np.uint8),
        "pose": gaze,
        "gaze": gaze,
        "side": np.zeros(9, np.int64),
        "frame": np.arange(9),
        "target": np.arange(9),
        "target_mm": PLAN.points_mm.astype(np.float32),
        "centre_mm": np.tile(centre, (9, 1)).astype(np.float32),
        "rotation": np.tile(np.eye(3), (9, 1, 1)).astype(np.float32),
    } | changed
    np.savez_compressed(path, **{k: v for k, v in table.items() if k not in drop})
    return path


def test_a_biased_network_still_finds_the_targets(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", BIASED, "gaze_angle"))
    path = calibration(tmp_path / "me.npz")
    _, fit = fitted_screen(path, model)
    assert fit.error_deg < 0.5, "5.4 degrees before"
    with np.load(path) as file:
        gaze = file["gaze"] + [0.05, -0.08]
    origins = np.tile([0.0, 0.0, 600.0], (9, 1))
    found = fit.model.points(origins, vectors(gaze))
    np.testing.assert_allclose(found, PLAN.points_mm, atol=2.0)


def test_points_are_recorded_and_said(tmp_path):
    """The network of `EYES` answers the brightness; here only the columns and the message count."""
    model = write_model(tmp_path / "m.onnx", EYES, "gaze_angle")
    video = write_eyes(tmp_path / "eyes.mp4", 6, lambda n: n)
    said = io.StringIO()
    path = calibration(tmp_path / "me.npz")
    shown = OutputOptions(True, tmp_path / "r.mp4", points=path, smooth=1.0)
    console = Console(file=said, width=300)
    start(model, str(video), console, CameraOptions(), EyeOptions(), shown)
    with (tmp_path / "r.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [*table[0]][2:6] == ["pitch_rad", "yaw_rad", "screen_x_mm", "screen_y_mm"]
    assert len(table) == 6
    assert "cm (" in said.getvalue()
    assert "degrees) on targets left out" in said.getvalue()


def test_files_that_are_no_calibration_are_refused_in_a_line(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", BIASED, "gaze_angle"))
    old = calibration(tmp_path / "old.npz", drop=("rotation",))
    with pytest.raises(DataError, match=r"lacks the column .*rotation.*: write it again"):
        fitted_screen(old, model)
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 nothing")
    for name in ("no.npz", "none.npz"):
        with pytest.raises(DataError, match="is no calibration"):
            fitted_screen(tmp_path / name, model)
    small = calibration(tmp_path / "small.npz", image=np.zeros((9, 1, 9, 15), np.uint8))
    with pytest.raises(DataError, match="9 x 15 pixels, and the model takes 36 x 60"):
        fitted_screen(small, model)
    few = calibration(tmp_path / "few.npz", target=np.zeros(9, np.int64))
    with pytest.raises(DataError, match="7 points or more"):
        fitted_screen(few, model)
    odd = calibration(tmp_path / "odd.npz", rotation=np.zeros((9, 2, 2)))
    with pytest.raises(DataError, match="is no calibration"):
        fitted_screen(odd, model)


def test_other_files_are_refused_in_a_line_too(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", BIASED, "gaze_angle"))
    np.save(tmp_path / "one.npy", np.zeros(9))
    whole = calibration(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "damaged.npz").write_bytes(whole[:200] + b"\xff" * 40 + whole[240:])
    empty = {name: np.zeros((0, *(size or 1 for size in row))) for name, row in NEEDED.items()}
    calibration(tmp_path / "empty.npz", **empty)
    calibration(tmp_path / "words.npz", target_mm=np.full((9, 2), "left"))
    for name in ("one.npy", "damaged.npz", "empty.npz", "words.npz"):
        with pytest.raises(DataError, match=r"is no calibration|lacks the column"):
            fitted_screen(tmp_path / name, model)


def test_maps_have_no_points(tmp_path):
    model, video = write_model(tmp_path / "m.onnx", STREAM), dots(tmp_path / "d.mp4", 2)
    words = ("live", model, "--camera", video, "--headless")
    vergence(*words, "--points", "me.npz").complains(2, "--points is for models of eyes")
    vergence(*words, "--smooth", "0").complains(2, "--smooth is a frequency in Hz above 0")
    vergence(*words, "--token", "t").complains(2, "--token is for --serve")
