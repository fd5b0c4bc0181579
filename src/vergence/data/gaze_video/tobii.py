"""Tobii Pro Glasses 2 and 3: recordings as the glasses write them on the SD card.

Glasses 2: a recording consists of segments, folders with `livedata.json.gz` and `fullstream.mp4`.
Each line of livedata is one JSON object. `gp` is gaze in fractions of the scene image from its
top-left corner, `s` = 0 means valid, and `ts` is the device's clock in microseconds. Lines with
`vts` pair a `ts` with a presentation time in the mp4, in microseconds; so gaze is put on the clock
of the video file. Without these lines, lines with `pts` pair a `ts` with the 90 kHz clock of the
live stream; the first of these lines is taken for time 0 of the mp4.

Glasses 3: a folder with `gazedata.gz` and `scenevideo.mp4`. Each line is one JSON object of type
"gaze". `timestamp` counts seconds from the start of the recording, as the presentation times of the
mp4 do; the first frame may come later. So gaze is on the clock of the video file. `data.gaze2d` is
gaze in fractions of the scene image from its top-left corner; if it is missing, the eyes were not
found. For both glasses, the first folder below `root` is the person.

Licence: that of the recordings.

Used by `data.gaze_video.gaze_table`.

Source: github.com/tobiipro/g3pylib and the Glasses 3 Developer Guide; the reader was not tried on
original files of Glasses 3. For `vts`: tobiipro.com, "How can I synchronize the video and the gaze
data from Tobii Pro Glasses 2?". Public readers of both glasses (dcnieho/glassesTools) match gaze
with presentation times too, and count empty edits of the mp4.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
from numpy.typing import NDArray

from vergence.core.federation import Dataset, Federation
from vergence.core.files import parse_json
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.gaze_video.recording import (
    Recording,
    WindowOptions,
    check_recordings,
    federation,
    id_and_person,
    recording_folders,
)
from vergence.data.io.checks import Check, data_folder
from vergence.errors import DataError

LIVE, VIDEO = "livedata.json.gz", "fullstream.mp4"
GAZE3, VIDEO3 = "gazedata.gz", "scenevideo.mp4"
PTS_HZ = 90_000
# A record has some hundreds of characters: a longer line only fills the memory.
LONGEST = 1 << 20
"""Most characters of a line."""
# Records unpack to a tenth of this; a file made to fill the memory unpacks to more.
MAX_UNPACK_RATIO, SLACK = 200, 16 << 20
"""Most bytes that a file may unpack to: this many per byte of the file, plus a constant."""
WHERE = (
    f"put segments ({LIVE} beside {VIDEO}, or of Glasses 3 {GAZE3} beside {VIDEO3}) of the SD card "
    "in folders below root"
)
ABOUT = {
    "licence": "of the recordings at root; none is packaged",
    "citation": "Tobii Pro Glasses 2 and 3, Tobii AB",
}


@dataclass(frozen=True)
class Tobii(WindowOptions, Dataset):
    """Windows of Tobii Glasses 2 and 3 recordings; each folder directly below root is a person."""

    def recordings(self, root: Path) -> Sequence[Recording]:
        """Return every recording below a folder."""
        return recordings(root)

    def load(self, root: str | None = None) -> Federation:
        """Read the recordings, cut them into windows, and split each person's windows in time.

        Raises:
            ConfigError: an option is out of range.
            DataError: a segment is incomplete or unreadable, or a person has too few windows.
        """
        folder = data_folder(root, "tobii", WHERE)
        return federation(self, recordings(folder), folder, ABOUT)


def recordings(root: Path) -> list[Recording]:
    """Return one recording per segment below `root`, sorted by path."""
    return [read(place, root) for place in recording_folders(root, LIVE, VIDEO, GAZE3, VIDEO3)]


def read(folder: Path, root: Path | None = None) -> Recording:
    """Read the gaze of one segment; its video is opened later, when its frames are needed.

    Raises:
        DataError: there is video without gaze, or the gaze is truncated or of another version.
    """
    third = (folder / GAZE3).is_file() or (folder / VIDEO3).is_file()
    table, video = (GAZE3, VIDEO3) if third else (LIVE, VIDEO)
    if not (folder / table).is_file():
        raise DataError(f"{folder} has video without gaze: put {table} beside {video}")
    gaze = (read_gazedata if third else read_livedata)(folder / table)
    scene = folder / video if (folder / video).is_file() else None
    return Recording(*id_and_person(folder, root), gaze, scene, container_clock=True)


def read_livedata(path: Path) -> Gaze:
    """Read the gaze of a Glasses 2 segment, on the clock of its video file.

    A sample with a status other than 0 is untracked.

    Raises:
        DataError: the file is truncated, has no gaze, or has no line that pairs device and video
            time.
    """
    rows: list[tuple[np.int64, np.int64, float, float]] = []
    pairs: dict[str, list[tuple[np.int64, np.int64]]] = {"vts": [], "pts": []}
    for number, entry in _read_records(path):
        try:
            if "gp" in entry:
                x, y = entry["gp"]
                rows.append((np.int64(entry["ts"]), np.int64(entry["s"]), float(x), float(y)))
            for name, clock in pairs.items():
                if name in entry:
                    clock.append((np.int64(entry["ts"]), np.int64(entry[name])))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: line {number} is not a record of Glasses 2 ({error!r}); copy it again"
            ) from None
    if not rows:
        raise DataError(f"{path} has no gaze lines (gp); is it a recording of Glasses 2?")
    ts, status = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    x, y = (np.array([row[i] for row in rows], np.float64) for i in (2, 3))
    good = status == 0
    t = video_times(ts, pairs["vts"], pairs["pts"], path)
    return Gaze.build(str(path), t, x, y, tracked=good, confidence=good.astype(float), sort=True)


def read_gazedata(path: Path) -> Gaze:
    """Read the gaze of a Glasses 3 recording; lines without `gaze2d` are untracked.

    Raises:
        DataError: the file is truncated or has no gaze, or a line is not a record of Glasses 3.
    """
    rows: list[tuple[float, float, float]] = []
    for number, entry in _read_records(path):
        try:
            if entry["type"] != "gaze":
                continue
            x, y = entry["data"].get("gaze2d") or (np.nan, np.nan)
            rows.append((float(entry["timestamp"]), float(x), float(y)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: line {number} is not a record of Glasses 3 ({error!r}); copy it again"
            ) from None
    if not rows:
        raise DataError(f"{path} has no lines of type gaze; is it a recording of Glasses 3?")
    t, x, y = np.array(rows, np.float64).T
    sure = (np.isfinite(x) & np.isfinite(y)).astype(float)
    return Gaze.build(str(path), t, x, y, confidence=sure, sort=True)


def video_times(
    ts: NDArray[np.int64],
    vts: Sequence[tuple[SupportsInt, SupportsInt]],
    pts: Sequence[tuple[SupportsInt, SupportsInt]],
    path: Path,
) -> NDArray[np.float64]:
    """Return the video time in seconds of device times `ts` in microseconds.

    `vts` holds pairs of device time and video time, both in microseconds. If it is empty, `pts` is
    used: pairs of device time and a 90 kHz clock, whose first pair counts as video time 0. Between
    pairs the result is interpolated; outside, both clocks run at the same rate.

    Raises:
        DataError: there are no pairs.
    """
    pairs = np.array(vts or pts, np.int64).reshape(-1, 2)
    # Interpolation needs rising device times, and lines may come out of order.
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    if not len(pairs):
        raise DataError(f"{path} has no vts or pts lines: gaze cannot be put on the video's clock")
    seconds = pairs[:, 1] * 1e-6 if vts else (pairs[:, 1] - pairs[0, 1]) / PTS_HZ
    # The difference of the clocks is interpolated: beyond the pairs it stays as at the nearest.
    lag = seconds - pairs[:, 0] * 1e-6
    return ts * 1e-6 + np.interp(ts, pairs[:, 0], lag)


def _read_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, record) of every line of a gzipped file, one line at a time in memory.

    Raises:
        DataError: the file is missing or truncated, a line is not JSON, or the file unpacks to too
            much.
    """
    number = 0
    try:
        budget = MAX_UNPACK_RATIO * path.stat().st_size + SLACK
        with gzip.open(path, "rt", encoding="utf-8") as file:
            while line := file.readline(LONGEST + 1):
                number, budget = number + 1, budget - len(line)
                if len(line) > LONGEST or budget < 0:
                    raise DataError(
                        f"{path}: line {number} is too long, or the file unpacks to more than "
                        f"{MAX_UNPACK_RATIO} times its size: no recording does; copy it again"
                    )
                if line.strip():
                    yield number, parse_json(line)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it is the gaze of a Glasses recording") from None
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is truncated or not gzip ({error}); copy it again") from None
    except ValueError as error:
        raise DataError(f"{path}: line {number} is not JSON ({error}); copy it again") from None


def check(root: Path) -> list[Check]:
    """Check that gaze and video of every segment can be read; return the lines of the check."""
    return check_recordings(recordings, root, WHERE, "segments")
