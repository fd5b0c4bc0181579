"""Columbia Gaze: 56 people, 5 head poses and 21 gaze directions each, at 2 m from a camera.

The published photos have no landmarks, so the user must cut out the eyes beforehand. `root` holds
all patches, in one folder or in a folder per person: `0001_2m_-15P_0V_10H_left.png` and
`..._right.png`. These are the person's own left and right eye, 60 pixels wide and 36 high,
unmirrored.

A name holds person, distance, head pose P, vertical gaze V and horizontal gaze H in degrees,
relative to the line from person to camera. Positive V looks up. Positive H and P point to the image
right, so the gaze's yaw is -H and the head's yaw is -P. Public readers agree: OpenFace's evaluation
puts the target at x = +tan H, with x to the image right. The loader tests this sign on the
pictures.

Licence: non-commercial use, never packaged. Source: Smith, Yin, Feiner, Nayar, "Gaze locking:
passive eye contact detection for human-object interaction", UIST 2013.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.eye_images.crop import HEIGHT, WIDTH
from vergence.data.eye_images.eye_patches import both_eyes, frame_samples, verify_yaw_sign
from vergence.data.io.checks import Check, Checks, compare, data_folder, with_progress
from vergence.data.io.image_files import open_image
from vergence.data.splits import PeopleOptions, deal_at_random
from vergence.errors import DataError

PEOPLE, PICTURES = 56, 5_880
NAME = re.compile(r"(\d{4})_2m_(-?\d+)P_(-?\d+)V_(-?\d+)H(?:_(left|right))?\.(png|jpe?g)", re.I)
ANGLES = ({0, 15, -15, 30, -30}, {0, 10, -10}, {0, 5, -5, 10, -10, 15, -15})
"""The values in degrees that P, V and H can have, in this order."""
WHERE = (
    "root must hold eye patches of 60 x 36 pixels named as the photos, "
    "0001_2m_-15P_0V_10H_left.png and _right.png (docs/reference/data.md says how to cut them); "
    "get the photos, for non-commercial use, from the Columbia University CAVE laboratory"
)


@dataclass(frozen=True)
class Columbia(PeopleOptions, Dataset):
    """Eye patches of 36x60 pixels under five fixed head poses; a person is a client.

    Attributes:
        people: persons to load, such as ("0001", "0040"); all by default.
        shares: fractions of a person's photos for training, validation and test, the same for each
            head pose.
        split_seed: seed of the random split of each person's photos.
    """

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the patches, and split each person's photos at random.

        Both eyes of a photo go to the same part of the split. Columns of the samples: `image` uint8
        `[n, 1, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians, `side` int64
        `[n]` (0 left, 1 right).

        Raises:
            DataError: `root` holds whole photos but no patches, or a photo lacks the patch of one
                eye. A patch is damaged, or has another size or name. The labels do not fit the
                pictures. A person is unknown or has too few photos.
            ConfigError: an option is out of range.
        """
        photos = _pairs(data_folder(root, "columbia", WHERE))
        persons = self.people_to_load(photos, "person")
        read = {person: _read(photos[person]) for person in persons}
        verify_yaw_sign(list(read.values()), str(root))
        about = {
            "licence": "Columbia Gaze Data Set: non-commercial use, not packaged",
            "citation": "Smith, Yin, Feiner, Nayar: Gaze locking: passive eye contact detection "
            "for human-object interaction. UIST 2013",
            "split": f"within each person, {self.percent} % of the photos of each head pose at "
            f"random (seed {self.split_seed}); both eyes of a photo are in one part",
            "angles": "radians (pitch, yaw) about the line from person to camera, from the names "
            "(pitch V, yaw -H, head yaw -P); right eyes are mirrored and their yaws flipped",
        }
        people = {person: self._split(person, photos[person], read[person]) for person in persons}
        return Federation("columbia", people, about)

    def _split(self, person: str, photos: list[Photo], columns: dict[str, NDArray]) -> Splits:
        poses = np.array([photo.degrees[0] for photo in photos])
        blocks = [np.flatnonzero(poses == pose) for pose in np.unique(poses)]
        # Keyed by the person, so that loading fewer people does not change anybody's split.
        rng = np.random.default_rng([self.split_seed, int(person)])
        parts = deal_at_random(blocks, self.shares, rng, f"photos per head pose of {person}")
        return Splits(*(frame_samples(columns, part) for part in parts))


