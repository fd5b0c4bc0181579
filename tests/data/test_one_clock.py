"""One clock: frames are timed from the first one, whatever the container says, for every reader.

Every recording has 20 frames of a tenth of a second, and gaze that jumps from the left to the right
at 1.2 s after the first frame: at frame 12. The video's first frame stands at 0, 3 or 1.4 s in the
container.
"""

import gzip
import json
from fractions import Fraction

import av
import numpy as np
import pytest

from tests.data.footage import number, write_csv, write_video
from vergence.data.gaze_video import aria, ego4d, egtea, pupil, tobii
from vergence.data.gaze_video.clip_cache import open_video
from vergence.data.gaze_video.gaze_table import GazeTable
from vergence.data.io.video import VIDEOS, Video
from vergence.data.saliency.stimuli import Stimuli

FRAMES = np.arange(20) / 10
GAZE = np.arange(100) / 50
X = np.where(GAZE < 1.2, 0.25, 0.75)
JUMP = 12
UID = "0a1b2c3d-0000-4000-8000-000000000000"
CODECS = {"webm": "libvpx"}
TABLE = {"t": "time", "x": "x", "y": "y", "unit": "fraction", "t_unit": "s"}


def video(path, start_s=0.0):
    return write_video(path, FRAMES + start_s, codec=CODECS.get(path.suffix[1:], "mpeg4"))


def table(root, start_s, ending):
    video(root / "p1" / f"scene.{ending}", start_s)
    rows = [(t, x, 0.5) for t, x in zip(GAZE, X, strict=True)]
    write_csv(root / "p1" / "gaze.csv", "time,x,y", rows)
    return GazeTable(columns=TABLE).read(root)[0]


def aria_2d(root, start_s, ending):
    video(root / "p1" / f"rgb.{ending}", start_s)
    at = np.minimum(np.searchsorted(GAZE, FRAMES), 99)
    rows = [(i, 1e6 * t, 1e6 * t, 0, X[at[i]], 0.5) for i, t in enumerate(FRAMES)]
    write_csv(root / "p1" / "gaze_2d.csv", ",".join(aria.COLUMNS), rows)
    return aria.recordings(root)


def aria_mps(root, start_s, ending):
    video(root / "p1" / f"rgb.{ending}", start_s)
    yaw = np.arctan((0.5 - X) * 2)  # a pinhole of 90 degrees; yaw counts to the left
    rows = [(int(5e6 + 1e6 * t), a, 0, 1) for t, a in zip(GAZE, yaw, strict=True)]
    columns = "tracking_timestamp_us,yaw_rads_cpf,pitch_rads_cpf,depth_m"
    write_csv(root / "p1" / "eye_gaze" / "general_eye_gaze.csv", columns, rows)
    return GazeTable(preset="aria_mps", start=5e6, fov_deg=(90, 90)).read(root)[0]


def pupil_player(root, start_s, ending):
    folder = root / "p1"
    video(folder / f"world.{ending}", start_s)
    rows = [(100 + t, 0, 1, x, 0.5) for t, x in zip(GAZE, X, strict=True)]
    columns = "gaze_timestamp,world_index,confidence,norm_pos_x,norm_pos_y"
    write_csv(folder / "gaze_positions.csv", columns, rows)
    stamps = [(100 + t, 0) for t in FRAMES]
    write_csv(folder / "world_timestamps.csv", "# timestamps [seconds],pts", stamps)
    return pupil.recordings(root)


def pupil_cloud(root, start_s, ending):
    folder = root / "p1"
    video(folder / f"scene.{ending}", start_s)
    rows = [(10**18 + round(1e9 * t), 1600 * x, 600) for t, x in zip(GAZE, X, strict=True)]
    write_csv(folder / "gaze.csv", "timestamp [ns],gaze x [px],gaze y [px]", rows)
    stamps = [(10**18 + round(1e9 * t),) for t in FRAMES]
    write_csv(folder / "world_timestamps.csv", "timestamp [ns]", stamps)
    camera = {"camera_matrix": [[890, 0, 800], [0, 890, 600], [0, 0, 1]]}
    (folder / "scene_camera.json").write_text(json.dumps(camera))
    return pupil.recordings(root)


def lines(path, entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, entries)).encode()))


def tobii_2(root, start_s, _ending):
    """`vts` is a presentation time in the mp4 (Tobii's page on synchronizing): its own clock."""
    video(root / "p1" / tobii.VIDEO, start_s)
    entries = [{"ts": 7_000_000, "s": 0, "vts": round(1e6 * start_s)}]
    for t, x in zip(GAZE, X, strict=True):
        entries.append({"ts": 7_000_000 + round(1e6 * t), "s": 0, "gp": [x, 0.5]})
    lines(root / "p1" / tobii.LIVE, entries)
    return tobii.recordings(root)


def tobii_3(root, start_s, _ending):
    """Both files of Glasses 3 count from the start of the recording; the camera may come later."""
    video(root / "p1" / tobii.VIDEO3, start_s)
    entries = [
        {"type": "gaze", "timestamp": start_s + t, "data": {"gaze2d": [x, 0.5]}}
        for t, x in zip(GAZE, X, strict=True)
    ]
    lines(root / "p1" / tobii.GAZE3, entries)
    return tobii.recordings(root)


def ego4d_whole(root, start_s, _ending):
    video(root / "full_scale" / f"{UID}.mp4", start_s)
    return ego4d_gaze(root, 0.0)


