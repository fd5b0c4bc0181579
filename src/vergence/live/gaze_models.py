"""Exported gaze models in onnxruntime alone: streams, windows of frames, and eyes."""

from __future__ import annotations

import importlib
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from vergence.errors import ConfigError, DataError

TASKS = ("gaze_map", "gaze_angle")


class LiveModel:
    """A model in a session of onnxruntime, with its metadata and the size of its pictures."""

    columns: ClassVar[tuple[str, ...]]
    """Numbers that it gives of a frame, as a table names them."""

    def __init__(self, session: Any, told: dict[str, str], height: int, width: int) -> None:
        self.session, self.told = session, told
        self.height, self.width = height, width


class MapModel(LiveModel):
    """Frames one after the other to gaze maps; None where it waits for more frames."""

    columns = ("x", "y")

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame; it sums to 1."""
        raise NotImplementedError


class StreamModel(MapModel):
    """A causal network: a frame and its own state in, a map and the new state out."""

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        _, height, width, _ = session.get_inputs()[0].shape
        super().__init__(session, told, height, width)
        self.state = {
            value.name: np.zeros(value.shape, np.float32) for value in session.get_inputs()[1:]
        }

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"]:
        """Return the map of the next frame; the state goes on."""
        heat, *rest = self.session.run(None, {"frame": frame[None], **self.state})
        self.state = dict(zip(self.state, rest, strict=True))
        return heat[0]


class WindowModel(MapModel):
    """A network of windows, given the last frames that really came; none is ever repeated.

    A file with a fixed number of frames waits until it has so many. One with any number begins
    with the first frame, and its window grows to the length that the network was trained with.
    """

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        _, frames, height, width, _ = session.get_inputs()[0].shape
        super().__init__(session, told, height, width)
        self.waits = isinstance(frames, int)
        self.last: deque[NDArray[np.uint8]] = deque(
            maxlen=frames if isinstance(frames, int) else int(told.get("window", "1"))
        )

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame of the window, or None while a fixed one fills."""
        self.last.append(frame)
        if self.waits and len(self.last) < (self.last.maxlen or 0):
            return None
        (heat,) = self.session.run(None, {"frames": np.stack(self.last)[None]})
        return heat[0, -1]


class EyeModel(LiveModel):
    """Eye patches to directions."""

    columns = ("pitch_rad", "yaw_rad")

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        _, _, height, width = session.get_inputs()[0].shape
        super().__init__(session, told, height, width)
        self.takes = {value.name for value in session.get_inputs()}

    def gaze(
        self,
        patch: UInt8[np.ndarray, "height width"],
        pose: Float[np.ndarray, 2],
        side: Literal["left", "right"] = "left",
    ) -> Float[np.ndarray, 2]:
        """Return (pitch, yaw) in radians of a patch of an eye, given those of the head."""
        known = {
            "image": patch[None, None],
            "pose": np.asarray(pose, np.float32)[None],
            "side": np.array([int(side == "right")]),
        }
        given = {name: value for name, value in known.items() if name in self.takes}
        return self.session.run(None, given)[0][0]


def runtime() -> Any:
    """Return onnxruntime.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ConfigError(
            f"live needs the package '{error.name}': pip install \"vergence[live]\""
        ) from error


def open_model(path: Path, threads: int = 1) -> MapModel | EyeModel:
    """Open a file that `vergence export` wrote.

    Raises:
        ConfigError: onnxruntime is missing, a model of another task or for several samples in a
            call, or threads below 1.
        DataError: the file is missing, no ONNX file, or no model of vergence.
    """
    if threads < 1:
        raise ConfigError(f"--threads must be 1 or more, got {threads}")
    if not path.is_file():
        raise DataError(f"no model at {path}: give a file of `vergence export`, or a run directory")
    library = runtime()
    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what is wrong with a file is said below
    try:
        session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each status, and no common one
        said = str(error).splitlines()[0]
        raise DataError(f"{path} is no ONNX file that onnxruntime reads ({said})") from None
    told = dict(session.get_modelmeta().custom_metadata_map)
    task = told.get("task") if "vergence" in told else None
    if task is None:
        raise DataError(
            f"{path} is no model of vergence, its metadata does not say so: write one with "
            "`vergence export`"
        )
    if task not in TASKS:
        raise ConfigError(f"{path} is of task '{task}'; live takes {' and '.join(TASKS)}")
    kinds = {"frame": StreamModel, "frames": WindowModel, "image": EyeModel}
    first = session.get_inputs()[0]
    if first.name not in kinds:
        raise DataError(f"{path} asks for '{first.name}' first; live knows {', '.join(kinds)}")
    if isinstance(first.shape[0], int) and first.shape[0] != 1:
        raise ConfigError(
            f"{path} takes {first.shape[0]} samples in a call, and a camera gives one: export it "
            "without --batch, or with --batch dynamic"
        )
    return kinds[first.name](session, told)
