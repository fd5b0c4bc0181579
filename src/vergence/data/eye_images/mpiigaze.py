"""MPIIGaze: 15 people, eye patches of 36x60 pixels taken at their laptops over months.

`root` has one of two layouts; if both are there, the first is read:

* original: `Data/Normalized/pXX/dayYY.mat`, and for the evaluation subset
  `Evaluation Subset/sample list for eye image/pXX.txt`;
* npz, one file per person: `*pXX*.npz` with `image` uint8 `[n, 36, 60]`, `gaze` and `pose` float32
  `[n, 2]`. The first half are left eyes, the second half right eyes. Right eyes are mirrored, and
  their yaws have the opposite sign.

Licence: CC BY-NC-SA 4.0, never packaged. Source: Zhang, Sugano, Fritz, Bulling, "Appearance-based
gaze estimation in the wild", CVPR 2015; "MPIIGaze", TPAMI 41(1), 2019.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from vergence.core.data import Samples, Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.eye_images.crop import HEIGHT, WIDTH
from vergence.data.eye_images.mpiigaze_crops import (
    eye_samples,
    split_eyes,
    split_sentence,
    verify_angles,
)
from vergence.data.eye_images.normalization import gaze_angles
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    need_file,
    read_mat,
    read_npz,
    refuse_nan,
    with_progress,
)
from vergence.data.io.delimited_text import text_lines
from vergence.data.splits import PeopleOptions, deal_in_order
from vergence.errors import DataError

PEOPLE, LISTED, FRAMES, FEWEST, MOST = 15, 3000, 213_659, 1_498, 34_745
NORMALIZED = Path("Data") / "Normalized"
LISTS = Path("Evaluation Subset") / "sample list for eye image"
SIDES = ("left", "right")
# With fewer frames the correlation of the two eyes would say nothing.
FLIP_FRAMES = 20
"""Fewest frames for the test that the yaws of the two eyes have the right signs."""
WHERE = (
    "root must hold Data/Normalized/pXX/dayYY.mat and 'Evaluation Subset' (get MPIIGaze, "
    "CC BY-NC-SA 4.0, from the Max Planck Institute for Informatics), or one npz per person"
)


@dataclass(frozen=True)
class Mpiigaze(PeopleOptions, Dataset):
    """Eye patches of 36x60 pixels with gaze and head pose; a participant is a client.

    Attributes:
        people: participants to load, such as ("p00", "p03"); all by default.
        subset: "evaluation": the 3,000 listed samples of each person. "all": both eyes of every
            frame.
        rows: what a sample is. "eyes": one eye. "frames", for learning without labels: both eyes of
            a frame; the subset "evaluation" then has all frames of which it lists at least one eye.
        shares: fractions of a person's samples for training, validation and test.
        split_seed: seed of the random split in the npz layout, which does not state the recording
            days.
    """

    subset: Literal["evaluation", "all"] = "evaluation"
    rows: Literal["eyes", "frames"] = "eyes"

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the patches, and split each person's samples by whole recording days.

        The npz layout does not state the days; its samples are split at random. Columns of the
        samples: `image` uint8 `[n, 1, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in
        radians, `side` int64 `[n]` (0 left, 1 right), and `day` int64 `[n]`, the number in the
        day's file name, where days are known.

        With rows = "frames" the columns are those of `eye_glances`: `eyes` uint8
        `[n, 2, 1, 36, 60]`, left eye first, right eyes not mirrored; `gaze` and `pose` `[n, 2, 2]`
        for the two eyes; `day` `[n]`.

        Raises:
            DataError: a file is missing, truncated or of another version. Gaze is NaN, or the yaws
                of the two eyes have wrong signs. A person is unknown or has too few days.
            ConfigError: an option is out of range.
        """
        folder = data_folder(root, "mpiigaze", WHERE)
        original = (folder / NORMALIZED).is_dir()
        if original:
            files = {path.name: path for path in sorted((folder / NORMALIZED).glob("p[0-9][0-9]"))}
            split = "within each person, whole recording days in order: the first to training, "
            split += "the last to test; no day is in two parts"
        else:
            files = _npz_files(folder)
            split = split_sentence(self)
            for option, value in (("subset", "all"), ("rows", "frames")):
                if getattr(self, option) == value:
                    raise DataError(
                        f"{option} '{value}' needs the original layout, {folder} has npz files"
                    )
        if not files:
            raise DataError(f"no participant found: {WHERE}")
        participants = self.people_to_load(files, "participant")
        read = self._by_day if original else self._at_random
        paths = with_progress([files[person] for person in participants], "participants")
        people = {
            person: read(person, path) for person, path in zip(participants, paths, strict=True)
        }
        about = {
            "licence": "CC BY-NC-SA 4.0 (MPIIGaze): research use, not packaged",
            "citation": "Zhang, Sugano, Fritz, Bulling: Appearance-based gaze estimation in the "
            "wild. CVPR 2015; MPIIGaze, TPAMI 41(1), 2019",
            "split": split,
            "angles": "radians (pitch, yaw); right eyes are mirrored and their yaws flipped"
            if self.rows == "eyes"
            else "radians (pitch, yaw), left and right eye as seen: right eyes are not mirrored",
            "subset": self.subset,
            "rows": self.rows,
        }
        return Federation("mpiigaze", people, about)

    def _at_random(self, person: str, path: Path) -> Splits:
        rng = np.random.default_rng([self.split_seed, int(person[1:])])
        return split_eyes(_read_person_npz(path, person), self.shares, rng, person)

    def _by_day(self, person: str, folder: Path) -> Splits:
        days = _read_days(folder)
        # The lists lie beside Data, three folders up from Data/Normalized/pXX.
        listed = folder.parents[2] / LISTS / f"{person}.txt"
        if self.rows == "frames":
            named = set(listed_eyes(days, listed)) if self.subset == "evaluation" else None
            columns, day = _frames(days, named)
        elif self.subset == "evaluation":
            columns, day = _listed_samples(days, listed)
        else:
            columns, day = _all_samples(days)
        columns["day"] = np.array([int(re.findall(r"\d+", name)[0]) for name in day])
        names, place, counts = np.unique(day, return_inverse=True, return_counts=True)
        parts = deal_in_order(counts, self.shares, f"recording days of {person} ({len(names)})")
        sampled = eye_samples if self.rows == "eyes" else frame_rows
        return Splits(*(sampled(columns, np.flatnonzero(np.isin(place, p))) for p in parts))


