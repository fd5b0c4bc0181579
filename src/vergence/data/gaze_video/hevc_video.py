"""HEVC video set: gaze of 24 viewers on 33 short test sequences of video coding, on a screen.

Layout of `root`: `clips/NAME.mp4`, and `fixations.npz` with one-dimensional columns with a row per
fixation: `viewer`, `video` (place in `video_names`), `t_ms` (from the clip's start), `duration_ms`,
`x`, `y` in [0, 1], origin top left. It also has `video_names` and `clip_frames`, a name and a
number of frames for each clip. The source, remega/video_database, publishes a `video_database.mat`
and uncompressed videos, which are not read.

Frames are whole, unlike those of `gazecom`. The clips (5 to 25 s, 20 to 30 frames a second) show
sport, streets, faces, slides and a game. A frame's gaze is the fixation during which it is shown;
between fixations there is none.

Licence: gaze free to use with the citation. The sequences have owners of their own, so the data are
for measurements only and never packaged. Source: Xu, Jiang, Sun, Ye, Wang, "Learning to detect
video saliency with HEVC features", IEEE Transactions on Image Processing 26(1), 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from vergence.core.options import Positive
from vergence.data.gaze_video.clip_cache import ClipWindow, load_clips, open_video
from vergence.data.gaze_video.shown_clips import Clips, ShownClips
from vergence.data.io.checks import Check, Checks, compare, read_npz, refuse_nan
from vergence.data.io.video import rows_at
from vergence.errors import DataError

CLIPS, VIEWERS, FIXATIONS, RECORDINGS = 33, 24, 20_674, 792
WHERE = (
    "root must hold clips/NAME.mp4 and fixations.npz (for measurements only; the original is "
    "github.com/remega/video_database)"
)
COLUMNS = ("viewer", "video", "t_ms", "duration_ms", "x", "y")
NAMES = ("video_names", "clip_frames")


@dataclass(frozen=True)
class HevcVideo(ShownClips):
    """Gaze of 24 viewers on the same 33 clips; a viewer is a client, a window a sample.

    Attributes:
        people: viewers to load, such as ("v00", "v07"); by default all who have enough clips.
        every_s: seconds between neighbouring frames of a window. Only these frames are decoded;
            the clips' frames lie up to 0.05 s apart.
        hop: number of such frames from one window's start to the next; default: windows do not
            overlap.
    """

    every_s: Annotated[float, Ge(0.05)] = 0.2
    clips: tuple[Positive, Positive, Positive] = (23, 3, 7)
    where: ClassVar[str] = WHERE
    facts: ClassVar[Mapping[str, str]] = {
        "licence": "gaze free to use with the citation; video for measurements only, not packaged",
        "citation": "Xu, Jiang, Sun, Ye, Wang: Learning to detect video saliency with HEVC "
        "features. IEEE Transactions on Image Processing 26(1), 2017",
        "frames": "whole frames of the clips",
        "stimulus": "third person: clips of 5 to 25 s watched freely on a screen, not egocentric",
    }

    def read(self, folder: Path) -> Clips:
        """Read and verify everybody's fixations, and the times of the clips' frames.

        Raises:
            DataError: a file is missing, damaged or of another version, or a clip has another
                number of frames than the file of fixations states.
        """
        table, names, frames = read_fixations(folder)
        cuts, times_ms = [], []
        for name, count in zip(names, frames, strict=True):
            path = folder / "clips" / f"{name}.mp4"
            footage = open_video(path)
            times_s = footage.times_s
            if len(times_s) != count:
                raise DataError(
                    f"{path} has {len(times_s)} frames instead of {count}, it is another clip or "
                    f"was encoded again: {WHERE}"
                )
            # Half a millisecond: frame times are rounded to the ticks of the file.
            rows = rows_at(times_s, np.arange(0, times_s[-1] + 5e-4, self.every_s), name)
            cuts.append(ClipWindow(path, footage, rows))
            times_ms.append(times_s[rows] * 1e3)
        gaze: dict[str, dict[int, np.ndarray]] = {}
        for viewer, clip in np.unique(np.stack([table["viewer"], table["video"]], 1), axis=0):
            own = (table["viewer"] == viewer) & (table["video"] == clip)
            rows = {name: column[own] for name, column in table.items()}
            gaze.setdefault(f"v{viewer:02d}", {})[int(clip)] = gaze_at(rows, times_ms[clip])
        lengths = [len(cut.rows) for cut in cuts]
        return Clips(names, lengths, gaze, lambda: load_clips([cuts], self.size)[0])


def gaze_at(fixations: Mapping[str, np.ndarray], times_ms: np.ndarray) -> np.ndarray:
    """Return the place of the fixation at each time, float32 `[times, 2]`, NaN between fixations.

    Args:
        fixations: columns of one viewer's fixations on one clip. If two overlap, the later one
            counts from its start.
        times_ms: times since the clip's start, in milliseconds.
    """
    order = np.argsort(fixations["t_ms"], kind="stable")
    start = fixations["t_ms"][order].astype(np.float64)
    end = start + fixations["duration_ms"][order]
    xy = np.stack([fixations["x"], fixations["y"]], 1)[order].astype(np.float32)
    last = np.searchsorted(start, times_ms, "right") - 1
    fixated = (last >= 0) & (times_ms < end[last])
    return np.where(fixated[:, None], xy[last], np.float32(np.nan))


def read_fixations(folder: Path) -> tuple[dict[str, np.ndarray], list[str], np.ndarray]:
    """Return the columns of fixations, the clips' names, and their numbers of frames.

    Raises:
        DataError: the file is missing, damaged or of another version, or a value is out of range.
    """
    path = folder / "fixations.npz"
    dimensions: dict[str, int] = dict.fromkeys((*COLUMNS, *NAMES), 1)
    table = read_npz(path, dimensions, WHERE, text=("video_names",))
    names, frames = (table.pop(name) for name in NAMES)
    if len({len(column) for column in table.values()}) != 1 or len(names) != len(frames):
        raise DataError(f"{path} is of another version, its columns differ in length: {WHERE}")
    limits = {"video": len(names) - 1, "x": 1, "y": 1}
    for name in COLUMNS:
        column, high = table[name], limits.get(name, np.inf)
        refuse_nan(column, name, path)
        if name in ("viewer", "video") and column.dtype.kind not in "iu":
            raise DataError(f"{path}: {name} must be whole numbers: {WHERE}")
        wrong = (column < 0) | (column > high)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{path}: {name} of row {row} is {column[row]:g}, outside [0, {high:g}]: {WHERE}"
            )
    return table, [str(name) for name in names], frames


def check(root: Path) -> list[Check]:
    """Compare a folder with the published counts; return the lines of `vergence data check`.

    The counts are those of clips, viewers, recordings (a viewer on a clip) and fixations.
    """
    lines = Checks()
    with lines.reading("fixations and clips"):
        table, names, _ = read_fixations(root)
        cells = np.unique(np.stack([table["viewer"], table["video"]], 1), axis=0)
        lines += [
            compare("clips", len(names), CLIPS, WHERE),
            compare("viewers", len(np.unique(table["viewer"])), VIEWERS, WHERE),
            compare("recordings", len(cells), RECORDINGS, WHERE),
            compare("fixations", len(table["x"]), FIXATIONS, WHERE),
        ]
        HevcVideo().read(root)
        lines.append(Check("fixations and clips", "readable", "readable", True))
    return lines
