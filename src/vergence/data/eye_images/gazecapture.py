"""GazeCapture: people with phones and tablets, eyes cut out by Apple's detections, gaze in cm.

Layout of `root`: one folder per subject, `00002/frames/00000.jpg` and so on, `appleFace.json`,
`appleLeftEye.json` and `appleRightEye.json` (lists X, Y, W, H, IsValid; eye boxes from the corner
of the face box), `dotInfo.json` (DotNum, XCam, YCam), `frames.json` and `info.json`. Frames are
unmirrored: the person's left eye is the right one in the picture.

A label is the place of the dot that a person looked at, in cm from the lens: X to the person's
right, Y up. Angles also need the distance of the eye, which is not recorded; the option
`distance_cm` replaces it. A gaze angle is the angle between two lines from the eye, to the lens and
to the dot. So the eye's place in the picture matters little. If the true distance is 40 cm instead
of 30, the angles are a third too large. The head pose is not recorded: the column holds zeros.

Licence: research use, registration needed, never packaged. Source: Krafka, Khosla, Kellnhofer,
Kannan, Bhandarkar, Matusik, Torralba, "Eye tracking for everyone", CVPR 2016.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Interval
from numpy.typing import NDArray

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.files import parse_json
from vergence.data.eye_images.eye_patches import both_eyes, cut, frame_samples, verify_yaw_sign
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    need_file,
    refuse_nan,
    with_progress,
)
from vergence.data.io.image_files import open_image
from vergence.data.splits import PeopleOptions, deal_at_random
from vergence.errors import DataError, first_line

PEOPLE, FRAMES, DETECTED = 1_474, 2_445_504, 1_490_959
BOXES = ("appleFace", "appleLeftEye", "appleRightEye")
SIDES = ("X", "Y", "W", "H")
WHERE = (
    "root must hold one folder per subject with frames/ and the json files of GazeCapture "
    "(research use, after registration at gazecapture.csail.mit.edu)"
)


@dataclass(frozen=True)
class Gazecapture(PeopleOptions, Dataset):
    """Eye patches of 36x60 pixels of people with a phone or tablet; a subject is a client.

    People looked at dots on the screen. All frames of a dot are in one part of the split.

    Attributes:
        people: subjects to load, such as ("00002", "00033"); by default all who saw enough dots for
            the split.
        frames: largest number of frames of a subject, which are taken at even spacing; None: all
            frames.
        distance_cm: assumed distance between eyes and lens in cm, to convert labels into angles.
        shares: fractions of a subject's dots for training, validation and test.
        split_seed: seed of the random split of each subject's dots.
    """

    frames: Annotated[int, Ge(10)] | None = None
    distance_cm: Annotated[float, Interval(ge=5, le=200)] = 30.0

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the subjects, and split each subject's dots at random.

        All frames of a dot go to the same part of the split. Columns of the samples: `image` uint8
        `[n, 1, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians, `side` int64
        `[n]` (0 left, 1 right). Gaze is approximate, and pose is zero.

        Raises:
            DataError: a file is missing, damaged or of another version. A label is NaN or does not
                fit the pictures. A subject in `people` is unknown or has too few usable dots.
            ConfigError: an option is out of range.
        """
        folders = _folders(data_folder(root, "gazecapture", WHERE))
        subjects = self.people_to_load(folders, "subject")
        people, left_out, published, pooled = {}, [], {}, []
        for folder in with_progress([folders[person] for person in subjects], "subjects"):
            subject = read_subject(folder).thinned(self.frames)
            columns, dots = _patches(subject, self.distance_cm)
            try:
                people[folder.name] = self._split(folder.name, columns, dots)
            except DataError:
                # A subject that the user names must not disappear silently.
                if self.people is not None:
                    raise
                left_out.append(folder.name)
                continue
            published.setdefault(subject.part, []).append(folder.name)
            pooled.append(columns)
        if not people:
            raise DataError(f"no subject in {root} has enough dots with both eyes: {WHERE}")
        verify_yaw_sign(pooled, str(root))
        return Federation("gazecapture", people, self._about(published, left_out))

    def _split(self, person: str, columns: dict[str, NDArray], dots: NDArray) -> Splits:
        # Frames of one dot are nearly the same picture: whole dots go to one part.
        rng = np.random.default_rng([self.split_seed, int(person)])
        what = f"dots of subject {person} with both eyes"
        parts = deal_at_random([np.unique(dots)], self.shares, rng, what)
        return Splits(
            *(frame_samples(columns, np.flatnonzero(np.isin(dots, part))) for part in parts)
        )

    def _about(self, published: dict[str, list[str]], left_out: list[str]) -> dict[str, str]:
        return {
            "licence": "GazeCapture: research use, registration needed, not packaged",
            "citation": "Krafka, Khosla, Kellnhofer, Kannan, Bhandarkar, Matusik, Torralba: Eye "
            "tracking for everyone. CVPR 2016",
            "split": f"within each subject, {self.percent} % of the dots at random (seed "
            f"{self.split_seed}); all frames of a dot, both eyes, are in one part",
            "published split": "; ".join(
                f"{part}: {', '.join(names)}" for part, names in sorted(published.items())
            ),
            "angles": "radians (pitch, yaw), approximate: of a dot in cm from the lens, seen from "
            f"{self.distance_cm:g} cm; right eyes are mirrored and their yaws flipped",
            "pose": "not recorded: zeros",
            "left out": f"subjects with too few dots: {', '.join(left_out) or 'none'}; frames "
            "where an eye leaves the picture",
        }