@dataclass(frozen=True)
class Eye:
    """Patches of one eye on one day; right eyes are mirrored already.

    `image` uint8 `[n, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians.
    """

    image: np.ndarray
    gaze: np.ndarray
    pose: np.ndarray


@dataclass(frozen=True)
class Day:
    """One recording day of one person.

    Row i of both eyes belongs to the frame `names[i]`.
    """

    names: tuple[str, ...]
    left: Eye
    right: Eye


def pose_angles(rotations: np.ndarray) -> np.ndarray:
    """Return the head's (pitch, yaw) `[n, 2]` in radians from its rotation vectors `[n, 3]`.

    The convention is that of normalised MPIIGaze data: v = third column of Rodrigues(r), pitch =
    asin(v_y), yaw = atan2(v_x, v_z). The face looks along -v.
    """
    x, y, z = Rotation.from_rotvec(rotations).as_matrix()[:, :, 2].T
    return np.stack([np.arctan2(y, np.hypot(x, z)), np.arctan2(x, z)], 1)


def read_day(path: Path) -> Day:
    """Read one `dayYY.mat`; right eyes are mirrored, and the yaws of gaze and head are negated.

    Raises:
        DataError: the file is missing, truncated or of another version, or gaze or pose is NaN.
    """
    data = read_mat(path, "data", WHERE)
    names = tuple(_text(name) for name in np.atleast_1d(read_mat(path, "filenames", WHERE)).ravel())
    left, right = (_read_eye(path, data, side, len(names)) for side in SIDES)
    mirrored = np.array([1, -1], np.float32)
    flipped = Eye(right.image[:, :, ::-1], right.gaze * mirrored, right.pose * mirrored)
    return Day(names, left, flipped)


