"""Nine targets looked at: a made-up camera that follows them, and labels worked out by hand."""

import numpy as np
import pytest
import torch

from tests.live.fabricated import write_eyes
from vergence.data.eye_images.crop import equalise
from vergence.data.eye_images.normalization import gaze_angles
from vergence.errors import ConfigError, DataError, PartialRun
from vergence.live.calibration import CalibrationPlan, calibrate
from vergence.live.camera import LiveCamera
from vergence.live.eye_sources import EyeCamera
from vergence.models.lenet import LeNet
from vergence.tasks.gaze_angle import GazeAngle

PLAN = CalibrationPlan(300.0, 200.0, samples=3, settle_s=1 / 40, longest_s=20.0)
"""At 30 frames a second the first frame of a target is left out, and the next three are kept."""
FRAMES = 4


class Script:
    """A display that notes what it shows; closed after a number of looks."""

    def __init__(self, looks=10_000):
        self.shown, self.left = [], looks

    def target(self, place):
        if not self.shown or self.shown[-1] != tuple(place):
            self.shown.append(tuple(place))
        self.left -= 1
        return self.left > 0


def collected(tmp_path, side="left", plan=PLAN, display=None, targets=9):
    video = write_eyes(tmp_path / "eyes.mp4", targets * FRAMES, lambda n: n // FRAMES)
    out = tmp_path / "me.npz"
    display = display or Script()
    with LiveCamera(str(video)) as camera:
        count = calibrate(
            camera, EyeCamera(36, 60, side), display, plan, out, clock=lambda frame: frame.time_s
        )
    return count, dict(np.load(out)), display


def test_samples_carry_the_angles_of_their_targets(tmp_path):
    """Screen 300 x 200 mm, camera 8 mm above its middle, eye 600 mm before the camera.

    The first target, 30 mm from the left and 20 from the top, is 120 mm to the image right and 28
    below the camera: yaw = atan2(-120, 600), pitch = atan2(-28, |(120, 600)|). The last one is as
    far to the image left, and 188 below.
    """
    count, found, display = collected(tmp_path)
    assert count == 27
    assert (tmp_path / "me.npz").stat().st_mode & 0o777 == 0o600
    np.testing.assert_array_equal(found["target"], np.repeat(np.arange(9), 3))
    np.testing.assert_array_equal(found["frame"] % FRAMES, np.tile([1, 2, 3], 9))
    far = np.hypot(120, 600)
    first, last = found["gaze"][0], found["gaze"][-1]
    np.testing.assert_allclose(first, [np.arctan2(-28, far), np.arctan2(-120, 600)], atol=1e-6)
    np.testing.assert_allclose(last, [np.arctan2(-188, far), np.arctan2(120, 600)], atol=1e-6)
    shares = [(x, y) for y in (0.1, 0.5, 0.9) for x in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(display.shown, shares, atol=1e-9)


def test_patches_show_the_frames_of_their_target(tmp_path):
    """The made-up iris is 7 pixels further right for each target, half as many in the patch."""
    _, found, _ = collected(tmp_path)
    dark = (found["image"][:, 0] < 10).sum(1)
    place = (dark @ np.arange(60)) / dark.sum(1)
    np.testing.assert_allclose(place, np.repeat(14.5 + 3.5 * np.arange(9), 3), atol=2)
    assert found["image"].shape == (27, 1, 36, 60)
    np.testing.assert_array_equal(equalise(found["image"][:, 0]), found["image"][:, 0])


def test_right_eyes_are_mirrored_with_their_labels(tmp_path):
    (tmp_path / "right").mkdir()
    _, left, _ = collected(tmp_path)
    _, right, _ = collected(tmp_path / "right", "right")
    np.testing.assert_array_equal(right["image"], left["image"][..., ::-1])
    np.testing.assert_allclose(right["gaze"], left["gaze"] * [1, -1], atol=1e-7)
    assert set(right["side"]) == {1}
    assert set(left["side"]) == {0}


def test_the_columns_are_those_that_the_task_takes(tmp_path):
    _, found, _ = collected(tmp_path)
    task = GazeAngle(LeNet((2, 4)))
    batch = {name: torch.from_numpy(column) for name, column in found.items()}
    output = task.forward(task.module(), batch)
    assert output.shape == (27, 2)
    assert float(task.loss(output, batch).detach()) > 0
    toward = np.array([[-0.1, 0.2, -1.0]])  # to the image left and down: yaw above, pitch below 0
    assert (np.sign(gaze_angles(toward)) == [[-1, 1]]).all()


def test_what_ends_early_writes_nothing(tmp_path):
    with pytest.raises(DataError, match="ended at target 6 of 9"):
        collected(tmp_path, targets=5)
    with pytest.raises(PartialRun, match="ended at target 2 of 9; no calibration is written"):
        collected(tmp_path, display=Script(FRAMES + 2))
    assert not (tmp_path / "me.npz").exists()


def test_a_target_without_an_eye_is_named(tmp_path):
    class Blind(EyeCamera):
        def patches(self, picture):
            return []

    video = write_eyes(tmp_path / "eyes.mp4", 8, lambda n: n)
    plan = CalibrationPlan(300.0, 200.0, samples=1, settle_s=0.0, longest_s=0.2)
    with (
        LiveCamera(str(video)) as camera,
        pytest.raises(DataError, match=r"no eye was seen while target 1 of 9|ended at target 1"),
    ):
        calibrate(camera, Blind(36, 60), Script(), plan, tmp_path / "me.npz")


def test_a_screen_without_a_size_is_refused():
    with pytest.raises(ConfigError, match="a screen above 0 mm and 1 sample or more, got 0 x 200"):
        CalibrationPlan(0, 200)
