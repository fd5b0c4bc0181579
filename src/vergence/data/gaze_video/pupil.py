"""Pupil Labs glasses: Player export (Core, Invisible), Cloud export, and Neon's native recording.

A recording is a folder of one of three kinds, each with the scene video as mp4. A Player export has
`gaze_positions.csv` and `world_timestamps.csv`, with times in seconds and the origin at the bottom
left. A Cloud export has `gaze.csv` and `world_timestamps.csv`, with UTC nanoseconds and pixels from
the top left. A native Neon recording 2.x has `gaze psN.raw` and `gaze psN.time` in several parts N,
with UTC nanoseconds and pixels from the top left. The first folder below `root` is the person. A
clock may jump back, so samples are put in time order.

Licence: that of the recordings.

Used by `data.gaze_video.gaze_table`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import Dataset, Federation
from vergence.core.files import parse_json
from vergence.data.gaze_video.gaze import Event, Gaze, fixation_spans
from vergence.data.gaze_video.recording import (
    Recording,
    WindowOptions,
    check_recordings,
    federation,
    id_and_person,
    recording_folders,
)
from vergence.data.io.checks import Check, data_folder
from vergence.data.io.delimited_text import read_table
from vergence.data.io.video import videos_in
from vergence.errors import DataError

INVISIBLE_SIZE = (1088, 1080)
NEON_SIZE = (1600, 1200)
"""Width and height of the scene camera's picture in pixels, for Invisible and for Neon."""
MIN_CONFIDENCE = 0.6
"""Pupil Core calls a pupil detection with a lower confidence unreliable."""
WHERE = "put exports of Pupil Player or Cloud, or Neon recordings, in folders below root"
ABOUT = {
    "licence": "of the recordings at root; none is packaged",
    "citation": "Kassner, Patera, Bulling: Pupil: an open source platform for pervasive eye "
    "tracking. UbiComp 2014",
}


