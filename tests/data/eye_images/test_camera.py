"""Cameras: projection by the published formula of OpenCV, sizes, and what a file may hold."""

import json

import numpy as np
import pytest

from tests.refusals import refuses
from vergence.data.eye_images import camera as cameras
from vergence.data.eye_images.camera import Camera, read_camera
from vergence.errors import DataError

MATRIX = np.array([[610.0, 3, 322], [0, 590, 247], [0, 0, 1]])
LENS = np.array([-0.21, 0.13, 0.012, -0.007, 0.05])


def seen(points, matrix, lens):
    """Pixels by OpenCV's page on calibration, one point and one term at a time."""
    k1, k2, p1, p2, k3 = lens.tolist()
    out = []
    for x, y, z in points.tolist():
        a, b = x / z, y / z
        r2 = a**2 + b**2
        bent = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
        u = a * bent + 2 * p1 * a * b + p2 * (r2 + 2 * a**2)
        v = b * bent + p1 * (r2 + 2 * b**2) + 2 * p2 * a * b
        out.append((matrix @ [u, v, 1])[:2])
    return np.array(out)


def test_points_are_seen_where_the_formula_says_and_rays_lead_back():
    rng = np.random.default_rng(3)
    points = rng.uniform([-0.6, -0.5, 0.8], [0.6, 0.5, 2], (40, 3))
    made = Camera(MATRIX, (640, 480), LENS)
    pixels = made.project(points)
    np.testing.assert_allclose(pixels, seen(points, MATRIX, LENS), atol=1e-9)
    np.testing.assert_allclose(made.rays(pixels), points / points[:, 2:], atol=1e-9)


def test_a_lens_is_undone_in_as_many_steps_as_are_stated(monkeypatch):
    """One step: the guess is the distorted place, from which its own error is taken."""
    monkeypatch.setattr(cameras, "ROUNDS", 1)
    lens = np.array([0.1, 0, 0, 0, 0])
    found = Camera(np.eye(3), (9, 9), lens).rays(np.array([[0.5, 0.0]]))
    np.testing.assert_allclose(found, [[0.5 + 0.5 - 0.5 * (1 + 0.1 * 0.25), 0, 1]])
    # A lens without any term needs no step.
    monkeypatch.setattr(cameras, "_distorted", lambda *_: pytest.fail("distorted"))
    assert Camera(np.eye(3), (9, 9)).rays(np.array([2.0, 3.0])).tolist() == [2, 3, 1]


@pytest.mark.parametrize(("width", "height"), [(640, 480), (480, 640)])
def test_a_guess_has_its_middle_in_the_picture_and_its_longer_side_as_focal_length(width, height):
    made = Camera.guessed(width, height)
    middle = [(width - 1) / 2, (height - 1) / 2]
    assert made.matrix.tolist() == [[640, 0, middle[0]], [0, 640, middle[1]], [0, 0, 1]]
    assert made.size == (width, height)
    assert made.distortion.tolist() == [0] * 5


def told(**more):
    return {"matrix": MATRIX.tolist(), "size": [640, 480], "distortion": LENS.tolist()} | more


def matrix(row, column, value):
    changed = MATRIX.copy()
    changed[row, column] = value
    return changed.tolist()


def test_cameras_that_a_file_may_hold(tmp_path):
    path = tmp_path / "camera.json"
    for more in ({"size": [1, 1]}, {"matrix": matrix(0, 0, 1e-6)}, {"matrix": matrix(1, 1, 1e-6)}):
        path.write_text(json.dumps(told(**more)))
        assert read_camera(path).size == tuple(more.get("size", (640, 480)))
    plain = told()
    del plain["distortion"]
    path.write_text(json.dumps(plain))
    found = read_camera(path)
    assert found.distortion.tolist() == [0] * 5
    assert np.array_equal(found.matrix, MATRIX)
    path.write_text(json.dumps(told(distortion=[LENS.tolist()])))
    assert read_camera(path).distortion.tolist() == LENS.tolist()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"size": [0, 480]}, "5 distortion terms, size 0x480"),
        ({"size": [640, 0]}, "size 640x0"),
        ({"distortion": [0.0] * 4}, "4 distortion terms, size 640x480"),
        ({"distortion": [0.0] * 4 + [np.inf]}, "5 distortion terms"),
        ({"matrix": matrix(0, 0, 0.0)}, "matrix must be"),
        ({"matrix": matrix(1, 1, 0.0)}, "matrix must be"),
        ({"matrix": matrix(2, 0, 1e-9)}, "matrix must be"),
        ({"matrix": matrix(2, 2, 2.0)}, "matrix must be"),
        ({"matrix": matrix(0, 2, np.nan)}, "matrix must be"),
        ({"matrix": MATRIX[:, :2].tolist()}, "matrix must be"),
        ({"size": [640]}, "cannot read"),
    ],
)
def test_cameras_that_are_refused(tmp_path, more, said):
    path = tmp_path / "camera.json"
    path.write_text(json.dumps(told(**more)))
    with pytest.raises(DataError, match=said) as caught:
        read_camera(path)
    assert str(path) in str(caught.value)


def test_a_camera_that_is_not_there_is_named(tmp_path):
    with refuses("data", "camera.json", "FileNotFoundError"):
        read_camera(tmp_path / "camera.json")


def test_a_picture_of_the_same_shape_is_scaled_and_may_be_one_pixel_off():
    half = Camera(MATRIX, (640, 480), LENS).of_size(320, 240)
    # The middle of a pixel of half the size lies between those of two.
    points = np.array([[0.1, -0.2, 1.0], [0.3, 0.1, 1.5]])
    whole = seen(points, MATRIX, LENS)
    np.testing.assert_allclose(half.project(points), (whole + 0.5) / 2 - 0.5, atol=1e-9)
    assert half.size == (320, 240)
    made = Camera(MATRIX, (640, 480), LENS)
    for height in (239, 241):
        assert made.of_size(320, height).size == (320, height)
    for height in (238, 242):
        with pytest.raises(DataError, match=f"640 x 480 pixels, a picture has 320 x {height}"):
            made.of_size(320, height)
