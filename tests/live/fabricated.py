"""Cameras and models made up for tests: a bright dot that moves, and networks that find it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, parser

from vergence.video.encode import encode

HEIGHT, WIDTH = 48, 64
CODE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked", name=name)
sys.meta_path.insert(0, Blocked())
"""

STREAM = """
<ir_version: 9, opset_import: ["" : 18]>
causal (uint8[1,12,16,3] frame, float[1] last_seen) => (float[1,12,16] map, float[1] next_seen)
{
    light = Cast<to=1>(frame)
    colours = Constant<value_ints=[3]>()
    grey = ReduceSum<keepdims=0>(light, colours)
    all = ReduceSum<keepdims=0>(grey)
    map = Div(grey, all)
    one = Constant<value_float=1.0>()
    next_seen = Add(last_seen, one)
}
"""
WINDOWS = """
<ir_version: 9, opset_import: ["" : 18]>
windowed (uint8[1,{frames},12,16,3] frames) => (float[1,{frames},12,16] map)
{{
    light = Cast<to=1>(frames)
    colours = Constant<value_ints=[4]>()
    grey = ReduceSum<keepdims=0>(light, colours)
    steps = Constant<value_ints=[1]>()
    together = ReduceSum<keepdims=1>(grey, steps)
    all = ReduceSum<keepdims=0>(together)
    share = Div(together, all)
    zero = Sub(grey, grey)
    map = Add(zero, share)
}}
"""
"""The map of every frame is the mean of the window: a frame given twice would move its centre."""
EYES = """
<ir_version: 9, opset_import: ["" : 18]>
eye (uint8[1,1,36,60] image, float[1,2] pose) => (float[1,2] gaze)
{
    light = Cast<to=1>(image)
    dark = Constant<value_float=0.001>()
    small = Mul(light, dark)
    axes = Constant<value_ints=[1,2,3]>()
    level = ReduceMean<keepdims=0>(small, axes)
    shape = Constant<value_ints=[1,1]>()
    flat = Reshape(level, shape)
    gaze = Add(flat, pose)
}
"""


def write_model(path: Path, text: str, task: str | None = "gaze_map", **told: str) -> Path:
    """Write a network with the metadata of an export; task None: without any."""
    model = parser.parse_model(text)
    if task is not None:
        helper.set_model_props(model, {"vergence": "0.1.0", "task": task, **told})
    onnx.save(model, path)
    return path


def places(count: int) -> np.ndarray:
    """Centres (x, y) of the dot in `count` frames, shares of the frame: from left to right."""
    return np.stack([np.linspace(0.2, 0.8, count), np.full(count, 0.5)], 1)


def dots(path: Path, count: int = 12, rate: float = 30.0) -> Path:
    """Write a video of a bright dot on black, 64 x 48, that moves to the right."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] + 0.5

    def pictures():
        for number, (across, down) in enumerate(places(count)):
            near = np.hypot(x - across * WIDTH, y - down * HEIGHT) < 8
            yield number / rate, np.repeat(np.uint8(255) * near[..., None], 3, 2).astype(np.uint8)

    encode(path, pictures(), 1 / rate)
    return path


def without(blocked: set[str], code: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process in which these packages cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", CODE.format(blocked=blocked) + code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_eyes(path: Path, count: int, target: Callable[[int], int]) -> Path:
    """Write a video of an eye, 120 x 72: a dark disk, further right for each target."""
    y, x = np.mgrid[0:72, 0:120] + 0.5

    def pictures():
        for number in range(count):
            dark = np.hypot(x - 30 - 7 * target(number), y - 36) < 12
            shade = np.where(dark, 30, 120 + x).astype(np.uint8)
            yield number / 30, np.repeat(shade[..., None], 3, 2)

    encode(path, pictures(), 1 / 30)
    return path
