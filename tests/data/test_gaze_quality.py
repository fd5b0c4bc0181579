"""Quality of gaze per person: computed by hand, with limits on both sides."""

from types import SimpleNamespace

import numpy as np
import pytest

from vergence.data.gaze_quality import (
    GazeQuality,
    few_notes,
    outside_notes,
    recording_quality,
    trial_quality,
)
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.gaze_video.recording import Recording


def recording(person, t, x):
    """Gaze at x; NaN is lost, and a place beyond 1 is outside."""
    return Recording("r", person, Gaze.build("g", t, x, np.full(len(t), 0.5)))


def test_minutes_shares_and_gaps_of_each_person():
    """Of ann, 0 to 3 s (gaps 0 to 1, 1 to 2.5) and 10 to 10.5 s (none: half a second is no gap)."""
    nan = np.nan
    first = recording("ann", [0.0, 0.5, 1.0, 1.5, 2.5, 3.0], [nan, 1.5, 0.5, 2.0, 0.5, 0.5])
    second = recording("ann", [10.0, 10.5], [0.1, 0.2])
    none = recording("bob", [], [])
    lost = recording("cat", [5.0, 6.0, 8.0], [nan, nan, 3.0])
    ann, bob, cat = recording_quality([lost, first, none, second])
    assert ann == GazeQuality("ann", 3.5 / 60, 8, 5 / 8, 2 / 8, 2, 1.5, 2)
    assert bob == GazeQuality("bob", 0.0, 0, 0.0, 0.0, 0, 0.0, 1)
    assert cat == GazeQuality("cat", 3 / 60, 3, 0.0, pytest.approx(1 / 3), 1, 3.0, 1)


def test_trials_count_what_is_valid_and_not_shown_as_outside():
    rows = SimpleNamespace(
        seconds=lambda: np.array([0.0, 0.25, 0.75, 1.5]), valid=np.array([True, True, True, False])
    )
    trial = SimpleNamespace(person="p", rows=rows, shown=np.array([True, False, True, False]))
    assert trial_quality([trial, trial]) == [GazeQuality("p", 3 / 60, 8, 0.5, 0.25, 4, 0.75, 2)]


def quality(person, outside):
    return GazeQuality(person, 1.0, 10, 0.5, outside, 0, 0.0, 1)


def test_notes_on_gaze_outside_begin_above_three_tenths():
    people = [quality("ann", 0.3), quality("bob", 0.301), quality("cat", 1.0)]
    notes = outside_notes(people, "stimuli")
    assert [note.split(" of ")[:2] for note in notes] == [
        ["30%", notes[0].split(" of ")[1]],
        ["100%", notes[1].split(" of ")[1]],
    ]
    assert "bob" in notes[0]
    assert "columns.unit, screen and place" in notes[0]
    assert "columns.unit, origin and scene_size" in outside_notes(people, "gaze_table")[0]
    assert "the tracker's calibration" in outside_notes(people, "pupil")[0]


def test_notes_on_few_test_samples_begin_below_ten():
    sizes = {"ann": (99, 99, 10), "bob": (99, 99, 9), "cat": (0, 0, 0)}
    (note,) = few_notes(sizes, "stimuli")
    assert note.startswith("fewer than 10 test samples (bob 9, cat 0)")
    assert "show more stimuli" in note
    assert "record minutes" in few_notes(sizes, "pupil")[0]
    assert few_notes({"ann": (0, 0, 10)}, "pupil") == []
