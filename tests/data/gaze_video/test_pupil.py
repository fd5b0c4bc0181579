"""Pupil Labs: Player export with its burnt-in ring, Cloud export, Neon native, and bad input."""

import shutil

import numpy as np
import pytest
from scipy import ndimage

from tests.conftest import research_data
from tests.data.footage import write_csv, write_video
from vergence.data.gaze_video import pupil
from vergence.data.gaze_video.gaze import Event
from vergence.data.gaze_video.pupil import Pupil
from vergence.data.io.delimited_text import read_table
from vergence.data.io.video import Video
from vergence.errors import DataError

PLAYER = "gaze_timestamp,world_index,confidence,norm_pos_x,norm_pos_y"
WORLD = "# timestamps [seconds],pts"


def ring_centre(frame):
    """Centre of the yellow fixation ring (about 55 px across), None where it is not found whole."""
    red, green, blue = (frame[..., i].astype(int) for i in range(3))
    labels, _ = ndimage.label((red > 190) & (green > 190) & (blue < 110), np.ones((3, 3)))
    for rows, columns in ndimage.find_objects(labels):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if 35 <= height <= 80 and 35 <= width <= 80 and abs(height - width) <= 8:
            return (columns.start + columns.stop - 1) / 2, (rows.start + rows.stop - 1) / 2
    return None


@pytest.fixture(scope="module")
def rings():
    recording = pupil.read(research_data("pupil") / "invisible_player_clip")[0]
    footage = recording.footage()
    centres = [ring_centre(f) or (np.nan, np.nan) for f in footage.frames()]
    return np.array(centres), recording.gaze_per_frame(footage)


def ring_error(centres, gaze, y, offset=0):
    """Median distance in px between ring and gaze `offset` frames later, over frames with both."""
    look = np.stack([gaze.x * 1088, y * 1080], 1)
    look[~gaze.valid] = np.nan
    shifted = look[np.clip(np.arange(len(look)) + offset, 0, len(look) - 1)]
    distance = np.linalg.norm(centres - shifted, axis=1)
    return float(np.nanmedian(distance)), int(np.isfinite(distance).sum())


@pytest.mark.data
def test_gaze_lies_in_the_burnt_in_ring(rings):
    """egovideo note 4: median 5.3 px over 42 frames with its detector; ours 5.2 px over 52."""
    centres, gaze = rings
    error, frames = ring_error(centres, gaze, gaze.y)
    assert frames >= 42
    assert error <= 15


@pytest.mark.data
def test_ring_test_notices_a_flipped_axis_and_shifted_frames(rings):
    """Without the flip the ring is far away; 6 frames (0.2 s) off it is too far as well."""
    centres, gaze = rings
    assert ring_error(centres, gaze, 1 - gaze.y)[0] > 15
    for offset in (-6, 6):
        assert ring_error(centres, gaze, gaze.y, offset)[0] > 15
    by_offset = {k: ring_error(centres, gaze, gaze.y, k)[0] for k in range(-8, 9, 2)}
    assert min(by_offset, key=by_offset.__getitem__) == 0


@pytest.mark.data
def test_player_clip_counts():
    """PROVENANCE: 58 frames, 145 samples, world_index from 1910; row 1 at 65.305 s, y 0.5406."""
    recording = pupil.read(research_data("pupil") / "invisible_player_clip")[0]
    gaze = recording.gaze
    assert len(gaze) == 145
    assert len(recording.footage().times_s) == 58
    assert gaze.source_frame[0] == 1910
    assert gaze.t_s[0] == pytest.approx(65.305218199 - 65.300018)
    assert gaze.y[0] == pytest.approx(1 - 0.5405930978280526)


@pytest.mark.data
def test_player_frame_times_agree_with_the_container():
    """world_timestamps.csv lists the container's own pts (1/65535 s) beside every time."""
    folder = research_data("pupil") / "invisible_player_clip"
    recording = pupil.read(folder)[0]
    video = Video.open(folder / "world.mp4")
    listed = np.loadtxt(folder / "world_timestamps.csv", delimiter=",", skiprows=1)[:, 1]
    assert video.pts.tolist() == listed.astype(int).tolist()
    assert np.abs(video.times_s - recording.frame_times_s).max() < 1e-3


