"""Fixations of gaze by pymovements (I-VT, I-DT), fixations of the tracker's maker, and precision.

I-VT (Salvucci and Goldberg 2000) needs degrees and samples at short intervals; where the angle of
the picture is not known, I-DT runs on parts of the picture's width. pymovements (MIT) is the extra
`look`.

Used by `reports.data_look`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.data.gaze_quality import median
from vergence.data.gaze_tracks import GazeTrack
from vergence.data.gaze_video.gaze import HOLE_S

LEAST_S = 0.1
"""Shortest fixation in seconds: the library's default."""
LEAST_HZ, LEAST_VT_HZ = 20, 50
"""Lowest samples per second of I-DT and precision, and of I-VT, which sees speed in a saccade."""
VELOCITY = 45.0
"""Degrees per second from which I-VT takes a movement for a saccade. Tobii's filters have 30 for
screens and 100 for glasses, whose gaze moves in the picture as heads turn."""
DISPERSION = {"°": 1.0, "%": 3.0}
"""Largest sum of a fixation's width and height for I-DT: degrees, or % of the picture's width."""
NEXT_S = 0.15
"""Two fixations that are at most this many seconds apart have a saccade between them."""
MAKER = "the maker's"
Fixations = NDArray[np.float64]
"""Fixations of a track `[n, 4]`: start and length in seconds, mean x and y as fractions of the
picture. A length or place that is not known is NaN."""


def positions(track: GazeTrack, places: NDArray[np.float64]) -> tuple[NDArray[np.float64], str]:
    """Return places `[n, 2]` in a unit that is the same along x and y, and the unit.

    `places` are fractions of a track's picture. The unit is "°" where the picture's angle and size
    are known; the lens is taken for a pinhole. Else it is "%": per cent of the picture's width, or,
    if there is no picture, of each of its sides.
    """
    width, height = track.size() or (1, 1)
    xy = (places - 0.5) * [1, track.aspect or height / width]
    if track.fov_deg is None or track.size() is None:
        return 100 * xy, "%"
    return np.degrees(np.arctan(xy * 2 * np.tan(np.radians(track.fov_deg / 2)))), "°"


def precision(own: Sequence[GazeTrack]) -> tuple[float, str]:
    """Return the median distance between one person's neighbouring samples, and its unit.

    The eye rests during most of them, so the median is that of gaze at rest; a mean, also a mean
    square over short stretches, would have the saccades in it, of which there are three a second.
    The result is NaN if there are fewer samples a second than `LEAST_HZ`.
    """
    steps, unit = [np.zeros(0)], ""
    for track in own:
        xy, unit = positions(track, track.places)
        valid, rate = track.gaze.valid, track.rate_hz
        near = valid[1:] & valid[:-1] & (np.diff(track.gaze.t_s) * rate < 1.5)
        if round(rate) >= LEAST_HZ:
            steps.append(np.linalg.norm(np.diff(xy, axis=0), axis=1)[near])
    return median(np.concatenate(steps)), unit


def fixations_of(track: GazeTrack, pymovements: Any) -> dict[str, Fixations]:
    """Return a track's fixations: the maker's, and those by pymovements unless it is None.

    I-VT is used for degrees and `LEAST_VT_HZ` or more, else I-DT; with fewer samples a second than
    `LEAST_HZ`, none. Gaze that is lost for more than `HOLE_S` ends a fixation. Within these bounds
    samples are taken to follow one another at even intervals, which the library needs.
    """
    gaze, rate = track.gaze, track.rate_hz
    if track.only_fixations:
        lengths = np.full(len(gaze), np.nan) if track.lengths_s is None else track.lengths_s
        return {MAKER: np.column_stack([gaze.t_s, lengths, track.places])}
    spans = {MAKER: [track.spans]}
    least = max(round(LEAST_S * rate), 2)
    seen = np.flatnonzero(gaze.valid)
    holes = np.flatnonzero(np.diff(gaze.t_s[seen]) > max(HOLE_S, 1.5 / max(rate, 1))) + 1
    xy, unit = positions(track, track.places)
    by_speed = unit == "°" and round(rate) >= LEAST_VT_HZ
    for part in np.split(seen, holes) if pymovements and round(rate) >= LEAST_HZ else ():
        # The speed of a sample comes from five samples.
        if len(part) < max(least, 5):
            continue
        if by_speed:
            speed = pymovements.transforms.numpy.pos2vel(xy[part], rate, "smooth")
            events = pymovements.events.ivt(speed, None, least, VELOCITY)
        else:
            events = pymovements.events.idt(xy[part], None, least, DISPERSION[unit])
        ends = events.frame.select("onset", "offset").to_numpy().astype(np.int64)
        spans.setdefault("I-VT" if by_speed else "I-DT", []).append(gaze.t_s[part[ends]])
    whole = {method: np.concatenate([p.reshape(-1, 2) for p in ps]) for method, ps in spans.items()}
    return {method: _placed(track, both) for method, both in whole.items() if len(both)}


def summaries(
    own: Sequence[GazeTrack], fixations: Sequence[Mapping[str, Fixations]]
) -> list[dict[str, Any]]:
    """Return summaries of the `fixations_of` one person's tracks, one for each method.

    They are the `method`, the number of `fixations`, their median `length_ms`, the number of
    `saccades`, and their median `distance` in `unit`. A saccade is a pair of fixations at most
    `NEXT_S` seconds apart.
    """
    out = []
    for method in dict.fromkeys(method for by_method in fixations for method in by_method):
        lengths, moves, unit = [np.zeros(0)], [np.zeros(0)], ""
        for track, by_method in zip(own, fixations, strict=True):
            start_s, length_s, *places = by_method.get(method, np.zeros((0, 4))).T
            xy, unit = positions(track, np.stack(places, 1))
            distance = np.linalg.norm(np.diff(xy, axis=0), axis=1)
            moves.append(distance[np.diff(start_s) - length_s[:-1] <= NEXT_S])
            lengths.append(1e3 * length_s)
        every, apart = np.concatenate(lengths), np.concatenate(moves)
        known = {"method": method, "fixations": len(every), "length_ms": median(every)}
        unit = unit if len(apart) else ""
        out.append(known | {"saccades": len(apart), "distance": median(apart), "unit": unit})
    return out


def _placed(track: GazeTrack, spans: NDArray[np.float64]) -> Fixations:
    """Return fixations with these starts and ends, at the mean place of their valid samples."""
    firsts, lasts = np.searchsorted(
        track.gaze.t_s, [spans[:, 0], np.nextafter(spans[:, 1], np.inf)]
    )
    # Sums up to each sample: their differences are the sums of the fixations.
    cells = np.column_stack([track.places, np.ones(len(track.gaze))]) * track.gaze.valid[:, None]
    sums = np.concatenate([np.zeros((1, 3)), np.nan_to_num(cells).cumsum(0)])
    x, y, count = (sums[lasts] - sums[firsts]).T
    with np.errstate(invalid="ignore"):
        return np.column_stack([spans[:, 0], np.diff(spans)[:, 0], x / count, y / count])
