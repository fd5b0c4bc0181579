"""The gaze record, its lookup by time, and the temporal split."""

import numpy as np
import pytest

from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.gaze_video.temporal_splits import (
    DROPPED,
    TEST,
    TRAIN,
    VAL,
    join_sessions,
    temporal_split,
)
from vergence.errors import ConfigError, DataError


def gaze(t, x=0.5, y=0.5, **more):
    t = np.asarray(t, float)
    return Gaze.build(
        "gaze.csv", t, np.broadcast_to(x, t.shape), np.broadcast_to(y, t.shape), **more
    )


def test_at_takes_the_nearest_sample_and_keeps_the_offset():
    """Samples at 0, 0.1, 0.2 s: 0.07 s is 30 ms before the second, 0.05 s ties: the first."""
    found = gaze([0, 0.1, 0.2], x=[0.1, 0.2, 0.3]).at([0.05, 0.07, 0.2], max_gap_ms=60)
    assert found.x.tolist() == [0.1, 0.2, 0.3]
    assert found.dt_ms == pytest.approx([-50, 30, 0])
    assert found.valid.all()


def test_frames_without_a_near_sample_are_untracked_also_before_the_first_and_after_the_last():
    found = gaze([1.0, 1.1]).at([0.9, 0.97, 1.05, 1.14, 1.15], max_gap_ms=40)
    assert found.valid.tolist() == [False, True, False, True, False]
    assert found.dt_ms == pytest.approx([100, 30, -50, -40, -50])
    assert (found.event[~found.valid] == Event.UNTRACKED).all()
    assert np.isnan(found.x[~found.valid]).all()


def test_lookup_in_no_samples_and_for_no_frames():
    assert not gaze([]).at([0.0, 1.0]).valid.any()
    assert len(gaze([0.0]).at([])) == 0


def test_own_offset_of_a_sample_counts():
    """A row at the frame's time whose eye image is 50 ms old is too old for a limit of 40 ms."""
    found = gaze([0.0, 0.1], dt_ms=[50.0, 1.0]).at([0.0, 0.1])
    assert found.valid.tolist() == [False, True]


def test_untracked_and_off_frame_samples():
    g = gaze([0, 1, 2], x=[np.nan, 1.2, 0.4], tracked=[False, True, True], event=Event.FIXATION)
    assert g.event.tolist() == [Event.UNTRACKED, Event.OUT_OF_RANGE, Event.FIXATION]
    assert g.valid.tolist() == [False, False, True]
    clipped = gaze([0, 1], x=[-0.1, 1.2], event=Event.FIXATION, out_of_range="clip")
    assert clipped.x.tolist() == [0.0, 1.0]
    assert clipped.valid.all()


def test_scored_leaves_out_saccades():
    g = gaze([0, 1, 2], event=[Event.FIXATION, Event.SACCADE, Event.UNKNOWN])
    assert g.scored.tolist() == [True, False, True]


def test_nan_is_no_gaze():
    found = gaze([0, 1, 2], x=[0.1, 0.2, np.nan])
    assert found.valid.tolist() == [True, True, False]
    assert found.event[2] == Event.UNTRACKED


def test_times_that_go_back_are_sorted_where_that_is_asked_for():
    assert gaze([0, 2, 1], x=[0.1, 0.2, 0.3], sort=True).x.tolist() == [0.1, 0.3, 0.2]


@pytest.mark.parametrize(("n", "stride"), [(60, 1.0), (600, 1.0), (500, 0.5), (3, 10.0)])
def test_split_keeps_the_order_the_shares_and_the_gap(n, stride):
    start = np.arange(n) * stride
    end = start + 0.75
    part = temporal_split("p", start, end)
    spans = [(start[part == k].min(), end[part == k].max()) for k in (TRAIN, VAL, TEST)]
    assert spans[1][0] - spans[0][1] >= 5
    assert spans[2][0] - spans[1][1] >= 5
    kept = part[part != DROPPED]
    if n >= 60:
        assert np.mean(kept == TRAIN) == pytest.approx(0.7, abs=0.02)
        assert np.mean(kept == VAL) == pytest.approx(0.15, abs=0.02)
    # Windows of 0.75 s starting every `stride` s: at most gap + 0.75 s of starts lost per cut.
    assert (part == DROPPED).sum() <= 2 * np.ceil(5.75 / stride)


def test_split_does_not_depend_on_the_order_of_windows():
    start = np.arange(80.0)
    shuffled = np.random.default_rng(1).permutation(80)
    part = temporal_split("p", start, start + 1)
    assert (
        temporal_split("p", start[shuffled], start[shuffled] + 1).tolist()
        == part[shuffled].tolist()
    )


def test_a_long_window_early_on_still_pushes_validation_back():
    """Window 0 lasts until 40 s: nothing that starts before 45 s may be in another part than it."""
    start = np.arange(100.0)
    end = start + 1
    end[0] = 40
    part = temporal_split("p", start, end)
    assert set(part[:45]) <= {TRAIN, DROPPED}


def test_split_with_too_few_clips_names_person_and_counts():
    with pytest.raises(DataError, match="person 'P07' has too few clips for the split: 4 windows"):
        temporal_split("P07", [0, 1, 2, 3], [1, 2, 3, 4])
    with pytest.raises(DataError, match="0 windows"):
        temporal_split("P07", [], [])


def test_split_refuses_a_short_gap():
    with pytest.raises(ConfigError, match=r"gap_s = 2 is too short"):
        temporal_split("p", np.arange(90.0), np.arange(90.0) + 1, gap_s=2)


def test_sessions_are_laid_behind_one_another():
    start, end = join_sessions(["b", "a", "a"], [100, 3, 5], [101, 4, 6], gap_s=5)
    assert start.tolist() == [8, 0, 2]
    assert end.tolist() == [9, 1, 3]
