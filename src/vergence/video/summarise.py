"""`vergence video summarise`: cuts a video to its best shots within a budget, on this machine.

Used by `cli.video`.
"""

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
from vergence.data.io.checks import with_progress
from vergence.data.io.video import Video
from vergence.data.video_summaries.shots import coverage, segments
from vergence.data.video_summaries.sound import sound_blocks
from vergence.errors import ConfigError, DataError
from vergence.metrics.summaries import capacity, knapsack, shot_values, spread
from vergence.models import pretrained
from vergence.results.write import write_json
from vergence.video.encode import encode
from vergence.video.shot_scores import Scorer

SAMPLE_S, SHORTEST_S, LONGEST_S = 0.5, 1.5, 5.0
"""Longest time between samples; shortest and longest duration of a shot, in seconds."""
# At least four shots of the longest kind fit into the budget: a summary of one shot would be no
# choice, so short videos get shorter shots.
SEVERAL = 4
TILES, ROW, TILE = 48, 6, 200
"""Number of shots on a contact sheet, number in a row, and width of a tile in pixels."""
SUMMARY_RGB, OTHER_RGB = (255, 170, 40), (70, 74, 80)


@dataclass(frozen=True, eq=False)
class VideoSummary:
    """Video with its shots, their scores, and the selection for the summary.

    Attributes:
        video: the original video.
        room: number of frames that the budget allows.
        shots: first and last frame of each shot, both inclusive.
        scores: gain in coverage by each shot (`video_summaries.shots.coverage`), or the mean
            importance of its frames; in [0, 1].
        in_summary: which shots are in the summary, bool `[shots]`.
    """

    video: Video
    room: int
    shots: Int[np.ndarray, "shots 2"]
    scores: Float[np.ndarray, " shots"]
    in_summary: Bool[np.ndarray, " shots"]

    @property
    def frames(self) -> list[int]:
        """Numbers of the frames in the summary, ascending."""
        return [f for first, last in self.shots[self.in_summary] for f in range(first, last + 1)]


def summarise(
    source: Path, out: Path, budget: str = "15%", scorer: Scorer | None = None, by: str = "coverage"
) -> VideoSummary:
    """Write the summary (mp4), with its shots (JSON) and a contact sheet (PNG) of the same name.

    Args:
        source: video to summarise.
        out: summary to write.
        budget: length of the summary, see `share_of`.
        scorer: importance of sampled frames, whose mean is a shot's score; None: coverage.
        by: name of the scores in the JSON.

    Raises:
        ConfigError: the budget cannot be read, `out` does not end in .mp4, or is the original.
        DataError: the video cannot be read, or is too short for the budget.
        PartialRun: a file cannot be written.
    """
    if out.suffix.lower() != ".mp4":
        raise ConfigError(f"summaries are written as .mp4, got {out}: give a name ending in .mp4")
    # By file and not by name: a link or another spelling would lose the original.
    if out.exists() and source.exists() and out.samefile(source):
        raise ConfigError(f"the summary would replace {source}: give another name")
    video = Video.open(source)
    summary = choose_shots(video, share_of(budget, video), scorer)
    step = interval_s(video)
    with replacing(out) as scratch:
        sound = sound_blocks(source, spans(summary, step))
        encode(scratch, _summary_pictures(summary, step), step, sound, preset="veryfast")
    write_json(out.with_suffix(".json"), summary_record(summary, budget, by))
    contact_sheet(summary, out.with_suffix(".png"))
    return summary


