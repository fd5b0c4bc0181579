"""Motion of every place of a video: its difference from a running mean of the frames before it.

Causal: a frame's motion depends on it and on earlier frames of its sample alone. A movement of the
whole picture, as of a camera on a head, is found by phase correlation and taken out first.

Used by `model_tools.onnx_export`, `models.glc.base`, `tasks.gaze_map` and `video.streaming`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.errors import ConfigError
from vergence.models.pretrained import STRIDE

BANK, ROW = "motion", "motion_row"
"""Names of the bank that holds the motion of frames, and of the column that points into it."""
# The four quarters of a feature's place: motion is as fine as the gaze map.
CHANNELS = 4
PIXEL = 4
"""Side of a pixel of the small grey picture, in pixels of the frame."""
RATE = 0.1
"""Weight of the newest frame in the running mean of more than ten frames."""
STILL = 0.01
"""Mean difference (1: black to white) below which a picture counts as still."""
MOST = 10.0
"""Largest motion, in multiples of the frame's mean motion; larger values are clipped."""
CHUNK = 16


class Background(NamedTuple):
    """Running mean of the frames so far, aligned with the last frame; and number of frames."""

    mean: Float[Tensor, "streams height width"]
    seen: Float[Tensor, " streams"]


def empty_background(streams: int, height: int, width: int) -> Background:
    """Return the background before the first frame, for frames of `height` x `width` pixels."""
    rows, columns = (-(-side // STRIDE) * STRIDE // PIXEL for side in (height, width))
    return Background(torch.zeros(streams, rows, columns), torch.zeros(streams))


def observe(
    frames: UInt8[Tensor, "streams height width 3"], background: Background
) -> tuple[Float[Tensor, "streams 4 rows columns"], Background]:
    """Return the motion of every stream's next frame, and the background including this frame.

    Motion is |frame - background| on a small grey picture, divided by its mean in the frame plus
    `STILL`. It is 0 in the first frame, and where the camera saw nothing before.
    """
    grey = small_grey(frames)
    mean, known = aligned(background.mean, grey)
    known = known * (background.seen > 0)[:, None, None]
    change = functional.avg_pool2d(((grey - mean).abs() * known)[:, None], 2)
    # `STILL` keeps the noise of a picture without motion from being scaled up to motion.
    scale = change.mean((2, 3), keepdim=True) + STILL
    motion = functional.pixel_unshuffle((change / scale).clamp(max=MOST), 2)
    # At first the mean of all frames, then a running one that forgets; new places start anew.
    weight = (1 / (background.seen + 1)).clamp(min=RATE)[:, None, None]
    weight = torch.where(known > 0, weight, 1.0)
    return motion, Background(mean + weight * (grey - mean), background.seen + 1)


def small_grey(
    frames: UInt8[Tensor, "streams height width 3"],
) -> Float[Tensor, "streams rows columns"]:
    """Return grey pictures in [0, 1] of a sixteenth of the pixels.

    Sides are first extended to multiples of a feature's stride.
    """
    grey = frames.float().mean(-1)[:, None] / 255
    bottom, right = (-(-side // STRIDE) * STRIDE - side for side in frames.shape[1:3])
    grey = functional.pad(grey, (0, right, 0, bottom), mode="replicate")
    return functional.avg_pool2d(grey, PIXEL)[:, 0]


def aligned(
    mean: Float[Tensor, "streams rows columns"], grey: Float[Tensor, "streams rows columns"]
) -> tuple[Tensor, Tensor]:
    """Return the background as the camera sees it now, and 1 where it is known, else 0.

    The background is moved to the peak of the phase correlation, if it then fits the frame better.
    Source: Kuglin, Hines, "The phase correlation image alignment method", 1975.
    """
    rows, columns = grey.shape[1:]
    # The window fades the borders, which a Fourier transform would join as an edge.
    window = torch.outer(_hann(rows, grey), _hann(columns, grey))
    centred = ((x - x.mean((1, 2), keepdim=True)) * window for x in (grey, mean))
    now, before = (torch.fft.rfft2(x) for x in centred)
    cross = now * before.conj()
    peak = torch.fft.irfft2(cross / cross.abs().clamp(min=1e-9), s=(rows, columns))
    place = peak.flatten(1).argmax(1)
    moved, known = shifted(mean, place // columns, place % columns)
    still = (grey - mean).abs().mean((1, 2))
    after = ((grey - moved).abs() * known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)
    # Only a move that brings the pictures nearer: a still camera stays still, whatever moves in
    # front of it. An overlap of a quarter or less could agree by chance.
    nearer = ((after < still) & (known.mean((1, 2)) > 0.25))[:, None, None]
    return torch.where(nearer, moved, mean), torch.where(nearer, known, 1.0)


def shifted(
    picture: Float[Tensor, "streams rows columns"],
    down: Int[Tensor, " streams"],
    right: Int[Tensor, " streams"],
) -> tuple[Tensor, Tensor]:
    """Return pictures moved by whole pixels, and 1 where they came from inside, else 0.

    Moves of more than half a side are moves the other way, as in a discrete Fourier transform.
    """
    rows, columns = picture.shape[1:]
    source_row, row_known = _source(down, rows)
    source_column, column_known = _source(right, columns)
    moved = picture.gather(1, source_row[:, :, None].expand(-1, -1, columns))
    moved = moved.gather(2, source_column[:, None, :].expand(-1, rows, -1))
    return moved, (row_known[:, :, None] & column_known[:, None, :]).to(picture.dtype)


def _source(move: Tensor, size: int) -> tuple[Tensor, Tensor]:
    move = torch.where(move > size // 2, move - size, move)
    source = torch.arange(size, device=move.device) - move[:, None]
    return source.clamp(0, size - 1), (source >= 0) & (source < size)


def _hann(size: int, like: Tensor) -> Tensor:
    place = torch.arange(size, dtype=like.dtype, device=like.device) + 0.5
    return torch.sin(torch.pi * place / size).square()


@torch.no_grad()
def motion_of(
    frames: UInt8[Tensor, "streams steps height width 3"],
) -> Float[Tensor, "streams steps 4 rows columns"]:
    """Return the motion of every frame; each stream begins without a background."""
    background, found = empty_background(len(frames), *frames.shape[2:4]), []
    for step in range(frames.shape[1]):
        motion, background = observe(frames[:, step], background)
        found.append(motion)
    return torch.stack(found, 1)


def with_motion(federation: Federation, raw: Federation) -> Federation:
    """Return the federation with a bank `motion` added to everybody's samples.

    Networks that take motion call this when they prepare a run's data.

    Its rows are float16 `[steps, 4, H/16, W/16]`, one for each different sequence of frames; people
    who share frames share the bank. Motion begins anew with every sample.

    Args:
        federation: samples of the same people, in any form.
        raw: the same samples with a bank `frames`, uint8 `[n, H, W, 3]`.

    Raises:
        ConfigError: samples that are no sequences of frames.
    """
    made: dict[int, tuple[Tensor, dict[tuple[int, ...], int]]] = {}
    everybody = raw.people.values()
    for part in (part for own in everybody for part in (own.train, own.val, own.test)):
        known = made.setdefault(id(part.banks["frames"].rows), (part.banks["frames"].rows, {}))[1]
        for sequence in _sequences(part, raw.name):
            known.setdefault(sequence, len(known))
    rows = {key: _rows(*found) for key, found in made.items()}

    def joined(part: Samples, before: Samples) -> Samples:
        key = id(before.banks["frames"].rows)
        numbers = [made[key][1][sequence] for sequence in _sequences(before, raw.name)]
        columns = {**part.columns, ROW: torch.tensor(numbers, dtype=torch.int64)}
        return replace(
            part, columns=columns, banks={**part.banks, BANK: SharedRows(rows[key], ROW)}
        )

    people = {}
    for person, own in federation.people.items():
        before = raw.people[person]
        people[person] = Splits(
            joined(own.train, before.train),
            joined(own.val, before.val),
            joined(own.test, before.test),
        )
    return replace(federation, people=people)


def _sequences(samples: Samples, name: str) -> list[tuple[int, ...]]:
    frames = samples.columns[samples.banks["frames"].by]
    if frames.ndim != 2:
        raise ConfigError(
            f"motion needs samples that are sequences of frames; those of '{name}' name their "
            f"frames by a column {list(frames.shape)}"
        )
    return [tuple(sequence) for sequence in frames.tolist()]


def _rows(frames: Tensor, sequences: dict[tuple[int, ...], int]) -> Tensor:
    numbers = torch.tensor(list(sequences))
    return torch.cat([motion_of(frames[part]).half() for part in numbers.split(CHUNK)])
