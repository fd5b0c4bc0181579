"""Video files through PyAV; frames are found by presentation time, not by time x frame rate.

Frame times count from the first frame. On the video file's own clock, the first frame may come
later than 0: in mkv and webm files of recorders, in files that were cut, and in mpeg-ts (usually at
1.4 s). A reader whose gaze is on the file's own clock adds `start_s` to the frame times.

Used in `data`, `live` and `video`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import ArrayLike, NDArray
from PIL import ExifTags, Image

from vergence.data.io.image_files import FAULTS, FORMATS
from vergence.data.io.path_patterns import NOT_DATA
from vergence.errors import DataError

VIDEOS = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"),
    *(".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".wmv", ".flv", ".3gp"),
)
"""Endings of video files, in small letters; the first six are the usual ones."""
Orientation = tuple[int, int, bool]
"""Direction of x and of y in the stored frame (1 or -1), and whether x and y are swapped."""
UPRIGHT: Orientation = (1, 1, False)
EXIF: dict[int, Orientation] = {
    2: (-1, 1, False),
    3: (-1, -1, False),
    4: (1, -1, False),
    5: (1, 1, True),
    6: (-1, 1, True),
    7: (-1, -1, True),
    8: (1, -1, True),
}
"""Orientation of a picture by the number in its EXIF header."""
TURNED = {90: EXIF[8], 180: EXIF[3], 270: EXIF[6]}
"""Orientation by the degrees of a turn to the left."""
SEEK_OVER_S = 2.0
"""The reader skips gaps of more seconds by a seek; it decodes the frames of shorter gaps."""


@dataclass(frozen=True, eq=False)
class Footage(ABC):
    """Frames of a recording and the time of each frame; subclasses read different file formats.

    `times_s` float64 `[frames]` holds ascending seconds from the first frame. `width` and `height`
    are those of the upright frame, in pixels. `start_s` is the first frame's time on the video
    file's own clock, in seconds.
    """

    path: Path
    times_s: NDArray[np.float64]
    width: int
    height: int
    start_s: float = field(default=0.0, kw_only=True)

    @abstractmethod
    def frames(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield frames, uint8 `[height, width, 3]` RGB.

        `rows` are ascending frame numbers; default: all. `width` and `height` are the size to which
        frames are resized; default: as stored.
        """

    def key_rows(self, times_s: ArrayLike) -> NDArray[np.int64]:
        """Return the number of a frame near each time that is decoded without other frames.

        Raises:
            DataError: a time is outside the video.
        """
        return rows_at(self.times_s, times_s, str(self.path))


@dataclass(frozen=True, eq=False)
class Video(Footage):
    """A video file: its upright size, and the time of every frame in seconds.

    `pts` int64 `[frames]` are the frames' presentation times in the file's time unit.
    """

    pts: NDArray[np.int64]
    orientation: Orientation = UPRIGHT

    @staticmethod
    def open(path: Path) -> Video:
        """Return a video file with its frame times, which are read without decoding frames.

        Raises:
            DataError: the file is missing, not a video, truncated, or has no frames.
        """
        if not path.is_file():
            camera = path.name.isdigit() and "a camera's number is not taken: record a file, and "
            raise DataError(
                f"video {path} is missing; {camera or ''}give the path of an existing video file",
                code="file-missing",
            )
        try:
            with av.open(str(path)) as container:
                # The stream of a header that is cut off may have no codec, and then no width.
                if not [s for s in container.streams.video if s.codec_context]:
                    raise DataError(
                        f"{path} has no video stream; give a whole video file",
                        code="file-unreadable",
                    )
                stream = container.streams.video[0]
                # Packets without content are flushes of the demuxer and no frames.
                packets = [p for p in container.demux(stream) if p.size]
                declared, width, height = stream.frames, stream.width, stream.height
                base = stream.time_base
        except FFmpegError as error:
            raise _unreadable(path, error) from None
        # FFmpeg reads a file that is cut off without a fault, as if it were shorter.
        if declared and len(packets) < declared:
            raise DataError(
                f"video {path} is truncated: {len(packets)} of {declared} frames are there; "
                "copy or download it again",
                code="file-unreadable",
            )
        # Edit lists mark frames that are decoded and never shown.
        shown = [p.pts for p in packets if p.pts is not None and not p.is_discard]
        orientation = _orientation_of(path)
        if orientation[2]:
            width, height = height, width
        # Packets come in the order of decoding, which B-frames make another one than that of time.
        pts = np.unique(np.array(shown, np.int64))
        if not len(pts) or base is None:
            raise DataError(
                f"video {path} has no frames; give a video with at least one frame",
                code="file-unreadable",
            )
        times = np.asarray((pts - pts[0]) * float(base), np.float64)
        start_s = float(pts[0] * base)
        return Video(path, times, width, height, pts, orientation, start_s=start_s)

    @staticmethod
    def check_header(path: Path) -> None:
        """Check that a file opens and has a video stream, without counting its frames.

        Raises:
            DataError: the file is not a video, or is cut before its index.
        """
        try:
            with av.open(str(path)) as container:
                has_video = bool(container.streams.video)
        except (FFmpegError, OSError) as error:
            raise _unreadable(path, error) from None
        if not has_video:
            raise DataError(
                f"{path} has no video stream; give a video file", code="file-unreadable"
            )

    def rows_at(self, times_s: ArrayLike) -> NDArray[np.int64]:
        """Return the number of the frame nearest to each time in seconds.

        Of two equally near frames, the earlier one is taken.

        Raises:
            DataError: a time lies more than one frame interval before the first or after the last
                frame.
        """
        return rows_at(self.times_s, times_s, str(self.path))

    def key_rows(self, times_s: ArrayLike) -> NDArray[np.int64]:
        """Return the number of the key frame before each time."""
        keys = []
        with av.open(str(self.path)) as container:
            stream = container.streams.video[0]
            for pts in self.pts[self.rows_at(times_s)].tolist():
                container.seek(pts, stream=stream)
                keys.append(next(p.pts or 0 for p in container.demux(stream)))
        # Where the index of the file leads past the time, the frame is a later one.
        return np.minimum(np.searchsorted(self.pts, keys), len(self.pts) - 1)

    def frames(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> Iterator[NDArray[np.uint8]]:
        """Yield frames, uint8 `[height, width, 3]` RGB.

        `rows` are ascending frame numbers; default: all. Frames are resized to `width` x `height`;
        default: as stored. Proportions may change, but gaze in fractions of the frame stays right.

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
                    yield rgb(frame, width, height, self.orientation)
        except FFmpegError as error:
            raise _unreadable(self.path, error) from None

    def read(
        self, rows: Sequence[int] | None = None, width: int | None = None, height: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the frames of `frames` as one array, uint8 `[frames, height, width, 3]`."""
        return np.stack(list(self.frames(rows, width, height)))

    def _seek(
        self, container: InputContainer, stream: VideoStream, pts: int, far: float
    ) -> tuple[VideoFrame | None, Iterator[VideoFrame]]:
        """Seek to a key frame at or before `pts`; return that frame, and the decoder behind it.

        If the index of the file is wrong, this goes back to the start of the video, and the frame
        is None.
        """
        # The index of some containers leads past the time that is asked for.
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
                "truncated or damaged, copy or download it again",
                code="file-unreadable",
            )
        return frame


