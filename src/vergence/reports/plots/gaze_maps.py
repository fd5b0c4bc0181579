"""Figures of gaze: the strip of heat maps, and how a clip becomes tokens (FedCPF Fig. 1).

Used by `reports.html`.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy.typing import NDArray

from vergence.errors import DataError
from vergence.results.figure_style import (
    BLUE,
    INK,
    MUTED,
    PAPER,
    PERSONAL,
    bare,
    canvas,
    colours,
    styled,
)
from vergence.results.layout import TIMES
from vergence.results.read import Maps, StudyResults
from vergence.video.overlay import blend

FRAMES, PATCH, GRID = 4, 8, 8
"""The cpu64 preset: clips of 4 x 64 x 64, patches of 2 x 8 x 8, so 2 x 8 x 8 = 128 tokens."""

# Middle part of a frame that is drawn: the corners of a fisheye picture are black.
CENTRE = 0.74


@styled
def strip(study: StudyResults) -> Figure | None:
    """Draw true heat maps and every method's on the same test samples, with real gaze points."""
    runs = [(run, run.maps) for run in study.runs if run.maps is not None]
    if not runs:
        return None
    # All runs of a study evaluate on the same samples: the first one's stand for all.
    first = runs[0][1]
    tint = colours(study.runs)
    count = len(first.frames)
    tall, wide = first.frames.shape[1:3]
    # 9.2 inches altogether, and no picture of one or two samples grows over a third of them.
    tile = 9.2 / max(count, 3)
    height = tile * tall / wide
    rows = [
        ("truth", first.truth, INK),
        *((run.title, maps.pred, tint[run.label]) for run, maps in runs),
    ]
    lines = [np.hstack([*map(blend, first.frames, heats)]) for _, heats, _ in rows]
    figure = canvas(tile * count + 0.3, height * len(rows) + 0.3)
    axes = figure.add_subplot()
    axes.imshow(np.vstack(lines), interpolation="antialiased")
    for row, column in np.ndindex(len(rows), count):
        _points(axes, first, column, row, tile)
    for i in range(1, count):
        axes.axvline(i * wide - 0.5, color=PAPER, linewidth=1.5)
    for i in range(1, len(rows)):
        axes.axhline(i * tall - 0.5, color=PAPER, linewidth=1.5)
    axes.set(xlim=(-0.5, count * wide - 0.5), ylim=(len(rows) * tall - 0.5, -0.5))
    axes.xaxis.tick_top()
    people = [f"gaze of {person}" for person in first.person]
    axes.set_xticks((np.arange(count) + 0.5) * wide - 0.5, people, fontsize=8, color=MUTED)
    axes.set_yticks(
        (np.arange(len(rows)) + 0.5) * tall - 0.5,
        [name for name, _, _ in rows],
        rotation=90,
        va="center",
        fontsize=9,
        fontweight="bold",
    )
    for label, (_, _, colour) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(colour)
    bare(axes, ticks=True)
    return figure


def _points(axes: Axes, maps: Maps, sample: int, row: int, tile: float) -> None:
    tall, wide = maps.frames.shape[1:3]
    shown = maps.points[sample][np.isfinite(maps.points[sample]).all(axis=1)]
    x, y = (shown[:, 0] + sample) * wide - 0.5, (shown[:, 1] + row) * tall - 0.5
    axes.scatter(x, y, s=7 * tile, color="#46e1ff", edgecolor="#101317", linewidth=0.35 * tile)


def sample_clip(name: str = "aria/adt/rgb_upright.mp4") -> list[NDArray[np.uint8]]:
    """Return the first frames of a packaged clip, RGB.

    Raises:
        DataError: the installation lacks it.
    """
    packaged = files("vergence.data").joinpath("samples", *name.split("/"))
    if not packaged.is_file():
        raise DataError(f"this installation lacks the packaged clip {name}; install vergence again")
    with as_file(packaged) as path:
        return read_clip(path)


