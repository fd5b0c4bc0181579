"""The user's own recordings: a gaze table and a scene video each, from any tracker.

The user names the columns (`columns`), or a preset. All files are below `root`. The person is a
column, a part of the path (`files = "{person}/*.csv"`), or the first folder below root. A table's
video is found by the pattern `videos`, with the same named parts. Without this pattern, it is the
video with the table's name, or else the only video in the table's folder. The presets
`pupil_player`, `pupil_neon`, `tobii_glasses3` and `aria_mps` are for exports of several files, and
use the readers of the data sets `pupil`, `tobii` and `aria`. Formats and sources: `gaze_presets`.

Licence: that of the recordings.

Used by `data.format_detection` and `data.gaze_tracks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import Dataset, Federation
from vergence.core.naming import plural
from vergence.data.gaze_video import aria, pupil, tobii
from vergence.data.gaze_video.clip_cache import open_video
from vergence.data.gaze_video.conditions import condition_names, with_path_conditions
from vergence.data.gaze_video.gaze import Gaze, fixation_spans
from vergence.data.gaze_video.gaze_columns import (
    SECONDS,
    TICKS,
    GazeColumns,
    GazeRows,
    Lens,
    Origin,
    angles_to_fractions,
    in_time_order,
    read_rows,
    read_ticks,
    to_fractions,
)
from vergence.data.gaze_video.gaze_files import GazeFiles
from vergence.data.gaze_video.gaze_presets import (
    OWN_RECORDINGS,
    GazePreset,
    GazeTableOptions,
    columns_of,
)
from vergence.data.gaze_video.recording import (
    Recording,
    WindowOptions,
    check_recordings,
    federation,
    id_and_person,
    recording_folders,
)
from vergence.data.gaze_video.vrs import read_mps
from vergence.data.io.checks import Check, CheckedFolder, data_folder
from vergence.data.io.delimited_text import read_table
from vergence.data.io.path_patterns import fill_pattern, matching_files
from vergence.data.io.video import VIDEOS, videos_in
from vergence.errors import ConfigError, DataError

READERS = {"pupil": pupil.recordings, "tobii": tobii.recordings}
WHERE = (
    "put gaze tables and their scene videos below root; 'vergence data import DIR' writes the rest"
)
MAX_OUTSIDE = 0.9
"""Above this fraction of valid gaze outside the picture, the unit or the origin must be wrong."""
SAMPLING_S = (4e-4, 0.4)
"""Plausible seconds between samples: trackers take 2.5 to 2,500 samples a second."""
MAX_LENGTH_RATIO = 3.0
"""A table and a video are about equally long if their lengths differ by less than this factor."""


@dataclass(frozen=True)
class GazeTable(GazeTableOptions, WindowOptions, CheckedFolder, Dataset):
    """Windows of the user's own recordings: gaze tables with scene videos.

    Attributes:
        videos: pattern of the videos' paths, with the same named parts as `files`.
        origin: where x and y are 0: top_left, bottom_left, centre (y down), centre_up (y up).
        start: the time of the video's first frame, in the table's unit; "first": the time of the
            first sample; or a date and time, if the table's times are dates or count from 1970.
        frame_times: (file, column) of the frame times: the name of a table in the folder of each
            gaze table, and the column with the times, on the clock of the gaze. Their unit is in
            brackets in the column's name, or else t_unit. Default: the video's own times.
        scene_size: (width, height) of the picture to whose pixels x and y refer, for
            unit = px; default: the video's.
        fov_deg: the scene camera's (horizontal, vertical) field of view in degrees, for unit = deg.
        lens: type of the scene camera's lens: pinhole or equidistant (fisheye), for unit = deg.
        clock: what to do if time goes back in a table: "refuse" the data, or "sort" the rows.
    """

    videos: str = ""
    origin: Origin = "top_left"
    start: float | str = 0.0
    frame_times: tuple[str, ...] = ()
    scene_size: tuple[int, int] | None = None
    fov_deg: tuple[float, ...] = ()
    lens: Lens = "pinhole"
    clock: Literal["refuse", "sort"] = "refuse"
    data: ClassVar[str] = "gaze_table"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fov_deg and (len(self.fov_deg) != 2 or not all(0 < a < 180 for a in self.fov_deg)):
            raise ConfigError(
                f"fov_deg must be (horizontal, vertical), each 0 to 180 degrees, got {self.fov_deg}"
            )
        if self.frame_times and len(self.frame_times) != 2:
            raise ConfigError(f"frame_times must be (file, column), got {list(self.frame_times)}")

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return every recording below a folder."""
        return self.read(root)[0]

    def load(self, root: str | None = None) -> Federation:
        """Read the recordings, cut them into windows, and split each person's windows in time.

        Raises:
            ConfigError: an option is out of range, or columns are not set.
            DataError: a table or video cannot be used, or a person has too few windows.
        """
        folder = data_folder(root, "gaze_table", WHERE)
        recordings, summary = self._read_checked(folder)
        names = condition_names(self.columns.conditions, self.files)
        made = federation(self, recordings, folder, OWN_RECORDINGS, names)
        return replace(
            made, about={**made.about, "left_out": f"{summary}; {made.about['left_out']}"}
        )

    def read(self, root: Path) -> tuple[list[Recording], str]:
        """Return every recording below a folder, and a sentence on what was left out."""
        preset, patterns, sets = columns_of(
            self.preset, "gaze_table", self.columns, self.files, ("t", "x", "y", "unit", "t_unit")
        )
        if preset and preset.reader:
            recordings = (
                [self._aria(folder, root) for folder in _aria_folders(root)]
                if preset.reader == "aria"
                else READERS[preset.reader](root)
            )
            people = {recording.person for recording in recordings}
            noun = "people" if len(people) > 1 else "person"
            read = plural(len(recordings), "recording")
            return recordings, f"{read} read, {len(people)} {noun}"
        recordings, repeated, known = list[Recording](), 0, set[str]()
        files, tables = self._tables(root, preset, patterns, sets, known)
        for path, rows in tables:
            # A maker's table may hold several recordings, and time begins anew with each.
            trials = rows.trial if preset else np.full(len(rows), "")
            for person, trial in sorted({*zip(rows.person.tolist(), trials.tolist(), strict=True)}):
                who = person or self._person_of(root, path, files.tables[path])
                known.add(who)
                if self._skips(who):
                    continue
                own = rows.select((rows.person == person) & (trials == trial))
                video = self._video(root, path, files.tables[path], who, trial)
                own, dropped = in_time_order(own, self.clock, f"person {who}")
                recordings.append(self._recording(root, path, who, own, video, trial))
                repeated += dropped
        if unknown := [person for person in self.people if person not in known]:
            raise DataError(
                f"{root} has no recordings of {', '.join(unknown)}; people there: "
                f"{', '.join(sorted(known))}"
            )
        summary = files.summary({recording.person for recording in recordings})
        return recordings, f"{summary}; {repeated} samples that repeat an earlier time"

    def _person_of(self, root: Path, path: Path, parts: Mapping[str, str]) -> str:
        return parts.get("person") or id_and_person(path.parent, root)[1]

    def _tables(
        self,
        root: Path,
        preset: GazePreset | None,
        patterns: Sequence[str],
        sets: Sequence[GazeColumns],
        known: set[str],
    ) -> tuple[GazeFiles, list[tuple[Path, GazeRows]]]:
        """Return the gaze tables below a folder, and their rows.

        Tables of people who are not in the option `people` are not read; these people are added to
        `known`.
        """
        frames = tuple(f"**/{name}" for name in self.frame_times[:1])
        files = GazeFiles.of(root, patterns, (*self.without, *frames), sets, bool(self.files))
        tables, unread = list[tuple[Path, GazeRows]](), dict[Path, str]()
        for path, parts in files.tables.items():
            whose = self._person_of(root, path, parts)
            if not any(columns.person for columns in sets) and self._skips(whose):
                known.add(whose)
                unread[path] = "not in people"
                continue
            columns = preset.columns_for(self.columns, path) if preset else self.columns
            if columns.unit == "deg" and not self.fov_deg:
                raise ConfigError(
                    "unit = 'deg' needs fov_deg = [horizontal, vertical], the scene camera's field "
                    "of view in degrees"
                )
            rows = read_rows(path, columns, optional=bool(preset))
            tables.append((path, with_path_conditions(rows, parts)))
        files = replace(files, left_out={**files.left_out, **unread})
        return files.without_copies(tables)

    def _skips(self, person: str) -> bool:
        return bool(self.people) and person not in self.people

    def check(self, root: Path) -> list[Check]:
        """Check that each recording has gaze while its video runs.

        The result is the lines of `vergence data check`.
        """
        return check_recordings(lambda folder: self._read_checked(folder)[0], root, WHERE)

    def _read_checked(self, root: Path) -> tuple[list[Recording], str]:
        recordings, summary = self.read(root)
        for recording in recordings:
            check_overlap(recording)
        return recordings, summary

    def _video(
        self, root: Path, table: Path, parts: Mapping[str, str], person: str, trial: str
    ) -> Path:
        if self.videos:
            pattern = fill_pattern(self.videos, parts)
            videos = [path for path, _ in matching_files(root, pattern, "videos")]
        else:
            pattern = f"{table.parent.relative_to(root).as_posix()}/*"
            videos = videos_in(table.parent)
            # A video with a table of its own name belongs to that table.
            others = [p for p in videos if not p.with_suffix(table.suffix).is_file()]
            own = (trial, table.stem, person)
            videos = next(filter(None, ([p for p in videos if p.stem == n] for n in own)), others)
        if len(videos) != 1:
            raise DataError(
                f"{table}: person '{person}' needs one scene video, '{pattern}' has {len(videos)} "
                f"({', '.join(p.name for p in videos[:5]) or 'none'}): name columns.stimulus, if "
                "pictures were on a screen; else put the video there, set videos, with the parts "
                "of files, as '{person}/{recording}.mp4', or leave the person out: people = [...] "
                "names those who stay"
            )
        return videos[0]

    def _recording(
        self, root: Path, path: Path, person: str, rows: GazeRows, video: Path, trial: str
    ) -> Recording:
        name = path.relative_to(root).with_suffix("").as_posix()
        times, start, start_scale = None, self.start, rows.scale
        if self.frame_times:
            stamps = path.with_name(self.frame_times[0])
            table = read_table(stamps, [self.frame_times[1]], "table of frame times")
            ticks, start_scale = read_ticks(table, self.frame_times[1], rows.t_unit)
            if not len(ticks):
                raise DataError(f"{stamps} holds no frame times; export the recording again")
            times, start = (ticks - ticks[0]) * start_scale, ticks[0].item()
        t_s = rows.seconds(start, start_scale)
        x, y = self._fractions(rows, video)
        outside = rows.valid & ~((x >= 0) & (x <= 1) & (y >= 0) & (y <= 1))
        if rows.valid.any() and outside.sum() > MAX_OUTSIDE * rows.valid.sum():
            i = int(np.argmax(outside))
            raise DataError(
                f"{path}: {outside.sum()} of {rows.valid.sum()} valid samples lie outside the "
                f"picture, the first in row {rows.line[i]} ({rows.x[i]:g}, {rows.y[i]:g} "
                f"{rows.unit}): correct columns.unit, origin or scene_size"
            )
        gaze = Gaze.build(str(path), t_s, x, y, tracked=rows.valid, event=rows.event)
        # A table of several people or trials gives several recordings: each needs its own id.
        name = f"{name}/{person}" if rows.names.get("person") else name
        name = f"{name}/{trial}" if trial else name
        made = Recording(
            *(name, person, gaze, video, times),
            conditions=rows.conditions,
            fixations=fixation_spans(t_s, rows.event, rows.valid, rows.fixation),
        )
        if SECONDS.get(rows.t_unit) == rows.scale and rows.t_unit != "datetime":
            check_time_unit(made, rows.t_unit)
        return made

    def _fractions(
        self, rows: GazeRows, video: Path
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if rows.unit == "deg":
            down = -rows.y if self.origin in ("bottom_left", "centre_up") else rows.y
            return angles_to_fractions(rows.x, down, (self.fov_deg[0], self.fov_deg[1]), self.lens)
        size = self.scene_size
        if size is None and rows.unit == "px":
            footage = open_video(video)
            size = (footage.width, footage.height)
        return to_fractions(rows.x, rows.y, rows.unit, size or (1, 1), self.origin)

    def _aria(self, folder: Path, root: Path) -> Recording:
        """Read an Aria recording from a VRS file, from `gaze_2d.csv`, or from an mp4 with MPS gaze.

        In the last case the camera is not calibrated: gaze is placed by its angles and `fov_deg`,
        as if the eyes were at the camera.
        """
        if list(folder.glob("*.vrs")) or (folder / "gaze_2d.csv").is_file():
            return aria.read(folder, root)
        table, videos = aria.mps_file(folder), videos_in(folder, usual=(".mp4",))
        if table is None or len(videos) != 1:
            raise DataError(
                f"{folder} has {len(videos)} videos and {'an' if table else 'no'} MPS eye gaze "
                "CSV, needs one of each, or a .vrs"
            )
        if not self.fov_deg:
            raise ConfigError(
                f"{folder} has an mp4 and no VRS, so the camera is not known: set fov_deg = "
                "[horizontal, vertical] of the video in degrees, or put the .vrs beside it"
            )
        # Without the camera's calibration: as if the eyes were at the camera.
        cpf = read_mps(table)
        left, up, ahead = cpf.point.T
        right, down = (np.degrees(np.arctan2(-side, ahead)) for side in (left, up))
        x, y = angles_to_fractions(right, down, (self.fov_deg[0], self.fov_deg[1]), self.lens)
        if isinstance(self.start, str) and self.start != "first":
            raise ConfigError(
                f"start must be a number of microseconds or 'first', got '{self.start}'"
            )
        start = cpf.t_us[0] if self.start == "first" else int(self.start)
        gaze = Gaze.build(str(table), (cpf.t_us - start) * 1e-6, x, y, tracked=cpf.valid)
        return Recording(*id_and_person(folder, root), gaze, videos[0])


def _aria_folders(root: Path) -> list[Path]:
    """Return the folders with an Aria recording: an mp4, a VRS, or another video with MPS gaze."""
    others = [
        p for p in recording_folders(root, *(f"*{ending}" for ending in VIDEOS)) if aria.mps_file(p)
    ]
    return sorted({*recording_folders(root, "*.mp4", "*.vrs"), *others})


def check_time_unit(recording: Recording, unit: str) -> None:
    """Check that the time unit of a gaze table is plausible.

    It is plausible if the median step between samples is that of a tracker. It is also plausible if
    no other unit makes the table about as long as its video.

    Args:
        recording: a recording whose times were read in `unit`.
        unit: s, ms, us or ns.

    Raises:
        DataError: another unit makes table and video about equally long.
    """
    steps = np.diff(recording.gaze.t_s)
    if not len(steps) or SAMPLING_S[0] <= float(np.median(steps)) < SAMPLING_S[1]:
        return
    times = recording.footage().times_s
    span, length = float(steps.sum()), float(times[-1] - times[0])
    for other in TICKS:
        seconds = span / SECONDS[unit] * SECONDS[other]
        if other != unit and length / MAX_LENGTH_RATIO < seconds < length * MAX_LENGTH_RATIO:
            raise DataError(
                f"columns.t_unit = '{unit}' is wrong, '{other}' would fit: with '{unit}' "
                f"{recording.gaze.source} lasts {span:g} s, and the video {recording.video} "
                f"{length:.1f} s; set columns.t_unit = '{other}'"
            )


def check_overlap(recording: Recording) -> None:
    """Check that some valid gaze of a recording is within its video's time, or at most 1 s off.

    Raises:
        DataError: there is valid gaze, but none in that time, so gaze and video have different
            clocks.
    """
    times = recording.footage().times_s
    valid = recording.gaze.t_s[recording.gaze.valid]
    if len(valid) and not ((valid >= times[0] - 1) & (valid <= times[-1] + 1)).any():
        raise DataError(
            f"{recording.gaze.source}: gaze from {valid[0]:.3f} to {valid[-1]:.3f} s, the video "
            f"{recording.video} from {times[0]:.3f} to {times[-1]:.3f} s: they have no moment in "
            "common; set start to the table's time at the first frame, or start = 'first'"
        )