@pytest.mark.data
def test_cloud_statistics():
    """3385 rows, mean 0.46, 0.51, SD 0.074, 0.055, 96 % fixation; 110 in blinks."""
    recording = pupil.read(research_data("pupil") / "invisible_cloud")[0]
    gaze = recording.gaze
    assert len(gaze) == 3385
    assert int(gaze.valid.sum()) == 3385 - 110
    assert np.nanmean(gaze.x) == pytest.approx(0.46, abs=0.005)
    assert np.nanmean(gaze.y) == pytest.approx(0.51, abs=0.005)
    assert np.nanstd(gaze.x) == pytest.approx(0.074, abs=0.002)
    assert np.nanstd(gaze.y) == pytest.approx(0.055, abs=0.002)
    assert np.mean(gaze.event != Event.SACCADE) == pytest.approx(0.96, abs=0.005)
    assert recording.fov_deg == pytest.approx(2 * np.degrees(np.arctan(544 / 758.4497)))
    assert recording.frame_times_s is not None
    assert len(recording.frame_times_s) == 516
    with pytest.raises(DataError, match="gaze without video"):
        recording.footage()


@pytest.mark.data
def test_neon_statistics():
    """egovideo note 4: 200 Hz, mean 0.56, 0.55, SD 0.109, 0.106; 23 fixations of 85 to 711 ms."""
    recording = pupil.read(research_data("pupil") / "neon_native")[0]
    gaze = recording.gaze
    assert len(gaze) == 1788
    assert recording.frame_times_s is not None
    assert len(recording.frame_times_s) == 292
    assert np.median(np.diff(gaze.t_s)) == pytest.approx(0.005, abs=1e-5)
    assert np.nanmean(gaze.x) == pytest.approx(0.56, abs=0.01)
    assert np.nanmean(gaze.y) == pytest.approx(0.55, abs=0.01)
    assert np.nanstd(gaze.x) == pytest.approx(0.109, abs=0.003)
    assert np.nanstd(gaze.y) == pytest.approx(0.106, abs=0.003)
    # Two blinks of 235 and 255 ms at 200 Hz: 47 + 51 samples, one more or less at each end.
    assert int((~gaze.valid).sum()) == pytest.approx(98, abs=2)


@pytest.mark.data
def test_neon_fixations_and_time_zero():
    """Fixation records with event type 1: 23, the shortest 85.001 ms, the longest 710.637 ms."""
    folder = research_data("pupil") / "neon_native"
    spans, _ = pupil._stream(folder, "fixations", ["fixations ps1"])
    spans = spans[spans["event_type"] == 1]
    length = (spans["end_timestamp_ns"] - spans["start_timestamp_ns"]) / 1e6
    assert len(spans) == 23
    assert (length.min(), length.max()) == pytest.approx((85.001, 710.637))
    gaze = pupil.read(folder)[0].gaze
    scene = np.fromfile(folder / "Neon Scene Camera v1 ps1.time", "<i8")
    first = np.fromfile(folder / "gaze_200hz.time", "<i8")[0]
    assert gaze.t_s[0] == pytest.approx((first - scene[0]) * 1e-9)


def player(folder, rows, seconds=2.0):
    t = np.arange(round(seconds * 10)) / 10
    write_csv(folder / "world_timestamps.csv", WORLD, [(50 + s, 0) for s in t])
    write_csv(folder / "gaze_positions.csv", PLAYER, rows)
    return folder


def test_player_flips_y_sorts_and_drops_low_confidence(tmp_path):
    rows = [(50.1, 901, 1, 0.2, 0.9), (50.0, 900, 1, 0.1, 1.0), (50.2, 902, 0.3, 0.3, 0.5)]
    gaze = pupil.read(player(tmp_path, rows))[0].gaze
    assert gaze.t_s == pytest.approx([0, 0.1, 0.2])
    assert gaze.y[:2] == pytest.approx([0.0, 0.1])
    assert gaze.valid.tolist() == [True, True, False]
    assert gaze.source_frame.tolist() == [900, 901, 902]


def test_player_bad_input(tmp_path):
    (lost,) = pupil.read(player(tmp_path, [(50.1, 901, 1, "nan", 0.9)]))
    assert not lost.gaze.valid.any()
    write_csv(tmp_path / "gaze_positions.csv", "timestamp,x,y", [(1, 2, 3)])
    with pytest.raises(DataError, match="missing columns gaze_timestamp, world_index, confidence"):
        pupil.read(tmp_path)
    write_csv(tmp_path / "gaze_positions.csv", PLAYER, [])
    (tmp_path / "world_timestamps.csv").unlink()
    with pytest.raises(DataError, match=r"world_timestamps\.csv is missing"):
        pupil.read(tmp_path)
    (tmp_path / "gaze_positions.csv").unlink()
    write_csv(tmp_path / "world_timestamps.csv", WORLD, [(0, 0)])
    with pytest.raises(DataError, match="video without gaze"):
        pupil.recordings(tmp_path)


