"""Cameras: devices, files and network streams that PyAV opens, read in a separate thread.

The thread holds only the newest frame. A frame that arrives before the last one was fetched
replaces it and counts as dropped, so that no queue delays the picture. A file that is not played in
real time loses no frame.

Used by `live.calibration`, `live.command`, `live.recording`, `live.session` and `live.views`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame

from vergence.data.io.video import UPRIGHT, Orientation, frame_orientation
from vergence.errors import ConfigError, DataError, PartialRun

# Longest wait for a network stream to open, and for its next frame: a dead server must not hang
# the program.
TIMEOUT_S = 10.0
# Longest delay that a file played in real time catches up with: after a longer one frames would
# race past to make up for it.
LATE_S = 1.0
# Share of a frame's interval by which a frame may be early where a rate is set. Times of frames
# jitter: a strict limit would drop every second frame of a camera at the rate.
SLACK = 0.5


@dataclass(frozen=True, eq=False)
class CameraFrame:
    """A frame, with the orientation that the camera gave it.

    Attributes:
        number: number of the frame from 0, in which dropped frames count.
        time_s: time in the video, or since the first frame of a device.
        came_s: time of arrival, on the clock of `time.perf_counter`.
        picture: the pixels, before conversion.
        orientation: how the source's pictures are turned, as its first one says.
    """

    number: int
    time_s: float
    came_s: float
    picture: VideoFrame
    orientation: Orientation


@dataclass(frozen=True)
class CameraOptions:
    """Options of a source.

    Attributes:
        realtime: whether the frames of a file arrive at their times, like those of a camera.
        loop: whether a file starts again when it ends.
        rate: largest number of frames a second; further frames are skipped.
    """

    realtime: bool = False
    loop: bool = False
    rate: float | None = None


class LiveCamera:
    """Context manager that reads a video source in a thread.

    Args:
        source: number of a camera, a device, a file, or a URL.
        options: options of the source.

    Raises:
        ConfigError: an option applies to files only, or the rate is not positive.
        DataError: the source cannot be opened, or has no video.
    """

    def __init__(self, source: str, options: CameraOptions = CameraOptions()) -> None:
        self.source, self.options = source, options
        self.file = Path(source).is_file()
        if not self.file and (options.loop or options.realtime):
            raise ConfigError(f"--loop and --realtime are for files, and {source} is none")
        if options.rate is not None and options.rate <= 0:
            raise ConfigError(f"--rate must be above 0, got {options.rate:g}")
        self.container = open_source(source)
        if not self.container.streams.video:
            self.container.close()
            raise DataError(f"{source} has no video in it; give a camera, a video file or a URL")
        self.stream = self.container.streams.video[0]
        # Threads per frame would delay the picture by several frames.
        self.stream.thread_type = "SLICE"
        self.keeps_all = self.file and not options.realtime
        self.dropped = self.frames = 0
        self.ended = False
        self._fault: Exception | None = None
        self._newest: CameraFrame | None = None
        self._change, self._stop = threading.Condition(), threading.Event()
        # A driver may hang in a read: a daemon cannot keep the program from ending.
        self._thread = threading.Thread(target=self._read, name="camera", daemon=True)

    def __enter__(self) -> LiveCamera:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with self._change:
            self._change.notify_all()
        self._thread.join(TIMEOUT_S + 1)

    def close(self) -> None:
        """Close a source whose context was never entered; otherwise its thread closes it."""
        if self._thread.ident is None:
            self.container.close()

    @property
    def step_s(self) -> float:
        """Nominal time from frame to frame."""
        return float(1 / self.stream.average_rate) if self.stream.average_rate else 1 / 30

    def newest(self, timeout_s: float) -> CameraFrame | None:
        """Fetch the newest frame; None after the timeout, or at the end of the source (`ended`).

        Raises:
            DataError: the source failed before its first frame.
            PartialRun: the source failed later.
        """
        with self._change:
            self._change.wait_for(lambda: self._newest is not None or self.ended, timeout_s)
            frame, self._newest = self._newest, None
            # A reader of a file waits until its frame is fetched.
            self._change.notify_all()
        if frame is None and self._fault is not None:
            if self.frames:
                raise PartialRun(
                    f"{self.source} broke off after {self.frames} frames "
                    f"({error_text(self._fault)}); what was recorded before is kept"
                )
            raise DataError(f"{self.source} gives no frames ({error_text(self._fault)})")
        return frame

    def _read(self) -> None:
        try:
            for frame in self._paced():
                if self._stop.is_set():
                    return
                self._put(frame)
            if not self.frames:
                raise DataError("it has no frames")
        except (FFmpegError, OSError, DataError) as error:
            self._fault = error
        finally:
            # A stream that broke off often fails to close as well; the first error is the one told.
            with suppress(FFmpegError):
                self.container.close()
            with self._change:
                if self.keeps_all:
                    self._change.wait_for(lambda: self._newest is None or self._stop.is_set())
                self.ended = True
                self._change.notify_all()

    def _put(self, frame: CameraFrame) -> None:
        with self._change:
            if self.keeps_all:
                self._change.wait_for(lambda: self._newest is None or self._stop.is_set())
            elif self._newest is not None:
                self.dropped += 1
            self.frames += 1
            self._newest = frame
            self._change.notify_all()

    def _paced(self) -> Iterator[CameraFrame]:
        """Yield frames at their times, at most `options.rate` a second."""
        start, last_s, number = perf_counter(), -float("inf"), 0
        orientation = UPRIGHT
        rate = self.options.rate
        least = 1 / rate - SLACK * self.step_s if rate else 0.0
        for time_s, picture in self._timed():
            # Of the first alone: a picture of PyAV that was asked for it refers to itself, and
            # stays in memory until Python looks for such circles, which took a gigabyte.
            if number == 0:
                orientation = frame_orientation(picture)
            if time_s - last_s < least:
                continue
            came = perf_counter()
            start = came if number == 0 else start
            if self.options.realtime and start + time_s > came:
                self._stop.wait(start + time_s - came)
                came = max(start + time_s, came)
            elif self.options.realtime and came - time_s - start > LATE_S:
                # Decoding is too slow: from here on the file plays later, and no frame is hurried.
                start = came - time_s
            yield CameraFrame(number, time_s, came, picture, orientation)
            last_s, number = time_s, number + 1

    def _timed(self) -> Iterator[tuple[float, VideoFrame]]:
        """Yield times in seconds with pictures; the times of a looped file keep increasing."""
        base_s = 0.0
        while not self._stop.is_set():
            first_s = last_s = None
            for picture in self.container.decode(self.stream):
                shown_s = picture.time if self.file and picture.time is not None else perf_counter()
                first_s = shown_s if first_s is None else first_s
                last_s = base_s + shown_s - first_s
                yield last_s, picture
            if not self.options.loop or last_s is None:
                return
            # Models with a memory need times that never go back.
            base_s = last_s + self.step_s
            self.container.seek(self.container.start_time or 0)


def open_source(source: str) -> InputContainer:
    """Open a source with PyAV.

    Raises:
        DataError: the source does not exist, or PyAV cannot read it.
    """
    where, form, options = device_options(source)
    if form is None and "://" not in where and not Path(where).exists():
        raise DataError(
            f"no camera or file {source}: give the number of a camera (0 is the first), a video "
            "file, or a URL such as rtsp://HOST/PATH"
        )
    try:
        limits: Any = {"timeout": (TIMEOUT_S, TIMEOUT_S)} if "://" in where else {}
        return av.open(where, format=form, options=options, **limits)
    except (FFmpegError, ValueError, OSError) as error:
        what = "no video" if form is None and "://" not in where else "no camera that opens"
        raise DataError(f"{source} is {what} ({error_text(error)})") from None


def device_options(source: str) -> tuple[str, str | None, dict[str, str]]:
    """Return the name, format and options with which PyAV opens a source.

    Raises:
        DataError: this machine has no camera with this number.
    """
    if sys.platform == "linux" and (source.isdigit() or source.startswith("/dev/video")):
        return f"/dev/video{source}" if source.isdigit() else source, "v4l2", {}
    if not source.isdigit():
        return source, None, {}
    # ":none" means no microphone; without a rate AVFoundation asks for one that most cameras lack.
    if sys.platform == "darwin":
        return f"{source}:none", "avfoundation", {"framerate": "30"}
    from av.device import enumerate_input_devices

    cameras = [d.name for d in enumerate_input_devices("dshow") if "video" in d.media_types]
    if int(source) >= len(cameras):
        raise DataError(f"no camera {source}: this machine has {len(cameras)}, counted from 0")
    return f"video={cameras[int(source)]}", "dshow", {}


def error_text(error: Exception) -> str:
    """Return the cause of an error in a few words."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
