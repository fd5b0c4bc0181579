"""Quality of people's gaze recordings: minutes, samples, share of valid gaze, gaps.

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
"""Seconds without a valid sample from which there is a gap."""

MUCH_OUTSIDE = 0.3
"""Share of gaze outside the picture above which the user should check the settings."""
SETTINGS = {
    "gaze_table": "columns.unit, origin and scene_size",
    "stimuli": "columns.unit, screen and place",
}
"""Settings that decide where gaze lies, for data sets in which the user sets them."""
FEW_TEST = 10
"""Number of test samples below which scores cannot distinguish methods."""


@dataclass(frozen=True)
class GazeQuality:
    """Quality of one person's gaze in all recordings, or on all stimuli.

    Attributes:
        minutes: time from first to last sample, summed over recordings.
        samples: number of samples.
        valid: share of samples that were tracked and lie on the picture.
        outside: share of samples that were tracked and lie outside the picture.
        gaps: number of stretches without a valid sample of more than `GAP_S`.
        longest_gap_s: length of the longest gap.
        recordings: number of recordings, or of trials.
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
    """Return the quality of each person's recordings. `vergence data import` prints it."""
    return _by_person(
        (r.person, r.gaze.t_s, r.gaze.valid, r.gaze.event == Event.OUT_OF_RANGE) for r in recordings
    )


def trial_quality(trials: Sequence[StimulusTrial]) -> list[GazeQuality]:
    """Return the quality of each person's trials. `vergence data import` prints it."""
    return _by_person(
        (t.person, t.rows.seconds(), t.shown, t.rows.valid & ~t.shown) for t in trials
    )


def outside_notes(people: Sequence[GazeQuality], data: str) -> list[str]:
    """Return a note on each person with much gaze outside the picture.

    `vergence data import` prints it.
    """
    where = SETTINGS.get(data, "the tracker's calibration")
    return [
        f"{p.outside:.0%} of {p.person}'s gaze lies outside the picture: are {where} right?"
        for p in people
        if p.outside > MUCH_OUTSIDE
    ]


def few_notes(sizes: Mapping[str, tuple[int, int, int]], data: str) -> list[str]:
    """Return a warning of people with few test samples; `sizes` are those of their parts.

    `vergence data import` prints it.
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
