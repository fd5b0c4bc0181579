"""`vergence video summarise`: a video cut to its best shots in a budget, all on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vergence.core.files import replacing
from vergence.data.io.checks import watched
from vergence.data.io.video import Video
from vergence.data.video_summaries.shots import coverage, segments
from vergence.data.video_summaries.sound import heard
from vergence.errors import ConfigError, DataError
from vergence.metrics.summaries import capacity, knapsack, shot_values, spread
from vergence.models import pretrained
from vergence.results.write import write_json
from vergence.video.encode import encode
from vergence.video.shot_scores import Scorer

SAMPLE_S, SHORTEST_S, LONGEST_S = 0.5, 1.5, 5.0
"""Between samples at most; of a shot about, and at most."""
SEVERAL = 4
"""Shots of the greatest length that fit into the budget: shorter videos get shorter shots."""
TILES, ROW, TILE = 48, 6, 200
"""Shots on a contact sheet, in one row of it, and a tile's width in pixels."""
KEPT_RGB, LEFT_RGB = (255, 170, 40), (70, 74, 80)


@dataclass(frozen=True, eq=False)
class VideoSummary:
    """A summarised video: its shots, what each adds, and which were kept.

    Attributes:
        video: the original.
        room: frames the budget allows.
        shots: first and last frame of each, both included.
        scores: what a shot adds to better ones (`video_summaries.shots.coverage`), or the mean
            importance of its frames; in [0, 1].
        kept: which shots are in the summary.
    """

    video: Video
    room: int
    shots: Int[np.ndarray, "shots 2"]
    scores: Float[np.ndarray, " shots"]
    kept: Bool[np.ndarray, " shots"]

    @property
    def frames(self) -> list[int]:
        """Numbers of the kept frames, ascending."""
        return [f for first, last in self.shots[self.kept] for f in range(first, last + 1)]


def summarise(
    source: Path, out: Path, budget: str = "15%", scorer: Scorer | None = None, by: str = "coverage"
) -> VideoSummary:
    """Write the summary `out` (mp4), and beside it its shots (JSON) and a contact sheet (PNG).

    Args:
        source: the video.
        out: where the summary goes.
        budget: see `share_of`.
        scorer: how important sampled frames are; a shot is worth their mean. None: coverage.
        by: what the JSON says of the scores.

    Raises:
        ConfigError: a budget that cannot be read, another ending than .mp4, `out` is the original.
        DataError: the video is unreadable, or too short for the budget.
        PartialRun: a file cannot be written.
    """
    if out.suffix.lower() != ".mp4":
        raise ConfigError(f"summaries are written as .mp4, got {out}: give a name ending in .mp4")
    if out.exists() and source.exists() and out.samefile(source):
        raise ConfigError(f"the summary would replace {source}: give another name")
    video = Video.open(source)
    found = chosen(video, share_of(budget, video), scorer)
    step = interval_s(video)
    with replacing(out) as scratch:
        sound = heard(source, spans(found, step))
        encode(scratch, _shown(found, step), step, sound, preset="veryfast")
    write_json(out.with_suffix(".json"), told(found, budget, by))
    contact_sheet(found, out.with_suffix(".png"))
    return found


def share_of(budget: str, video: Video) -> float:
    """Return the share of a video's frames that `15%` or `20s` is.

    Raises:
        ConfigError: the budget is neither, or not positive and at most the whole video.
    """
    allowed = "give a share such as 15%, above 0 and up to 100%, or a length such as 20s"
    try:
        number = float(budget[:-1])
    except ValueError:
        number = math.nan
    unit = budget[-1:]
    if unit not in ("%", "s") or not (0 < number < math.inf) or (unit == "%" and number > 100):
        raise ConfigError(f"budget '{budget}' cannot be used: {allowed}")
    if unit == "%":
        return number / 100
    return min(1.0, number / (len(video.times_s) * interval_s(video)))


def interval_s(video: Video) -> float:
    """Return the seconds a frame lasts, by the median."""
    return float(np.median(np.diff(video.times_s))) if len(video.times_s) > 1 else 1 / 30


