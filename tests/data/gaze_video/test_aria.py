"""Aria: packaged clips, the mp4 + gaze_2d.csv pair, MPS schemas, and VRS with the extra."""

import importlib.util
import shutil
import sys

import numpy as np
import pytest

from tests.conftest import research_data
from tests.data.footage import write_csv
from vergence.data.gaze_video import aria, vrs
from vergence.data.gaze_video.gaze import Event
from vergence.data.io.video import Video
from vergence.errors import ConfigError, DataError

FRAMES = {"aea": 8, "adt": 6, "gen2": 3}
HEADER = "frame,frame_timestamp_us,gaze_timestamp_us,dt_ms,x,y"
needs_tools = pytest.mark.skipif(
    importlib.util.find_spec("projectaria_tools") is None, reason="needs the extra 'aria'"
)


@pytest.mark.parametrize(("clip", "frames"), FRAMES.items())
def test_packaged_clips_align(clip, frames):
    """Decoded frame count and times agree with gaze_2d.csv; the mp4 has a fixed rate."""
    recording = aria.read(aria.SAMPLE / clip, aria.SAMPLE)
    footage = recording.footage()
    assert (recording.id, recording.person) == (clip, clip)
    assert len(footage.times_s) == len(recording.gaze) == frames
    drift = Video.open(recording.video).times_s - recording.frame_times_s
    assert np.abs(drift).max() < 1e-3
    assert next(footage.frames([frames - 1], 44, 33)).shape == (33, 44, 3)


def test_gaze_that_is_50_ms_off_is_left_out():
    """aea: gaze at 10 Hz, 20 frames a second: 4 frames synced, 4 are 50 ms away (PROVENANCE)."""
    recording = aria.read(aria.SAMPLE / "aea", aria.SAMPLE)
    near = recording.gaze_per_frame(recording.footage())
    assert near.valid.tolist() == [False, True, False, True, False, True, False, True]
    assert near.dt_ms[0] == pytest.approx(50.06)
    assert recording.gaze_per_frame(recording.footage(), 60).valid.all()


def test_adt_gaze_values():
    """First row of adt/gaze_2d.csv: x 0.492522, y 0.728797 (looking down into the bowl)."""
    gaze = aria.read(aria.SAMPLE / "adt").gaze
    assert gaze.valid.all()
    assert (gaze.x[0], gaze.y[0]) == (0.492522, 0.728797)


def test_packaged_clips_are_too_short_to_be_split():
    with pytest.raises(DataError, match="is shorter than the window"):
        aria.Aria().load()
    with pytest.raises(DataError, match="person 'adt' has too few clips for the split"):
        aria.Aria(window=2, step_s=0.1).load()


def test_check_of_the_packaged_clips():
    found = aria.check()
    assert len(found) == 1 + 2 * len(FRAMES)
    assert all(c.ok for c in found)


@pytest.mark.data
def test_check_of_the_research_folder():
    """Counts of the provenance note; the mps_formats folder holds no recording."""
    found = {c.what: c for c in aria.check(research_data("aria"))}
    assert found["recordings"].actual == "3"
    assert {k: found[f"{k}: frames"].actual for k in FRAMES} == {
        k: str(n) for k, n in FRAMES.items()
    }


def copy(tmp_path, clip="adt"):
    folder = tmp_path / clip
    shutil.copytree(aria.SAMPLE / clip, folder)
    return folder


def test_video_without_gaze_and_gaze_without_video(tmp_path):
    folder = copy(tmp_path)
    (folder / "gaze_2d.csv").rename(tmp_path / "kept.csv")
    with pytest.raises(DataError, match=r"video without gaze: put gaze_2d\.csv beside"):
        aria.recordings(tmp_path)
    (tmp_path / "kept.csv").rename(folder / "gaze_2d.csv")
    (folder / "rgb_upright.mp4").unlink()
    with pytest.raises(DataError, match="gaze without video"):
        aria.recordings(tmp_path)
    assert not aria.check(tmp_path)[0].ok