def share_of(budget: str, video: Video) -> float:
    """Parse a budget such as `15%` or `20s` as a share of a video's frames.

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
    """Return the median duration of a frame in seconds."""
    return float(np.median(np.diff(video.times_s))) if len(video.times_s) > 1 else 1 / 30


def choose_shots(video: Video, share: float, scorer: Scorer | None = None) -> VideoSummary:
    """Divide a video into shots and choose the best within a share of its frames.

    Without a `scorer` a shot's score is its gain in coverage.

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
    features = frame_features(video, picks)
    most = min(max(1, longest // stride), len(picks))
    least = max(1, min(round(SHORTEST_S / step / stride), (most + 1) // 2))
    starts = segments(features, most, least)
    firsts = picks[starts]
    lengths = np.diff(np.append(firsts, count))
    shots = np.stack([firsts, firsts + lengths - 1], 1)
    scores = (
        coverage(features, starts)
        if scorer is None
        else shot_values(spread(scorer(features), picks, count), shots)
    )
    # The second term fills the budget where further shots have no score.
    in_summary = knapsack(scores + 1e-6 * lengths / count, lengths, room)
    return VideoSummary(video, room, shots, scores, in_summary)


def frame_features(video: Video, picks: NDArray[np.int64]) -> Float[np.ndarray, "picks 1280"]:
    """Return feature vectors of the frames with these numbers."""
    network = pretrained.load()
    crop = pretrained.CROP
    # The shorter side becomes 9/8 of the crop, which leaves out a little of the border.
    scale = crop * 9 / 8 / min(video.width, video.height)
    width, height = (max(crop, round(side * scale)) for side in (video.width, video.height))
    left, top = (width - crop) // 2, (height - crop) // 2
    rows: list[NDArray[np.float32]] = []
    batch: list[NDArray[np.uint8]] = []
    frames = video.frames(picks.tolist(), width, height)
    for number, frame in zip(with_progress(picks.tolist(), "frames"), frames, strict=True):
        batch.append(frame[top : top + crop, left : left + crop])
        if len(batch) == pretrained.BATCH or number == picks[-1]:
            rows.append(pretrained.vectors(network, torch.from_numpy(np.stack(batch))).numpy())
            batch = []
    return np.concatenate(rows)


def summary_record(summary: VideoSummary, budget: str, by: str) -> dict[str, object]:
    """Return the content of the JSON: budget, features, and every shot with its score."""
    times, end = summary.video.times_s, interval_s(summary.video)
    return {
        "source": summary.video.path.name,
        "frames": len(times),
        "seconds": round(float(times[-1] - times[0]) + end, 6),
        "budget": budget,
        "budget_frames": summary.room,
        "kept_frames": len(summary.frames),
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
                summary.shots, summary.scores, summary.in_summary, strict=True
            )
        ],
    }


def spans(summary: VideoSummary, step: float) -> list[tuple[float, float]]:
    """Return start and length in seconds of every shot in the summary, on the sound's clock."""
    # Frame times count from the first frame, which may come later than the sound.
    times = summary.video.times_s + summary.video.start_s
    return [
        (float(times[a]), float(times[b] - times[a]) + step)
        for a, b in summary.shots[summary.in_summary]
    ]


def contact_sheet(summary: VideoSummary, path: Path) -> None:
    """Write a picture with the middle frame of every shot; those of the summary have a frame.

    With more than `TILES` shots only those of the summary are drawn, at most `TILES` of them.
    """
    tiles = np.arange(len(summary.shots))
    if len(tiles) > TILES:
        tiles = np.flatnonzero(summary.in_summary)
        tiles = tiles[np.linspace(0, len(tiles) - 1, min(TILES, len(tiles))).round().astype(int)]
    middles = summary.shots[tiles].sum(1) // 2
    height = round(TILE * summary.video.height / summary.video.width)
    edge = TILE // 40
    columns = min(ROW, len(tiles))
    size = (columns * TILE, -(-len(tiles) // columns) * height)
    sheet = Image.new("RGB", size, OTHER_RGB)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(TILE // 14)
    inside = TILE - 2 * edge, height - 2 * edge
    frames = summary.video.frames(middles.tolist(), *inside)
    for place, (shot, frame) in enumerate(zip(tiles, frames, strict=True)):
        x, y = place % columns * TILE, place // columns * height
        colour = SUMMARY_RGB if summary.in_summary[shot] else OTHER_RGB
        pen.rectangle((x, y, x + TILE - 1, y + height - 1), colour)
        sheet.paste(Image.fromarray(frame), (x + edge, y + edge))
        start = summary.video.times_s[summary.shots[shot, 0]]
        text = f"{int(start // 60)}:{start % 60:04.1f}"
        where = (x + 2 * edge, y + height - 2 * edge)
        pen.text(where, text, (255, 255, 255), font, "lb", stroke_width=2, stroke_fill=(0, 0, 0))
    with replacing(path) as scratch:
        sheet.save(scratch, "PNG")


def _summary_pictures(
    summary: VideoSummary, step: float
) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    """Yield times in the summary and frames; within a shot the original spacing remains."""
    rows = summary.frames
    times = summary.video.times_s
    pictures = summary.video.frames(rows)
    now = 0.0
    for i, (row, picture) in enumerate(
        zip(with_progress(rows, "kept frames"), pictures, strict=True)
    ):
        if i:
            now += times[row] - times[row - 1] if row == rows[i - 1] + 1 else step
        yield now, picture
