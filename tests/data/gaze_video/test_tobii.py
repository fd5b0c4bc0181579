"""Tobii Glasses 2: the real livedata, its clock, and bad input."""

import gzip
import json

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.footage import write_video
from vergence.data.gaze_video import tobii
from vergence.data.gaze_video.tobii import Tobii
from vergence.errors import DataError


def live(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(json.dumps(e) for e in entries).encode()))
    return path


@pytest.mark.data
def test_stream_statistics():
    """965 gp lines, 960 with status 0; mean 0.4114, 0.4115, SD 0.0664, 0.0695; 50 Hz."""
    gaze = tobii.read(research_data("tobii") / "glasses2").gaze
    assert len(gaze) == 965
    assert int(gaze.valid.sum()) == 960
    assert np.nanmean(gaze.x) == pytest.approx(0.4114, abs=1e-4)
    assert np.nanmean(gaze.y) == pytest.approx(0.4115, abs=1e-4)
    assert np.nanstd(gaze.x) == pytest.approx(0.0664, abs=1e-4)
    assert np.nanstd(gaze.y) == pytest.approx(0.0695, abs=1e-4)
    assert np.median(np.diff(gaze.t_s)) == pytest.approx(0.02, abs=1e-4)


@pytest.mark.data
def test_video_clock():
    """The first vts line pairs ts 85374512 with 0: gaze at ts 84415010 is 0.959502 s before it."""
    gaze = tobii.read(research_data("tobii") / "glasses2").gaze
    assert gaze.t_s[0] == pytest.approx(-0.959502, abs=1e-6)
    assert not gaze.at([-5.0]).valid[0]
    assert gaze.at([0.5]).valid[0]


@pytest.mark.data
def test_both_clocks_of_the_file_agree():
    """pts (90 kHz) at vts 0 is 2599999; the two place every gaze sample within 20 us."""
    path = research_data("tobii") / "glasses2" / "livedata.json.gz"
    entries = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    pairs = {k: [(e["ts"], e[k]) for e in entries if k in e] for k in ("vts", "pts")}
    ts = np.array([e["ts"] for e in entries if "gp" in e])
    by_vts = tobii.video_times(ts, pairs["vts"], pairs["pts"], path)
    by_pts = tobii.video_times(ts, [], pairs["pts"], path)
    start = (2599999 - pairs["pts"][0][1]) / 90_000
    assert np.abs(by_pts - start - by_vts).max() < 2e-5


def test_pts_alone_and_drift(tmp_path):
    """Pairs (ts 1.0 s, 0 s) and (2.0 s, 1.1 s): ts 1.5 s is video 0.55 s, ts 3.0 s is 2.1 s."""
    entries = [{"ts": t, "s": 0, "gp": [0.5, 0.5]} for t in (1_500_000, 3_000_000)]
    entries += [{"ts": 1_000_000, "pts": 7}, {"ts": 2_000_000, "pts": 7 + 99_000}]
    gaze = tobii.read_livedata(live(tmp_path / "livedata.json.gz", entries))
    assert gaze.t_s == pytest.approx([0.55, 2.1])


def test_bad_input(tmp_path):
    path = tmp_path / "livedata.json.gz"
    gp, vts = {"ts": 1, "s": 0, "gp": [0.5, 0.5]}, {"ts": 1, "vts": 0}
    with pytest.raises(DataError, match="no vts or pts lines"):
        tobii.read_livedata(live(path, [gp]))
    with pytest.raises(DataError, match="no gaze lines"):
        tobii.read_livedata(live(path, [vts]))
    lost = tobii.read_livedata(live(path, [{**gp, "gp": [float("nan"), 0.5]}, vts]))
    assert not lost.valid.any()
    with pytest.raises(DataError, match="line 2 is not a record of Glasses 2"):
        tobii.read_livedata(live(path, [vts, {"gp": [0.5]}]))
    data = live(path, [gp] * 5000 + [vts]).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="truncated or not gzip"):
        tobii.read_livedata(path)
    path.unlink()
    write_video(tmp_path / "fullstream.mp4", np.arange(5) / 10)
    with pytest.raises(DataError, match="video without gaze"):
        tobii.recordings(tmp_path)


def test_gaze_without_video(tmp_path):
    live(
        tmp_path / "a" / "livedata.json.gz",
        [{"ts": 1, "s": 0, "gp": [0.5, 0.5]}, {"ts": 1, "vts": 0}],
    )
    with pytest.raises(DataError, match="'a' has gaze without video"):
        Tobii().load(str(tmp_path))
    assert [c.ok for c in tobii.check(tmp_path)] == [True, True, False]


