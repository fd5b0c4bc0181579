"""Quality of people's gaze recordings: minutes, samples, valid share, gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.recording import Recording
from vergence.data.saliency.stimuli import StimulusTrial

GAP_S = 0.5
"""A gap: no valid sample for longer than this."""


@dataclass(frozen=True)
class GazeQuality:
    """The gaze of one person in all their recordings, or on all stimuli.

    Attributes:
        minutes: from first to last sample, summed over recordings.
        samples: how many there are.
        valid: the share that lies on the picture and was tracked.
        outside: the share that was tracked and lies outside the picture.
        gaps: stretches without a valid sample of more than `GAP_S`.
        longest_gap_s: the longest of them.
        recordings: how many recordings, or trials.
    """

    person: str
    minutes: float
    samples: int
    valid: float
    outside: float
    gaps: int
    longest_gap_s: float
    recordings: int


def of_recordings(recordings: Sequence[Recording]) -> list[GazeQuality]:
    """The quality of everybody's recordings, by person."""
    return _by_person(
        (r.person, r.gaze.t_s, r.gaze.valid, r.gaze.event == Event.OUT_OF_RANGE) for r in recordings
    )


def of_trials(trials: Sequence[StimulusTrial]) -> list[GazeQuality]:
    """The quality of everybody's trials, by person."""
    return _by_person(
        (t.person, t.rows.seconds(), t.shown, t.rows.valid & ~t.shown) for t in trials
    )


def _by_person(
    parts: Iterable[tuple[str, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]],
) -> list[GazeQuality]:
    held: dict[str, list[tuple[NDArray, NDArray, NDArray]]] = {}
    for person, *arrays in parts:
        held.setdefault(person, []).append((arrays[0], arrays[1], arrays[2]))
    out = []
    for person, own in sorted(held.items()):
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
    edges = np.concatenate([t[:1], t[valid], t[-1:]])
    between = np.diff(edges)
    return between[between > GAP_S]
