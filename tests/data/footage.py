"""Small videos whose frames tell their own number, for tests of reading and splitting."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def write_video(
    path: Path,
    times_s: np.ndarray,
    size: tuple[int, int] = (64, 48),
    codec: str = "mpeg4",
    bframes: int = 0,
) -> Path:
    """Write one grey frame per time (to the millisecond), of level 8 + 4 (i mod 60)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=1000)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_000_000
        stream.gop_size = 12
        stream.codec_context.time_base = Fraction(1, 1000)
        if bframes:
            stream.options = {"bf": str(bframes), "preset": "ultrafast"}
        container.start_encoding()
        for i, t in enumerate(times_s):
            pixels = np.full((size[1], size[0], 3), grey(i), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = round(float(t) * 1000)
            frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def grey(i: int) -> int:
    return 8 + 4 * (i % 60)


def number(frame: np.ndarray) -> int:
    """The frame number modulo 60 that a decoded frame shows."""
    return round((float(np.mean(frame)) - 8) / 4)


def write_csv(path: Path, header: str, rows: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(",".join("" if c is None else str(c) for c in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