def test_cloud_of_another_version(tmp_path):
    write_csv(tmp_path / "gaze.csv", "timestamp [ns],gaze x,gaze y", [(1, 2, 3)])
    with pytest.raises(DataError, match=r"missing columns gaze x \[px\], gaze y \[px\]"):
        pupil.read(tmp_path)


def test_parts_of_neon_are_in_order_of_their_numbers_and_others_are_refused(tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"gaze ps{number}.raw").touch()
    assert pupil._parts(tmp_path, "gaze") == ["gaze ps1", "gaze ps9", "gaze ps10"]
    (tmp_path / "gaze ps1 (copy).raw").touch()
    with pytest.raises(
        DataError, match=r"gaze ps1 \(copy\)\.raw is no part, such as gaze ps1\.raw"
    ):
        pupil._parts(tmp_path, "gaze")


@pytest.mark.data
def test_neon_bad_input(tmp_path):
    folder = tmp_path / "neon"
    shutil.copytree(research_data("pupil") / "neon_native", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    raw = folder / "gaze_200hz.raw"
    data = raw.read_bytes()
    raw.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"894 records in \.raw, 1788 in \.time"):
        pupil.read(folder)
    raw.write_bytes(data[:-3])
    with pytest.raises(DataError, match=r"gaze_200hz\.raw is truncated"):
        pupil.read(folder)
    raw.write_bytes(data)
    (folder / "gaze.dtype").write_text("__import__('os').getcwd()")
    with pytest.raises(DataError, match="does not describe the gaze records"):
        pupil.read(folder)
    (folder / "info.json").write_text('{"data_format_version": "1.0"}')
    with pytest.raises(DataError, match=r"data format 1\.0 is not read"):
        pupil.read(folder)


def test_pupil_as_a_federation(tmp_path):
    """One minute of gaze at 30 Hz moving right: every window lies on its line x = t / 60."""
    rows = [(50 + i / 30, i, 1, i / 1800, 0.5) for i in range(1800)]
    folder = player(tmp_path / "ann", rows, 60)
    write_video(folder / "world.mp4", np.arange(600) / 10, (32, 32))
    data = Pupil(size=(16, 16)).load(str(tmp_path))
    assert data.clients == ("ann",)
    x = data.people["ann"].train.columns["points"][:, :, 0, 0].numpy()
    # Frames 0.25 s apart at 10 Hz are 0.2 or 0.3 s apart: 0.6 to 0.9 s, 0.7 or 0.8 in the end.
    assert (x[:, 3] - x[:, 0]) * 60 == pytest.approx(np.full(len(x), 0.75), abs=0.06)
    assert all(c.ok for c in pupil.check(tmp_path))
    with pytest.raises(DataError, match="not packaged"):
        Pupil().load()


def cloud(folder, rows, more="", matrix=((890, 0, 800), (0, 890, 600), (0, 0, 1))):
    """An export of Cloud whose first frame is at 10^18 + 500 ns."""
    import json

    header = f"timestamp [ns],gaze x [px],gaze y [px]{more}"
    write_csv(folder / "gaze.csv", header, [(10**18 + row[0], *row[1:]) for row in rows])
    stamps = [(10**18 + 500,), (10**18 + 50_000_500,)]
    write_csv(folder / "world_timestamps.csv", "timestamp [ns]", stamps)
    (folder / "scene_camera.json").write_text(json.dumps({"camera_matrix": matrix}))
    return folder


def test_cloud_gaze_of_neon_to_the_last_digit(tmp_path):
    rows = [(100_000_500, 400, 900), (500, 1600, 0), (50_000_600, 800, 600)]
    (recording,) = pupil.read(cloud(tmp_path, rows))
    gaze = recording.gaze
    assert gaze.t_s == pytest.approx([0, 0.0500001, 0.1], abs=1e-12)
    assert gaze.x.tolist() == [1, 0.5, 0.25]
    assert gaze.y.tolist() == [0, 0.5, 0.75]
    assert (gaze.event == Event.UNKNOWN).all()
    assert recording.frame_times_s == pytest.approx([0, 0.05], abs=1e-12)
    assert recording.fov_deg == pytest.approx(2 * np.degrees(np.arctan(800 / 890)))


