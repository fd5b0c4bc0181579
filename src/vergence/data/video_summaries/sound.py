"""Stretches of a video's sound, to the sample, silent where the file has none.

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
"""Samples per second and channel, whatever the file has."""
Block = Float32[np.ndarray, "2 samples"]


def sound_blocks(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[Block] | None:
    """Return the sound of `spans` one after the other, as blocks; None where a file has no sound.

    Spans are (start, length) in seconds, ascending and apart; start counts as the times of frames
    do. All blocks together last as long as the spans, to half a sample.

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
    """Yield the samples of each range, with silence for those that no block has."""
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
    """Yield the first sample's number and the samples of every decoded block, in stereo."""
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