def rgb(
    frame: VideoFrame, width: int, height: int, orientation: Orientation | None = None
) -> NDArray[np.uint8]:
    """Return a decoded frame as an upright picture, uint8 `[height, width, 3]` RGB.

    `orientation` is that of the video; None: it is taken from the frame.
    """
    # Phones store pictures as the sensor lies, and note beside them how to turn them.
    across, down, turned = orientation or frame_orientation(frame)
    if turned:
        width, height = height, width
    stored = frame.to_ndarray(format="rgb24", width=width, height=height)
    shown = stored.swapaxes(0, 1) if turned else stored
    return np.ascontiguousarray(shown[::down, ::across], np.uint8)


def frame_orientation(frame: VideoFrame) -> Orientation:
    """Return the `Orientation` that a frame's display matrix states.

    The matrix (a, b; c, d) puts the stored pixel (x, y) at (a x + c y, b x + d y). Four of its
    eight orientations are mirrored (front cameras), which an angle cannot express.
    """
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    # PyAV has no name for some kinds of side data, such as EXIF.
    except ValueError:
        return TURNED.get(round(frame.rotation) % 360, UPRIGHT)
    if matrix is None:
        return UPRIGHT
    (a, b, _), (c, d, _), _ = np.frombuffer(matrix, np.int32).reshape(3, 3).tolist()
    turned = abs(b) > abs(a)
    x, y = (c, b) if turned else (a, d)
    return -1 if x < 0 else 1, -1 if y < 0 else 1, turned


def videos_in(folder: Path, stem: str = "*", usual: Collection[str] = VIDEOS[:6]) -> list[Path]:
    """Return the videos in a folder that have an ending in `usual`; if none has, all videos.

    `stem` is a pattern of the names without endings.
    """
    files = sorted(p for p in folder.glob(f"{stem}.*") if not NOT_DATA.fullmatch(p.name))
    videos = [p for p in files if p.suffix.lower() in VIDEOS]
    return [p for p in videos if p.suffix.lower() in usual] or videos


def _orientation_of(path: Path) -> Orientation:
    """Return the orientation of a picture by its EXIF header, of a video by its first frame."""
    with suppress(*FAULTS), Image.open(path, formats=FORMATS) as picture:
        return EXIF.get(picture.getexif().get(ExifTags.Base.Orientation, 1), UPRIGHT)
    # A video that cannot be decoded is refused with its reason where its frames are read.
    with suppress(FFmpegError), av.open(str(path)) as container:
        for frame in container.decode(video=0):
            return frame_orientation(frame)
    return UPRIGHT


def rows_at(
    frame_times_s: NDArray[np.float64], times_s: ArrayLike, source: str
) -> NDArray[np.int64]:
    """Return the number of the frame nearest to each time in seconds; see `Video.rows_at`."""
    times = np.asarray(times_s, np.float64)
    step = float(np.median(np.diff(frame_times_s))) if len(frame_times_s) > 1 else 0.0
    low, high = frame_times_s[0] - step, frame_times_s[-1] + step
    outside = (times < low) | (times > high)
    if outside.any():
        raise DataError(
            f"{source}: time {times[outside][0]:.3f} s is outside the video "
            f"({frame_times_s[0]:.3f} to {frame_times_s[-1]:.3f} s)",
            code="outside-video",
        )
    right = np.clip(np.searchsorted(frame_times_s, times), 0, len(frame_times_s) - 1)
    left = np.maximum(right - 1, 0)
    nearer_left = np.abs(times - frame_times_s[left]) <= np.abs(frame_times_s[right] - times)
    return np.where(nearer_left, left, right)


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).split("]")[-1].split(":")[0].strip() or type(error).__name__
    return DataError(
        f"video {path} cannot be read ({reason}): it is truncated or not a video; copy or download "
        "it again",
        code="file-unreadable",
    )
