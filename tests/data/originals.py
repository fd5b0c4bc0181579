"""Folders as licence holders of Ego4D and EGTEA Gaze+ have them: real forms, made-up content.

The forms are those of public descriptions: the sample of a gaze table in Ego4D's documentation, the
files that the Ego4D command line tool writes, and the tokens that GLC's readers take.
"""

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.data.footage import write_video

LEFT_OUT = (
    "4e07da0c-450f-4c37-95e9-e793cb5d8f7f",
    "5819e52c-4e12-4f86-ad69-76fc215dfbcb",
    "83081c5a-8456-44d8-af67-280034f8f0a6",
    "a77682da-cae7-4e68-8580-6cb47658b23f",
)
"""Videos that GLC's preprocessing skips by name."""
EGO4D_HEADER = (
    "component_idx,component_timestamp_s,canonical_timestamp_s,world_index,confidence,norm_pos_x,"
    "norm_pos_y,base_data,gaze_point_3d_x,gaze_point_3d_y,gaze_point_3d_z,eye_center0_3d_x,"
    "eye_center0_3d_y,eye_center0_3d_z,gaze_normal0_x,gaze_normal0_y,gaze_normal0_z,"
    "eye_center1_3d_x,eye_center1_3d_y,eye_center1_3d_z,gaze_normal1_x,gaze_normal1_y,"
    "gaze_normal1_z"
)
FIRST_INDEX = 10583
"""World indices go on from where the recording was cut out; times begin at 0."""


def uids(count: int) -> list[str]:
    """Made-up video uids, always the same."""
    return [str(uuid.uuid5(uuid.NAMESPACE_URL, f"made-up/{i}")) for i in range(count)]


def ego4d_row(t: float, x: float, y: float, confidence: float = 1.0) -> str:
    """A row as published: every number a float, also the frame's; sixteen cells are empty."""
    index = FIRST_INDEX + np.floor(t * 30)
    return f"0,{t!r},{t!r},{float(index)!r},{confidence!r},{x!r},{y!r}" + 16 * ","