def test_truncated_video(tmp_path):
    path = copy(tmp_path) / "rgb_upright.mp4"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])
    recording = aria.recordings(tmp_path)[0]
    with pytest.raises(DataError, match="truncated or not a video"):
        recording.footage()
    assert [c.ok for c in aria.check(tmp_path)] == [True, True, False]


@pytest.mark.parametrize("x", ["nan", ""])
def test_a_place_that_is_nan_or_empty_is_no_gaze(tmp_path, x):
    path = write_csv(
        tmp_path / "gaze_2d.csv", HEADER, [(0, 0, 0, 0, 0.5, 0.5), (1, 9, 9, 0, x, 0.5)]
    )
    assert aria.read_gaze_2d(path)[0].valid.tolist() == [True, False]


def test_a_frame_without_gaze_is_untracked(tmp_path):
    rows = [(0, 0, 0, 0, 0.5, 0.5), (1, 9, None, None, None, None), (2, 18, 18, 0, 1.5, 0.5)]
    gaze, _ = aria.read_gaze_2d(write_csv(tmp_path / "gaze_2d.csv", HEADER, rows))
    assert gaze.event.tolist() == [Event.UNKNOWN, Event.UNTRACKED, Event.OUT_OF_RANGE]


def test_another_version_and_unordered_frames(tmp_path):
    path = write_csv(tmp_path / "gaze_2d.csv", "frame,frame_timestamp_us,u,v", [(0, 0, 1, 1)])
    with pytest.raises(DataError, match="missing columns gaze_timestamp_us, dt_ms, x, y"):
        aria.read_gaze_2d(path)
    path = write_csv(path, HEADER, [(1, 0, 0, 0, 0.5, 0.5)])
    with pytest.raises(DataError, match="frames are not numbered"):
        aria.read_gaze_2d(path)


@pytest.mark.data
@pytest.mark.parametrize("name", ["eyegaze_v0", "generalized_eye_gaze_v1"])
def test_mps_gen1_angles(name):
    """Row 1: yaw 0.894797, pitch 0.039713, no depth: 1 m along (tan yaw, tan pitch, 1)."""
    gaze = vrs.read_mps(research_data("aria") / "mps_formats" / "gen1" / f"{name}.csv")
    assert len(gaze.t_us) == 123
    assert gaze.t_us[0] == 148502622
    x, y, z = gaze.point[0]
    assert np.linalg.norm(gaze.point[0]) == pytest.approx(1)
    assert (np.arctan(x / z), np.arctan(y / z)) == pytest.approx((0.894797, 0.039713))


@pytest.mark.data
def test_mps_vergence():
    """projectaria-tools 2.3.0 reads row 1 as yaw 0.7877972, pitch -0.0205605, depth 1.5981238 m."""
    path = research_data("aria") / "mps_formats" / "gen1" / "generalized_gaze_vergence.csv"
    x, y, z = vrs.read_mps(path).point[0]
    assert np.arctan(x / z) == pytest.approx(0.7877972, abs=1e-6)
    assert np.arctan(y / z) == pytest.approx(-0.0205605, abs=1e-6)
    assert np.linalg.norm([x, y, z]) == pytest.approx(1.5981238, abs=1e-6)


@pytest.mark.data
def test_mps_gen2():
    """projectaria-tools 2.3.0: spatial_gaze_point_in_cpf of row 1 (general_eye_gaze.csv)."""
    folder = research_data("aria") / "mps_formats" / "gen2"
    gaze = vrs.read_mps(folder / "general_eye_gaze.csv")
    assert len(gaze.t_us) == 5
    assert gaze.point[0] == pytest.approx([0.04274119, -0.2098751, 0.54670364], abs=1e-5)
    assert len(vrs.read_mps(folder / "personalized_eye_gaze.csv").t_us) == 5


def test_mps_of_another_version_and_with_nan(tmp_path):
    path = write_csv(tmp_path / "e.csv", "tracking_timestamp_us,yaw_rads_cpf", [(1, 0.1)])
    with pytest.raises(DataError, match="missing columns pitch_rads_cpf"):
        vrs.read_mps(path)
    head = "tracking_timestamp_us,yaw_rads_cpf,pitch_rads_cpf"
    found = vrs.read_mps(write_csv(path, head, [(1, 0.1, 0.1), (2, "nan", 0.1)]))
    assert found.valid.tolist() == [True, False]


