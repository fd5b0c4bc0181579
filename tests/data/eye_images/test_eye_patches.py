"""Cutting eyes out of pictures, both eyes of a frame, and the test of the sign of yaw."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import research_data
from vergence.data.eye_images.crop import equalise
from vergence.data.eye_images.eye_patches import both_eyes, cut, frame_samples, verify_yaw_sign
from vergence.errors import DataError


def discs(yaw, seed=0):
    """Patches whose dark iris lies 20 pixels to the left per radian of yaw."""
    rng = np.random.default_rng(seed)
    out = rng.integers(150, 250, (len(yaw), 36, 60)).astype(np.uint8)
    rows, columns = np.mgrid[:36, :60]
    for patch, angle in zip(out, yaw, strict=True):
        patch[np.hypot(rows - 17.5, columns - 29.5 + 20 * angle) < 5] = 20
    return out


def columns_of(count=240):
    gaze = np.random.default_rng(1).uniform(-0.3, 0.3, (count, 2))
    return {"image": discs(gaze[:, 1]), "gaze": gaze}


def test_cut_halves_a_box_of_120_by_72_pixels():
    """Each 2 x 2 block of one grey becomes one pixel; away from edges of blocks nothing mixes."""
    blocks = np.arange(60 * 100).reshape(60, 100) % 7 * 30
    picture = Image.fromarray(np.kron(blocks, np.ones((2, 2))).astype(np.uint8))
    small = np.asarray(picture.resize((60, 36), Image.Resampling.BILINEAR, (40, 20, 160, 92)))
    np.testing.assert_array_equal(cut(picture, (100, 56), 120), small)
    flat = Image.new("RGB", (200, 120), (10, 20, 30))
    grey = round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)
    patch = cut(flat, (100, 56), 120)
    assert patch is not None
    assert patch.shape == (36, 60)
    assert (patch == grey).all()


def test_a_box_that_leaves_the_picture_is_no_patch():
    """120 x 72 pixels around (60, 36) just fit into the corner."""
    picture = Image.new("L", (200, 100))
    assert cut(picture, (60, 36), 120) is not None
    assert cut(picture, (140, 64), 120) is not None
    for centre in ((59.5, 36), (60, 35.5), (140.5, 36), (60, 64.5)):
        assert cut(picture, centre, 120) is None
    assert cut(picture, (60, 36), 0) is None


def test_both_eyes_are_left_ones_then_mirrored_right_ones():
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, 256, (2, 3, 36, 60), np.uint8)
    gaze, pose = rng.normal(0, 0.1, (2, 3, 2))
    columns = both_eyes(left, right, gaze, pose)
    np.testing.assert_array_equal(columns["image"][:3], equalise(left))
    np.testing.assert_array_equal(columns["image"][3:], equalise(right)[:, :, ::-1])
    for name, angles in (("gaze", gaze), ("pose", pose)):
        np.testing.assert_allclose(columns[name][:3], angles, atol=1e-7)
        np.testing.assert_allclose(columns[name][3:], angles * [1, -1], atol=1e-7)
    samples = frame_samples(columns, np.array([0, 2]))
    assert samples.columns["image"].shape == (4, 1, 36, 60)
    expected = torch.from_numpy(columns["gaze"][[0, 2, 3, 5]])
    assert torch.equal(samples.columns["gaze"], expected)
    assert samples.columns["side"].tolist() == [0, 0, 1, 1]
    assert samples.columns["side"].dtype == torch.int64


def test_yaw_of_the_wrong_sign_is_refused():
    columns = columns_of()
    verify_yaw_sign([columns], "here")
    flipped = {**columns, "gaze": columns["gaze"] * [1, -1]}
    with pytest.raises(DataError, match=r"here: irises lie further to the image right"):
        verify_yaw_sign([flipped], "here")
    mirrored = {**columns, "image": columns["image"][:, :, ::-1]}
    with pytest.raises(DataError, match=r"image right .*flip the signs"):
        verify_yaw_sign([mirrored], "here")


def test_mirroring_picture_and_yaw_together_changes_nothing():
    columns = columns_of()
    verify_yaw_sign(
        [{"image": columns["image"][:, :, ::-1], "gaze": columns["gaze"] * [1, -1]}], "here"
    )


def test_too_few_or_blank_patches_prove_nothing():
    wrong = columns_of(150)
    verify_yaw_sign([{**wrong, "gaze": wrong["gaze"] * [1, -1]}], "here")
    verify_yaw_sign([{**columns_of(), "image": np.full((240, 36, 60), 200, np.uint8)}], "here")
    verify_yaw_sign([{**columns_of(), "image": np.zeros((240, 36, 60), np.uint8)}], "here")
    verify_yaw_sign([{**columns_of(), "gaze": np.zeros((240, 2))}], "here")


@pytest.mark.data
def test_each_of_eleven_real_people_passes_and_fails_mirrored():
    path = research_data("eyes") / "mpiigaze_9x15" / "mpiigaze_9x15.npz"
    with np.load(path) as file:
        crops, gaze = file["image"], file["gaze"]
    for own, angles in zip(crops, gaze, strict=True):
        image = np.full((len(own), 36, 60), 200, np.uint8)
        image[:, 13:22, 22:37] = own
        verify_yaw_sign([{"image": image, "gaze": angles}], "person")
        with pytest.raises(DataError):
            verify_yaw_sign([{"image": image, "gaze": -angles}], "person")