def ego4d_clip(root, start_s, _ending):
    video(root / "clips.gaze" / UID / f"{UID}_t10_t12.mp4", start_s)
    return ego4d_gaze(root, 10.0)


def ego4d_gaze(root, first_s):
    rows = [(first_s + t, 1, x, 0.5) for t, x in zip(GAZE, X, strict=True)]
    columns = "canonical_timestamp_s,confidence,norm_pos_x,norm_pos_y"
    write_csv(root / "gaze" / f"{UID}.csv", columns, rows)
    return ego4d.recordings(root)


def egtea_clip(root, start_s, _ending):
    """At 24 frames a second frame 12 of the clip stands at half a second."""
    session = "P01-R01-Toast"
    clip = root / "cropped_clips" / session / f"{session}-0-833-F000101-F000120.mp4"
    write_video(clip, np.arange(20) / 24 + start_s)
    head = "Time\tType\tTrial\tB POR X [px]\tB POR Y [px]\tFrame\tB Event Info"
    rows = [
        f"{i}\tSMP\t1\t{320 if i < 100 + JUMP else 960}\t480\t{i}\tFixation" for i in range(90, 130)
    ]
    (root / "gaze_data").mkdir()
    (root / "gaze_data" / f"{session}.txt").write_text("\n".join([head, *rows]) + "\n")
    return egtea.recordings(root)


ANY = {f.__name__: f for f in (table, aria_2d, aria_mps, pupil_player, pupil_cloud)}
"""Readers of videos in any container."""
MP4 = {f.__name__: f for f in (tobii_2, tobii_3, ego4d_whole, ego4d_clip, egtea_clip)}
"""Readers of files whose names are given, mp4 among them."""
CASES = [
    *((name, start, "mp4") for name in (*ANY, *MP4) for start in (0.0, 3.0)),
    *((name, 3.0, ending) for name in ANY for ending in ("mkv", "webm", "ts")),
    ("table", 1.4, "m2ts"),
]


@pytest.mark.parametrize(("reader", "start_s", "ending"), CASES)
def test_gaze_jumps_at_the_frame_at_which_it_does(tmp_path, reader, start_s, ending):
    (recording,) = {**ANY, **MP4}[reader](tmp_path, start_s, ending)
    footage = recording.footage()
    frames = recording.gaze_per_frame(footage)
    assert len(footage.times_s) == len(FRAMES)
    assert frames.valid.all()
    assert (frames.x > 0.5).tolist() == [i >= JUMP for i in range(len(FRAMES))]


@pytest.mark.parametrize("ending", ["mp4", "mkv", "webm", "ts"])
def test_videos_shown_on_a_screen(tmp_path, ending):
    rows = []
    for k in range(3):
        video(tmp_path / "stimuli" / f"v{k}.{ending}", 3.0)
        shown = [(100 * k + t, 100 * x, 50, f"v{k}") for t, x in zip(GAZE, X, strict=True)]
        rows += shown
    write_csv(tmp_path / "p1.csv", "t,x,y,stimulus", rows)
    columns = {"t": "t", "x": "x", "y": "y", "unit": "px", "t_unit": "s", "stimulus": "stimulus"}
    options = {"place": "fill", "screen": (100, 100), "shares": (0.4, 0.3, 0.3)}
    data = Stimuli(columns=columns, size=(16, 16), window=2, step_s=0.1, stride_s=0.2, **options)
    people = data.load(str(tmp_path)).people
    test = people["p1"].test
    bank = test.banks["frames"].rows
    for frames, points in zip(test.columns["frame_ids"], test.columns["points"], strict=True):
        for frame, point in zip(frames, points, strict=True):
            assert (number(bank[frame].numpy()) >= JUMP) == bool(point[0, 0] > 0.5)


@pytest.mark.parametrize("ending", [e for e in VIDEOS if e not in (".avi", ".mpg", ".mpeg")])
def test_every_container_begins_at_zero(tmp_path, ending):
    """B-frames have negative decoding times; the cache of frame times gives the same."""
    codec = {".webm": "libvpx", ".wmv": "wmv2", ".flv": "flv"}.get(ending, "libx264")
    path = tmp_path / f"a{ending}"
    bframes = 2 if codec == "libx264" else 0
    write_video(path, FRAMES + 3, codec=codec, bframes=bframes)
    for found in (Video.open(path), open_video(path), open_video(path)):
        assert found.times_s == pytest.approx(FRAMES, abs=2e-3)
        assert found.start_s == pytest.approx(3.0, abs=2e-3)


def test_sound_that_begins_before_the_picture(tmp_path):
    """Frames from 0.5 s in a file whose sound starts at 0: the first frame is at 0 all the same."""
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        film = container.add_stream("mpeg4", rate=10)
        film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        film.codec_context.time_base = Fraction(1, 10)
        sound = container.add_stream("aac", rate=48_000, layout="mono")
        for i in range(100):
            block = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            block.rate, block.pts, block.time_base = 48_000, 1024 * i, Fraction(1, 48_000)
            container.mux(sound.encode(block))
        for i in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 99, np.uint8), "rgb24")
            frame.pts, frame.time_base = 5 + i, Fraction(1, 10)
            container.mux(film.encode(frame))
        container.mux([*film.encode(), *sound.encode()])
    found = Video.open(path)
    assert found.times_s == pytest.approx(np.arange(10) / 10)
    assert found.start_s == pytest.approx(0.5, abs=0.03)
