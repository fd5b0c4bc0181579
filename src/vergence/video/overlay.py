"""Overlays of gaze on video: heat map, predicted point, true gaze; mp4, CSV and contact sheet.

Used by `cli.runs`, `live.views`, `reports.plots.gaze_maps`, `video.predict` and
`video.predict_maps`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vergence.core.files import csv_of, replacing, saving, write_text
from vergence.errors import ConfigError
from vergence.video.encode import encode

Point = Sequence[float]
"""x and y in [0, 1], origin at the top left; NaN: unknown."""

COLUMNS = (
    *("frame", "t_s", "peak_x", "peak_y", "mean_x", "mean_y", "spread_x", "spread_y"),
    *("confidence", "true_x", "true_y", "error_share"),
)
TRUE_RGB, PREDICTED_RGB, EDGE_RGB = (70, 225, 255), (255, 255, 255), (15, 17, 20)
# Shortest overlay in seconds: a clip of a few frames is slowed down, or it would be over at once.
WATCHABLE_S = 3.0
NEAR = 0.1
"""Radius in frame widths around the predicted point, in which heat counts as confidence."""
# Share of the peak below which heat is transparent, or a broad map would tint the whole frame; and
# rows blended at a time.
CLEAR, STRIP = 0.12, 32

# The darkest quarter of the colours is left out: on a picture it would look like shadow.
_HEAT = mpl.colormaps["inferno"](np.linspace(0.25, 1.0, 256))[:, :3] * 255


class OverlayFrame(NamedTuple):
    """Content of one frame of an overlay."""

    time_s: float
    frame: NDArray[np.uint8]
    heat: NDArray[np.floating]
    point: Point
    true: Point | None


@dataclass(frozen=True)
class OverlayFiles:
    """Result of `write_overlay`: files, number of frames, seconds of video, slow-down factor."""

    video: Path
    table: Path
    frames: int
    seconds: float
    slow_down: float


def write_overlay(
    path: Path | str,
    frames: Iterable[UInt8[np.ndarray, "height width 3"]],
    times_s: Sequence[float],
    heats: Iterable[Float[np.ndarray, "rows columns"]],
    points: Iterable[Point],
    truth: Iterable[Point | None] | None = None,
    *,
    slow: bool = False,
) -> OverlayFiles:
    """Write H.264 video of the frames with heat map, predicted cross and true ring, and its CSV.

    Timestamps are kept, equal spacing or not; `slow` stretches a clip below 3 s to 3 s of video
    (the CSV keeps true times). An odd last row or column is repeated, H.264 needs even sizes.
    CSV: `peak` = the predicted point, where the map is greatest; `mean` = the map's centre of mass,
    which stays near the middle where a map is broad; `spread` = its standard deviation across and
    down, in shares of the frame; `confidence` = share of the heat within a
    tenth of the frame width around the predicted point; `error_share` = distance of the predicted
    point to the true gaze as a share of the frame diagonal.

    Args:
        path: the video; the table gets the same name with `.csv`.
        frames: RGB, in order; read one at a time.
        times_s: when each frame was shown, increasing.
        heats: one map per frame, any size, non-negative.
        points: predicted gaze per frame, the peak of its map.
        truth: true gaze per frame, None or NaN where unknown.
        slow: make a short clip watchable.

    Raises:
        ConfigError: lengths differ, times do not increase, or a frame changes its size.
        PartialRun: nothing could be written (disk full, say); no half file stays.
    """
    path = Path(path)
    times = np.asarray(times_s, dtype=np.float64)
    if not times.size:
        raise ConfigError("an overlay needs at least one frame, got none")
    # Written as "not >", so that a NaN is refused too.
    if (bad := np.flatnonzero(~(np.diff(times) > 0))).size:
        i = int(bad[0]) + 1
        raise ConfigError(
            f"frame times must increase: frame {i} is at {times[i]} s after {times[i - 1]} s"
        )
    # The median: a dropped frame or a pause must not change the nominal rate.
    step = float(np.median(np.diff(times))) if len(times) > 1 else 1 / 30
    span = float(times[-1] - times[0]) + step
    factor = max(1.0, WATCHABLE_S / span) if slow else 1.0
    scenes = _scenes(times, frames, heats, points, truth)
    with (
        replacing(path.with_suffix(".csv")) as table,
        replacing(path) as video,
        table.open("w", newline="", encoding="utf-8") as file,
    ):
        count = encode(video, _overlay_pictures(file, scenes, factor), step * factor)
    return OverlayFiles(path, path.with_suffix(".csv"), count, span * factor, factor)


def write_pictures(
    files: Sequence[Path],
    table: Path,
    names: Sequence[str],
    frames: Iterable[UInt8[np.ndarray, "height width 3"]],
    heats: Iterable[Float[np.ndarray, "rows columns"]],
    points: Iterable[Point],
) -> OverlayFiles:
    """Write each picture with its heat map and predicted point as PNG, and their table as CSV.

    Raises:
        PartialRun: a file cannot be written.
    """
    rows = [["picture", *COLUMNS[2:]]]
    for file, name, frame, heat, point in zip(files, names, frames, heats, points, strict=True):
        rows.append([name, *_row(0, OverlayFrame(0.0, frame, heat, point, None))[2:]])
        with saving(file), replacing(file) as scratch:
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw(frame, heat, point)).save(scratch, "PNG")
    write_text(table, csv_of(rows))
    return OverlayFiles(
        files[0] if len(files) == 1 else files[0].parent, table, len(files), 0.0, 1.0
    )


def contact_sheet(
    path: Path | str,
    frames: Iterable[UInt8[np.ndarray, "height width 3"]],
    heats: Iterable[Float[np.ndarray, "rows columns"]],
    points: Iterable[Point],
    truth: Iterable[Point | None] | None = None,
    *,
    columns: int = 3,
    width: int = 1200,
) -> Path:
    """Write a picture of up to six frames with overlay, `columns` in a row.

    Raises:
        ConfigError: there is no frame.
        PartialRun: the file cannot be written.
    """
    scenes = list(islice(zip(frames, heats, points, truth or repeat(None), strict=False), 6))
    if not scenes:
        raise ConfigError(f"{path}: a contact sheet needs at least one frame, got none")
    columns = min(columns, len(scenes))
    gap = max(2, width // 200)
    tile = (width - gap * (columns - 1)) // columns
    height = round(tile * scenes[0][0].shape[0] / scenes[0][0].shape[1])
    rows = math.ceil(len(scenes) / columns)
    sheet = Image.new("RGB", (width, rows * height + gap * (rows - 1)), PREDICTED_RGB)
    for i, (frame, heat, point, true) in enumerate(scenes):
        small = np.asarray(Image.fromarray(frame).resize((tile, height), Image.Resampling.LANCZOS))
        picture = draw(small, heat, point, true, legend=i == 0)
        sheet.paste(
            Image.fromarray(picture), ((i % columns) * (tile + gap), i // columns * (height + gap))
        )
    with replacing(Path(path)) as scratch:
        sheet.save(scratch, "PNG")
    return Path(path)


def draw(
    frame: UInt8[np.ndarray, "height width 3"],
    heat: Float[np.ndarray, "rows columns"] | None,
    point: Point | None = None,
    true: Point | None = None,
    *,
    legend: bool = True,
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw the heat map, a cross at `point` and a ring at `true` on a frame."""
    picture = Image.fromarray(frame if heat is None else blend(frame, heat))
    size = max(12, round(min(frame.shape[0], frame.shape[1]) / 22))
    for mark, where in ((_cross(size), point), (_ring(size), true)):
        if where is not None and _is_known(where):
            x, y = where[0] * frame.shape[1], where[1] * frame.shape[0]
            picture.paste(mark, (round(x - mark.width / 2), round(y - mark.height / 2)), mark)
    if legend:
        box = _legend(size, heat is not None, _is_known(point), _is_known(true))
        picture.paste(box, (size // 2, picture.height - box.height - size // 2), box)
    return np.asarray(picture)


def blend(
    frame: UInt8[np.ndarray, "height width 3"],
    heat: Float[np.ndarray, "rows columns"],
    opacity: float = 0.72,
) -> UInt8[np.ndarray, "height width 3"]:
    """Blend a heat map into a frame; it is scaled to its peak, and low heat is transparent."""
    height, width = frame.shape[:2]
    picture = Image.fromarray(np.ascontiguousarray(heat, dtype=np.float32))
    large = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC)).clip(0)
    # An empty map has no peak to divide by.
    peak = max(float(large.max()), 1e-12)
    out = frame.copy()
    # Strips stay in the processor's cache, and most of a frame is clear.
    for top in range(0, height, STRIP):
        level = large[top : top + STRIP] / peak
        seen = np.flatnonzero((level > CLEAR).any(0))
        if not len(seen):
            continue
        part = slice(seen[0], seen[-1] + 1)
        level = level[:, part]
        rise = ((level - CLEAR) / 0.5).clip(0, 1)
        # A smooth step: a hard edge would look like a border that the model predicts.
        alpha = (opacity * rise * rise * (3 - 2 * rise))[..., None]
        colour = _HEAT[(level * 255).round().astype(np.intp).clip(0, 255)]
        pixels = out[top : top + STRIP, part]
        pixels[:] = (pixels * (1 - alpha) + colour * alpha).round()
    return out


def _scenes(
    times: NDArray[np.float64],
    frames: Iterable[NDArray[np.uint8]],
    heats: Iterable[NDArray[np.floating]],
    points: Iterable[Point],
    truth: Iterable[Point | None] | None,
) -> Iterator[OverlayFrame]:
    """Yield one frame of the overlay per time.

    Raises:
        ConfigError: the columns differ in length.
    """
    named: dict[str, Iterable[Any]] = {
        "times": times,
        "frames": frames,
        "heat maps": heats,
        "points": points,
    }
    if truth is not None:
        named["true points"] = truth
    end: Any = object()
    for i, row in enumerate(zip_longest(*named.values(), fillvalue=end)):
        if short := [name for name, value in zip(named, row, strict=True) if value is end]:
            raise ConfigError(
                f"an overlay needs one of each per frame, but there are {i} {' and '.join(short)} "
                f"and more of {', '.join(n for n in named if n not in short)}"
            )
        yield OverlayFrame(float(row[0]), row[1], row[2], row[3], row[4] if len(row) > 4 else None)


def _is_known(point: Point | None) -> bool:
    return point is not None and math.isfinite(point[0]) and math.isfinite(point[1])


def _overlay_pictures(
    file: TextIO, scenes: Iterator[OverlayFrame], factor: float
) -> Iterator[tuple[float, NDArray[np.uint8]]]:
    """Write the table row by row; yield the time in the overlay and the picture of each frame."""
    table = csv.writer(file)
    table.writerow(COLUMNS)
    start = None
    for index, scene in enumerate(scenes):
        start = scene.time_s if start is None else start
        picture = draw(scene.frame, scene.heat, scene.point, scene.true)
        table.writerow(_row(index, scene))
        yield (scene.time_s - start) * factor, picture