@dataclass(frozen=True, eq=False)
class GazeCaptureSubject:
    """The frames of one subject in which Apple's detector found the face and both eyes.

    `box` float `[n, 2, 4]` holds X, Y, W, H of the left and of the right eye, in pixels of the
    frame. `dot` int `[n]` is the number of the dot. `target_cm` float `[n, 2]` is its place (x, y)
    in cm from the lens. `part` is the subject's part in the published split. `frames` counts all
    frames of the subject, detected or not.
    """

    part: str
    frames: int
    pictures: tuple[Path, ...]
    box: NDArray
    dot: NDArray
    target_cm: NDArray

    def thinned(self, most: int | None) -> GazeCaptureSubject:
        """Return the subject with at most `most` frames, at even spacing; None keeps all frames."""
        count = len(self.pictures)
        if most is None or count <= most:
            return self
        rows = np.linspace(0, count - 1, most).round().astype(int)
        return replace(
            self,
            pictures=tuple(self.pictures[row] for row in rows),
            box=self.box[rows],
            dot=self.dot[rows],
            target_cm=self.target_cm[rows],
        )


def target_angles(target_cm: NDArray, distance_cm: float) -> NDArray:
    """Return the gaze angles (pitch, yaw) `[n, 2]`, in radians, of people who look at dots.

    `target_cm` `[n, 2]` holds (x, y) of each dot in cm from the lens: x to the person's right,
    which is left in the image, and y up. The eye is assumed at `distance_cm` straight in front of
    the lens. So the gaze vector is (-x, -y, -distance).
    """
    x, y = target_cm.T
    return np.stack([np.arctan2(y, np.hypot(x, distance_cm)), np.arctan2(x, distance_cm)], 1)