def test_cloud_samples_in_blinks_or_off_the_head_are_untracked(tmp_path):
    more = ",worn,fixation id,blink id"
    rows = [
        (500, 8, 6, 1, 3, ""),
        (600, 8, 6, 1, "", ""),
        (700, 8, 6, 1, "", 2),
        (800, 8, 6, 0, 4, ""),
    ]
    gaze = pupil.read(cloud(tmp_path, rows, more))[0].gaze
    lost = Event.UNTRACKED
    assert gaze.event.tolist() == [Event.FIXATION, Event.SACCADE, lost, lost]
    rows = [(*row[:3], "", *row[4:]) for row in rows]
    gaze = pupil.read(cloud(tmp_path, rows, more))[0].gaze
    assert gaze.valid.tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("middle", "size"),
    [
        ((544, 540), (1088, 1080)),
        ((800, 600), (1600, 1200)),
        # Equally far from both middles is 330 px across and down from 544, 540.
        ((544 + 157, 540), (1088, 1080)),
        ((544 + 159, 540), (1600, 1200)),
        ((544, 540 + 61), (1088, 1080)),
    ],
)
def test_the_scene_camera_is_told_by_its_middle(tmp_path, middle, size):
    path = tmp_path / "scene_camera.json"
    path.write_text(f'{{"camera_matrix": [[700, 0, {middle[0]}], [0, 1, {middle[1]}], [0, 0, 1]]}}')
    found, degrees = pupil._scene_camera(path)
    assert found == size
    assert degrees == pytest.approx(2 * np.degrees(np.arctan(size[0] / 1400)))


def test_files_of_cloud_that_are_refused(tmp_path):
    folder = cloud(tmp_path, [(500, 8, 6)], matrix=((1, 0), (0, 1)))
    with pytest.raises(DataError, match="has no 3 x 3 camera_matrix"):
        pupil.read(folder)
    write_csv(folder / "world_timestamps.csv", "timestamp [ns]", [])
    with pytest.raises(DataError, match=r"world_timestamps\.csv holds no frame times"):
        pupil.read(folder)


def test_intervals_hold_their_ends_and_may_overlap():
    """The long interval 0 to 9 holds what lies behind the short one within it."""
    t = np.array([-1, 0, 3, 5, 9, 9.5, 10, 11, 12.0])
    start, end = np.array([10, 0, 2.0]), np.array([11, 9, 4.0])
    wanted = [any(a <= now <= b for a, b in zip(start, end, strict=True)) for now in t]
    assert pupil._inside_intervals(t, start, end).tolist() == wanted
    found = pupil.label_fixations(t, start, end)
    assert found.tolist() == [Event.FIXATION if w else Event.SACCADE for w in wanted]
    assert not pupil._inside_intervals(t, start[:0], end[:0]).any()


def test_player_fixations_last_milliseconds(tmp_path):
    """Starts count on the clock of gaze; 200 ms from 50.1 s hold 50.1, 50.2 and 50.3 s."""
    rows = [(50 + i / 10, 900 + i, 0.6, 0.25, 0.75) for i in range(6)]
    folder = player(tmp_path, rows)
    write_csv(folder / "fixations.csv", "id,start_timestamp,duration", [(1, 50.1, 200.001)])
    (recording,) = pupil.read(folder)
    fixating = [False, True, True, True, False, False]
    events = [Event.FIXATION if f else Event.SACCADE for f in fixating]
    assert recording.gaze.event.tolist() == events
    assert recording.gaze.confidence.tolist() == [0.6] * 6
    assert recording.frame_times_s == pytest.approx(np.arange(20) / 10)