def chosen(video: Video, share: float, scorer: Scorer | None = None) -> VideoSummary:
    """Return the shots of a video and which of them to keep within a share of its frames.

    Without a `scorer` shots are worth what they add.

    Raises:
        DataError: the budget is less than one frame, or a frame cannot be decoded.
    """
    count = len(video.times_s)
    room = capacity(count, share)
    if room < 1:
        raise DataError(
            f"{video.path} has {count} frames, {100 * share:.3g} % of them is not one: "
            f"raise the budget to {math.ceil(100 / count)}% or give a longer video"
        )
    step = interval_s(video)
    longest = max(1, min(round(LONGEST_S / step), room // SEVERAL))
    stride = max(1, min(round(SAMPLE_S / step), longest // 3))
    picks = np.arange(0, count, stride)
    features = sampled(video, picks)
    most = min(max(1, longest // stride), len(picks))
    least = max(1, min(round(SHORTEST_S / step / stride), (most + 1) // 2))
    starts = segments(features, most, least)
    firsts = picks[starts]
    lengths = np.diff(np.append(firsts, count))
    shots = np.stack([firsts, firsts + lengths - 1], 1)
    if scorer is None:
        scores = coverage(features, starts)
    else:
        scores = shot_values(spread(scorer(features), picks, count), shots)
    # The second term fills the budget where shots add nothing: of equals, more frames.
    kept = knapsack(scores + 1e-6 * lengths / count, lengths, room)
    return VideoSummary(video, room, shots, scores, kept)


def sampled(video: Video, picks: NDArray[np.int64]) -> Float[np.ndarray, "picks 1280"]:
    """Return a feature vector of each picked frame."""
    network = pretrained.load()
    crop = pretrained.CROP
    scale = crop * 9 / 8 / min(video.width, video.height)
    width, height = (max(crop, round(side * scale)) for side in (video.width, video.height))
    left, top = (width - crop) // 2, (height - crop) // 2
    rows: list[NDArray[np.float32]] = []
    batch: list[NDArray[np.uint8]] = []
    frames = video.frames(picks.tolist(), width, height)
    for number, frame in zip(watched(picks.tolist(), "frames"), frames, strict=True):
        batch.append(frame[top : top + crop, left : left + crop])
        if len(batch) == pretrained.BATCH or number == picks[-1]:
            rows.append(pretrained.vectors(network, torch.from_numpy(np.stack(batch))).numpy())
            batch = []
    return np.concatenate(rows)


def told(found: VideoSummary, budget: str, by: str) -> dict[str, object]:
    """Content of the JSON: budget, features, and every shot with its score."""
    times, end = found.video.times_s, interval_s(found.video)
    return {
        "source": found.video.path.name,
        "frames": len(times),
        "seconds": round(float(times[-1] - times[0]) + end, 6),
        "budget": budget,
        "budget_frames": found.room,
        "kept_frames": len(found.frames),
        "features": pretrained.VECTOR,
        "scores": by,
        "shots": [
            {
                "first_frame": int(first),
                "last_frame": int(last),
                "start_s": round(float(times[first]), 6),
                "end_s": round(float(times[last]) + end, 6),
                "score": round(float(score), 6),
                "kept": bool(kept),
            }
            for (first, last), score, kept in zip(
                found.shots, found.scores, found.kept, strict=True
            )
        ],
    }


def spans(found: VideoSummary, step: float) -> list[tuple[float, float]]:
    """Return start and length in seconds of every kept shot, on the clock of the file's sound."""
    times = found.video.times_s + found.video.start_s
    return [
        (float(times[a]), float(times[b] - times[a]) + step) for a, b in found.shots[found.kept]
    ]


def contact_sheet(found: VideoSummary, path: Path) -> None:
    """Write a picture with the middle frame of every shot, kept ones framed in orange.

    Of more than `TILES` shots only kept ones are drawn, of those at most so many, evenly.
    """
    drawn = np.arange(len(found.shots))
    if len(drawn) > TILES:
        drawn = np.flatnonzero(found.kept)
        drawn = drawn[np.linspace(0, len(drawn) - 1, min(TILES, len(drawn))).round().astype(int)]
    middles = found.shots[drawn].sum(1) // 2
    height = round(TILE * found.video.height / found.video.width)
    edge = TILE // 40
    columns = min(ROW, len(drawn))
    size = (columns * TILE, -(-len(drawn) // columns) * height)
    sheet = Image.new("RGB", size, LEFT_RGB)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(TILE // 14)
    inside = TILE - 2 * edge, height - 2 * edge
    frames = found.video.frames(middles.tolist(), *inside)
    for place, (shot, frame) in enumerate(zip(drawn, frames, strict=True)):
        x, y = place % columns * TILE, place // columns * height
        colour = KEPT_RGB if found.kept[shot] else LEFT_RGB
        pen.rectangle((x, y, x + TILE - 1, y + height - 1), colour)
        sheet.paste(Image.fromarray(frame), (x + edge, y + edge))
        start = found.video.times_s[found.shots[shot, 0]]
        text = f"{int(start // 60)}:{start % 60:04.1f}"
        where = (x + 2 * edge, y + height - 2 * edge)
        pen.text(where, text, (255, 255, 255), font, "lb", stroke_width=2, stroke_fill=(0, 0, 0))
    with replacing(path) as scratch:
        sheet.save(scratch, "PNG")


def _shown(found: VideoSummary, step: float) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    """Yield kept frames with their times in the summary: spacing stays within a shot."""
    rows = found.frames
    times = found.video.times_s
    pictures = found.video.frames(rows)
    now = 0.0
    for i, (row, picture) in enumerate(zip(watched(rows, "kept frames"), pictures, strict=True)):
        if i:
            now += times[row] - times[row - 1] if row == rows[i - 1] + 1 else step
        yield now, picture