@dataclass(frozen=True)
class Pupil(WindowOptions, Dataset):
    """Windows of Pupil Labs recordings; each folder directly below root is a person."""

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return every recording below a folder."""
        return recordings(root)

    def load(self, root: str | None = None) -> Federation:
        """Read the recordings, cut them into windows, and split each person's windows in time.

        Raises:
            ConfigError: an option is out of range.
            DataError: a recording is incomplete or unreadable, or a person has too few windows.
        """
        folder = data_folder(root, "pupil", WHERE)
        return federation(self, recordings(folder), folder, ABOUT)


def recordings(root: Path) -> list[Recording]:
    """Return every recording below `root`, sorted by path."""
    names = ("gaze_positions.csv", "gaze.csv", "gaze ps1.raw", "world_timestamps.csv")
    return [
        recording for place in recording_folders(root, *names) for recording in read(place, root)
    ]


def read(folder: Path, root: Path | None = None) -> list[Recording]:
    """Return the recordings in one folder: one, or one per part of a native Neon recording.

    Raises:
        DataError: there is video without gaze, or a file is missing, damaged or of another version.
    """
    who = id_and_person(folder, root)
    if (folder / "gaze_positions.csv").is_file():
        return [read_player(folder, *who)]
    if (folder / "gaze.csv").is_file():
        return [read_cloud(folder, *who)]
    if list(folder.glob("gaze ps*.raw")):
        return read_neon(folder, *who)
    raise DataError(
        f"{folder} has video without gaze: export gaze_positions.csv (Player) or gaze.csv (Cloud) "
        "into it"
    )


def read_player(folder: Path, name: str, person: str) -> Recording:
    """Read a Pupil Player export.

    `source_frame` is the column world_index. If only a part of the video was exported, this number
    differs from the frame's number in the exported video.
    """
    path = folder / "gaze_positions.csv"
    needed = ["gaze_timestamp", "world_index", "confidence", "norm_pos_x", "norm_pos_y"]
    table = read_table(path, needed, "gaze_positions.csv of Pupil Player")
    world = read_table(
        folder / "world_timestamps.csv", ["# timestamps [seconds]"], "world_timestamps.csv"
    ).ticks("# timestamps [seconds]")
    _need_frame_times(len(world), folder / "world_timestamps.csv")
    t = table.ticks("gaze_timestamp") - world[0]
    event: NDArray[np.int8] | Event = Event.UNKNOWN
    fixations = None
    if (folder / "fixations.csv").is_file():
        spans = read_table(
            folder / "fixations.csv", ["start_timestamp", "duration"], "fixations.csv of Player"
        )
        start = spans.floats("start_timestamp") - world[0]
        fixations = np.stack([start, start + spans.floats("duration") / 1e3], 1)
        event = label_fixations(t, *fixations.T)
    confidence = table.floats("confidence")
    gaze = Gaze.build(
        str(path),
        t,
        table.floats("norm_pos_x"),
        1 - table.floats("norm_pos_y"),
        tracked=confidence >= MIN_CONFIDENCE,
        event=event,
        confidence=confidence,
        source_frame=table.integers("world_index"),
        sort=True,
    )
    times = world - world[0]
    return Recording(name, person, gaze, _scene_video(folder), times, fixations=fixations)


def read_cloud(folder: Path, name: str, person: str) -> Recording:
    """Read a Pupil Cloud export of Invisible or Neon.

    Samples during a blink, or while the glasses are not worn, are untracked.
    """
    path = folder / "gaze.csv"
    table = read_table(
        path, ["timestamp [ns]", "gaze x [px]", "gaze y [px]"], "gaze.csv of Pupil Cloud"
    )
    stamps = folder / "world_timestamps.csv"
    world = read_table(stamps, ["timestamp [ns]"], "world_timestamps.csv").integers(
        "timestamp [ns]"
    )
    _need_frame_times(len(world), stamps)
    (width, height), fov = _scene_camera(folder / "scene_camera.json")
    tracked = np.ones(len(table), bool)
    if "worn" in table and any(map(str.strip, table.text("worn"))):
        tracked &= table.flags("worn")
    if "blink id" in table:
        tracked &= np.isnan(table.floats("blink id"))
    t_s = (table.integers("timestamp [ns]") - world[0]) * 1e-9
    event, fixations = np.full(len(table), Event.UNKNOWN, np.int8), None
    if "fixation id" in table:
        number = table.floats("fixation id")
        event = np.where(np.isfinite(number), Event.FIXATION, Event.SACCADE).astype(np.int8)
        fixations = fixation_spans(t_s, event, np.ones(len(table), bool), number)
    gaze = Gaze.build(
        str(path),
        t_s,
        table.floats("gaze x [px]") / width,
        table.floats("gaze y [px]") / height,
        tracked=tracked,
        event=event,
        sort=True,
    )
    times, video = (world - world[0]) * 1e-9, _scene_video(folder)
    return Recording(name, person, gaze, video, times, fov_deg=fov, fixations=fixations)


def read_neon(folder: Path, name: str, person: str) -> list[Recording]:
    """Return the recordings of a native Neon folder: one per part of the scene video.

    Each has the gaze and the fixations of its own time.

    Raises:
        DataError: the format version is not 2.x, or a raw and a time file differ in length.
    """
    version = str(_json(folder / "info.json").get("data_format_version"))
    if not version.startswith("2."):
        raise DataError(f"{folder}/info.json: data format {version} is not read, only 2.x is")
    # The phone's gaze has fewer samples; the one computed afterwards has all 200 a second.
    fast = (folder / "gaze_200hz.raw").is_file()
    xy, ns = _stream(folder, "gaze", ["gaze_200hz"] if fast else _parts(folder, "gaze"))
    worn_parts = ["worn_200hz"] if fast else _parts(folder, "worn")
    worn = np.concatenate([_read_records(folder / f"{p}.raw", np.dtype("u1")) for p in worn_parts])
    if len(worn) != len(xy):
        raise DataError(f"{folder}: {len(worn)} worn flags for {len(xy)} gaze samples; copy again")
    tracked = worn > 0
    if (folder / "blinks.dtype").is_file():
        blinks, _ = _stream(folder, "blinks", _parts(folder, "blinks"))
        tracked &= ~_inside_intervals(ns, blinks["start_timestamp_ns"], blinks["end_timestamp_ns"])
    event, fixations_ns = np.full(len(ns), Event.UNKNOWN, np.int8), None
    if (folder / "fixations.dtype").is_file():
        spans, _ = _stream(folder, "fixations", _parts(folder, "fixations"))
        spans = spans[spans["event_type"] == 1]
        fixations_ns = np.stack([spans["start_timestamp_ns"], spans["end_timestamp_ns"]], 1)
        event = label_fixations(ns, *fixations_ns.T)
    clocks = _neon_clocks(folder)
    scenes, out = sorted(clocks, key=lambda scene: int(clocks[scene][0])), list[Recording]()
    first = clocks[scenes[0]][0]
    # Files of gaze have parts of their own. A sample belongs to the video nearest in time.
    edges = [(clocks[a][-1] + clocks[b][0]) // 2 for a, b in pairwise(scenes)]
    part_of = partial(np.searchsorted, np.array(edges, np.int64), side="right")
    for part, scene in enumerate(scenes):
        frames = clocks[scene]
        rows, times = part_of(ns) == part, (frames - frames[0]) * 1e-9
        gaze = Gaze.build(
            str(folder / "gaze"),
            (ns[rows] - frames[0]) * 1e-9,
            xy["x"][rows] / NEON_SIZE[0],
            xy["y"][rows] / NEON_SIZE[1],
            tracked=tracked[rows],
            event=event[rows],
            sort=True,
        )
        where = name if len(scenes) == 1 else f"{name}/{scene.stem.rsplit(' ', 1)[-1]}"
        own = None
        if fixations_ns is not None:
            own = (fixations_ns[part_of(fixations_ns[:, 0]) == part] - frames[0]) * 1e-9
        video, start = _scene_video(folder, scene.stem), float(frames[0] - first) * 1e-9
        out.append(Recording(where, person, gaze, video, times, name, start, fixations=own))
    return out


def _neon_clocks(folder: Path) -> dict[Path, NDArray[np.int64]]:
    """Return the times of the frames of each part of a Neon's scene video, in ns, by file."""
    clocks = {
        scene: _read_records(scene, np.dtype("<i8"))
        for scene in sorted(folder.glob("Neon Scene Camera v1 ps*.time"))
    }
    if not clocks:
        raise DataError(
            f"{folder} has no 'Neon Scene Camera v1 ps1.time'; copy the recording again"
        )
    for scene, frames in clocks.items():
        _need_frame_times(len(frames), scene)
    return clocks


