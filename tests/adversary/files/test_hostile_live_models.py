"""A received ONNX file with `vergence live`: one line, whatever shapes and facts it claims."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.live.fabricated import EYES, STREAM, WINDOWS, write_model
from vergence.errors import DataError
from vergence.live.gaze_models import EyeModel, MapModel, StreamModel, open_model

ANY = WINDOWS.format(frames="frames")
FRAME, STATE, MAP = "uint8[1,12,16,3] frame", "float[1] last_seen", "map = Div(grey, all)"
OPENED = {
    "a window in words": (ANY, {"window": "many"}, "windows of many frames"),
    "a window below 0": (ANY, {"window": "-1"}, "windows of -1 frames"),
    "a window of nothing": (ANY, {"window": "0"}, "windows of 0 frames"),
    "a window for ever": (ANY, {"window": "9" * 30}, "windows of 9+ frames"),
    "frames of 30 GB": (STREAM.replace("12,16", "100000,100000"), {}, "takes frame"),
    "frames of any size": (STREAM.replace(FRAME, "uint8[1,H,W,3] frame"), {}, "takes frame"),
    "frames of no size": (STREAM.replace(FRAME, "uint8[1,0,16,3] frame"), {}, "takes frame"),
    "frames of fractions": (STREAM.replace(FRAME, "float[1,12,16,3] frame"), {}, "takes frame"),
    "a state of 4 TB": (
        STREAM.replace(STATE, "float[1000000,1000000] last_seen"),
        {},
        r"keeps a state last_seen tensor\(float\) \[1000000, 1000000\]",
    ),
    "a state of any size": (STREAM.replace(STATE, "float[N] last_seen"), {}, "keeps a state"),
    "no state back": (
        STREAM.replace(", float[1] next_seen)", ")"),
        {},
        "takes 1 states and gives 0 back",
    ),
    "patches of 1.6 GB": (EYES.replace("36,60", "40000,40000"), {}, "takes image"),
}


@pytest.mark.parametrize("name", list(OPENED))
def test_what_a_file_claims_is_checked_before_memory_is_taken(tmp_path, name):
    text, told, said = OPENED[name]
    with pytest.raises(DataError, match=f"the model .*{said}.*no file of `vergence export` does"):
        open_model(write_model(tmp_path / "m.onnx", text, **told))


def test_answers_of_another_shape(tmp_path):
    flat = STREAM.replace("float[1,12,16] map", "float[N] map").replace(
        MAP, "least = Constant<value_ints=[-1]>()\n    map = Reshape(grey, least)"
    )
    model = open_model(write_model(tmp_path / "m.onnx", flat))
    assert isinstance(model, MapModel)
    with pytest.raises(DataError, match=r"answers \[192\]"):
        model.next_map(np.ones((12, 16, 3), np.uint8))
    one = EYES.replace("float[1,2] gaze", "float[1,1] gaze").replace("Add(flat, pose)", "Neg(flat)")
    model = open_model(write_model(tmp_path / "m.onnx", one, "gaze_angle"))
    assert isinstance(model, EyeModel)
    with pytest.raises(DataError, match=r"answers \[1, 1\]"):
        model.gaze(np.ones((36, 60), np.uint8), np.zeros(2))


def test_a_file_that_fails_when_it_is_run(tmp_path):
    pick = f"{MAP}\n    far = Constant<value_ints=[7]>()\n    gone = Gather(grey, far)"
    path = write_model(tmp_path / "m.onnx", STREAM.replace(MAP, pick.replace("map =", "whole ="))
        .replace("float[1,12,16] map", "float[1,12,16] gone"))  # fmt: skip
    model = open_model(path)
    assert isinstance(model, StreamModel)
    with pytest.raises(DataError, match="cannot be run"):
        model.next_map(np.ones((12, 16, 3), np.uint8))


@pytest.mark.parametrize("where", ["/etc/hostname", "../secret.bin", "inside/../../secret.bin"])
def test_weights_are_read_from_nowhere_else(tmp_path, where):
    """onnxruntime sees to it; an older one that did not would be noticed here."""
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (tmp_path / "given" / "inside").mkdir(parents=True)
    path = write_model(tmp_path / "given" / "m.onnx", STREAM)
    model = onnx.load(path)
    weight = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", where), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    model.graph.initializer.append(weight)
    model.graph.node.append(onnx.helper.make_node("Identity", ["w"], ["copied"]))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(DataError, match="no ONNX file that onnxruntime reads"):
        open_model(path)
