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


def test_the_nearest_sample_by_a_search_through_all():
    """Ties go to the earlier sample; what counts is the eye's time, not the sample's."""
    rng = np.random.default_rng(2)
    t = np.sort(rng.integers(0, 200, 60)) / 10
    made = gaze(
        t,
        rng.random(60),
        rng.random(60),
        event=rng.integers(0, 2, 60),
        dt_ms=rng.uniform(-30, 30, 60),
        confidence=rng.random(60),
        source_frame=np.arange(60),
    )
    times = np.sort(np.concatenate([rng.uniform(-1, 21, 100), t + 0.05]))
    found = made.at(times, 60)
    gaps = np.abs(t[:, None] - times)
    for i, time in enumerate(times):
        near = np.flatnonzero(np.isclose(gaps[:, i], gaps[:, i].min(), atol=1e-9))
        pick = found.source_frame[i]
        assert pick in near
        dt = made.dt_ms[pick] + (t[pick] - time) * 1e3
        assert found.dt_ms[i] == pytest.approx(dt)
        assert found.valid[i] == (abs(dt) <= 60)
        if found.valid[i]:
            assert found.x[i] == made.x[pick]
            assert found.y[i] == made.y[pick]
            assert (found.event[i], found.confidence[i]) == (
                made.event[pick],
                made.confidence[pick],
            )
        else:
            assert np.isnan([found.x[i], found.y[i]]).all()
            assert (found.event[i], found.confidence[i]) == (Event.UNTRACKED, 0)
    assert 20 < found.valid.sum() < 180


def test_samples_at_the_edges_of_the_frame_and_beyond():
    x, y = [0, 1, -1e-9, 0.5, 0.5, 0.5], [1, 0, 0.5, 1 + 1e-9, -1e-9, np.nan]
    made = gaze(np.arange(6), x, y)
    assert made.valid.tolist() == [True, True, False, False, False, False]
    assert made.event.tolist() == [Event.UNKNOWN] * 2 + [Event.OUT_OF_RANGE] * 3 + [Event.UNTRACKED]
    assert np.isnan(made.x[5])
    clipped = gaze(np.arange(6), x, y, out_of_range="clip")
    assert clipped.valid.tolist() == [True] * 5 + [False]
    assert clipped.y[2:5].tolist() == [0.5, 1, 0]
    assert (clipped.event[:5] == Event.UNKNOWN).all()
    lost = gaze([0, 1], [np.inf, 0.5], tracked=[False, True])
    assert np.isnan(lost.x[0])
    assert np.isnan(lost.y[0])


def test_some_samples_on_another_clock():
    made = gaze([1, 2, 4], x=[0.1, 0.2, 0.3], source_frame=[7, 8, 9], dt_ms=[1, 2, 3])
    some = made.select(np.array([True, False, True]), 1.5)
    assert some.t_s.tolist() == [-0.5, 2.5]
    assert (some.x.tolist(), some.source_frame.tolist()) == ([0.1, 0.3], [7, 9])
    assert (some.dt_ms.tolist(), some.source) == ([1, 3], "gaze.csv")
    assert made.t_s.tolist() == [1, 2, 4]


@pytest.mark.parametrize(
    ("t", "said"),
    [([0, np.nan, np.inf], "sample 2: the time is not"), ([0, 2, 1, 0], "sample 3: the time goes")],
)
def test_the_first_wrong_time_is_named(t, said):
    with pytest.raises(DataError, match=said):
        gaze(t)
    assert len(gaze([1, 1, 1])) == 3


def test_the_first_infinite_place_is_named():
    with pytest.raises(DataError, match=r"gaze.csv: sample 2: its place is infinite"):
        gaze(np.arange(4), y=[0.5, np.inf, np.inf, 0.5])
    with pytest.raises(DataError, match="sample 3"):
        gaze(np.arange(4), x=[np.inf, 0.5, np.inf, 0.5], tracked=[False, True, True, True])
