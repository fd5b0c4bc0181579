"""Eye patches, virtual cameras, screens and zones, each against a plain computation."""

import numpy as np
import pytest
import torch
from PIL import Image

from vergence.data.eye_images import eye_patches
from vergence.data.eye_images.crop import equalise
from vergence.data.eye_images.eye_patches import both_eyes, cut, frame_samples, verify_yaw_sign
from vergence.data.eye_images.gaze_zones import EDGES, zones
from vergence.data.eye_images.normalization import gaze_angles, vectors
from vergence.data.eye_images.screen_pose import Screen, nine_points
from vergence.errors import DataError


def test_equalised_grey_levels_are_ranks():
    """A level is the share of pixels up to it, both counted without the darkest ones."""
    patches = np.random.default_rng(0).integers(40, 90, (3, 4, 5)).astype(np.uint8)
    patches[1] = 7
    patches[2, 0, 0] = 255
    found = equalise(patches)
    for patch, made in zip(patches, found, strict=True):
        dark = (patch == patch.min()).sum()
        for level in np.unique(patch):
            share = ((patch <= level).sum() - dark) / max(patch.size - dark, 1)
            assert (made[patch == level] == np.rint(255 * share)).all()
    assert found.dtype == np.uint8
    assert (found[1] == 0).all()


@pytest.mark.parametrize(
    ("centre", "width", "inside"),
    [
        ((60, 36), 120, True),
        ((60, 36), 120.02, False),
        ((59.9, 36), 120, False),
        ((60.1, 36), 120, False),
        ((60, 35.9), 120, False),
        ((60, 36.1), 120, False),
        ((60, 36), 0, False),
        ((60, 36), -10, False),
        ((np.nan, 36), 10, False),
    ],
)
def test_a_patch_lies_whole_in_the_picture(centre, width, inside):
    picture = Image.fromarray(np.arange(72 * 120).reshape(72, 120).astype(np.uint8))
    found = cut(picture, centre, width)
    assert (found is not None) == inside
    if inside:
        assert found.shape == (36, 60)


def test_a_patch_is_three_fifths_as_high_as_wide():
    picture = np.zeros((200, 200), np.uint8)
    picture[100 - 18 : 100 + 18, 100 - 30 : 100 + 30] = np.arange(60)
    found = cut(Image.fromarray(picture), (100, 100), 60)
    assert np.array_equal(found, np.tile(np.arange(60, dtype=np.uint8), (36, 1)))


def test_both_eyes_and_the_samples_of_some_frames():
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, 256, (2, 3, 36, 60)).astype(np.uint8)
    gaze, pose = rng.normal(0, 1, (2, 3, 2))
    made = both_eyes(left, right, gaze, pose)
    assert np.array_equal(made["image"], equalise(np.concatenate([left, right[..., ::-1]])))
    for name, angles in (("gaze", gaze), ("pose", pose)):
        np.testing.assert_allclose(made[name][:3], angles, rtol=1e-6)
        np.testing.assert_allclose(made[name][3:], angles * [1, -1], rtol=1e-6)
        assert made[name].dtype == np.float32
    some = frame_samples(made, np.array([2, 0])).columns
    assert some["side"].tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(some["gaze"], made["gaze"][[2, 0, 5, 3]])


def eyes(agreement, count=200):
    """Patches with one dark column each, whose place correlates with the yaw by so much."""
    rng = np.random.default_rng(0)
    place = rng.integers(0, 15, count)
    centred = place - place.mean()
    other = rng.normal(0, 1, count)
    other -= other.mean()
    other -= centred * (centred @ other) / (centred @ centred)
    mixed = agreement * centred / np.linalg.norm(centred)
    mixed = mixed + np.sqrt(1 - agreement**2) * other / np.linalg.norm(other)
    image = np.full((count, 36, 60), 200, np.uint8)
    image[np.arange(count), 13:22, 22 + place] = 0
    return {"image": image, "gaze": np.stack([np.zeros(count), mixed], 1)}


