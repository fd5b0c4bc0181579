"""Ego4D gaze: CSV with its bottom-left origin, clip and interval lists, loading."""

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.footage import write_csv, write_video
from vergence.data import ego4d
from vergence.data.ego4d import Clip, Ego4d
from vergence.data.gaze import Event
from vergence.errors import DataError

UID = "0d271871-c8ba-4249-9434-d39ce0060e58"
HEADER = (
    "component_idx,component_timestamp_s,canonical_timestamp_s,world_index,confidence,norm_pos_x,"
    "norm_pos_y,base_data"
)


def gaze_csv(path, rows):
    """Rows (canonical time, confidence, x, y from the bottom)."""
    return write_csv(path, HEADER, [(0, t, t, int(t * 30), c, x, y, None) for t, c, x, y in rows])


def still(seconds, hz=100):
    return [(i / hz, 1.0, 0.25, 0.75) for i in range(round(seconds * hz))]


def test_origin_time_and_confidence(tmp_path):
    rows = [(0.0, 1.0, 0.25, 0.9), (0.005, 0.0, "", ""), (0.010, 1.0, 0.25, 1.1)]
    gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
    assert gaze.y[0] == pytest.approx(0.1)
    assert gaze.event.tolist() == [Event.FIXATION, Event.UNTRACKED, Event.OUT_OF_RANGE]
    assert gaze.t_s.tolist() == [0.0, 0.005, 0.010]


def test_saccade_is_more_than_40_px_within_a_frame(tmp_path):
    """At 100 Hz from x 0.2: 30 px (0.0276) keeps the fixation, 60 px (0.0551) is a saccade.

    It lasts until the place 1/30 s before (3 samples back) is the new one.
    """
    for px, saccades in ((30, 0), (60, 3)):
        xs = [0.2] * 10 + [0.2 + px / 1088] * 10
        rows = [(i / 100, 1.0, x, 0.5) for i, x in enumerate(xs)]
        gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", rows))
        assert np.flatnonzero(gaze.event == Event.SACCADE).tolist() == list(
            range(10, 10 + saccades)
        )


def test_untracked_intervals(tmp_path):
    gaze = ego4d.read_gaze(gaze_csv(tmp_path / "g.csv", still(3)), [(1.0, 2.0)])
    away = (gaze.t_s >= 1) & (gaze.t_s <= 2)
    assert (gaze.event[away] == Event.UNTRACKED).all()
    assert gaze.valid[~away].all()


def test_bad_gaze(tmp_path):
    path = gaze_csv(tmp_path / "g.csv", [(0.0, 1.0, 0.5, 0.5), (0.1, 1.0, "nan", 0.5)])
    with pytest.raises(DataError, match=r"g\.csv: row 3: gaze is NaN"):
        ego4d.read_gaze(path)
    write_csv(path, "timestamp,x,y", [(0, 1, 1)])
    with pytest.raises(DataError, match="missing columns canonical_timestamp_s, confidence"):
        ego4d.read_gaze(path)


@pytest.mark.data
def test_official_lists():
    """egovideo note 3.2: 15,310 clips of 20 videos, 5202 of 7 others, 73 intervals of 3158 s."""
    root = research_data("ego4d")
    train = ego4d.read_clip_list(root / "train_ego4d_gaze.csv")
    test = ego4d.read_clip_list(root / "test_ego4d_gaze.csv")
    assert (len(train), len(test)) == (15_310, 5202)
    videos = {c.video for c in train}, {c.video for c in test}
    assert (len(videos[0]), len(videos[1]), len(videos[0] & videos[1])) == (20, 7, 0)
    assert {c.end_s - c.start_s for c in train + test} == {5}
    spans = [s for row in ego4d.read_untracked(root / ego4d.UNTRACKED_LIST).values() for s in row]
    assert (len(spans), sum(b - a for a, b in spans)) == (73, 3158)


@pytest.mark.data
def test_check_of_lists_without_videos():
    found = {c.what: c for c in ego4d.check(research_data("ego4d"))}
    assert found["clips in train_ego4d_gaze.csv"].ok
    assert found["videos in test_ego4d_gaze.csv"].ok
    assert found["untracked seconds"].ok
    assert not found["videos"].ok
    assert "ego4d-data.org" in found["gaze files"].hint


def test_clip_names_and_damaged_intervals(tmp_path):
    clip = Clip.parse(f"{UID}/{UID}_t1005_t1010.mp4")
    assert (clip.video, clip.start_s, clip.end_s) == (UID, 1005, 1010)
    with pytest.raises(DataError, match="not an Ego4D gaze clip name"):
        Clip.parse("a_t0_t5.mp4")
    path = write_csv(tmp_path / "u.csv", f"{UID},00:00:01,00:00:02,1", [(UID, "00:00:01", "x", 1)])
    with pytest.raises(DataError, match=r"u\.csv: row 2 is not video"):
        ego4d.read_untracked(path)


def test_load_whole_videos(tmp_path):
    write_video(tmp_path / "full_scale.gaze" / f"{UID}.mp4", np.arange(600) / 10, (32, 32))
    gaze_csv(tmp_path / "gaze" / f"{UID}.csv", still(60))
    data = Ego4d(size=(16, 16)).load(str(tmp_path))
    assert data.clients == (UID,)
    points = data.people[UID].train.columns["points"].numpy()
    assert points[..., 1] == pytest.approx(np.full(points.shape[:3], 0.25))
    assert data.about["untracked"] == "no ego4d_gaze_untracked.csv"


def test_clips_take_their_time_of_the_video(tmp_path):
    """Gaze x = t / 60: the clip t5_t10 begins at x = 5/60 and both clips share one session."""
    for start in (0, 5):
        name = f"{UID}_t{start}_t{start + 5}.mp4"
        write_video(tmp_path / "clips.gaze" / UID / name, np.arange(50) / 10, (32, 32))
    rows = [(i / 100, 1.0, i / 6000, 0.5) for i in range(1100)]
    gaze_csv(tmp_path / "gaze" / f"{UID}.csv", rows)
    first, second = ego4d.recordings(tmp_path)
    gaze = second.gaze_per_frame(second.footage())
    assert gaze.x[:3] == pytest.approx([5 / 60, 5.1 / 60, 5.2 / 60])
    assert (first.session, second.session, second.start_s) == (UID, UID, 5.0)


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"name its folder as root; .*signed licence"):
        Ego4d().load()
    with pytest.raises(DataError, match=r"no videos or gaze in .*ego4d-data\.org"):
        Ego4d().load(str(tmp_path))
    path = gaze_csv(tmp_path / "gaze" / f"{UID}.csv", still(1))
    with pytest.raises(DataError, match="is gaze without video"):
        Ego4d().load(str(tmp_path))
    path.unlink()
    write_video(tmp_path / "full_scale.gaze" / f"{UID}.mp4", np.arange(10) / 10)
    with pytest.raises(DataError, match="is video without gaze"):
        Ego4d().load(str(tmp_path))