def _row(index: int, scene: OverlayFrame) -> list[str]:
    heat, point, true = scene.heat, scene.point, scene.true
    height, width = scene.frame.shape[:2]
    rows, columns = np.indices(heat.shape) + 0.5
    across = (columns / heat.shape[1] - point[0]) * width
    down = (rows / heat.shape[0] - point[1]) * height
    near = np.hypot(across, down) <= NEAR * width
    whole = max(float(heat.sum()), 1e-12)
    confidence = float(heat[near].sum() / whole)
    places = (columns / heat.shape[1], rows / heat.shape[0])
    mean = [float((heat * place).sum() / whole) for place in places]
    spread = [
        math.sqrt(float((heat * (place - middle) ** 2).sum() / whole))
        for place, middle in zip(places, mean, strict=True)
    ]
    row = [str(index), f"{scene.time_s:.6f}", f"{point[0]:.5f}", f"{point[1]:.5f}"]
    row += [f"{side:.5f}" for side in (*mean, *spread)]
    row.append(f"{confidence:.4f}")
    if true is None or not _is_known(true):
        return [*row, "", "", ""]
    away = math.hypot((point[0] - true[0]) * width, (point[1] - true[1]) * height)
    share = away / math.hypot(height, width)
    return [*row, f"{true[0]:.5f}", f"{true[1]:.5f}", f"{share:.5f}"]