def _read_eye(path: Path, data: np.ndarray, side: str, frames: int) -> Eye:
    try:
        struct = data.ravel()[0][side].ravel()[0]
        # One frame a day: some writers squeeze its axis away.
        image = struct["image"].reshape(-1, HEIGHT, WIDTH)
        gaze, pose = (struct[name].reshape(-1, 3).astype(float) for name in ("gaze", "pose"))
    except (IndexError, KeyError, TypeError, ValueError) as fault:
        raise DataError(
            f"{path} is of another version, data.{side} is not a struct of image (n, 36, 60), "
            f"gaze (n, 3) and pose (n, 3): {WHERE}"
        ) from fault
    if image.dtype != np.uint8 or not len(image) == len(gaze) == len(pose) == frames:
        raise DataError(
            f"{path} is of another version: {frames} filenames, but data.{side} has "
            f"{len(image)} images ({image.dtype}), {len(gaze)} gazes and {len(pose)} poses: {WHERE}"
        )
    refuse_nan(gaze, f"{side} gaze", path)
    refuse_nan(pose, f"{side} pose", path)
    if np.abs(np.linalg.norm(gaze, axis=1) - 1).max(initial=0) > 0.02:
        raise DataError(f"{path}: {side} gaze holds vectors that are not of unit length: {WHERE}")
    return Eye(image, gaze_angles(gaze).astype(np.float32), pose_angles(pose).astype(np.float32))


def _read_days(folder: Path) -> dict[str, Day]:
    if not (paths := sorted(folder.glob("day[0-9]*.mat"))):
        raise DataError(f"no dayYY.mat in {folder}: {WHERE}")
    days = {path.stem: read_day(path) for path in paths}
    _sign_test(folder, days)
    return days


def _sign_test(folder: Path, days: Mapping[str, Day]) -> None:
    """Check that a person's two eyes look to the same side in each frame.

    Right eyes are mirrored on reading, so their yaws must have the opposite sign of the left eyes'
    yaws. If right eyes were already mirrored in the files, the second mirroring gives both eyes the
    same sign.

    Raises:
        DataError: the yaws of the two eyes are positively correlated.
    """
    left = np.concatenate([day.left.gaze[:, 1] for day in days.values()])
    right = np.concatenate([day.right.gaze[:, 1] for day in days.values()])
    if len(left) < FLIP_FRAMES or min(left.std(), right.std()) < 1e-6:
        return
    # Both eyes look at one target and right yaws were flipped on reading, so they must disagree.
    if np.corrcoef(left, right)[0, 1] > 0:
        raise DataError(
            f"{folder}: the yaws of left and right eye have opposite signs in the files, so right "
            f"eyes seem mirrored already; this reader expects them as recorded: {WHERE}"
        )


