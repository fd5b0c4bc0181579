"""Quality of people's gaze recordings: minutes, samples, fraction of valid gaze, gaps.

Used by `cli.data_import`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.recording import Recording
from vergence.data.saliency.stimuli import StimulusTrial

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
    """

    person: str
    minutes: float
    samples: int
    valid: float
    outside: float
    gaps: int
    longest_gap_s: float
    recordings: int


def recording_quality(recordings: Sequence[Recording]) -> list[GazeQuality]:
    """Return each person's gaze quality over their recordings, for `vergence data import`."""
    return _by_person(
        (r.person, r.gaze.t_s, r.gaze.valid, r.gaze.event == Event.OUT_OF_RANGE) for r in recordings
    )


def trial_quality(trials: Sequence[StimulusTrial]) -> list[GazeQuality]:
    """Return each person's gaze quality over their trials, for `vergence data import`."""
    return _by_person(
        (t.person, t.rows.seconds(), t.shown, t.rows.valid & ~t.shown) for t in trials
    )


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


def _by_person(
    parts: Iterable[tuple[str, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]],
) -> list[GazeQuality]:
    by_person: dict[str, list[tuple[NDArray, NDArray, NDArray]]] = {}
    for person, *arrays in parts:
        by_person.setdefault(person, []).append((arrays[0], arrays[1], arrays[2]))
    out = []
    for person, own in sorted(by_person.items()):
        lengths = [float(t[-1] - t[0]) if len(t) else 0.0 for t, _, _ in own]
        samples = sum(len(t) for t, _, _ in own)
        gaps = np.concatenate([_gaps(t, shown) for t, shown, _ in own])
        valid, outside = (sum(int(part[i].sum()) for part in own) / max(samples, 1) for i in (1, 2))
        longest = float(gaps.max()) if len(gaps) else 0.0
        out.append(
            GazeQuality(
                person, sum(lengths) / 60, samples, valid, outside, len(gaps), longest, len(own)
            )
        )
    return out


def _gaps(t: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not len(t):
        return np.zeros(0)
    # First and last sample count as edges: a recording may begin or end without valid gaze.
    edges = np.concatenate([t[:1], t[valid], t[-1:]])
    between = np.diff(edges)
    return between[between > GAP_S]