def read_clip(path: Path) -> list[NDArray[np.uint8]]:
    """Return the first frames of a video, RGB.

    Raises:
        DataError: it cannot be decoded, or is shorter than a clip.
    """
    # No report draws tokens: `vergence report` does not wait for FFmpeg's libraries.
    import av
    from av.error import FFmpegError

    try:
        with av.open(str(path)) as container:
            shown = [
                np.asarray(f.to_ndarray(format="rgb24"), dtype=np.uint8)
                for f in islice(container.decode(video=0), FRAMES)
            ]
    except (FFmpegError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if len(shown) < FRAMES:
        raise DataError(f"{path} has {len(shown)} frames; the token picture needs {FRAMES}")
    return shown


@styled
def tokens(frames: list[NDArray[np.uint8]] | None = None) -> Figure:
    """Draw how a clip becomes one global and many local tokens (after FedCPF, Fig. 1).

    Args:
        frames: frames of a clip; by default the packaged Aria clip.
    """
    shown = [_square(f) for f in (frames or sample_clip())[:FRAMES]]
    figure = canvas(11, 4.9, layout="none")
    whole = figure.add_axes((0, 0, 1, 1))
    whole.set_axis_off()
    whole.set(xlim=(0, 11), ylim=(0, 4.9))
    _stack(figure, shown)
    _say(
        whole,
        1.55,
        4.62,
        "1  clip",
        f"{FRAMES} frames, cut into patches of {_by(2, PATCH, PATCH)} pixels",
    )
    local = FRAMES // 2 * GRID * GRID
    _say(whole, 5.35, 4.62, "2  embedding", "convolutions make one vector per token")
    _say(whole, 9.25, 4.62, "3  attention", "each token reads itself and $x_1$ only")
    _global(whole)
    _locals(figure, whole, shown, local)
    _arrow(whole, (3.02, 2.95), (3.72, 3.55), PERSONAL)
    _arrow(whole, (3.02, 1.95), (3.72, 1.55), BLUE)
    _arrow(whole, (7.22, 3.55), (7.95, 2.75), PERSONAL)
    _arrow(whole, (7.22, 1.55), (7.95, 2.05), BLUE)
    _attention(figure)
    return figure


def _by(*sizes: int) -> str:
    return f" {TIMES} ".join(map(str, sizes))


def _square(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    side = int(CENTRE * min(frame.shape[:2])) // GRID * GRID
    top, left = (frame.shape[0] - side) // 2, (frame.shape[1] - side) // 2
    return frame[top : top + side, left : left + side]


def _place(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    """Return axes at this place in inches from the lower left corner."""
    w, h = figure.get_size_inches()
    axes = figure.add_axes((x / w, y / h, width / w, height / h))
    bare(axes)
    return axes


def _say(axes: Axes, x: float, y: float, head: str, text: str) -> None:
    axes.text(x, y, head, ha="center", va="center", fontsize=11, fontweight="bold")
    axes.text(x, y - 0.24, text, ha="center", va="center", fontsize=8, color=MUTED)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=2)
    )


def _stack(figure: Figure, shown: list[NDArray[np.uint8]]) -> None:
    side, shift = 2.05, 0.24
    for i in reversed(range(len(shown))):
        axes = _place(figure, 0.2 + i * shift, 0.75 + i * shift, side, side)
        axes.set_zorder(len(shown) - i)
        axes.imshow(shown[i])
        edge = shown[i].shape[0]
        for k in range(1, GRID):
            axes.axhline(k * edge / GRID, color=PAPER, linewidth=0.6)
            axes.axvline(k * edge / GRID, color=PAPER, linewidth=0.6)
        axes.add_patch(
            Rectangle((-0.5, -0.5), edge, edge, fill=False, edgecolor=PAPER, linewidth=2.5)
        )


def _global(axes: Axes) -> None:
    """Draw the shrinking maps of the global path and the token they end in."""
    base = 3.55
    for i, side in enumerate((0.9, 0.62, 0.4)):
        x = 3.9 + (0, 1.0, 1.72)[i]
        for layer in range(3):
            off = 0.06 * layer
            corner = (x + off, base - side / 2 + off)
            look = {"facecolor": PAPER, "edgecolor": PERSONAL, "linewidth": 1.1}
            axes.add_patch(Rectangle(corner, side, side, zorder=3 - layer, **look))
    _token(axes, 6.6, base, "$x_1$", PERSONAL)
    told = f"{_by(8, 8)}, {_by(4, 4)}, {_by(2, 2)}, then one linear layer"
    axes.text(3.9, base - 0.68, told, fontsize=8, color=MUTED, va="center")
    axes.text(
        6.98, base - 0.43, "global token", fontsize=9, color=PERSONAL, va="center", ha="right"
    )


def _token(axes: Axes, x: float, y: float, name: str, colour: str) -> None:
    axes.add_patch(
        Rectangle((x, y - 0.3), 0.26, 0.6, facecolor=colour, edgecolor="none", alpha=0.9, zorder=4)
    )
    for k in range(1, 5):
        axes.plot([x, x + 0.26], [y - 0.3 + 0.12 * k] * 2, color=PAPER, lw=0.8, zorder=5)
    axes.text(x + 0.13, y + 0.42, name, ha="center", va="center", fontsize=10, color=colour)


def _locals(figure: Figure, whole: Axes, frames: list[NDArray[np.uint8]], count: int) -> None:
    edge = frames[0].shape[0] // GRID
    first, last = frames[0], frames[-1]
    patches = [first[:edge, k * edge : (k + 1) * edge] for k in range(3)] + [last[-edge:, -edge:]]
    names = ["$x_2$", "$x_3$", "$x_4$", r"$x_{\phi+1}$"]
    for i, (patch, name) in enumerate(zip(patches, names, strict=True)):
        x = 3.9 + 0.72 * i + (0.45 if i == 3 else 0)
        _place(figure, x, 1.42, 0.5, 0.5).imshow(patch)
        _token(whole, x + 0.12, 0.72, "", BLUE)
        whole.text(x + 0.25, 2.1, name, ha="center", va="center", fontsize=10, color=BLUE)
        whole.plot([x + 0.25, x + 0.25], [1.38, 1.06], color=BLUE, linewidth=1)
    whole.text(6.1, 1.67, "…", ha="center", va="center", fontsize=14, color=MUTED)
    told = rf"local tokens: $\phi$ = {_by(FRAMES // 2, GRID, GRID)} = {count}"
    whole.text(6.95, 0.22, told, fontsize=9, color=BLUE, ha="right", va="center")


def _attention(figure: Figure) -> None:
    side = 10
    picture = np.ones((side, side, 3)) * 0.945
    picture[np.eye(side, dtype=bool)] = (0, 0.447, 0.698)
    picture[:, 0] = (0.835, 0.369, 0)
    axes = _place(figure, 8.2, 1.1, 2.35, 2.35)
    axes.imshow(picture, interpolation="nearest")
    for k in range(1, side):
        axes.axhline(k - 0.5, color=PAPER, linewidth=1.5)
        axes.axvline(k - 0.5, color=PAPER, linewidth=1.5)
    names = ["$x_1$", "$x_2$", "$x_3$", *[""] * (side - 4), r"$x_{\phi+1}$"]
    axes.set_xticks(range(side), names, fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks(range(side), names, fontsize=8)
    axes.set_xlabel("reads (orange: global, blue: itself)", fontsize=8, color=MUTED)
