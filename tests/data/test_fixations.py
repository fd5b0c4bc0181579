"""Fixations of the maker and of pymovements, and precision, of gaze that is made by hand."""

import numpy as np
import pytest

from tests.conftest import research_data
from vergence.data.fixations import MAKER, fixations_of, positions, precision, summaries
from vergence.data.gaze_tracks import GazeTrack
from vergence.data.gaze_video import pupil
from vergence.data.gaze_video.gaze import Event, Gaze, fixation_spans

WIDE = np.zeros((50, 100, 3), np.uint8)
"""A picture twice as wide as high."""


def track(x, y, hz=100.0, t=None, event=Event.UNKNOWN, **options):
    t = np.arange(len(x)) / hz if t is None else t
    gaze = Gaze.build("g", t, x, y, event=event)
    return GazeTrack("a.png", "ann", gaze, **{"picture": WIDE, **options})


def steps(*places, samples=40):
    """Gaze that stays at each place for 40 samples, within a tenth of a per cent."""
    x = np.repeat(places, samples) + np.tile([0, 0.001], len(places) * samples // 2)
    return x, np.full(len(x), 0.5)


def test_spans_by_the_files_numbers_and_by_events():
    """Numbers 1 1 - 2 2 2 (the fourth is lost) are two fixations, whatever lies between."""
    nan, t = np.nan, np.arange(6.0)
    unknown, tracked = np.full(6, Event.UNKNOWN), np.array([1, 1, 1, 0, 1, 1], bool)
    spans = fixation_spans(t, unknown, tracked, np.array([1, 1, nan, 2, 2, 2]))
    assert spans.tolist() == [[0, 1], [4, 5]]
    beside = fixation_spans(t, unknown, tracked, np.array([1, 1, 2, 2, 2, 2]))
    assert beside.tolist() == [[0, 1], [2, 5]]
    none = np.full(6, nan)
    fix, saccade = Event.FIXATION, Event.SACCADE
    events = np.array([fix, fix, saccade, fix, fix, fix])
    times = np.array([0.0, 0.02, 0.04, 0.06, 0.08, 0.3])
    by_event = fixation_spans(times, events, np.ones(6, bool), none)
    # A saccade ends a fixation, and so does a hole of more than 75 ms.
    assert by_event.tolist() == [[0, 0.02], [0.06, 0.08], [0.3, 0.3]]
    assert fixation_spans(t, unknown, tracked, none).shape == (0, 2)


def test_positions_have_one_unit_on_both_sides():
    """A pinhole of 90 degrees: the right edge is at 45, half of the height at atan(1/2)."""
    corners = np.array([[0.5, 0.5], [1.0, 1.0]])
    xy, unit = positions(track([0.5], [0.5]), corners)
    assert (xy.tolist(), unit) == ([[0, 0], [50, 25]], "%")
    xy, unit = positions(track([0.5], [0.5], fov_deg=90.0), corners)
    assert xy == pytest.approx(np.array([[0, 0], [45, np.degrees(np.arctan(0.5))]]))
    assert unit == "°"
    # Without a picture, the ratio of its sides is not known: no degrees are invented.
    xy, unit = positions(track([0.5], [0.5], fov_deg=90.0, picture=None), corners)
    assert (xy.tolist(), unit) == ([[0, 0], [50, 50]], "%")


def test_precision_by_hand():
    """Steps of .1 % of the width, and one of 40 % in ten, as of four saccades a second at 40 Hz."""
    ann = track(*steps(*[0.2, 0.6] * 20, samples=10), hz=40.0)
    assert precision([ann]) == (pytest.approx(0.1), "%")
    # y counts in widths, too: .002 of the height is .1 % of the width.
    y = 0.5 + np.tile([0, 0.002], 60)
    assert precision([track(np.full(120, 0.5), y)]) == (pytest.approx(0.1), "%")
    assert np.isnan(precision([track(*steps(0.2), hz=19.0)])[0])
    lost = np.where(np.arange(40) % 2, np.nan, 0.5)
    assert np.isnan(precision([track(lost, lost)])[0])


def test_the_makers_fixations():
    """Spans of .1 and .2 s at (.1, .5) and (.3, .5); the third has no valid gaze, so no place."""
    x = np.repeat([0.1, 0.3, np.nan], 10)
    spans = np.array([[0.0, 0.1], [0.1, 0.3], [0.25, 0.29]])
    ann = track(x, np.where(np.isnan(x), np.nan, 0.5), t=np.arange(30) / 100, fixations=spans)
    found = fixations_of(ann, None)[MAKER]
    assert found[:, :2] == pytest.approx(np.array([[0, 0.1], [0.1, 0.2], [0.25, 0.04]]))
    # The first span ends with the first sample at .3: (10 * .1 + .3) / 11.
    assert found[:, 2] == pytest.approx([1.3 / 11, 0.3, np.nan], nan_ok=True)
    (summary,) = summaries([ann], [{MAKER: found}])
    assert (summary["fixations"], summary["length_ms"]) == (3, pytest.approx(100))
    assert fixations_of(track(*steps(0.2)), None) == {}


def test_samples_that_are_fixations_have_the_lengths_of_the_files():
    own = track([0.1, 0.4], [0.5, 0.5], t=np.zeros(2), lengths_s=np.array([0.2, 0.4]))
    (summary,) = summaries([own], [fixations_of(own, None)])
    assert summary == {
        "method": MAKER,
        "fixations": 2,
        "length_ms": pytest.approx(300),
        "saccades": 1,
        "distance": pytest.approx(30),
        "unit": "%",
    }
    rows = track([0.1, 0.4], [0.5, 0.5], fixations=np.array([[0, 0], [0.01, 0.01]]))
    assert np.isnan(summaries([rows], [fixations_of(rows, None)])[0]["length_ms"])


@pytest.fixture
def pymovements():
    return pytest.importorskip("pymovements", reason="needs the extra look")


def test_dispersion_finds_the_places_where_gaze_stays(pymovements):
    """Three places of .4 s, 40 % of the width apart; the library's spans may be a sample longer."""
    ann = track(*steps(0.2, 0.6, 0.2))
    found = fixations_of(ann, pymovements)
    assert list(found) == ["I-DT"]
    assert found["I-DT"][:, 2] == pytest.approx([0.2, 0.6, 0.2], abs=0.02)
    (summary,) = summaries([ann], [found])
    assert summary["fixations"] == 3
    assert summary["length_ms"] == pytest.approx(395, abs=15)
    assert (summary["saccades"], summary["unit"]) == (2, "%")
    assert summary["distance"] == pytest.approx(40, abs=1.5)


def test_velocity_is_used_where_degrees_are_known(pymovements):
    """At 90 degrees, .2 and .6 of the width are -31 and 11.3 degrees: 42.3 apart."""
    ann = track(*steps(0.2, 0.6, 0.2), fov_deg=90.0)
    found = fixations_of(ann, pymovements)
    assert list(found) == ["I-VT"]
    (summary,) = summaries([ann], [found])
    assert (summary["fixations"], summary["unit"]) == (3, "°")
    assert summary["distance"] == pytest.approx(42.3, abs=0.5)
    slow = track(*steps(0.2, 0.6, 0.2), hz=40.0, fov_deg=90.0)
    assert list(fixations_of(slow, pymovements)) == ["I-DT"]


@pytest.mark.data
def test_the_librarys_fixations_are_as_many_as_the_makers(pymovements):
    """Of a recording of Pupil Invisible, seen at the angle that its camera's file states."""
    recording = pupil.read(research_data("pupil") / "invisible_cloud")[0]
    shown = np.zeros((1080, 1088, 3), np.uint8)
    ann = GazeTrack(**{**vars(recording), "picture": shown})
    own, other = summaries([ann], [fixations_of(ann, pymovements)])
    assert (own["method"], other["method"]) == (MAKER, "I-VT")
    assert own["fixations"] == other["fixations"] == 17
    assert own["length_ms"] == pytest.approx(1180, abs=1)
    assert other["length_ms"] == pytest.approx(own["length_ms"], rel=0.15)


def test_lost_gaze_ends_a_fixation_and_few_samples_have_none(pymovements):
    x, y = steps(0.3)
    t = np.arange(40) / 100
    ann = track(x, y, t=t + 0.2 * (np.arange(40) >= 20))
    assert len(fixations_of(ann, pymovements)["I-DT"]) == 2
    blink = track(x, y, t=t + 0.05 * (np.arange(40) >= 20))
    assert len(fixations_of(blink, pymovements)["I-DT"]) == 1
    assert fixations_of(track(x, y, hz=19.0), pymovements) == {}
