"""Small recordings in the form of every reader: 20 frames, and gaze that jumps at frame 12.

Frames are a tenth of a second apart (EGTEA: a 24th), and gaze goes from the left to the right 1.2 s
after the first frame. `start_s` is where the first frame stands in the container.
"""

import gzip
import json

import numpy as np

from tests.data.footage import write_csv, write_video
from vergence.data.gaze_video import aria, ego4d, egtea, pupil, tobii
from vergence.data.gaze_video.gaze_table import GazeTable

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
        f"{i}\tSMP\t1\t{320.5 if i < 100 + JUMP else 960.5}\t480\t{i}\tFixation"
        for i in range(90, 130)
    ]
    (root / "gaze_data").mkdir()
    (root / "gaze_data" / f"{session}.txt").write_text("\n".join([head, *rows]) + "\n")
    return egtea.recordings(root)


ANY = {f.__name__: f for f in (table, aria_2d, aria_mps, pupil_player, pupil_cloud)}
"""Readers of videos in any container."""
MP4 = {f.__name__: f for f in (tobii_2, tobii_3, ego4d_whole, ego4d_clip, egtea_clip)}
"""Readers of files whose names are given, mp4 among them."""
