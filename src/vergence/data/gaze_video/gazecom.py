"""GazeCom: gaze on 18 outdoor clips of 20 s, watched on a screen; frames put together from crops.

Layout of `root`: `frames/CLIP/fNNNN.jpg` (NNNN = 0..99, a frame every 0.2 s), `gaze_25hz.npz`
(columns person, clip, t_s, x, y, valid of equal length; x, y in [0, 1], origin top left; a row is
the median gaze from t to t + 0.04 s) and `frame_donors.csv` (person, clip).

The frames were put together from crops around the gaze of some viewers (the donors). So a pixel
that is up to date is a weak hint that a donor looked there.

Licence: none stated by the source, research use only, never packaged. Source: Dorr, Martinetz,
Gegenfurtner, Barth, "Variability of eye movements when viewing dynamic natural scenes", Journal of
Vision 10(10):28, 2010.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from vergence.data.gaze_video.shown_clips import Clips, ShownClips
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    need_file,
    read_npz,
    read_pictures,
    refuse_nan,
)
from vergence.data.io.delimited_text import read_table
from vergence.errors import ConfigError, DataError

CLIPS, FRAMES, FRAME_S, GAZE_S = 18, 100, 0.2, 0.04
PEOPLE, RECORDINGS, ROWS, DONORS = 36, 567, 283_500, 102
WHERE = (
    "root must hold frames/CLIP/fNNNN.jpg, gaze_25hz.npz and frame_donors.csv, the rebuilt GazeCom "
    "movies (research use only; the original movies are at the University of Luebeck)"
)
COLUMNS = ("person", "clip", "t_s", "x", "y", "valid")


@dataclass(frozen=True)
class Gazecom(ShownClips):
    """Gaze of up to 36 viewers on the same clips; a viewer is a client, a window a sample.

    Attributes:
        people: viewers to load, such as ("P01", "P07"); by default all who have enough clips.
        every_s: seconds between neighbouring frames of a window, a multiple of 0.2.
        exclude_donors: whether to leave out the recordings of donors. The frames consist of crops
            around the gaze of these viewers.
    """

    exclude_donors: bool = False
    where: ClassVar[str] = WHERE
    facts: ClassVar[Mapping[str, str]] = {
        "licence": "none stated by the source: research use only, not packaged",
        "citation": "Dorr, Martinetz, Gegenfurtner, Barth: Variability of eye movements when "
        "viewing dynamic natural scenes. Journal of Vision 10(10):28, 2010",
        "frames": "rebuilt from gaze-centred crops; freshness is a weak cue to gaze",
        "stimulus": "third person: clips of 20 s watched freely on a screen, not egocentric",
    }

    def read(self, folder: Path) -> Clips:
        """Read and verify everybody's gaze, and who gave crops if these are to be left out.

        Raises:
            DataError: a file is missing, damaged or of another version.
        """
        names, gaze = read_gaze(folder)
        donors = _read_donors(folder) if self.exclude_donors else set()
        return Clips(
            names,
            [FRAMES] * len(names),
            gaze,
            partial(_read_frames, folder, names, self.size),
            donors,
            "; recordings that gave crops" if self.exclude_donors else "",
        )

    def _stride(self) -> int:
        stride = round(self.every_s / FRAME_S)
        if stride < 1 or abs(stride * FRAME_S - self.every_s) > 1e-6:
            raise ConfigError(f"every_s must be a multiple of {FRAME_S} s, got {self.every_s}")
        return stride * super()._stride()


def read_gaze(folder: Path) -> tuple[list[str], dict[str, dict[int, np.ndarray]]]:
    """Return the clip names, and person -> clip number -> gaze in the frames, `[100, 2]`.

    A frame's gaze is a valid row of the 25 Hz table: the row that starts at the frame's time, else
    the row 0.04 s before, else the row 0.04 s after. If none of the three is valid, the gaze is
    NaN.

    Raises:
        DataError: the file is missing, damaged or of another version, or has NaN in valid gaze.
    """
    path = folder / "gaze_25hz.npz"
    table = read_npz(path, dict.fromkeys(COLUMNS, 1), WHERE, text=("person", "clip"))
    if len({len(column) for column in table.values()}) != 1 or not len(table["x"]):
        raise DataError(f"{path} is of another version, its columns differ in length: {WHERE}")
    xy = np.stack([table["x"], table["y"]], 1).astype(np.float32)
    valid = table["valid"] == 1
    refuse_nan(table["t_s"], "t_s", path)
    refuse_nan(np.where(valid[:, None], xy, 0), "valid gaze", path)
    if ((xy < 0) | (xy > 1))[valid].any():
        raise DataError(f"{path}: valid gaze lies outside [0, 1] of the frame: {WHERE}")
    xy[~valid] = np.nan
    names, clip = np.unique(table["clip"], return_inverse=True)
    persons, person = np.unique(table["person"], return_inverse=True)
    step = np.rint(table["t_s"] / GAZE_S).astype(np.int64)
    per_frame, last = round(FRAME_S / GAZE_S), round(FRAMES * FRAME_S / GAZE_S) - 1
    if step.min() < 0 or step.max() > last:
        raise DataError(f"{path}: t_s must be 0 to {last * GAZE_S:.2f} s: {WHERE}")
    dense = np.full((len(persons), len(names), last + 1, 2), np.nan, np.float32)
    dense[person, clip, step] = xy
    at = np.arange(FRAMES) * per_frame
    gaze = dense[:, :, at]
    for other in (at - 1, at + 1):
        # Before the first row, index -1 would wrap round to the last one.
        inside = (other >= 0)[:, None] & np.isnan(gaze)
        gaze = np.where(inside, dense[:, :, other], gaze)
    recorded = sorted(set(zip(person.tolist(), clip.tolist(), strict=True)))
    people: dict[str, dict[int, np.ndarray]] = {str(name): {} for name in persons}
    for p, c in recorded:
        people[str(persons[p])][c] = gaze[p, c]
    return [str(name) for name in names], people


def _read_donors(folder: Path) -> set[tuple[str, str]]:
    path = need_file(folder / "frame_donors.csv", WHERE)
    table = read_table(
        path, ("person", "clip"), "list of frame donors (it needs columns person, clip)"
    )
    return set(zip(table.text("person"), table.text("clip"), strict=True))


def _read_frames(folder: Path, names: list[str], size: tuple[int, int]) -> torch.Tensor:
    files = [folder / "frames" / n / f"f{i:04d}.jpg" for n in names for i in range(FRAMES)]
    return read_pictures(files, size, "frames", WHERE)


def check(root: Path) -> list[Check]:
    """Compare a folder with the published counts; return the lines of `vergence data check`.

    The counts are those of clips, frames, people, recordings and gaze rows.
    """
    frames = len(list((root / "frames").glob("*/f*.jpg")))
    lines = Checks([compare("frames", frames, CLIPS * FRAMES, WHERE)])
    with lines.reading("gaze and frames"):
        names, gaze = read_gaze(root)
        rows = len(read_npz(root / "gaze_25hz.npz", {"x": 1}, WHERE)["x"])
        lines += [
            compare("clips", len(names), CLIPS, WHERE),
            compare("people", len(gaze), PEOPLE, WHERE),
            compare("recordings", sum(len(own) for own in gaze.values()), RECORDINGS, WHERE),
            compare("gaze rows", rows, ROWS, WHERE),
            compare("recordings that gave crops", len(_read_donors(root)), DONORS, WHERE),
        ]
        _read_frames(root, names, (32, 18))
        lines.append(Check("gaze and frames", "readable", "readable", True))
    return lines