def read_subject(folder: Path) -> GazeCaptureSubject:
    """Read the json files of a subject.

    Raises:
        DataError: a file is missing, damaged or of another version, or a label is NaN.
    """
    names = _read(folder / "frames.json")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{folder / 'frames.json'} is not a list of file names: {WHERE}")
    info = _read(folder / "info.json")
    part = info.get("Dataset") if isinstance(info, dict) else None
    if not isinstance(part, str):
        raise DataError(f"{folder / 'info.json'} does not say Dataset, train, val or test: {WHERE}")
    face, *eyes = (
        _lists(folder / f"{name}.json", (*SIDES, "IsValid"), len(names)) for name in BOXES
    )
    dots = _lists(folder / "dotInfo.json", ("DotNum", "XCam", "YCam"), len(names))
    valid = np.all([boxes[:, 4] == 1 for boxes in (face, *eyes)], axis=0)
    box = np.stack([boxes[valid, :4] for boxes in eyes], 1)
    # Eye boxes are stored relative to the corner of the face box.
    box[:, :, :2] += face[valid, None, :2]
    rows = np.flatnonzero(valid)
    # Frames without a detection may hold null, so only the others are checked.
    if len(rows):
        refuse_nan(box, "an eye box", folder)
        refuse_nan(dots[rows], "dotInfo", folder)
    pictures = tuple(folder / "frames" / names[row] for row in rows)
    return GazeCaptureSubject(
        part, len(names), pictures, box, dots[rows, 0].astype(int), dots[rows, 1:]
    )


def _folders(folder: Path) -> dict[str, Path]:
    folders = {path.parent.name: path.parent for path in sorted(folder.glob("*/dotInfo.json"))}
    if strange := [name for name in folders if not (name.isascii() and name.isdigit())]:
        raise DataError(f"folder '{strange[0]}' in {folder} is no subject's number: {WHERE}")
    if not folders:
        raise DataError(f"no subject with dotInfo.json in {folder}: {WHERE}")
    return folders


def _read(path: Path) -> Any:
    try:
        return parse_json(need_file(path, WHERE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise DataError(f"cannot read {path} ({first_line(fault)}): {WHERE}") from fault


def _lists(path: Path, names: tuple[str, ...], frames: int) -> NDArray:
    """Return the named lists of a JSON file, float `[frames, lists]`; null becomes NaN."""
    table = _read(path)
    try:
        columns = np.array([table[name] for name in names], float).T
    except (KeyError, TypeError, ValueError):
        columns = np.empty(0)
    if columns.shape != (frames, len(names)):
        raise DataError(
            f"{path} is of another version, it needs lists {', '.join(names)} of {frames} numbers "
            f"each, as many as frames.json names: {WHERE}"
        )
    return columns


def _patches(subject: GazeCaptureSubject, distance_cm: float) -> tuple[dict[str, NDArray], NDArray]:
    """Return the columns of both eyes, and the number of the dot of each frame.

    Frames in which a patch would reach beyond the picture are left out.
    """
    left, right, rows = [], [], []
    for row, path in enumerate(subject.pictures):
        need_file(path, WHERE)
        with open_image(path, str(path), WHERE) as picture:
            pair = [cut(picture, (x + w / 2, y + h / 2), w) for x, y, w, h in subject.box[row]]
        if pair[0] is not None and pair[1] is not None:
            left.append(pair[0])
            right.append(pair[1])
            rows.append(row)
    if not rows:
        return {}, np.empty(0, int)
    gaze = target_angles(subject.target_cm[rows], distance_cm)
    columns = both_eyes(np.stack(left), np.stack(right), gaze, np.zeros_like(gaze))
    return columns, subject.dot[rows]


def check(root: Path) -> list[Check]:
    """Compare a folder with the published totals; return the lines of `vergence data check`.

    The totals are those of subjects, frames, and frames with detections.
    """
    lines, subjects = Checks(), []
    with lines.reading("subjects"):
        folders = _folders(root)
        lines.append(compare("subjects", len(folders), PEOPLE, WHERE))
        for folder in with_progress(list(folders.values()), "subjects"):
            with lines.reading(folder.name):
                subjects.append(read_subject(folder))
        frames = sum(subject.frames for subject in subjects)
        pictures = [path for subject in subjects for path in subject.pictures]
        missing = sum(not path.is_file() for path in pictures)
        lines += [
            compare("frames", frames, FRAMES, WHERE),
            compare("frames with face and eyes", len(pictures), DETECTED, WHERE),
            compare("of these, pictures missing", missing, 0, WHERE),
        ]
    return lines
