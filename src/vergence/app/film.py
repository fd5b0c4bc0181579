"""Pictures to H.264 in an mp4, at the times they were shown."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from vergence.errors import ConfigError

CLOCK = Fraction(1, 90_000)


def encode(path: Path, pictures: Iterable[tuple[float, NDArray[np.uint8]]], step_s: float) -> int:
    """Write pictures, uint8 `[H, W, 3]` RGB, each with its time in seconds; return how many.

    An odd last row or column is repeated, H.264 needs even sizes. `step_s` is how long the last one
    lasts, and the nominal rate's inverse.

    Raises:
        ConfigError: there is no picture, or one changes its size.
        OSError: the file cannot be written.
    """
    shown = iter(pictures)
    opening = next(shown, None)
    if opening is None:
        raise ConfigError(f"{path}: a video needs at least one picture, got none")
    height, width = opening[1].shape[:2]
    count = 0
    try:
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            rate = Fraction(1 / step_s).limit_denominator(1001)
            stream = container.add_stream("libx264", rate=rate, options={"crf": "18"})
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = height + height % 2, width + width % 2
            stream.time_base = stream.codec_context.time_base = CLOCK
            for count, (time_s, pixels) in enumerate(chain([opening], shown), start=1):
                if pixels.shape != opening[1].shape:
                    raise ConfigError(
                        f"frame {count - 1} is {pixels.shape}, the first is {opening[1].shape}"
                    )
                even = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
                picture = av.VideoFrame.from_ndarray(even, format="rgb24")
                picture.time_base = CLOCK
                picture.pts = round(time_s / CLOCK)
                picture.duration = round(step_s / CLOCK)
                container.mux(stream.encode(picture))
            container.mux(stream.encode(None))
    except FFmpegError as error:
        raise OSError(error.errno, error.strerror or str(error)) from error
    return count
