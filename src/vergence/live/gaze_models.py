"""Exported gaze models in onnxruntime alone: streams, windows of frames, and eyes."""

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
LONGEST_SIDE, MOST_FRAMES, MOST_STATE = 4096, 1000, 1 << 28
"""Pixels of a side, frames of a window, and numbers of a state (1 GiB) that a file may ask for."""
BYTES, FLOATS = "tensor(uint8)", "tensor(float)"


class LiveModel:
    """A model in a session of onnxruntime, with its metadata and the size of its pictures.

    Raises:
        DataError: its first input is no picture of a size that can be.
    """

    columns: ClassVar[tuple[str, ...]]
    """Numbers that it gives of a frame, as a table names them."""
    height_axis: ClassVar[int]
    """Axis of its first input with the rows of a picture; the next one has its columns."""
    rank: ClassVar[int]
    """Axes of its first input."""

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        self.session, self.told = session, told
        first = session.get_inputs()[0]
        sides = first.shape[self.height_axis : self.height_axis + 2]
        fits = all(isinstance(side, int) and 1 <= side <= LONGEST_SIDE for side in sides)
        if first.type != BYTES or len(first.shape) != self.rank or not fits:
            raise _foreign(f"takes {first.name} {first.type} {first.shape}")
        self.height, self.width = sides

    def answers(self, given: dict[str, Any], rank: int) -> list[Any]:
        """Answers of the file to these inputs; the first has so many axes.

        Raises:
            DataError: it fails, or has other axes, or numbers that are none.
        """
        try:
            found = self.session.run(None, given)
        except Exception as error:  # onnxruntime has a class for each status, and no common one
            raise _foreign(f"cannot be run ({first_line(error)})") from None
        if found[0].ndim != rank or max(found[0].shape, default=0) > LONGEST_SIDE:
            raise _foreign(f"answers {list(found[0].shape)}")
        if not np.isfinite(found[0]).all():
            raise DataError(
                "the model answers NaN or infinity: it has diverged, or somebody changed it; "
                "export another one"
            )
        return found


class MapModel(LiveModel, ABC):
    """Frames one after the other to gaze maps; None where it waits for more frames."""

    columns = ("peak_x", "peak_y", "mean_x", "mean_y")

    @abstractmethod
    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame; it sums to 1."""


class StreamModel(MapModel):
    """A causal network: a frame and its own state in, a map and the new state out.

    Raises:
        DataError: a state of another kind, of an open size or too large, or one that does not come
            back.
    """

    height_axis, rank = 1, 4

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        super().__init__(session, told)
        held, back = session.get_inputs()[1:], session.get_outputs()[1:]
        for value in held:
            known = all(isinstance(size, int) and size >= 0 for size in value.shape)
            if value.type != FLOATS or not known or math.prod(value.shape) > MOST_STATE:
                raise _foreign(f"keeps a state {value.name} {value.type} {value.shape}")
        if len(held) != len(back):
            raise _foreign(f"takes {len(held)} states and gives {len(back)} back")
        self.state = {value.name: np.zeros(value.shape, np.float32) for value in held}

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"]:
        """Return the map of the next frame; the state goes on."""
        heat, *rest = self.answers({"frame": frame[None], **self.state}, 3)
        self.state = dict(zip(self.state, rest, strict=True))
        return heat[0]


class WindowModel(MapModel):
    """A network of windows, given the last frames that really came; none is ever repeated.

    A file with a fixed number of frames waits until it has so many. One with any number begins
    with the first frame, and its window grows to the length that the network was trained with.

    Raises:
        DataError: a window of no length, or too long.
    """

    height_axis, rank = 2, 5

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        super().__init__(session, told)
        frames = session.get_inputs()[0].shape[1]
        self.waits = isinstance(frames, int)
        length = str(frames) if self.waits else told.get("window", "1")
        if not re.fullmatch("[0-9]{1,9}", length) or not 1 <= int(length) <= MOST_FRAMES:
            raise _foreign(f"takes windows of {length} frames")
        self.last: deque[NDArray[np.uint8]] = deque(maxlen=int(length))

    def next_map(
        self, frame: UInt8[np.ndarray, "height width 3"]
    ) -> Float[np.ndarray, "rows columns"] | None:
        """Return the map of the newest frame of the window, or None while a fixed one fills."""
        self.last.append(frame)
        if self.waits and len(self.last) < (self.last.maxlen or 0):
            return None
        heat, *_ = self.answers({"frames": np.stack(self.last)[None]}, 4)
        return heat[0, -1]


class EyeModel(LiveModel):
    """Eye patches to directions."""

    columns = ("pitch_rad", "yaw_rad")
    height_axis, rank = 2, 4

    def __init__(self, session: Any, told: dict[str, str]) -> None:
        super().__init__(session, told)
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
        found, *_ = self.answers(given, 2)
        if found.shape != (1, 2):
            raise _foreign(f"answers {list(found.shape)}")
        return found[0]


def _foreign(what: str) -> DataError:
    return DataError(
        f"the model {what}, which no file of `vergence export` does: write one with it"
    )


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
        raise DataError(
            f"{path} is no ONNX file that onnxruntime reads ({first_line(error)})"
        ) from None
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
