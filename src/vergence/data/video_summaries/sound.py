"""Sections of a video's sound, exact to one sample; silence fills gaps in the file's sound.

Used by `video.encode` and `video.summarise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from jaxtyping import Float32

from vergence.errors import DataError

RATE = 48_000
"""Samples per second and channel of the result, whatever rate the file has."""
Block = Float32[np.ndarray, "2 samples"]


def sound_blocks(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[Block] | None:
    """Return the sound of some sections of a video, one after another, in blocks.

    Sections are (start, length) in seconds, ascending and without overlap; starts are on the clock
    of the frames. All blocks together last as long as the sections, to half a sample. The result is
    None if the file has no sound.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with av.open(str(path)) as container:
            if not container.streams.audio:
                return None
    except FFmpegError as error:
        raise _unreadable(path, error) from None
    # Round the running ends, not the lengths: rounding errors would add up.
    ends = np.cumsum([0.0, *(length for _, length in spans)]) * RATE
    counts = np.diff(ends.round().astype(int))
    # The first sample follows the time of the frame, as sound and picture share one clock.
    firsts = [round(start * RATE) for start, _ in spans]
    return _cut(path, [(f, f + int(n)) for f, n in zip(firsts, counts, strict=True)])


def _cut(path: Path, wanted: list[tuple[int, int]]) -> Iterator[Block]:
    """Yield the samples of each range (first, end); samples that the file lacks are silence."""
    ranges = iter(wanted)
    at, stop = next(ranges, (0, 0))
    for begin, block in _blocks(path):
        while at < stop and begin + block.shape[1] > at:
            # A gap between blocks is silence, so that sound stays in step with the picture.
            if begin > at:
                part = np.zeros((2, min(begin, stop) - at), np.float32)
            else:
                part = block[:, at - begin : stop - begin]
            yield part
            at += part.shape[1]
            if at == stop:
                at, stop = next(ranges, (0, 0))
        if at == stop:
            return
    while at < stop:
        yield np.zeros((2, stop - at), np.float32)
        at, stop = next(ranges, (0, 0))


def _blocks(path: Path) -> Iterator[tuple[int, Block]]:
    """Yield (number of its first sample, samples in stereo) of every decoded block.

    Raises:
        DataError: the file cannot be read.
    """
    resampler = av.AudioResampler("fltp", "stereo", RATE)
    try:
        with av.open(str(path)) as container:
            for decoded in container.decode(audio=0):
                for frame in resampler.resample(decoded):
                    if frame.time is not None:
                        yield round(frame.time * RATE), frame.to_ndarray().astype(np.float32)
    except FFmpegError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"the sound of {path} cannot be read ({type(error).__name__}): copy or download it again"
    )
