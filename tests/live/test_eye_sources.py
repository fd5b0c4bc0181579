"""Eyes of a face are those of `vergence data patches`; directions come back to the camera frame."""

import numpy as np
import pytest

from tests.data.heads import corners, photograph, turned, webcam
from tests.live.fabricated import EYES, dots, write_model
from vergence.data.eye_images.face_patches import patches_of
from vergence.live.camera import LiveCamera
from vergence.live.eye_sources import EyeCamera, FaceCamera
from vergence.live.gaze_models import open_model
from vergence.live.views import EyeView, arrow

CAMERA = webcam(320, 240, 420.0)
PLACE, TARGET = np.array([10.0, 5.0, 600.0]), np.array([60.0, -20.0, 0.0])
HEAD = turned(4.0, -6.0)
CONSTANT = EYES.replace("value_float=0.001", "value_float=0.0").replace(
    "Add(flat, pose)", "Add(flat, turn)\n    unused = Add(pose, flat)"
)
TURNED = CONSTANT.replace("flat = ", "turn = Constant<value_floats=[0.1,0.2]>()\n    flat = ")


def face(picture):
    return None if not picture.any() else corners(HEAD, PLACE, CAMERA)


def test_both_eyes_are_those_of_the_patches_command():
    grey = photograph(HEAD, PLACE, TARGET, CAMERA)
    picture = np.repeat(grey[..., None], 3, 2)
    found = FaceCamera(face, 36, 60, CAMERA).patches(picture)
    wanted = patches_of([picture], CAMERA, face, {0: TARGET}).columns
    assert [eye.side for eye in found] == ["left", "right"]
    np.testing.assert_array_equal(np.stack([eye.image for eye in found]), wanted["image"][:, 0])
    np.testing.assert_allclose([eye.seen.pose for eye in found], wanted["pose"], atol=1e-6)
    labels = [eye.seen.gaze(TARGET) for eye in found]
    np.testing.assert_allclose(labels, wanted["gaze"], atol=1e-6)


def test_no_face_and_an_eye_beyond_the_edge_give_no_patches():
    cameras = FaceCamera(face, 36, 60, CAMERA)
    assert cameras.patches(np.zeros((240, 320, 3), np.uint8)) == []
    beside = FaceCamera(
        lambda _: corners(HEAD, PLACE - np.array([210, 0, 0]), CAMERA), 36, 60, CAMERA
    )
    assert beside.patches(np.full((240, 320, 3), 9, np.uint8)) == []


def test_another_size_of_patch_is_made_for_the_network():
    picture = np.repeat(photograph(HEAD, PLACE, TARGET, CAMERA)[..., None], 3, 2)
    assert [e.image.shape for e in FaceCamera(face, 9, 15, CAMERA).patches(picture)] == [
        (9, 15)
    ] * 2


@pytest.mark.parametrize(("side", "yaw"), [("left", 0.2), ("right", -0.2)])
def test_a_right_eye_s_direction_is_mirrored_back(tmp_path, side, yaw):
    model = open_model(write_model(tmp_path / "m.onnx", TURNED, "gaze_angle"))
    view = EyeView(model, EyeCamera(36, 60, side))
    with LiveCamera(str(dots(tmp_path / "a.mp4", 2))) as camera:
        seen = view.look(camera.newest(5.0))
    np.testing.assert_allclose(seen.numbers, (0.1, yaw), atol=1e-6)


def test_the_arrow_points_where_the_direction_goes():
    """To the image right and up: x and -y; drawn in the upper right quarter alone."""
    drawn = arrow(np.zeros((100, 100, 3), np.uint8), np.array([0.3, -0.3, -0.9]))
    assert drawn[:45, 55:].max() == 255
    assert drawn[55:].max() == 0
    assert drawn[:, :45].max() == 0