def listed_eyes(days: Mapping[str, Day], path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (day, frame number within the day, side) of every listed sample, in the list's order.

    Raises:
        DataError: the list is missing or empty, or a line names no frame of these days.
    """
    place = {f"{n}/{f}": (n, i) for n, day in days.items() for i, f in enumerate(day.names)}
    text = text_lines(need_file(path, WHERE), "list of samples")
    if not (lines := [(at, line.strip()) for at, line in enumerate(text, 1) if line.strip()]):
        raise DataError(f"{path} lists no samples: {WHERE}")
    for number, line in lines:
        frame, side = line.split() if len(line.split()) == 2 else (line, "")
        if side not in SIDES or frame not in place:
            raise DataError(
                f"{path} line {number}: '{line.strip()}' is not 'dayDD/NNNN.jpg left|right' of a "
                f"frame in Data/Normalized: {WHERE}"
            )
        yield *place[frame], side


def _listed_samples(
    days: Mapping[str, Day], path: Path
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of the listed samples, in the list's order, and the day of each sample."""
    listed = list(listed_eyes(days, path))
    columns = {
        name: np.stack([getattr(getattr(days[day], side), name)[row] for day, row, side in listed])
        for name in ("image", "gaze", "pose")
    }
    sides = np.array([SIDES.index(side) for _, _, side in listed])
    return {**columns, "side": sides}, np.array([day for day, _, _ in listed])


def _frames(
    days: Mapping[str, Day], listed: set[tuple[str, int, str]] | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of frames with both eyes, and the day of each frame.

    Right eyes are not mirrored. `listed` holds (day, frame number, side) of samples: only frames of
    which at least one eye is listed are returned. None: all frames, in order.
    """
    places = [
        (name, row)
        for name, day in days.items()
        for row in range(len(day.names))
        if listed is None or any((name, row, side) in listed for side in SIDES)
    ]
    # A right eye was mirrored when it was read: undo it.
    back = np.array([1, -1], np.float32)
    pairs = [(days[name].left, days[name].right, row) for name, row in places]
    columns = {
        "eyes": np.stack([np.stack([a.image[i], b.image[i][:, ::-1]]) for a, b, i in pairs]),
        "gaze": np.stack([np.stack([a.gaze[i], b.gaze[i] * back]) for a, b, i in pairs]),
        "pose": np.stack([np.stack([a.pose[i], b.pose[i] * back]) for a, b, i in pairs]),
    }
    return columns, np.array([name for name, _ in places])


def frame_rows(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> Samples:
    """Return some rows of the columns as samples; `eyes` becomes `[n, 2, 1, 36, 60]`."""
    tensors = {name: torch.from_numpy(column[rows].copy()) for name, column in columns.items()}
    return Samples({**tensors, "eyes": tensors["eyes"][:, :, None]})


def _all_samples(days: Mapping[str, Day]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of both eyes of every frame, day by day, and the day of each sample."""
    eyes = [(name, eye) for name, day in days.items() for eye in (day.left, day.right)]
    columns = {
        column: np.concatenate([getattr(eye, column) for _, eye in eyes])
        for column in ("image", "gaze", "pose")
    }
    frames = [len(eye.image) for _, eye in eyes]
    columns["side"] = np.repeat(np.arange(len(eyes)) % 2, frames)
    return columns, np.repeat([name for name, _ in eyes], frames)


def _npz_files(folder: Path) -> dict[str, Path]:
    files = {}
    for path in sorted(folder.glob("*.npz")):
        if person := re.search(r"p\d\d", path.stem):
            files[person.group()] = path
    if not files:
        raise DataError(f"neither {NORMALIZED} nor a file *pXX*.npz in {folder}: {WHERE}")
    return files


def _read_person_npz(path: Path, person: str) -> dict[str, np.ndarray]:
    table = read_npz(path, {"image": 3, "gaze": 2, "pose": 2}, WHERE)
    image = table["image"]
    shapes = {name: (len(image), 2) for name in ("gaze", "pose")}
    if image.dtype != np.uint8 or image.shape[1:] != (HEIGHT, WIDTH):
        raise DataError(
            f"{path} is of another version, image is {image.dtype} {image.shape} instead of "
            f"uint8 (n, {HEIGHT}, {WIDTH}): {WHERE}"
        )
    for name, shape in shapes.items():
        if table[name].shape != shape:
            raise DataError(
                f"{path} is of another version, {name} is {table[name].shape} instead of {shape}"
            )
    verify_angles(path, person, table["gaze"], table["pose"])
    return table


def _text(name: np.ndarray | str) -> str:
    # MATLAB's cells arrive as arrays within arrays.
    while isinstance(name, np.ndarray):
        name = name.ravel()[0]
    return str(name).strip()


def check(root: Path) -> list[Check]:
    """Compare a folder with the published totals; return the lines of `vergence data check`.

    The totals are those of people, frames, and the listed samples of each person.
    """
    folder = root / NORMALIZED
    if not folder.is_dir():
        lines = Checks()
        with lines.reading("one npz file per participant"):
            tables = {p: _read_person_npz(path, p) for p, path in _npz_files(root).items()}
            lines += [
                *(
                    compare(f"{p}: samples", len(t["gaze"]), LISTED, WHERE)
                    for p, t in tables.items()
                ),
                compare("participants", len(tables), PEOPLE, WHERE),
            ]
        return lines
    lines, frames = Checks(), []
    people = sorted(folder.glob("p[0-9][0-9]"))
    lines.append(compare("participants", len(people), PEOPLE, WHERE))
    for path in with_progress(people, "participants"):
        with lines.reading(path.name):
            days = _read_days(path)
            frames.append(sum(len(day.names) for day in days.values()))
            columns, _ = _listed_samples(days, root / LISTS / f"{path.name}.txt")
            lines.append(
                compare(f"{path.name}: listed samples", len(columns["gaze"]), LISTED, WHERE)
            )
    return [
        *lines,
        compare("frames", sum(frames), FRAMES, WHERE),
        compare("fewest frames of a person", min(frames, default=0), FEWEST, WHERE),
        compare("most frames of a person", max(frames, default=0), MOST, WHERE),
    ]