def _draw_mark(
    size: int, strokes: Sequence[tuple[int, tuple[int, int, int]]], ring: bool
) -> Image.Image:
    """Draw a ring or a cross of the given size."""
    # At four times the size, then shrunk: Pillow's own lines have stair-step edges.
    side = size * 4
    large = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    pen = ImageDraw.Draw(large)
    margin = side // 8
    for width, rgb in strokes:
        grow = width // 2
        if ring:
            box = (margin - grow, margin - grow, side - margin + grow, side - margin + grow)
            pen.ellipse(box, outline=rgb, width=width)
        else:
            middle = side // 2
            low, high = margin - grow // 2, side - margin + grow // 2
            pen.line((low, middle, high, middle), fill=rgb, width=width)
            pen.line((middle, low, middle, high), fill=rgb, width=width)
    return large.resize((size, size), Image.Resampling.LANCZOS)


@lru_cache(maxsize=8)
def _cross(size: int) -> Image.Image:
    return _draw_mark(
        size, ((size * 4 // 5, EDGE_RGB), (size * 4 // 11, PREDICTED_RGB)), ring=False
    )


@lru_cache(maxsize=8)
def _ring(size: int) -> Image.Image:
    return _draw_mark(
        round(size * 1.4), ((size * 4 // 4, EDGE_RGB), (size * 4 // 7, TRUE_RGB)), ring=True
    )


@lru_cache(maxsize=32)
def _legend(size: int, heat: bool, point: bool, true: bool) -> Image.Image:
    """Draw a legend of the marks in the picture."""
    font = ImageFont.load_default(max(11, size * 0.55))
    entries: list[tuple[Image.Image, str]] = []
    icon = round(size * 0.75)
    if heat:
        ramp = np.tile(_HEAT[np.linspace(40, 255, icon * 2).astype(int)], (icon // 2, 1, 1))
        entries.append((Image.fromarray(ramp.astype(np.uint8)).convert("RGBA"), "heat map"))
    if point:
        entries.append((_cross(size).resize((icon, icon)), "predicted"))
    if true:
        entries.append((_ring(size).resize((icon, icon)), "true gaze"))
    gap = size // 3
    widths = [mark.width + gap // 2 + round(font.getlength(text)) for mark, text in entries]
    box = Image.new(
        "RGBA", (sum(widths) + gap * 2 * len(entries), round(size * 1.15)), (0, 0, 0, 0)
    )
    pen = ImageDraw.Draw(box)
    pen.rounded_rectangle((0, 0, box.width - 1, box.height - 1), box.height // 3, (15, 17, 20, 190))
    x = gap
    for (mark, text), width in zip(entries, widths, strict=True):
        box.paste(mark, (x, (box.height - mark.height) // 2), mark)
        where = (x + mark.width + gap // 2, box.height // 2)
        pen.text(where, text, font=font, fill=(245, 246, 248), anchor="lm")
        x += width + gap * 2
    return box
