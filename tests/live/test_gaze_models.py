"""Models on a stream: state goes on, windows hold frames that came, and no others."""

import numpy as np
import pytest

from tests.live.fabricated import EYES, STREAM, WINDOWS, write_model
from vergence.errors import ConfigError, DataError
from vergence.live.gaze_models import EyeModel, StreamModel, WindowModel, open_model
from vergence.live.views import centre


def frame(column):
    """A picture of 12 x 16 with one bright column."""
    picture = np.zeros((12, 16, 3), np.uint8)
    picture[:, column] = 200
    return picture


def across(heat):
    """The column of the centre of mass."""
    return centre(heat)[0] * 16 - 0.5


def test_a_stream_s_state_goes_on(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", STREAM))
    assert isinstance(model, StreamModel)
    found = [across(model.next_map(frame(column))) for column in (2, 9)]
    np.testing.assert_allclose(found, [2, 9], atol=1e-4)
    np.testing.assert_array_equal(model.state["last_seen"], [2])


def test_a_window_of_any_length_grows_with_the_frames_and_then_slides(tmp_path):
    """Centres are means over the window: of 0; 0, 3; 0, 3, 9; then 3, 9, 12 without the first."""
    path = write_model(tmp_path / "m.onnx", WINDOWS.format(frames="frames"), window="3")
    model = open_model(path)
    assert isinstance(model, WindowModel)
    found = [across(model.next_map(frame(column))) for column in (0, 3, 9, 12)]
    np.testing.assert_allclose(found, [0, 1.5, 4, 8], atol=1e-4)


def test_a_fixed_window_waits_for_its_frames(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", WINDOWS.format(frames=3)))
    found = [model.next_map(frame(column)) for column in (0, 3, 9, 12)]
    assert found[:2] == [None, None]
    np.testing.assert_allclose([across(heat) for heat in found[2:]], [4, 8], atol=1e-4)


def test_an_eye_model_is_given_the_pose(tmp_path):
    model = open_model(write_model(tmp_path / "m.onnx", EYES, "gaze_angle"))
    assert isinstance(model, EyeModel)
    gaze = model.gaze(np.full((36, 60), 100, np.uint8), np.array([0.01, -0.02]))
    np.testing.assert_allclose(gaze, [0.11, 0.08], atol=1e-6)


def test_an_eye_model_whose_correction_tells_eyes_apart_is_given_the_side(tmp_path):
    """The patch's level, 0.1, and 1 for a right eye."""
    text = EYES.replace("float[1,2] pose", "int64[1] side").replace(
        "gaze = Add(flat, pose)",
        "which = Cast<to=1>(side)\n    both = Add(flat, which)\n"
        "    gaze = Concat<axis=1>(both, both)",
    )
    model = open_model(write_model(tmp_path / "m.onnx", text, "gaze_angle"))
    assert isinstance(model, EyeModel)
    patch, pose = np.full((36, 60), 100, np.uint8), np.zeros(2)
    found = [float(model.gaze(patch, pose, side)[0]) for side in ("left", "right")]
    np.testing.assert_allclose(found, [0.1, 1.1], atol=1e-6)


def test_answers_that_are_no_numbers_are_refused(tmp_path):
    """A black frame makes this network divide 0 by 0."""
    model = open_model(write_model(tmp_path / "m.onnx", STREAM))
    with pytest.raises(DataError, match="the model answers NaN or infinity: it has diverged"):
        model.next_map(np.zeros((12, 16, 3), np.uint8))


def test_a_file_for_several_samples_is_refused(tmp_path):
    text = STREAM.replace("uint8[1,12", "uint8[4,12").replace("float[1,12", "float[4,12")
    text = text.replace("Div(grey, all)", "Div(grey, grey)")
    with pytest.raises(ConfigError, match="takes 4 samples in a call, and a camera gives one"):
        open_model(write_model(tmp_path / "m.onnx", text))


def test_files_that_are_no_gaze_model(tmp_path):
    with pytest.raises(DataError, match=r"no model at .*x\.onnx: give a file of `vergence export`"):
        open_model(tmp_path / "x.onnx")
    (tmp_path / "x.onnx").write_bytes(b"not a network")
    with pytest.raises(DataError, match="no ONNX file that onnxruntime reads"):
        open_model(tmp_path / "x.onnx")
    with pytest.raises(DataError, match="no model of vergence"):
        open_model(write_model(tmp_path / "m.onnx", STREAM, None))
    with pytest.raises(ConfigError, match="of task 'images'; live takes gaze_map and gaze_angle"):
        open_model(write_model(tmp_path / "m.onnx", STREAM, "images"))
    with pytest.raises(DataError, match="asks for 'picture' first"):
        open_model(write_model(tmp_path / "m.onnx", STREAM.replace("frame", "picture")))
    with pytest.raises(ConfigError, match="--threads must be 1 or more, got 0"):
        open_model(write_model(tmp_path / "m.onnx", STREAM), 0)