def test_neon_of_two_parts_and_what_is_refused(tmp_path):
    """Ten samples 10 ms apart; part 2 of the video begins at 50 ms, a blink lasts 20 to 30 ms."""
    folder = tmp_path / "neon"
    folder.mkdir()
    (folder / "info.json").write_text('{"data_format_version": "2.3"}')
    ns = 10**18 + np.arange(10, dtype="<i8") * 10_000_000
    xy = np.zeros(10, [("x", "<f4"), ("y", "<f4")])
    xy["x"], xy["y"] = np.arange(10) * 100, 300
    (folder / "gaze.dtype").write_text("[('x', 'float32'), ('y', 'float32')]")
    for part, rows in ((1, slice(0, 4)), (2, slice(4, 10))):
        (folder / f"gaze ps{part}.raw").write_bytes(xy[rows].tobytes())
        (folder / f"gaze ps{part}.time").write_bytes(ns[rows].tobytes())
        worn = np.full(10, 255, np.uint8)
        worn[7] = 0
        (folder / f"worn ps{part}.raw").write_bytes(worn[rows].tobytes())
    spans = [("start_timestamp_ns", "int64"), ("end_timestamp_ns", "int64")]
    (folder / "blinks.dtype").write_text(str(spans))
    (folder / "blinks ps1.raw").write_bytes(ns[[2, 3]].tobytes())
    (folder / "blinks ps1.time").write_bytes(ns[:1].tobytes())
    (folder / "fixations.dtype").write_text(str([("event_type", "int32"), *spans]))
    eyes = np.zeros(2, np.dtype([("e", "<i4"), ("s", "<i8"), ("t", "<i8")]))
    eyes["e"], eyes["s"], eyes["t"] = [0, 1], [ns[0], ns[5]], [ns[1], ns[6]]
    (folder / "fixations ps1.raw").write_bytes(eyes.tobytes())
    (folder / "fixations ps1.time").write_bytes(ns[:2].tobytes())
    for part, first in ((1, ns[1]), (2, ns[5])):
        frames = first + np.arange(3, dtype="<i8") * 20_000_000
        (folder / f"Neon Scene Camera v1 ps{part}.time").write_bytes(frames.tobytes())
    one, two = pupil.read(folder)
    assert (one.id, two.id) == ("neon/ps1", "neon/ps2")
    assert (one.start_s, two.start_s) == (0, pytest.approx(0.04))
    assert one.session == two.session == "neon"
    # Each sample is in one part. Those before the first and after the last video are in these.
    assert one.gaze.t_s == pytest.approx(np.arange(-1, 4) / 100)
    assert two.gaze.t_s == pytest.approx(np.arange(0, 5) / 100)
    assert two.frame_times_s == pytest.approx([0, 0.02, 0.04])
    lost, sure, jump = Event.UNTRACKED, Event.FIXATION, Event.SACCADE
    assert one.gaze.event.tolist() == [jump, jump, lost, lost, jump]
    assert two.gaze.event.tolist() == [sure, sure, lost, jump, jump]
    spans = [part.fixations.tolist() for part in (one, two) if part.fixations is not None]
    assert spans == [[], [[0, pytest.approx(0.01)]]]
    assert two.gaze.x[4] == pytest.approx(900 / 1600)
    assert two.gaze.y[4] == pytest.approx(300 / 1200)
    # By time and not by name: part 10 comes after part 2.
    later = ns[8] + np.arange(2, dtype="<i8") * 10_000_000
    (folder / "Neon Scene Camera v1 ps10.time").write_bytes(later.tobytes())
    ids = [(part.id, len(part.gaze)) for part in pupil.read(folder)]
    assert ids == [("neon/ps1", 5), ("neon/ps2", 4), ("neon/ps10", 1)]
    (folder / "worn ps2.raw").write_bytes(bytes(5))
    with pytest.raises(DataError, match="9 worn flags for 10 gaze samples"):
        pupil.read(folder)
    (folder / "gaze ps2.time").write_bytes(ns[4:9].tobytes())
    with pytest.raises(DataError, match=r"gaze ps2: 6 records in \.raw, 5 in \.time"):
        pupil.read(folder)


@pytest.mark.data
def test_fixations_are_those_of_the_makers_table():
    """Each row is a fixation, also where two follow one another without a sample between them.

    The Player's table has start and duration; in the Cloud's export, a fixation begins and ends
    with a sample of gaze.csv (a sample takes 4 ms).
    """
    for name, start, duration in (
        ("invisible_player_clip", "start_timestamp", "duration"),
        ("invisible_cloud", "start timestamp [ns]", "duration [ms]"),
    ):
        folder = research_data("pupil") / name
        stated = read_table(folder / "fixations.csv", [start, duration], "fixations")
        spans = pupil.read(folder)[0].fixations
        assert len(spans) == len(stated)
        lengths = 1e3 * np.diff(spans)[:, 0]
        # The last one of the Cloud goes on after the last sample.
        assert lengths[:-1] == pytest.approx(stated.floats(duration)[:-1], abs=9)
