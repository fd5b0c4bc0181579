"""Video through PyAV, by presentation times: frame number = time x rate is never assumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import ArrayLike, NDArray

from vergence.errors import DataError

SEEK_OVER_S = 2.0
"""Gaps longer than this are skipped by a seek instead of by decoding through them."""


@dataclass(frozen=True, eq=False)
class Footage(ABC):
    """Frames of a recording with the time of each, whatever container they lie in.

    `times_s` float64 `[frames]`, seconds, ascending; `width` and `height` are pixels of the upright
    frame.
    """

    path: Path
    times_s: NDArray[np.float64]
    width: int
    height: int

    @abstractmethod
    def frames(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield frames with these numbers (ascending; default all), resized, `[H, W, 3]` RGB."""


@dataclass(frozen=True, eq=False)
class Video(Footage):
    """A video file: its upright size and the time of every frame, in seconds."""

    pts: NDArray[np.int64]

    @staticmethod
    def open(path: Path) -> Video:
        """Read the frame times of a file without decoding it.

        Raises:
            DataError: the file is missing, not a video, truncated, or has no frames.
        """
        if not path.is_file():
            camera = path.name.isdigit() and "a camera's number is not taken: record a file, and "
            raise DataError(
                f"video {path} is missing; {camera or ''}give the path of an existing video file"
            )
        try:
            with av.open(str(path)) as container:
                if not container.streams.video:
                    raise DataError(f"{path} has no video stream; give a video file")
                stream = container.streams.video[0]
                packets = [p for p in container.demux(stream) if p.size]
                declared, width, height = stream.frames, stream.width, stream.height
                base = stream.time_base
        except FFmpegError as error:
            raise _unreadable(path, error) from None
        if declared and len(packets) < declared:
            raise DataError(
                f"video {path} is truncated: {len(packets)} of {declared} frames are there; "
                "copy or download it again"
            )
        shown = [p.pts for p in packets if p.pts is not None and not p.is_discard]
        if _quarter_turns(path) % 2:
            width, height = height, width
        pts = np.unique(np.array(shown, np.int64))
        if not len(pts) or base is None:
            raise DataError(f"video {path} has no frames; give a video with at least one frame")
        return Video(path, np.asarray(pts * float(base), np.float64), width, height, pts)

    @staticmethod
    def check_header(path: Path) -> None:
        """Accept a file that opens and has a video stream; its frames are not counted.

        Raises:
            DataError: the file is not a video, or is cut before its index.
        """
        try:
            with av.open(str(path)) as container:
                found = bool(container.streams.video)
        except (FFmpegError, OSError) as error:
            raise _unreadable(path, error) from None
        if not found:
            raise DataError(f"{path} has no video stream; give a video file")

    def rows_at(self, times_s: ArrayLike) -> NDArray[np.int64]:
        """Return the number of the frame nearest to each time (ties: the earlier).

        Raises:
            DataError: a time lies more than one frame interval before the first or after the last
                frame.
        """
        return rows_at(self.times_s, times_s, str(self.path))

    def frames(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield frames in the order of `rows` (ascending; default all), uint8 `[H, W, 3]` RGB.

        Frames are resized to `width` x `height` (default: as stored; aspect is not kept, gaze in
        fractions of the frame stays right).

        Raises:
            DataError: a frame cannot be decoded.
        """
        wanted = np.arange(len(self.pts)) if rows is None else np.asarray(rows, np.int64)
        width, height = width or self.width, height or self.height
        try:
            with av.open(str(self.path)) as container:
                stream = container.streams.video[0]
                far = SEEK_OVER_S / float(stream.time_base or 1)
                frame: VideoFrame | None = None
                decoder = container.decode(stream)
                for row in wanted:
                    pts = int(self.pts[row])
                    if pts - (self.pts[0] if frame is None else frame.pts or 0) > far:
                        frame, decoder = self._seek(container, stream, pts, far)
                    frame = self._advance(frame, decoder, pts, int(row))
                    yield rgb(frame, width, height)
        except FFmpegError as error:
            raise _unreadable(self.path, error) from None

    def read(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> NDArray[np.uint8]:
        """Return `frames` as one array, uint8 `[frames, H, W, 3]`."""
        return np.stack(list(self.frames(rows, width, height)))

    def _seek(
        self, container: InputContainer, stream: VideoStream, pts: int, far: float
    ) -> tuple[VideoFrame | None, Iterator[VideoFrame]]:
        """Go to a key frame at or before `pts`; to the start where the index only leads past it."""
        for target in (pts, int(pts - far), int(self.pts[0])):
            container.seek(target, stream=stream)
            decoder = container.decode(stream)
            frame = next(decoder, None)
            if frame is not None and frame.pts is not None and frame.pts <= pts:
                return frame, decoder
        return None, container.decode(stream)

    def _advance(
        self, frame: VideoFrame | None, decoder: Iterator[VideoFrame], pts: int, row: int
    ) -> VideoFrame:
        while frame is None or frame.pts is None or frame.pts < pts:
            frame = next(decoder, None)
            if frame is None:
                break
        if frame is None or frame.pts != pts:
            raise DataError(
                f"video {self.path}: frame {row} of {len(self.pts)} cannot be decoded; the file is "
                "truncated or damaged, copy or download it again"
            )
        return frame


def rgb(frame: VideoFrame, width: int, height: int) -> NDArray[np.uint8]:
    """Return the upright picture: phones store it as the sensor lies, and how to turn it."""
    turns = frame.rotation // 90
    if turns % 2:
        width, height = height, width
    stored = frame.to_ndarray(format="rgb24", width=width, height=height)
    return np.ascontiguousarray(np.rot90(stored, turns), np.uint8)


def _quarter_turns(path: Path) -> int:
    """Return the anticlockwise quarter turns that make a video's first frame upright."""
    with suppress(FFmpegError), av.open(str(path)) as container:  # reading will say what is wrong
        for frame in container.decode(video=0):
            return frame.rotation // 90
    return 0


def rows_at(
    frame_times_s: NDArray[np.float64], times_s: ArrayLike, source: str
) -> NDArray[np.int64]:
    """Return the number of the frame nearest to each time; see `Video.rows_at`."""
    times = np.asarray(times_s, np.float64)
    step = float(np.median(np.diff(frame_times_s))) if len(frame_times_s) > 1 else 0.0
    low, high = frame_times_s[0] - step, frame_times_s[-1] + step
    outside = (times < low) | (times > high)
    if outside.any():
        raise DataError(
            f"{source}: time {times[outside][0]:.3f} s is outside the video "
            f"({frame_times_s[0]:.3f} to {frame_times_s[-1]:.3f} s)"
        )
    right = np.clip(np.searchsorted(frame_times_s, times), 0, len(frame_times_s) - 1)
    left = np.maximum(right - 1, 0)
    nearer_left = np.abs(times - frame_times_s[left]) <= np.abs(frame_times_s[right] - times)
    return np.where(nearer_left, left, right)


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).split("]")[-1].split(":")[0].strip() or type(error).__name__
    return DataError(
        f"video {path} cannot be read ({reason}): it is truncated or not a video; copy or download "
        "it again"
    )