def test_vrs_without_the_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "projectaria_tools", None)
    with pytest.raises(ConfigError, match=r"pip install 'vergence\[aria\]'"):
        vrs.open_vrs(tmp_path / "a.vrs")


def test_the_wearers_own_calibration_is_preferred(tmp_path):
    assert aria.mps_file(tmp_path) is None
    for name in ("general_eye_gaze.csv", "personalized_eye_gaze.csv"):
        write_csv(tmp_path / "mps" / "eye_gaze" / name, "a", [])
    found = aria.mps_file(tmp_path)
    assert found is not None
    assert found.name == "personalized_eye_gaze.csv"


@needs_tools
@pytest.mark.data
@pytest.mark.parametrize(
    ("clip", "recording"), [("aea", "recording"), ("adt", "video"), ("gen2", "recording")]
)
def test_vrs_projection_agrees_with_gaze_2d(clip, recording):
    """gaze_2d.csv was projected with projectaria-tools 2.3.0 and printed with 6 digits."""
    folder = research_data("aria") / clip
    gaze, times = vrs.project_gaze(folder / f"{recording}.vrs", aria.mps_file(folder))
    want, frame_times = aria.read_gaze_2d(folder / "gaze_2d.csv")
    got = gaze.at(times, max_gap_ms=60)
    assert times == pytest.approx(frame_times, abs=2e-6)
    assert got.x == pytest.approx(want.x, abs=2e-6)
    assert got.y == pytest.approx(want.y, abs=2e-6)
    assert got.dt_ms == pytest.approx(want.dt_ms, abs=2e-3)


@needs_tools
@pytest.mark.data
def test_vrs_frames_are_upright_like_the_mp4():
    """The mp4 is the same picture turned upright: small frames differ by less than 4 levels."""
    folder = research_data("aria") / "adt"
    footage = vrs.VrsFootage.open(folder / "video.vrs")
    mine = np.stack(list(footage.frames([0, 5], 88, 88))).astype(float)
    other = np.stack(list(aria.read(folder).footage().frames([0, 5], 88, 88))).astype(float)
    assert np.abs(mine - other).mean() < 4
    assert np.abs(np.rot90(mine, 1, (1, 2)) - other).mean() > 20


def test_a_place_of_which_one_side_is_missing_is_untracked(tmp_path):
    """Where one of x and y is no number, neither the offset nor the confidence counts."""
    rows = [(0, 500, 0, 1.5, 0.5, 0.25), (1, 50500, 0, 9, "", 0.5), (2, 100500, 0, 9, 0.5, "")]
    gaze, times = aria.read_gaze_2d(write_csv(tmp_path / "gaze_2d.csv", HEADER, rows))
    assert gaze.confidence.tolist() == [1, 0, 0]
    assert gaze.dt_ms.tolist() == [1.5, 0, 0]
    assert gaze.source_frame.tolist() == [0, 1, 2]
    assert gaze.event.tolist() == [Event.UNKNOWN, Event.UNTRACKED, Event.UNTRACKED]
    assert times == pytest.approx([0, 0.05, 0.1])
    assert gaze.t_s == pytest.approx(times)


@pytest.mark.parametrize("frames", [[1, 2], [0, 2], [0, 0], [1, 0]])
def test_frames_are_numbered_from_0(tmp_path, frames):
    rows = [(frame, 9 * i, 0, 0, 0.5, 0.5) for i, frame in enumerate(frames)]
    path = write_csv(tmp_path / "gaze_2d.csv", HEADER, rows)
    with pytest.raises(DataError, match="frames are not numbered 0 to 1"):
        aria.read_gaze_2d(path)


def test_gaze_of_the_wearers_own_calibration_comes_first(tmp_path):
    assert aria.mps_file(tmp_path) is None
    names = aria.MPS_NAMES
    for i, name in reversed([*enumerate(names)]):
        for folder in ("b", "a"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).touch()
        assert aria.mps_file(tmp_path) == tmp_path / "a" / names[i]
    assert names[:2] == ("personalized_eye_gaze.csv", "general_eye_gaze.csv")