def test_tobii_as_a_federation(tmp_path):
    entries = [{"ts": 20_000 * i, "s": 0, "gp": [0.3, 0.7]} for i in range(3000)]
    live(tmp_path / "ann" / "livedata.json.gz", [{"ts": 0, "vts": 0}, *entries])
    write_video(tmp_path / "ann" / "fullstream.mp4", np.arange(600) / 10, (32, 32))
    data = Tobii(size=(16, 16)).load(str(tmp_path))
    assert data.clients == ("ann",)
    points = data.people["ann"].test.columns["points"].numpy()
    assert points[..., 0] == pytest.approx(np.full(points.shape[:3], 0.3))
    assert all(c.ok for c in tobii.check(tmp_path))


def test_device_times_on_the_videos_clock():
    """Between pairs the lag is interpolated, outside it stays; pairs may come out of order."""
    ts = np.array([0, 1_000_000, 1_500_000, 2_000_000, 9_000_000])
    vts = [(2_000_000, 500_000), (1_000_000, 0)]
    found = tobii.video_times(ts, vts, [(0, 9)], "a")
    assert found == pytest.approx([-1, 0, 0.25, 0.5, 7.5])
    pts = [(2_000_000, 145_000), (1_000_000, 100_000)]
    assert tobii.video_times(ts, [], pts, "a") == pytest.approx([-1, 0, 0.25, 0.5, 7.5])
    same = [(1_000_000, 300_000), (1_000_000, 100_000)]
    assert tobii.video_times(ts[:1], same, [], "a") == pytest.approx([-0.9])


def test_livedata_keeps_status_and_order(tmp_path):
    entries = [{"ts": 0, "vts": 0}, {"ts": 40_000, "s": 0, "gp": [0.2, 0.4]}, {"ts": 1, "ac": 3}]
    entries += [{"ts": 20_000, "s": 1, "gp": [0.1, 0.3]}, {"ts": 60_000, "s": 2, "gp": [0.5, 0.5]}]
    gaze = tobii.read_livedata(live(tmp_path / "a.gz", entries))
    assert gaze.t_s == pytest.approx([0.02, 0.04, 0.06])
    assert gaze.valid.tolist() == [False, True, False]
    assert gaze.confidence.tolist() == [0, 1, 0]
    assert (gaze.x[1], gaze.y[1]) == (0.2, 0.4)


def test_gazedata_of_glasses_3(tmp_path):
    entries = [
        {"type": "event", "timestamp": 0.0},
        {"type": "gaze", "timestamp": 0.5, "data": {"gaze2d": [0.25, 0.75]}},
        {"type": "gaze", "timestamp": 0.25, "data": {}},
        {"type": "gaze", "timestamp": 1.0, "data": {"gaze2d": [float("nan"), 0.5]}},
    ]
    path = live(tmp_path / "gazedata.gz", entries)
    gaze = tobii.read_gazedata(path)
    assert gaze.t_s.tolist() == [0.25, 0.5, 1]
    assert gaze.valid.tolist() == [False, True, False]
    assert gaze.confidence.tolist() == [0, 1, 0]
    assert (gaze.x[1], gaze.y[1]) == (0.25, 0.75)
    with pytest.raises(DataError, match="no lines of type gaze"):
        tobii.read_gazedata(live(path, entries[:1]))
    for wrong in ({}, {"type": "gaze"}, {"type": "gaze", "data": 3}, []):
        with pytest.raises(DataError, match="line 2 is not a record of Glasses 3"):
            tobii.read_gazedata(live(path, [entries[0], wrong]))


def test_lines_that_are_too_long_or_no_json_are_named(tmp_path, monkeypatch):
    path = live(tmp_path / "a.gz", [{"a": 1}, {"b": 2}])
    path.write_bytes(gzip.compress(b'{"a": 1}\n\n{"b": 2}\n'))
    assert list(tobii._read_records(path)) == [(1, {"a": 1}), (3, {"b": 2})]
    path.write_bytes(gzip.compress(b'{"a": 1}\n\nno\n'))
    with pytest.raises(DataError, match="line 3 is not JSON"):
        list(tobii._read_records(path))
    with pytest.raises(DataError, match=r"no\.gz is missing"):
        list(tobii._read_records(tmp_path / "no.gz"))
    monkeypatch.setattr(tobii, "LONGEST", 12)
    for length, fine in ((12, True), (13, False)):
        path.write_bytes(gzip.compress(b"[1]\n" + b"[" + b"1" * (length - 3) + b"]\n"))
        if fine:
            assert len(list(tobii._read_records(path))) == 2
        else:
            with pytest.raises(DataError, match="line 2 is too long"):
                list(tobii._read_records(path))
    monkeypatch.setattr(tobii, "MAX_UNPACK_RATIO", 0)
    for slack, fine in ((16, True), (15, False)):
        monkeypatch.setattr(tobii, "SLACK", slack)
        path.write_bytes(gzip.compress(b"[1]\n" * 4))
        if fine:
            assert len(list(tobii._read_records(path))) == 4
        else:
            with pytest.raises(DataError, match="line 4 is too long, or the file unpacks to more"):
                list(tobii._read_records(path))
