"""Quality of gaze per person: computed by hand, with limits on both sides."""

import numpy as np
import pytest

from vergence.data.gaze_quality import (
    GazeQuality,
    few_notes,
    offsets,
    outside_notes,
    quality_of_people,
)
from vergence.data.gaze_tracks import GazeTrack
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
    ann, bob, cat = quality_of_people(GazeTrack(**vars(r)) for r in (lost, first, none, second))
    # Steps of ann: three of .5 s, one of 1 s, then .5 and .5 s: 2 Hz. Valid x: .5 .5 .5 .1 .2.
    assert ann == GazeQuality("ann", 3.5 / 60, 8, 5 / 8, 2 / 8, 2, 1.5, 2, 2.0, (0.5, 0.5))
    assert bob == GazeQuality("bob", 0.0, 0, 0.0, 0.0, 0, 0.0, 1)
    third = pytest.approx(1 / 3)
    assert cat == GazeQuality("cat", 3 / 60, 3, 0.0, third, 1, 3.0, 1, pytest.approx(2 / 3))


def track(person, picture, x, y, **options):
    """Gaze on one picture at 4 Hz; NaN is lost."""
    gaze = Gaze.build("g", np.arange(len(x)) / 4, x, y)
    return GazeTrack(picture, person, gaze, picture=np.zeros((4, 4, 3), np.uint8), **options)


def test_samples_that_are_fixations_have_no_sampling_rate():
    samples = track(
        "p", "a", [0.1, 0.2, 0.3], [0.5, 0.5, 0.5], fixations=np.array([[0, 0.25], [0.5, 0.5]])
    )
    fixations = track(
        "p",
        "a",
        [0.1, 0.2, 0.3],
        [0.5, 0.5, 0.5],
        fixations=np.array([[t, t] for t in (0, 0.25, 0.5)]),
    )
    assert quality_of_people([samples])[0].rate_hz == 4
    assert np.isnan(quality_of_people([fixations])[0].rate_hz)


def test_an_offset_is_the_distance_to_the_others_on_pictures_that_both_saw():
    """On picture a: ann (.3, .5), bob (.1, .5), cat (.3, .2); on b ann (.6, .1), cat (.2, .1).

    Of ann: (.3, .5) - (.2, .35) = (.1, .15) and (.4, 0), mean (.25, .075). Only bob saw c.
    """
    nan = np.nan
    tracks = [
        track("ann", "a", [0.2, 0.4, nan], [0.4, 0.6, nan]),
        track("bob", "a", [0.1], [0.5]),
        track("cat", "a", [0.3], [0.2]),
        track("ann", "b", [0.6], [0.1]),
        track("cat", "b", [0.2], [0.1]),
        track("bob", "c", [0.9], [0.9]),
    ]
    apart = offsets(tracks)
    assert apart["ann"] == pytest.approx((0.25, 0.075, 2))
    assert apart["bob"] == pytest.approx((-0.2, 0.15, 1))
    assert offsets(tracks[-1:]) == {}


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