def label_fixations(
    t: NDArray[np.float64] | NDArray[np.int64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> NDArray[np.int8]:
    """Return FIXATION for times in the intervals and SACCADE for others, int8, one per time.

    Interval i is from `start[i]` to `end[i]`, on the clock of the times `t`. `read_player` and
    `read_neon` call this.
    """
    return np.where(_inside_intervals(t, start, end), Event.FIXATION, Event.SACCADE).astype(np.int8)


def _inside_intervals(t: NDArray, start: NDArray, end: NDArray) -> NDArray[np.bool_]:
    order = np.argsort(start)
    # The running maximum of ends also covers intervals that overlap.
    last = np.searchsorted(start[order], t, "right") - 1
    if not len(start):
        return np.zeros(len(t), bool)
    return (last >= 0) & (t <= np.maximum.accumulate(end[order])[np.maximum(last, 0)])


def _parts(folder: Path, stream: str) -> list[str]:
    # By number: part 10 comes after part 9.
    numbers = {p: p.stem.rsplit("ps", 1)[1] for p in folder.glob(f"{stream} ps*.raw")}
    if strange := [str(path) for path, number in numbers.items() if not number.isdecimal()]:
        raise DataError(
            f"{strange[0]} is no part, such as {stream} ps1.raw: remove it, or copy the recording "
            "again"
        )
    return [p.stem for p in sorted(numbers, key=lambda path: int(numbers[path]))]


def _stream(folder: Path, stream: str, parts: list[str]) -> tuple[NDArray, NDArray[np.int64]]:
    path = folder / f"{stream}.dtype"
    # The file holds a Python expression: only literals are evaluated, never code.
    try:
        kind = np.dtype(
            [
                (n, np.dtype(t).newbyteorder("<"))
                for n, t in ast.literal_eval(path.read_text(encoding="utf-8").strip())
            ]
        )
    except (OSError, ValueError, SyntaxError, TypeError) as error:
        raise DataError(f"{path} does not describe the {stream} records: {error}") from None
    records = [_read_records(folder / f"{part}.raw", kind) for part in parts]
    times = [_read_records(folder / f"{part}.time", np.dtype("<i8")) for part in parts]
    for part, r, t in zip(parts, records, times, strict=True):
        if len(r) != len(t):
            raise DataError(
                f"{folder}/{part}: {len(r)} records in .raw, {len(t)} in .time; the recording is "
                "truncated, copy it again"
            )
    return np.concatenate(records), np.concatenate(times)


def _read_records(path: Path, kind: np.dtype) -> NDArray:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; copy it again") from None
    if len(data) % kind.itemsize:
        raise DataError(
            f"{path} is truncated: {len(data)} bytes are no whole number of {kind.itemsize}-byte "
            "records; copy it again"
        )
    return np.frombuffer(data, kind)


def _scene_camera(path: Path) -> tuple[tuple[int, int], float | None]:
    """Return the scene picture's (width, height), and its horizontal field of view in degrees.

    The export does not state the size: it is that of Invisible or of Neon, whichever has its middle
    nearer to the principal point. The lens is taken for a pinhole.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing; export it with the recording, it tells the camera")
    matrix = np.array(_json(path).get("camera_matrix", []), float)
    if matrix.shape != (3, 3):
        raise DataError(f"{path} has no 3 x 3 camera_matrix; export the recording again")
    middle = matrix[:2, 2]
    size = min(
        (INVISIBLE_SIZE, NEON_SIZE), key=lambda s: float(np.abs(middle - np.array(s) / 2).sum())
    )
    return size, math.degrees(2 * math.atan(size[0] / 2 / matrix[0, 0]))


def _json(path: Path) -> dict:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}); export it again") from None


def _scene_video(folder: Path, stem: str = "*") -> Path | None:
    # Neon also records the eyes, under the name of its sensor module.
    videos = [p for p in videos_in(folder, stem, (".mp4",)) if "Sensor Module" not in p.name]
    if len(videos) > 1:
        raise DataError(
            f"{folder} has {len(videos)} videos, needs one scene video; move the others"
        )
    return videos[0] if videos else None


def _need_frame_times(count: int, path: Path) -> None:
    if not count:
        raise DataError(f"{path} holds no frame times; export the recording again")


def check(root: Path) -> list[Check]:
    """Check each video's number of frames, and its gaze; return the lines of the check."""
    return check_recordings(recordings, root, WHERE)