def ego4d_table(path: Path, seconds: float, seed: int = 0, lines: str = "\n") -> Path:
    """Gaze that stays about three places in turn, in steps of 4 or 8 ms."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([0.004, 0.004, 0.008], size=int(seconds * 200))
    times = np.cumsum([0.0, *steps])
    times = times[times < seconds]
    places = 0.5 + rng.normal(0, 0.1, (3, 2))
    at = places[(times // 2).astype(int) % 3] + rng.normal(0, 0.002, (len(times), 2))
    rows = [ego4d_row(float(t), float(x), float(y)) for t, (x, y) in zip(times, at, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lines.join([EGO4D_HEADER, *rows, ""]).encode())
    return path


def ego4d_tree(
    out: Path, people: int = 27, seconds: float = 30.0, left_out: bool = True
) -> tuple[Path, list[str]]:
    """What `ego4d --output_directory OUT --datasets full_scale gaze` leaves; OUT/v2 and its uids.

    With `left_out`, the four videos that GLC does not use are there too. A video without gaze lies
    among the others.
    """
    root, names = out / "v2", uids(people)
    known = [*names, *(LEFT_OUT if left_out else ())]
    gaze, whole = root / "gaze", root / "full_scale"
    video = write_video(whole / f"{uids(99)[98]}.mp4", np.arange(int(seconds * 10)) / 10, (32, 32))
    for number, uid in enumerate(known):
        ego4d_table(gaze / f"{uid}.csv", seconds, number, "\r\n" if number % 2 else "\n")
        shutil.copy(video, whole / f"{uid}.mp4")
    (root / "ego4d.json").write_text('{"videos": []}\n')
    for folder, form in ((gaze, "csv"), (whole, "mp4")):
        rows = [f"{u},{'file' if form == 'csv' else 'video'},s3://bucket/{u}.{form}" for u in known]
        (folder / "manifest.csv").write_text("\n".join(["video_uid,type,s3_path", *rows, ""]))
        rows = [f"{u},version,{u}.{form}" for u in known]
        (folder / "manifest.ver").write_text("\n".join(["uid,version,filename", *rows, ""]))
    return root, names


def ego4d_lists(root: Path, names: Sequence[str], seconds: int, tested: int = 7) -> None:
    """GLC's lists: clips of 5 s of the first videos for training, of `tested` others for testing.

    As in GLC's, one clip (the second of each video) is in neither.
    """
    for part, own in (("train", names[:-tested]), ("test", names[-tested:])):
        starts = [start for start in range(0, seconds, 5) if start != 5]
        rows = [f"{uid}/{uid}_t{start}_t{start + 5}.mp4" for uid in own for start in starts]
        (root / f"{part}_ego4d_gaze.csv").write_text("\n".join([*rows, ""]))


BEGAZE_NAMES = {
    1: ["Time", "Type", "Trial", "B POR X [px]", "B POR Y [px]", "Frame", "B Event Info"],
    2: [
        *("Time", "Type", "Trial", "L POR X [px]", "L POR Y [px]", "B POR X [px]", "B POR Y [px]"),
        *("R POR X [px]", "R POR Y [px]", "L Pupil Diameter [mm]", "R Pupil Diameter [mm]"),
        *(f"{eye} {what} {axis}" for eye in "LR" for what in ("EPOS", "GVEC") for axis in "XYZ"),
        *("Trigger", "Frame", "B Event Info"),
    ],
}
assert {version: len(names) for version, names in BEGAZE_NAMES.items()} == {1: 7, 2: 26}
BEGAZE_FACTS = [
    *("[BeGaze]", "Converted from:\tD:\\recording.idf", "Date:\t01.01.2015 12:00:00"),
    *("Version:\tBeGaze 3.4.27", "IDF Version:\t9", "Sample Rate:\t30", "Separator Type:\tMsg"),
    *("Trial Count:\t1", "Uses Plane File:\tFalse", "Reversed:\tnone", "[Run]", "Subject:\tP00"),
    *("Description:\t", "[Calibration]", "Calibration Area:\t1280\t960"),
]


def begaze_export(
    path: Path, frames: int, version: int = 1, seed: int = 0, messages: bool = False
) -> Path:
    """A BeGaze export at 30 samples a second for 24 frames: 34 header lines, then samples.

    Gaze looks at one place for two seconds, with a saccade between and now and then a blink.
    """
    rng = np.random.default_rng(seed)
    facts = [f"## {fact}" for fact in BEGAZE_FACTS] + ["##"] * (32 - len(BEGAZE_FACTS))
    samples = int(frames / 24 * 30)
    facts.insert(9 if version == 1 else 10, f"## Number of Samples:\t{samples - 3}")
    rows = ["\t".join(BEGAZE_NAMES[version])]
    places = rng.uniform([300, 200], [980, 760], (samples // 60 + 1, 2))
    for i in range(samples):
        x, y = places[i // 60] + rng.normal(0, 3, 2)
        event = "Saccade" if i % 60 == 59 else "Blink" if i % 150 == 97 else "Fixation"
        if event == "Blink":
            x = y = 0.0
        frame, clock = int(i / 30 * 24), 11_824_399_892 + i * 33_333
        point = [f"{x:.2f}", f"{y:.2f}"]
        if version == 1:
            cells = [clock, "SMP", 1, *point, frame, event]
        else:
            stamp = f"{frame // 86400:02d}:{frame // 1440 % 60:02d}:{frame // 24 % 60:02d}"
            eyes = [f"{v:.2f}" for v in rng.normal(0, 1, 12)]
            cells = [clock, "SMP", 1, *point, *point, *point, "3.10", "3.20", *eyes, 0]
            cells += [f"{stamp}:{frame % 24:02d}", event]
        rows.append("\t".join(map(str, cells)))
        if messages and i % 30 == 5:
            rows.append(f"{clock + 1}\tMSG\t1\t# Message: marker")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\r\n".join([*facts, *rows, ""]).encode())
    return path


def egtea_tree(
    root: Path, sessions: dict[str, int], clips: int = 12, length: int = 72, gap: int = 24
) -> Path:
    """Action clips `gap` frames apart, and a BeGaze export of the version given, per session."""
    pattern = write_video(root.parent / "clip.mp4", np.arange(length) / 24, (32, 32))
    for number, (name, version) in enumerate(sessions.items()):
        folder = root / "cropped_clips" / name
        folder.mkdir(parents=True)
        for k in range(clips):
            first = 1 + k * (length + gap)
            last = first + length - 1
            ms = (first - 1) * 1000 // 24, last * 1000 // 24
            os.link(pattern, folder / f"{name}-{ms[0]}-{ms[1]}-F{first:06d}-F{last:06d}.mp4")
        frames = clips * (length + gap)
        begaze_export(root / "gaze_data" / f"{name}.txt", frames, version, number)
    return root


def egtea_lists(root: Path, without_test: Sequence[str] = (), every: int = 4) -> None:
    """GLC's lists: one clip in `every` of a session tests, but none of subjects `without_test`."""
    rows: dict[str, list[str]] = {"train": [], "test": []}
    for folder in sorted((root / "cropped_clips").iterdir()):
        own = folder.name.split("-")[0] not in without_test
        clips = sorted(folder.glob("*.mp4"), key=lambda path: path.stem.split("-F")[1])
        for number, path in enumerate(clips):
            part = "test" if own and number % every == every - 1 else "train"
            rows[part].append(f"{folder.name}/{path.name}")
    for part, listed in rows.items():
        (root / f"{part}_gaze_official.csv").write_text("\n".join([*listed, ""]))
