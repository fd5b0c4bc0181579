"""Pictures for the page of `vergence data look`: what people saw, with heat maps, and eye patches.

Used by `reports.data_look`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from vergence.data.fixations import Fixations
from vergence.data.gaze_tracks import GazeTrack
from vergence.data.io.image_files import open_image
from vergence.video.overlay import blend

WIDTH, CELLS, POINTS = 300, 96, 400
"""Pixels across a picture, columns of a heat map, and most points of a path: a page of 50 people
then has a few megabytes."""
TRAIL_S = 0.25
"""Gaze is drawn on a video frame from this many seconds before it to as many after it."""
SPREAD = 0.02
"""Standard deviation of heat maps as a share of the width, as in experiments of `data import`."""
DEGREES = 40
"""Angle at the left and right edge of a picture of gaze angles."""


Tile = dict[str, Any]
"""A picture in the page, with gaze to draw on it; see `tile`."""


def tile(
    caption: str,
    image: Image.Image,
    path: NDArray[np.float64] | None = None,
    rings: NDArray[np.float64] | None = None,
) -> Tile:
    """Return a picture for the page, and a line and rings (x, y, radius) to draw on it.

    `path` and the places of `rings` are fractions of the picture; those of the result and all radii
    are pixels of the picture, which is `WIDTH` wide and has a `height`. `address` holds the picture
    itself.
    """
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    address = f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
    path = np.zeros((0, 2)) if path is None else path[:: len(path) // POINTS + 1]
    rings = np.zeros((0, 3)) if rings is None else rings[np.isfinite(rings).all(1)]
    marks = {"path": path * image.size, "rings": rings * [*image.size, 1]}
    marks = {name: pixels.round(1).tolist() for name, pixels in marks.items()}
    return {"caption": caption, "address": address, "height": image.height, **marks}


def shown(track: GazeTrack, row: int = 0) -> Image.Image:
    """Return a track's picture, or frame `row` of its video; grey if there is neither."""
    width, height = track.size() or (4, 3)
    size = WIDTH, max(round(WIDTH * height / width), 1)
    if isinstance(track.picture, Path):
        with open_image(track.picture, str(track.picture), "save the picture again") as image:
            return image.convert("RGB").resize(size)
    if track.picture is not None:
        return Image.fromarray(track.picture).resize(size)
    if track.opened is None:
        return Image.new("RGB", size, "#8a8f98")
    return Image.fromarray(next(track.opened.frames([row], *size)))


def path_on(track: GazeTrack, fixations: Fixations) -> Tile:
    """Draw gaze on a picture: its path, and a ring for each fixation, larger for longer ones."""
    radius = 3 + 10 * np.nan_to_num(fixations[:, 1], nan=0.2).clip(0, 1) ** 0.5
    rings = np.column_stack([fixations[:, 2:], radius])
    return tile(track.id, shown(track), track.places[track.gaze.valid], rings)


def moments(track: GazeTrack) -> Iterator[Tile]:
    """Draw gaze on three key frames of a video, before moments with gaze at even distances."""
    gaze, video = track.gaze, track.opened
    times = video.times_s if video else np.array([np.inf])
    seen = gaze.t_s[gaze.valid & (gaze.t_s >= times[0]) & (gaze.t_s <= times[-1])]
    if not video or not len(seen):
        return
    # Other frames need all frames since the last key frame, which takes up to a second each.
    for row in np.unique(video.key_rows(np.quantile(seen, (0.2, 0.5, 0.8)))).tolist():
        apart = np.where(gaze.valid, np.abs(gaze.t_s - times[row]), np.inf)
        near, nearest = apart <= TRAIL_S, apart.argmin()
        rings = np.array([[*track.places[nearest], 7.0]])[: int(near.any())]
        yield tile(f"at {times[row]:.1f} s", shown(track, row), track.places[near], rings)


def heat(caption: str, own: Sequence[GazeTrack]) -> Tile:
    """Draw the heat map of all gaze on one picture, or in the recordings of one person."""
    longest = max(own, key=lambda track: int(track.gaze.valid.sum()))
    return _heat(caption, shown(longest), np.concatenate([t.places[t.gaze.valid] for t in own]))


def angles(deg: NDArray[np.float64]) -> Tile:
    """Draw where gaze angles (yaw, pitch) `[samples, 2]` lie: 0 is in the middle, up is up."""
    plain = Image.new("RGB", (WIDTH, 3 * WIDTH // 4), "white")
    rings = np.array([[0.5, 0.5, WIDTH / 2 * angle / DEGREES] for angle in (10, 20, 30)])
    return _heat("gaze angles", plain, 0.5 + deg * [1 / 2, -2 / 3] / DEGREES, rings)


def patches(images: NDArray[np.uint8], across: int = 3, down: int = 4) -> Tile:
    """Draw some eye patches `[samples, 1 or 3, height, width]`, taken at even distances."""
    picks = images[np.linspace(0, len(images) - 1, across * down).astype(int)]
    # Pictures of eyes are often dark.
    bright = np.quantile(picks, 0.98, (1, 2, 3), keepdims=True).clip(1)
    picks = (255 * (picks / bright).clip(0, 1)).astype(np.uint8)
    picks = np.pad(picks, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=255)
    height, width = picks.shape[-2:]
    sheet = picks.reshape(down, across, -1, height, width).transpose(0, 3, 1, 4, 2)
    pixels = np.broadcast_to(sheet, (*sheet.shape[:4], 3)).reshape(down * height, -1, 3)
    size = WIDTH, round(WIDTH * down * height / (across * width))
    return tile("samples", Image.fromarray(np.ascontiguousarray(pixels)).resize(size))


def _heat(
    caption: str,
    image: Image.Image,
    points: NDArray[np.float64],
    rings: NDArray[np.float64] | None = None,
) -> Tile:
    size = max(round(CELLS * image.height / image.width), 1), CELLS
    counts, *_ = np.histogram2d(*points.T[::-1], bins=size, range=((0, 1), (0, 1)))
    smooth = gaussian_filter(counts, SPREAD * CELLS, mode="constant")
    return tile(caption, Image.fromarray(blend(np.asarray(image), smooth)), None, rings)