@dataclass(frozen=True)
class Photo:
    """The files with both eye patches of one photo, and the degrees (P, V, H) in its name."""

    left: Path
    right: Path
    degrees: tuple[int, int, int]


def angles(degrees: NDArray) -> tuple[NDArray, NDArray]:
    """Return (pitch, yaw) of gaze and of head pose, each `[n, 2]` in radians.

    `degrees` `[n, 3]` holds P, V and H. The gaze has pitch V and yaw -H; the head has pitch 0 and
    yaw -P.
    """
    p, v, h = np.deg2rad(np.asarray(degrees, float)).T
    # Positive H and P point to the image right, positive yaw to the image left.
    return np.stack([v, -h], 1), np.stack([np.zeros_like(p), -p], 1)


def _pairs(folder: Path) -> dict[str, list[Photo]]:
    """Return the photos of each person below a folder, sorted by the degrees in their names."""
    patches: dict[tuple[str, tuple[int, int, int]], dict[str, Path]] = {}
    whole = 0
    for path in sorted(folder.rglob("*_2m_*")):
        if (name := NAME.fullmatch(path.name)) is None:
            raise DataError(f"cannot understand the name of {path}: {WHERE}")
        # Whole photos may lie beside the patches; they are counted for the error message only.
        if name[5] is None:
            whole += 1
            continue
        degrees = (int(name[2]), int(name[3]), int(name[4]))
        for letter, value, known in zip("PVH", degrees, ANGLES, strict=True):
            if value not in known:
                raise DataError(f"{path}: {value}{letter} is none of {sorted(known)} degrees")
        eyes = patches.setdefault((name[1], degrees), {})
        if eyes.setdefault(name[5].lower(), path) is not path:
            raise DataError(f"{path} and {eyes[name[5].lower()]} are the same eye: remove one")
    if not patches:
        reason = f"{whole} whole photos but no eye patches" if whole else "no eye patches"
        raise DataError(f"{reason} in {folder}: {WHERE}")
    people: dict[str, list[Photo]] = {}
    for (person, degrees), eyes in sorted(patches.items()):
        if len(eyes) < 2:
            only = next(iter(eyes.values()))
            raise DataError(f"{only} has no patch of the other eye: cut it, or remove this one")
        people.setdefault(person, []).append(Photo(eyes["left"], eyes["right"], degrees))
    return people


def _read(photos: list[Photo]) -> dict[str, NDArray]:
    left, right = (
        np.stack([_patch(path) for path in with_progress(paths, "eye patches")])
        for paths in ([p.left for p in photos], [p.right for p in photos])
    )
    return both_eyes(left, right, *angles(np.array([photo.degrees for photo in photos])))


def _patch(path: Path) -> NDArray:
    with open_image(path, str(path), WHERE) as picture:
        size = picture.size
        grey = np.asarray(picture.convert("L")) if size == (WIDTH, HEIGHT) else None
    if grey is None:
        raise DataError(f"{path} has {size[0]} x {size[1]} pixels, not {WIDTH} x {HEIGHT}: {WHERE}")
    return grey


def check(root: Path) -> list[Check]:
    """Compare a folder with the published totals; return the lines of `vergence data check`.

    Every patch is read.
    """
    lines = Checks()
    with lines.reading("eye patches"):
        people = _pairs(root)
        verify_yaw_sign([_read(photos) for photos in people.values()], str(root))
        photos = sum(map(len, people.values()))
        lines.append(compare("people", len(people), PEOPLE, WHERE))
        lines.append(compare("photos with both eyes", photos, PICTURES, WHERE))
    return lines
