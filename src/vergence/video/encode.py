"""Encoder of pictures and sound as H.264 or VP9, and AAC, in an mp4 file with the original times.

Used by `live.recording`, `video.overlay` and `video.summarise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.container import OutputContainer
from av.error import FFmpegError
from av.video.stream import VideoStream
from numpy.typing import NDArray

from vergence.data.video_summaries.sound import RATE
from vergence.errors import ConfigError

# Unit of times in the file, in seconds. It is the usual clock of video containers, in which 24, 25,
# 30 and 60 frames a second are whole numbers of ticks.
CLOCK = Fraction(1, 90_000)
CODECS = {
    "libx264": {"crf": "18"},
    "libvpx-vp9": {"crf": "20", "b": "0", "deadline": "realtime", "cpu-used": "5"},
}
"""Codecs with their options; the first one that FFmpeg has is used. x264 is under the GPL, which
makers of devices may not want to ship: an FFmpeg that was built without it writes VP9."""


def encode(
    path: Path,
    pictures: Iterable[tuple[float, NDArray[np.uint8]]],
    step_s: float,
    sound: Iterator[NDArray[np.float32]] | None = None,
    preset: str = "medium",
) -> int:
    """Write pictures, uint8 `[H, W, 3]` RGB, each with its time in seconds; return their number.

    Args:
        path: the file.
        pictures: times and pixels, in order; an odd last row or column is repeated.
        step_s: duration of the last picture, and inverse of the nominal rate.
        sound: consecutive blocks `[2, samples]`, see `vergence.data.video_summaries.sound`.
        preset: x264's trade of time for size; without effect on VP9.

    Raises:
        ConfigError: there is no picture, pictures differ in size, or FFmpeg has no codec of
            `CODECS`.
        OSError: the file cannot be written.
    """
    shown = iter(pictures)
    if (opening := next(shown, None)) is None:
        raise ConfigError(f"{path}: a video needs at least one picture, got none")
    codec, options = _codec(path, preset)
    height, width = opening[1].shape[:2]
    count = 0
    try:
        # The index goes to the front, so that players start before the whole file has come.
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            rate = Fraction(1 / step_s).limit_denominator(1001)
            stream = cast(VideoStream, container.add_stream(codec, rate=rate, options=options))
            # The one pixel format that all browsers and phones play.
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = height + height % 2, width + width % 2
            stream.time_base = stream.codec_context.time_base = CLOCK
            track = None if sound is None else _Track(container, sound)
            for count, (time_s, pixels) in enumerate(chain([opening], shown), start=1):
                if pixels.shape != opening[1].shape:
                    raise ConfigError(
                        f"frame {count - 1} is {pixels.shape}, the first is {opening[1].shape}"
                    )
                # The format stores colour for blocks of 2 x 2 pixels: sizes must be even.
                even = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
                picture = av.VideoFrame.from_ndarray(even, format="rgb24")
                picture.time_base = CLOCK
                picture.pts = round(time_s / CLOCK)
                picture.duration = round(step_s / CLOCK)
                container.mux(stream.encode(picture))
                if track is not None:
                    track.write(until_s=time_s)
            container.mux(stream.encode(None))
            if track is not None:
                track.write(until_s=math.inf)
    except FFmpegError as error:
        raise OSError(error.errno, error.strerror or str(error)) from error
    return count


def _codec(path: Path, preset: str) -> tuple[str, dict[str, str]]:
    """Return the first codec of `CODECS` that FFmpeg has, and its options.

    Raises:
        ConfigError: FFmpeg has none of them.
    """
    codec = next((name for name in CODECS if name in av.codecs_available), None)
    if codec is None:
        raise ConfigError(
            f"{path}: FFmpeg was built without {' and '.join(CODECS)}, so it cannot write mp4 "
            "files: `pip install av` brings one that has both"
        )
    return codec, CODECS[codec] | ({"preset": preset} if codec == "libx264" else {})


class _Track:
    """Sound track that is written in step with the pictures, so that players need not seek."""

    def __init__(self, container: OutputContainer, blocks: Iterator[NDArray[np.float32]]) -> None:
        self.container, self.blocks = container, blocks
        self.stream = container.add_stream("aac", rate=RATE, layout="stereo")
        self.written = 0

    def write(self, until_s: float) -> None:
        """Write the sound before a time; with infinity, the rest and the end of the track."""
        while self.written < until_s * RATE:
            if (block := next(self.blocks, None)) is None:
                break
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), "fltp", "stereo")
            frame.sample_rate, frame.pts = RATE, self.written
            frame.time_base = Fraction(1, RATE)
            self.written += block.shape[1]
            self.container.mux(self.stream.encode(frame))
        if until_s == math.inf:
            self.container.mux(self.stream.encode(None))