def test_irises_that_lie_on_the_wrong_side_are_refused():
    for agreement in (0.17, 1.0):
        with pytest.raises(DataError, match=rf"me: irises .*correlation {agreement:.2f}"):
            verify_yaw_sign([eyes(agreement)], "me")
    for agreement in (0.13, 0.0, -1.0):
        verify_yaw_sign([eyes(agreement)], "me")
    parts = [{n: own[rows] for n, own in eyes(1.0).items()} for rows in (slice(199), [199])]
    verify_yaw_sign(parts[:1], "me")
    with pytest.raises(DataError):
        verify_yaw_sign(parts, "me")
    still = eyes(1.0)
    still["gaze"][:] = 0.1
    verify_yaw_sign([still], "me")
    bright = eyes(1.0)
    bright["image"][0] = 200
    verify_yaw_sign([bright], "me")
    same = eyes(1.0)
    same["image"][:] = 200
    same["image"][:, 13, 30] = eye_patches.DARK - 1
    verify_yaw_sign([same], "me")
    # Pixels outside the middle of a patch, and pixels that are not dark, do not count.
    around = eyes(-1.0)
    around["image"][:, :13] = around["image"][:, 22:] = 0
    around["image"][:, :, :22] = around["image"][:, :, 37:] = 0
    around["image"][around["image"] == 200] = eye_patches.DARK
    verify_yaw_sign([around], "me")
    around["gaze"] = eyes(1.0)["gaze"]
    with pytest.raises(DataError, match=r"1\.00"):
        verify_yaw_sign([around], "me")


def test_zones_by_their_edges():
    """Three rows by pitch and three columns by yaw; an edge belongs to the zone below it."""
    degrees = [(p, y) for p in (-12, -11, -8, -6, 0) for y in (-6, -5, 0, 5, 6)]
    found = zones(torch.deg2rad(torch.tensor(degrees, dtype=torch.float64)))
    for (pitch, yaw), zone in zip(degrees, found.tolist(), strict=True):
        row, place = (
            sum(angle > edge + 1e-9 for edge in edges)
            for angle, edges in zip((pitch, yaw), EDGES, strict=True)
        )
        if pitch in EDGES[0] or yaw in EDGES[1]:
            continue
        assert zone == 3 * row + place
    assert found[[0, 4, 12, 20, 24]].tolist() == [0, 2, 4, 6, 8]


def test_angles_of_vectors_and_back():
    rng = np.random.default_rng(2)
    angles = rng.uniform([-1.5, -3.1], [1.5, 3.1], (50, 2))
    pitch, yaw = angles.T
    made = vectors(angles)
    by_hand = [-np.cos(pitch) * np.sin(yaw), -np.sin(pitch), -np.cos(pitch) * np.cos(yaw)]
    np.testing.assert_allclose(made, np.stack(by_hand, 1), atol=1e-12)
    np.testing.assert_allclose(gaze_angles(3 * made), angles, atol=1e-9)


def test_rays_meet_the_screen_before_the_eye_alone():
    screen = Screen.facing(100, -20)
    assert screen.place(np.array([[100.0, -20.0]])).tolist() == [[0, 0, 0]]
    targets = np.array([[10.0, 20], [300, 150]])
    origins = np.array([[20.0, 50, 600], [-30, 10, 500]])
    rays = screen.place(targets) - origins
    np.testing.assert_allclose(screen.points(origins, rays), targets)
    np.testing.assert_allclose(screen.points(origins, 7 * rays), targets)
    flat = rays.copy()
    flat[0, 2] = 0
    found = screen.points(origins, flat * [[1], [-1]])
    assert np.isnan(found).all()


def test_nine_points_row_by_row():
    found = nine_points(100, 50, 0.2)
    assert found.tolist() == [[x, y] for y in (10, 25, 40) for x in (20, 50, 80)]
    assert nine_points(100, 50)[0].tolist() == [10, 5]
