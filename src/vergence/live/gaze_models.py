"""Exported gaze models in onnxruntime: streams of frames, windows of frames, and eyes.

Used by `live.command` and `live.views`.
"""

from __future__ import annotations

import importlib
import math
import re
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from vergence.errors import ConfigError, DataError, first_line

TASKS = ("gaze_map", "gaze_angle")
# Limits of a model file: pixels of a side, frames of a window, numbers of a state (1 GiB). The file
# may come from anybody, and without limits could ask for all memory.
LONGEST_SIDE, MOST_FRAMES, MOST_STATE = 4096, 1000, 1 << 28
BYTES, FLOATS = "tensor(uint8)", "tensor(float)"


class LiveModel:
    """Model in a session of onnxruntime, with its metadata and the size of its input pictures.

    Raises:
        DataError: the first input is not a picture, or its size is out of range.
    """

    columns: ClassVar[tuple[str, ...]]
    """Names of the numbers that it predicts for a frame, as columns of a table."""
    height_axis: ClassVar[int]
    """Axis of the first input with the rows of a picture; the next axis has the columns."""
    rank: ClassVar[int]
    """Number of axes of the first input."""

    def __init__(self, session: Any, metadata: dict[str, str]) -> None:
        self.session, self.metadata = session, metadata
        first = session.get_inputs()[0]
        sides = first.shape[self.height_axis : self.height_axis + 2]
        fits = all(isinstance(side, int) and 1 <= side <= LONGEST_SIDE for side in sides)
        if first.type != BYTES or len(first.shape) != self.rank or not fits:
            raise _foreign(f"takes {first.name} {first.type} {first.shape}")
        self.height, self.width = sides

    def run_session(self, inputs: dict[str, Any], rank: int) -> list[Any]:
        """Run the model on inputs; its first output must have `rank` axes.

        Raises:
            DataError: the model fails, its output has another shape, or is not finite.
        """
        try:
            outputs = self.session.run(None, inputs)
        # onnxruntime has an error class for each status, and no common one.
        except Exception as error:
            raise _foreign(f"cannot be run ({first_line(error)})") from None
        if outputs[0].ndim != rank or max(outputs[0].shape, default=0) > LONGEST_SIDE:
            raise _foreign(f"answers {list(outputs[0].shape)}")
        if not np.isfinite(outputs[0]).all():
            raise DataError(
                "the model answers NaN or infinity: it has diverged, or somebody changed it; "
                "export another one"
            )
        return outputs


class MapModel(LiveModel, ABC):
    """Model that predicts a gaze map for each of a sequence of frames."""

    columns = ("peak_x", "peak_y", "mean_x", "mean_y")

    @abstractmethod
    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame, with sum 1; None while it waits for more frames."""


class StreamModel(MapModel):
    """Causal network: takes a frame and its state, and returns a map and the new state.

    Raises:
        DataError: a state has another type, no fixed size, or too many numbers; or the file returns
            fewer states than it takes.
    """

    height_axis, rank = 1, 4

    def __init__(self, session: Any, metadata: dict[str, str]) -> None:
        super().__init__(session, metadata)
        states, back = session.get_inputs()[1:], session.get_outputs()[1:]
        for value in states:
            known = all(isinstance(size, int) and size >= 0 for size in value.shape)
            if value.type != FLOATS or not known or math.prod(value.shape) > MOST_STATE:
                raise _foreign(f"keeps a state {value.name} {value.type} {value.shape}")
        if len(states) != len(back):
            raise _foreign(f"takes {len(states)} states and gives {len(back)} back")
        self.state = {value.name: np.zeros(value.shape, np.float32) for value in states}

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"]:
        """Return the map of the next frame, and update the state."""
        heat, *rest = self.run_session({"frame": frame[None], **self.state}, 3)
        self.state = dict(zip(self.state, rest, strict=True))
        return heat[0]


class WindowModel(MapModel):
    """Network of windows: takes the last frames that arrived; no frame is repeated.

    A file with a fixed number of frames waits for that many. A file with any number starts with the
    first frame, and its window grows to the length that the network was trained with.

    Raises:
        DataError: the length of the window is out of range.
    """

    height_axis, rank = 2, 5

    def __init__(self, session: Any, metadata: dict[str, str]) -> None:
        super().__init__(session, metadata)
        frames = session.get_inputs()[0].shape[1]
        self.waits = isinstance(frames, int)
        # The metadata are text from the file: nine digits at most, before Python makes a number.
        length = str(frames) if self.waits else metadata.get("window", "1")
        if not re.fullmatch("[0-9]{1,9}", length) or not 1 <= int(length) <= MOST_FRAMES:
            raise _foreign(f"takes windows of {length} frames")
        self.last: deque[NDArray[np.uint8]] = deque(maxlen=int(length))

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame of the window; None while a fixed window fills."""
        self.last.append(frame)
        if self.waits and len(self.last) < (self.last.maxlen or 0):
            return None
        heat, *_ = self.run_session({"frames": np.stack(self.last)[None]}, 4)
        return heat[0, -1]


class EyeModel(LiveModel):
    """Model that predicts the gaze direction of an eye patch."""

    columns = ("pitch_rad", "yaw_rad")
    height_axis, rank = 2, 4

    def __init__(self, session: Any, metadata: dict[str, str]) -> None:
        super().__init__(session, metadata)
        # A network that ignores pose or side has no input for it.
        self.takes = {value.name for value in session.get_inputs()}

    def gaze(
        self,
        patch: UInt8[np.ndarray, "height width"],
        pose: Float[np.ndarray, 2],
        side: Literal["left", "right"] = "left",
    ) -> Float[np.ndarray, 2]:
        """Return gaze (pitch, yaw) in radians of an eye patch, given the pose of the head."""
        known = {
            "image": patch[None, None],
            "pose": np.asarray(pose, np.float32)[None],
            "side": np.array([int(side == "right")]),
        }
        inputs = {name: value for name, value in known.items() if name in self.takes}
        angles, *_ = self.run_session(inputs, 2)
        if angles.shape != (1, 2):
            raise _foreign(f"answers {list(angles.shape)}")
        return angles[0]


def _foreign(what: str) -> DataError:
    return DataError(
        f"the model {what}, which no file of `vergence export` does: write one with it"
    )


def load_onnxruntime() -> Any:
    """Import onnxruntime.

    Raises:
        ConfigError: onnxruntime is not installed.
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
        ConfigError: onnxruntime is missing, the model is for another task or takes several samples
            in a call, or `threads` is below 1.
        DataError: the file is missing, is not an ONNX file, or was not written by vergence.
    """
    if threads < 1:
        raise ConfigError(f"--threads must be 1 or more, got {threads}")
    if not path.is_file():
        raise DataError(f"no model at {path}: give a file of `vergence export`, or a run directory")
    library = load_onnxruntime()
    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # The messages below say what is wrong with a file: onnxruntime would say it in C++ besides.
    options.log_severity_level = 4
    try:
        session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # onnxruntime has an error class for each status, and no common one.
    except Exception as error:
        raise DataError(
            f"{path} is no ONNX file that onnxruntime reads ({first_line(error)})"
        ) from None
    metadata = dict(session.get_modelmeta().custom_metadata_map)
    task = metadata.get("task") if "vergence" in metadata else None
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
    return kinds[first.name](session, metadata)
