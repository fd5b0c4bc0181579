"""Smaller ONNX files: weights and activations in eight bits, or all numbers in half precision.

Everything is converted by onnxruntime's own tools.

Used by `api.finished_run`, `cli.runs` and `model_tools.onnx_export`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from numpy.typing import NDArray

from vergence.core.optional import import_optional
from vergence.errors import ConfigError

Precision = Literal["float32", "float16", "int8 static", "int8 dynamic"]
Feed = Mapping[str, NDArray]
"""Inputs of one call of a file, by name."""


def precision_of(int8: Literal["static", "dynamic"] | None, float16: bool) -> Precision:
    """Return the precision that the options `--int8` and `--float16` ask for.

    Raises:
        ConfigError: both are given.
    """
    if int8 is not None and float16:
        raise ConfigError("--int8 and --float16 exclude each other: give one of them")
    if int8 is None:
        return "float16" if float16 else "float32"
    return "int8 static" if int8 == "static" else "int8 dynamic"


def reduced(data: bytes, precision: Precision, feeds: Sequence[Feed]) -> bytes:
    """Return an ONNX file in another precision, with the same inputs, outputs and metadata.

    Inputs and outputs keep their types.

    Args:
        data: the file in float32.
        precision: what it becomes. `int8 dynamic` finds the range of activations in every call,
            `int8 static` takes the smallest and largest ones that `feeds` give.
        feeds: inputs for `int8 static`, one mapping for each call; the others ignore them.
    """
    onnx: Any = import_optional("onnx", "export", "export")
    if precision == "float16":
        half = import_optional("onnxruntime.transformers.float16", "export", "export")
        made = half.convert_float_to_float16(onnx.load_from_string(data), keep_io_types=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = onnx.load(_in_eight_bits(data, precision, feeds, Path(folder)))
    properties = {entry.key: entry.value for entry in onnx.load_from_string(data).metadata_props}
    # The tools leave a note of their own among the metadata.
    onnx.helper.set_model_props(made, {**properties, "precision": precision})
    return made.SerializeToString()


def _in_eight_bits(data: bytes, precision: Precision, feeds: Sequence[Feed], folder: Path) -> Path:
    """Write the file in eight bits into a folder, and return its path."""
    tools: Any = import_optional("onnxruntime.quantization", "export", "export")
    shapes: Any = import_optional("onnxruntime.quantization.shape_inference", "export", "export")
    source, ready, out = (folder / f"{name}.onnx" for name in ("source", "ready", "out"))
    source.write_bytes(data)
    log, before = logging.getLogger(), logging.getLogger().level
    # The tools log to the root logger what they leave alone, such as operators without weights.
    log.setLevel(logging.ERROR)
    try:
        # Both need the shape of every value, and gain from constants that are folded first.
        shapes.quant_pre_process(source, ready)
        if precision == "int8 dynamic":
            # Unsigned weights: onnxruntime computes signed ones several times as slowly here.
            tools.quantize_dynamic(ready, out, weight_type=tools.QuantType.QUInt8)
        else:
            # A reader gives the inputs of one call after the other, and None after the last.
            reader = SimpleNamespace(get_next=partial(next, iter(feeds), None))
            # Channels differ in size, above all in the first layer: each has a scale of its own.
            tools.quantize_static(ready, out, reader, per_channel=True)
    finally:
        log.setLevel(before)
    return out
