"""Areas of interest: rectangles or masks on what was shown, and how much gaze fell into each.

Used by `cli.data_look`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vergence.data.gaze_tracks import GazeTrack
from vergence.data.io.delimited_text import read_table
from vergence.data.io.image_files import open_image
from vergence.errors import DataError

SIDES = ("left", "top", "right", "bottom")
EVERYWHERE = "*"
"""Stimulus of an area that lies on everything that was shown."""
WHERE = "give areas another mask, or rectangles (left, top, right, bottom)"
Inside = Callable[[NDArray[np.float64], tuple[int, int]], NDArray[np.bool_]]
"""Function from places (x, y) in fractions `[n, 2]`, and width and height of the picture in pixels,
to whether each place is in an area, bool `[n]`."""


class AreaHits(NamedTuple):
    """Gaze of one person on one stimulus, and in one of its areas.

    Attributes:
        conditions: words of the conditions, joined by commas.
        samples: number of valid samples on the stimulus, or of published fixations.
        share: fraction of these in the area; NaN without any.
        dwell_s: seconds in the area, by the tracker's rate or the fixations' lengths; NaN if they
            are unknown.
        first_s: seconds from the first sample to the first one in the area; of published fixations
            the sum of those before. NaN without any, or without times.
    """

    person: str
    conditions: str
    stimulus: str
    area: str
    samples: int
    share: float
    dwell_s: float
    first_s: float


def read_areas(path: Path) -> dict[str, dict[str, Inside]]:
    """Read a table of areas; return stimulus -> name of an area -> whether a place is in it.

    Columns: `stimulus` (a file name, with or without its ending; `*`: everything), `area`, and
    either `left`, `top`, `right` and `bottom`, or `mask`: a picture beside the table that is not
    black in the area. Sides are fractions of the picture if all of them are at most 1, else pixels.
    Rows of the same stimulus and area are one area.

    Raises:
        DataError: the table or a mask cannot be read, or a side is not smaller than its opposite.
    """
    table = read_table(path, ["stimulus", "area"], "table of areas")
    masks = "mask" in table
    if not masks and (absent := [side for side in SIDES if side not in table]):
        raise DataError(f"{path}: no column '{absent[0]}', and no column 'mask': {WHERE}")
    sides = np.zeros((len(table), 0)) if masks else np.stack([table.floats(s) for s in SIDES], 1)
    in_pixels = bool((sides > 1).any())
    areas: dict[str, dict[str, list[Inside]]] = {}
    for row, (stimulus, area) in enumerate(
        zip(table.text("stimulus"), table.text("area"), strict=True)
    ):
        if masks:
            inside = _in_mask(path.parent / table.text("mask")[row].strip())
        else:
            if not (sides[row, :2] < sides[row, 2:]).all():
                raise DataError(
                    f"{path}: row {table.line(row)}: area '{area}' from {sides[row, :2].tolist()} "
                    f"to {sides[row, 2:].tolist()}: left must be below right, and top below bottom"
                )
            inside = _in_rectangle(sides[row], in_pixels)
        areas.setdefault(_bare(stimulus), {}).setdefault(area.strip(), []).append(inside)
    return {
        stimulus: {name: _in_any(parts) for name, parts in own.items()}
        for stimulus, own in areas.items()
    }


def hits(
    tracks: Sequence[GazeTrack], areas: Mapping[str, Mapping[str, Inside]]
) -> Iterator[AreaHits]:
    """Yield the hits of each person's gaze in each area of what was shown.

    Raises:
        DataError: no stimulus of the areas was shown to anybody.
    """
    shown = {_bare(track.id) for track in tracks} | {EVERYWHERE}
    if not shown & areas.keys():
        raise DataError(
            f"no area is on what was shown: areas are on {', '.join(list(areas)[:5])}; shown were "
            f"{', '.join(sorted(shown)[:5])}"
        )
    for track in tracks:
        own = {**areas.get(EVERYWHERE, {}), **areas.get(_bare(track.id), {})}
        words = track.conditions
        if words is None:
            words = np.full((len(track.gaze), 0), "")
        for each in sorted({*map(tuple, words.tolist())}):
            rows = np.flatnonzero((words == np.array(each, str)).all(1))
            for name, inside in own.items():
                yield _hits_of(track, rows, ", ".join(each), name, inside)


def _hits_of(
    track: GazeTrack, rows: NDArray[np.int64], conditions: str, area: str, inside: Inside
) -> AreaHits:
    """Return the hits of these samples of a track in an area."""
    nan, gaze, places = float("nan"), track.gaze, track.places
    on = rows[(gaze.valid & ((places >= 0) & (places <= 1)).all(1))[rows]]
    hit = on[inside(places[on], track.size() or (1, 1))]
    if track.lengths_s is None:
        # Without a rate there is no clock: a sample is a picture, or a fixation of no known length.
        step = 1 / track.rate_hz if track.rate_hz else nan
        lengths, times = np.full(len(gaze), step), gaze.t_s if track.rate_hz else gaze.t_s * nan
    else:
        # Published fixations follow one another; what lies between them is not known.
        lengths = track.lengths_s
        times = np.cumsum(lengths) - lengths
    return AreaHits(
        *(track.person, conditions, track.id, area, len(on)),
        share=len(hit) / len(on) if len(on) else nan,
        dwell_s=float(lengths[hit].sum()) if len(hit) else 0.0 * float(lengths[:1].sum()),
        first_s=float(times[hit[0]] - times[rows[0]]) if len(hit) else nan,
    )


def _bare(name: str) -> str:
    """Return a stimulus's name without folders, ending and capital letters."""
    return PureWindowsPath(name.strip().lower()).stem


def _in_rectangle(sides: NDArray[np.float64], in_pixels: bool) -> Inside:
    def inside(xy: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
        places = xy * size if in_pixels else xy
        return np.all((places >= sides[:2]) & (places <= sides[2:]), 1)

    return inside


def _in_mask(path: Path) -> Inside:
    with open_image(path, str(path), WHERE) as image:
        mask = np.asarray(image.convert("L")) > 0

    def inside(xy: NDArray[np.float64], _size: tuple[int, int]) -> NDArray[np.bool_]:
        # The mask may have another number of pixels than the picture.
        at = (xy * mask.shape[::-1]).astype(int).clip(0, np.array(mask.shape[::-1]) - 1)
        return mask[at[:, 1], at[:, 0]]

    return inside


def _in_any(parts: Sequence[Inside]) -> Inside:
    return lambda xy, size: np.any(np.stack([part(xy, size) for part in parts]), 0)
