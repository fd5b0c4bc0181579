"""Quality of people's gaze recordings: minutes, valid gaze, gaps, sampling rate, offset, precision.

Used by `cli.data_import`, `cli.data_look` and `reports.data_look`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vergence.core.naming import by_key
from vergence.data.gaze_tracks import GazeTrack
from vergence.data.gaze_video.gaze import Event

GAP_S = 0.5
"""A stretch of more than this many seconds without a valid sample counts as a gap."""

MUCH_OUTSIDE = 0.3
"""Fraction of a person's gaze outside the picture above which the user gets a note."""
SETTINGS = {
    "gaze_table": "columns.unit, origin and scene_size",
    "stimuli": "columns.unit, screen and place",
}
"""Data set -> options that decide where gaze lies; notes on gaze outside pictures name them."""
FEW_TEST = 10
"""If a person has fewer test samples than this, scores cannot distinguish methods."""


@dataclass(frozen=True)
class GazeQuality:
    """Quality of one person's gaze, over all of the person's recordings or trials.

    Attributes:
        minutes: time from first to last sample, summed over recordings.
        samples: number of samples.
        valid: fraction of samples that were tracked and lie on the picture.
        outside: fraction of samples that were tracked and lie outside the picture.
        gaps: number of stretches of more than `GAP_S` without a valid sample.
        longest_gap_s: length of the longest gap in seconds; 0 without gaps.
        recordings: number of recordings, or of trials on stimuli.
        rate_hz: samples per second, from the median time between samples; NaN if there are no
            times, or samples are whole fixations.
        middle: median place (x, y) of valid gaze, fractions of the picture from its top-left
            corner.
    """

    person: str
    minutes: float
    samples: int
    valid: float
    outside: float
    gaps: int
    longest_gap_s: float
    recordings: int
    rate_hz: float = np.nan
    middle: tuple[float, float] = (np.nan, np.nan)


def quality_of_people(tracks: Iterable[GazeTrack]) -> list[GazeQuality]:
    """Return each person's gaze quality over all of the person's tracks, sorted by names."""
    return [quality(own) for _, own in sorted(by_key((t.person, t) for t in tracks).items())]


def quality(tracks: Sequence[GazeTrack]) -> GazeQuality:
    """Return the gaze quality over tracks of one person."""
    every = [track.gaze for track in tracks]
    samples = max(sum(map(len, every)), 1)
    # Published fixations have no clock.
    timed = all(track.lengths_s is None for track in tracks)
    seconds = sum(float(np.ptp(g.t_s)) for g in every if len(g)) if timed else np.nan
    lost = np.concatenate([gaps(g.t_s, g.valid)[1] for g in every])
    places = np.concatenate([track.places[track.gaze.valid] for track in tracks])
    outside = sum(int((g.event == Event.OUT_OF_RANGE).sum()) for g in every)
    return GazeQuality(
        *(tracks[0].person, seconds / 60, sum(map(len, every)), len(places) / samples),
        *(outside / samples, len(lost), float(lost.max(initial=0.0)), len(tracks)),
        rate_hz=median(np.array([track.rate_hz or np.nan for track in tracks])),
        middle=(median(places[:, 0]), median(places[:, 1])),
    )


def offsets(tracks: Sequence[GazeTrack]) -> dict[str, tuple[float, float, int]]:
    """Return how far each person's gaze lies from that of the others on the same pictures.

    A picture's offset is the mean place of the person's gaze on it, minus the mean of the other
    people's mean places. A person's offset is the mean over the pictures that others saw, too.

    Returns:
        For each person with such pictures: the offset to the right and down as fractions of the
        picture, and the number of pictures.
    """
    rows = [
        (track.key, track.person, *track.places[track.gaze.valid].mean(0))
        for track in tracks
        if track.picture is not None and track.gaze.valid.any()
    ]
    frame: Any = pd.DataFrame(rows, columns=["picture", "person", "x", "y"])
    means = frame.groupby(["picture", "person"])[["x", "y"]].mean()
    same = means.groupby("picture")
    # Of a picture that one person saw, this is 0 / 0, which is no number.
    others = (same.transform("sum") - means) / (same.transform("count") - 1)
    apart = (means - others).dropna().groupby("person").agg(["mean", "count"])
    return {str(p): (x, y, int(n)) for p, x, n, y, _ in apart.itertuples()}


def outside_notes(people: Sequence[GazeQuality], data: str) -> list[str]:
    """Return a note on each person with much gaze outside the picture, for `vergence data import`.

    `data` is the name of the data set.
    """
    where = SETTINGS.get(data, "the tracker's calibration")
    return [
        f"{p.outside:.0%} of {p.person}'s gaze lies outside the picture: are {where} right?"
        for p in people
        if p.outside > MUCH_OUTSIDE
    ]


def few_notes(sizes: Mapping[str, tuple[int, int, int]], data: str) -> list[str]:
    """Return a list with one warning if people have few test samples, for `vergence data import`.

    `sizes` holds each person's numbers of samples for training, validation and test. `data` is the
    name of the data set. Without such people the list is empty.
    """
    more = "show more stimuli" if data == "stimuli" else "record minutes per person, not seconds"
    few = [f"{person} {test}" for person, (_, _, test) in sizes.items() if test < FEW_TEST]
    if not few:
        return []
    return [
        f"fewer than {FEW_TEST} test samples ({', '.join(few)}): scores of so few say little; "
        f"{more}"
    ]


def gaps(
    t: NDArray[np.float64], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the starts and lengths of gaps in seconds, of samples at times `t`."""
    # First and last sample count as edges: a recording may begin or end without valid gaze.
    edges = np.concatenate([t[:1], t[valid], t[-1:]])
    between = np.diff(edges)
    return edges[:-1][between > GAP_S], between[between > GAP_S]


def median(values: NDArray[np.float64]) -> float:
    """Return the median of the numbers among values; NaN if there are none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan
