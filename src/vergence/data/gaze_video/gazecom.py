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

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.options import Positive
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    need_file,
    read_npz,
    read_pictures,
    refuse_nan,
)
from vergence.data.io.delimited_text import read_table
from vergence.data.splits import FrameSize
from vergence.errors import ConfigError, DataError, nearest

CLIPS, FRAMES, FRAME_S, GAZE_S = 18, 100, 0.2, 0.04
PEOPLE, RECORDINGS, ROWS, DONORS = 36, 567, 283_500, 102
SHUFFLES = 1000
"""Most shuffles that are tried for a split in which every viewer has enough clips."""
WHERE = (
    "root must hold frames/CLIP/fNNNN.jpg, gaze_25hz.npz and frame_donors.csv, the rebuilt GazeCom "
    "movies (research use only; the original movies are at the University of Luebeck)"
)
COLUMNS = ("person", "clip", "t_s", "x", "y", "valid")


@dataclass(frozen=True)
class Gazecom(Dataset):
    """Gaze of up to 36 viewers on the same clips; a viewer is a client, a window a sample.

    Attributes:
        people: viewers to load, such as ("P01", "P07"); by default all who have enough clips.
        window: number of frames in a sample.
        every_s: seconds between neighbouring frames of a window, a multiple of 0.2.
        hop: number of frames from one window's start to the next; default: windows do not overlap.
        size: (width, height) to which frames are resized, in pixels.
        clips: numbers of clips for training, validation and test, the same for all viewers.
        min_clips: fewest clips of a viewer in each of training, validation and test.
        split_seed: seed of the split of the clips.
        exclude_donors: whether to leave out the recordings of donors. The frames consist of crops
            around the gaze of these viewers.
    """

    people: tuple[str, ...] | None = None
    window: Positive = 8
    every_s: float = FRAME_S
    hop: Positive | None = None
    size: FrameSize = (320, 180)
    clips: tuple[Positive, Positive, Positive] = (12, 2, 4)
    min_clips: int = 1
    split_seed: int = 0
    exclude_donors: bool = False

    @property
    def frame_step_s(self) -> float | None:
        """Seconds between the frames of a sample."""
        return self.every_s

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the data, and split by clip; all viewers have the same split.

        Columns of the samples: `frame_ids` int64 `[n, window]`, row numbers in the shared array
        `frames` uint8 `[all frames, height, width, 3]`; `points` float32 `[n, window, 1, 2]`, gaze
        (x, y) in [0, 1], NaN if gaze was lost; `scene` int64 `[n]`, 1000 x clip number + first
        frame.

        Raises:
            DataError: a file is missing, truncated or of another version. A person is unknown or
                has too few clips for the split. A clip is shorter than the window.
            ConfigError: an option is out of range.
        """
        stride = self._stride()
        folder = data_folder(root, "gazecom", WHERE)
        names, gaze = read_gaze(folder)
        dealt = self._deal(gaze, len(names))
        donors = _read_donors(folder) if self.exclude_donors else set()
        gaze = {
            person: {c: own[c] for c in own if (person, names[c]) not in donors}
            for person, own in gaze.items()
        }
        viewers, left_out = self._people_to_load(gaze, dealt)
        frames = SharedRows(_read_frames(folder, names, self.size), "frame_ids")
        people, lost = {}, 0
        for person in viewers:
            parts = []
            for clips in dealt:
                own = {c: gaze[person][c] for c in sorted(clips) if c in gaze[person]}
                columns, tracked = self._windows(own, stride)
                if not tracked.any():
                    raise DataError(
                        f"{person} has no window with valid gaze in clips "
                        f"{', '.join(names[c] for c in own)}: leave this person out (people)"
                    )
                usable = {n: torch.from_numpy(column[tracked]) for n, column in columns.items()}
                parts.append(Samples(usable, {"frames": frames}))
                lost += int((~tracked).sum())
            people[person] = Splits(*parts)
        return Federation("gazecom", people, self._about(names, dealt, left_out, lost))

    def _stride(self) -> int:
        stride = round(self.every_s / FRAME_S)
        if stride < 1 or abs(stride * FRAME_S - self.every_s) > 1e-6:
            raise ConfigError(f"every_s must be a multiple of {FRAME_S} s, got {self.every_s}")
        if not 1 <= self.min_clips <= min(self.clips):
            raise ConfigError(
                f"min_clips must be 1 to {min(self.clips)} (the smallest of clips), "
                f"got {self.min_clips}"
            )
        span = (self.window - 1) * stride + 1
        if span > FRAMES:
            raise DataError(
                f"clips of {FRAMES} frames are shorter than a window of {self.window} frames "
                f"every {self.every_s} s ({span} frames): lower window or every_s"
            )
        return stride

    def _deal(self, gaze: dict[str, dict[int, np.ndarray]], count: int) -> list[set[int]]:
        """Return the numbers of the clips for training, validation and test.

        Clips are shuffled again and again with one seed. The first shuffle is taken in which every
        viewer with at least 3 `min_clips` clips has at least `min_clips` clips in each part. The
        choice depends on who has seen which clip in the whole file, and not on the gaze.

        Raises:
            DataError: no shuffle has this property, or there are too few clips.
        """
        # Nor on the options that leave people out, so that these move no clip to another part.
        if sum(self.clips) > count:
            raise DataError(
                f"clips = {self.clips} asks for {sum(self.clips)} clips, the data hold {count}"
            )
        able = [set(own) for own in gaze.values() if len(own) >= 3 * self.min_clips]
        rng = np.random.default_rng(self.split_seed)
        train, val, test = self.clips
        for _ in range(SHUFFLES):
            order = rng.permutation(count)
            # Test clips come first: other numbers of clips for training leave them the same.
            *later, _ = np.split(order, np.cumsum([test, val, train]))
            parts = [set(part.tolist()) for part in later[::-1]]
            if all(len(own & part) >= self.min_clips for own in able for part in parts):
                return parts
        fewest = min(len(own) for own in able)
        raise DataError(
            f"no split of {count} clips into {self.clips} found that gives everybody "
            f"{self.min_clips} in every part (somebody has only {fewest} clips): lower min_clips "
            "or change clips"
        )

    def _people_to_load(
        self, gaze: dict[str, dict[int, np.ndarray]], dealt: list[set[int]]
    ) -> tuple[list[str], dict[str, list[int]]]:
        """Return the viewers to load, and the clips per part of viewers who have too few clips.

        Raises:
            DataError: a viewer in `people` is unknown or has too few clips, or nobody has enough.
        """
        counts = {p: [len(part & set(own)) for part in dealt] for p, own in gaze.items()}
        for person in self.people or ():
            if person not in counts:
                raise DataError(f"unknown person '{person}'{nearest(person, counts)}")
            if min(counts[person]) < self.min_clips:
                raise DataError(
                    f"{person} has {counts[person]} clips (train, val, test), each part needs "
                    f"{self.min_clips}: leave this person out (people) or take another split_seed"
                )
        if self.people is not None:
            return list(self.people), {}
        few = {person: parts for person, parts in counts.items() if min(parts) < self.min_clips}
        viewers = [person for person in counts if person not in few]
        if not viewers:
            raise DataError(f"nobody has {self.min_clips} clips in every part {self.clips}: {few}")
        return viewers, few

    def _windows(
        self, own: dict[int, np.ndarray], stride: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns of all windows of some clips, and which windows have any gaze.

        `own` maps a clip's number to the gaze `[100, 2]`; `stride` is the step between frames.
        """
        span = (self.window - 1) * stride + 1
        hop = self.window * stride if self.hop is None else self.hop
        starts = np.arange(0, FRAMES - span + 1, hop)
        inside = starts[:, None] + stride * np.arange(self.window)
        points = np.concatenate([clip_gaze[inside] for clip_gaze in own.values()])
        columns = {
            "frame_ids": np.concatenate([clip * FRAMES + inside for clip in own]),
            "points": points[:, :, None],
            "scene": np.concatenate([clip * 1000 + starts for clip in own]),
        }
        return columns, np.asarray(np.isfinite(points).any(axis=(1, 2)))

    def _about(
        self,
        names: list[str],
        dealt: list[set[int]],
        clip_counts: dict[str, list[int]],
        lost: int,
    ) -> dict[str, str]:
        who = ", ".join(f"{p} {parts}" for p, parts in clip_counts.items()) or "nobody"
        listed = [", ".join(names[c] for c in sorted(part)) for part in dealt]
        return {
            "licence": "none stated by the source: research use only, not packaged",
            "citation": "Dorr, Martinetz, Gegenfurtner, Barth: Variability of eye movements when "
            "viewing dynamic natural scenes. Journal of Vision 10(10):28, 2010",
            "split": f"by clip, for all viewers alike (seed {self.split_seed}): {len(dealt[0])} "
            f"train, {len(dealt[1])} validation ({listed[1]}), {len(dealt[2])} test ({listed[2]})",
            "left_out": f"with too few clips [train, val, test]: {who}; {lost} windows without "
            f"any valid gaze{'; recordings that gave crops' if self.exclude_donors else ''}",
            "frames": "rebuilt from gaze-centred crops; freshness is a weak cue to gaze",
            "stimulus": "third person: clips of 20 s watched freely on a screen, not egocentric",
        }


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
