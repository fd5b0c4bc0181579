"""Project Aria glasses, Gen1 and Gen2: scene video with the wearer's gaze.

A recording is a folder of one of two kinds. The first kind has `rgb_upright.mp4` (or another single
mp4) and `gaze_2d.csv` with the columns frame, frame_timestamp_us, gaze_timestamp_us, dt_ms, x, y.
There x and y are fractions of the upright frame; without gaze, gaze_timestamp_us, x and y are all
empty. The second kind has one `.vrs`, and the CSV of Meta's Machine Perception Services (MPS) with
the eye gaze, beside the `.vrs` or in a folder below (extra `aria`). A Gen2 VRS may hold the gaze
itself. The first folder below `root` is the person. Three tiny clips are packaged, for predictions
and tests; with 17 frames in all they are no benchmark.

Licence: the packaged clips Apache-2.0, other recordings their own.

Used by `data.gaze_video.gaze_table` and `video.predict_maps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vergence.core.federation import Dataset, Federation
from vergence.data.gaze_video import vrs
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.gaze_video.recording import (
    Recording,
    WindowOptions,
    check_recordings,
    federation,
    id_and_person,
    recording_folders,
)
from vergence.data.io.checks import Check, missing_folder
from vergence.data.io.delimited_text import read_table
from vergence.data.io.video import videos_in
from vergence.errors import DataError

SAMPLE = Path(__file__).parent.with_name("samples") / "aria"
COLUMNS = ("frame", "frame_timestamp_us", "gaze_timestamp_us", "dt_ms", "x", "y")
# In order of precision: gaze that was calibrated to the wearer comes first.
MPS_NAMES = (
    "personalized_eye_gaze.csv",
    "general_eye_gaze.csv",
    "generalized_eye_gaze.csv",
    "eyegaze.csv",
    "eyegaze_legacy.csv",
)
"""File names of an MPS eye gaze CSV; the first one that exists is read."""
PACKAGED = {"adt": 6, "aea": 8, "gen2": 3}
"""Packaged clip -> its number of frames."""
ABOUT = {
    "licence": "of the recordings at root; the packaged clips: Apache-2.0, Meta Platforms",
    "citation": "Engel et al.: Project Aria: A new tool for egocentric multi-modal AI research. "
    "arXiv:2308.13561, 2023",
}


@dataclass(frozen=True)
class Aria(WindowOptions, Dataset):
    """Windows of Aria recordings; each folder directly below root is a person, and a client."""

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return every recording below a folder."""
        return recordings(root)

    def load(self, root: str | None = None) -> Federation:
        """Read the recordings, cut them into windows, and split each person's windows in time.

        Without `root`, the packaged clips are read; these are too short for a split.

        Raises:
            ConfigError: an option is out of range, or a VRS needs projectaria-tools.
            DataError: a recording is incomplete or unreadable, or a person has too few windows.
        """
        folder = Path(root).expanduser() if root else SAMPLE
        return federation(self, recordings(folder), folder, ABOUT)


def recordings(root: Path) -> list[Recording]:
    """Return every recording below `root`, sorted by path.

    Raises:
        DataError: `root` does not exist, or a recording is incomplete.
    """
    if not root.is_dir():
        raise DataError(
            f"{missing_folder(root)} for data set 'aria': correct root, or leave it out"
        )
    return [read(place, root) for place in recording_folders(root, "*.mp4", "*.vrs", "gaze_2d.csv")]


def read(folder: Path, root: Path | None = None) -> Recording:
    """Read the recording in one folder; the names of recording and person depend on `root`.

    Raises:
        ConfigError: the recording is a VRS, and projectaria-tools is not installed.
        DataError: there is gaze without video or video without gaze, or a file is unreadable.
    """
    name, person = id_and_person(folder, root)
    table = folder / "gaze_2d.csv"
    videos = videos_in(folder, usual=(".mp4",))
    if table.is_file():
        if len(videos) != 1:
            raise DataError(
                f"{folder} has gaze without video: {len(videos)} videos beside gaze_2d.csv, needs "
                "the one it was made for (rgb_upright.mp4)"
            )
        gaze, times = read_gaze_2d(table)
        return Recording(name, person, gaze, videos[0], times)
    files = sorted(folder.glob("*.vrs"))
    if len(files) != 1:
        raise DataError(
            f"{folder} has video without gaze: put gaze_2d.csv beside "
            f"{(videos or ['the mp4'])[0]}, or give one .vrs file with its MPS eye gaze CSV"
        )
    gaze, times = vrs.project_gaze(files[0], mps_file(folder))
    return Recording(name, person, gaze, files[0], times)


def read_gaze_2d(path: Path) -> tuple[Gaze, np.ndarray]:
    """Read `gaze_2d.csv`; return the gaze record and the times of the frames.

    The record has one sample per frame. Times are in seconds from the first frame, float64
    `[frames]`.

    Raises:
        DataError: the file is of another version, has NaN in a row with gaze, or its frames are out
            of order.
    """
    table = read_table(path, COLUMNS, "gaze_2d.csv of an upright Aria video")
    frames, us = table.integers("frame"), table.ticks("frame_timestamp_us")
    if not len(frames):
        raise DataError(f"{path} is a gaze file without samples; make it again from the VRS")
    if not np.array_equal(frames, np.arange(len(frames))):
        raise DataError(f"{path}: frames are not numbered 0 to {len(frames) - 1}; export it again")
    x, y = table.floats("x"), table.floats("y")
    tracked = np.isfinite(x) & np.isfinite(y)
    t = (us - us[0]) * 1e-6
    # The eye was measured a little before or after its frame; empty cells are untracked rows.
    dt = np.where(tracked, table.floats("dt_ms"), 0.0)
    gaze = Gaze.build(
        str(path),
        t,
        x,
        y,
        confidence=tracked.astype(float),
        source_frame=frames,
        dt_ms=dt,
    )
    return gaze, t


def mps_file(folder: Path) -> Path | None:
    """Return the MPS eye gaze CSV in or below a folder; None if there is none.

    A file with the wearer's own calibration takes precedence over one without.
    """
    return next((path for name in MPS_NAMES for path in sorted(folder.rglob(name))), None)


def check(root: Path | None = None) -> list[Check]:
    """Check frames and gaze of every recording; return the lines of `vergence data check`.

    Without `root`, the packaged clips and their numbers of frames are checked.
    """
    hint = "put folders with an mp4 and gaze_2d.csv, or a .vrs and its MPS CSV, below root"
    return check_recordings(
        recordings, root or SAMPLE, hint, frames=PACKAGED if root is None else {}
    )
