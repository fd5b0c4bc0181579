"""MPIIFaceGaze, normalised release: 15 people, faces of 448x448 pixels with six landmarks.

Layout of `root`: `p00.mat` to `p14.mat` (MATLAB 7.3, read with the extra `hdf5`), each with
`Data/data` `[3000, 3, 448, 448]`, BGR, and `Data/label` `[3000, 16]`: gaze and head pose (pitch,
yaw) in radians, then x and y of four eye corners and two mouth corners.

Each eye is cut out around the middle of its two corners, 120 pixels of the face picture wide. A
face picture has 3.2 pixels per mm, so a patch of 60 pixels has 1.6, like the patches of MPIIGaze.
The labels belong to the face: gaze starts at the face's centre, in the normalised camera of the
face. MPIIGaze has one normalised camera for each eye instead.

The release has the signs of MPIIGaze. Code that normalises the raw pictures as ETH-XGaze does may
write both angles with opposite signs. So the loader tests the gaze's yaw on the irises, and the
head's yaw on the landmarks.

Licence: CC BY-NC-SA 4.0, never packaged. Source: Zhang, Sugano, Fritz, Bulling, "It's written all
over your face: full-face appearance-based gaze estimation", CVPR workshops 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.eye_images.eye_patches import both_eyes, cut, frame_samples, verify_yaw_sign
from vergence.data.eye_images.mpiigaze_crops import verify_angles
from vergence.data.io.checks import (
    Check,
    Checks,
    compare,
    data_folder,
    refuse_nan,
    with_progress,
)
from vergence.data.io.generated_cache import Arrays, cached
from vergence.data.io.hdf5_files import Hdf5Reader, open_hdf5
from vergence.data.splits import PeopleOptions, deal_at_random
from vergence.errors import DataError

PEOPLE, FRAMES, SIDE, COLUMNS = 15, 3000, 448, 16
# A face has 3.2 pixels per mm; 120 of them in 60 columns make 1.6 per mm, as MPIIGaze has.
EYE_WIDTH = 120.0
"""Width of one patch, in pixels of the face picture."""
# A file has 1.8 GB: faces are read a few at a time.
CHUNK = 16
"""Number of faces that are in memory at once."""
ENOUGH, WRONG = 200, -0.2
"""Fewest frames for the test of the head's yaw, and the least correlation that passes it."""
VERSION = 1
"""Version number of how eyes are cut out, part of the cache's key; raise it with every change."""
WHERE = (
    "root must hold p00.mat to p14.mat of the normalised MPIIFaceGaze (CC BY-NC-SA 4.0, from the "
    "Max Planck Institute for Informatics)"
)


@dataclass(frozen=True)
class Mpiifacegaze(PeopleOptions, Dataset):
    """Eye patches of 36x60 pixels cut from normalised faces; a participant is a client.

    Attributes:
        people: participants to load, such as ("p00", "p03"); all by default.
        shares: fractions of a person's frames for training, validation and test.
        split_seed: seed of the random split of each person's frames.
    """

    def load(self, root: str | None = None) -> Federation:
        """Read the faces, cut out and verify the eyes, and split each person's frames at random.

        Both eyes of a frame go to the same part of the split. Columns of the samples: `image` uint8
        `[n, 1, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians, `side` int64
        `[n]` (0 left, 1 right). Patches are stored in the cache folder, because a person's file has
        1.8 GB or more.

        Raises:
            DataError: a file is missing, truncated or of another version. Its labels hold NaN or
                degrees, or the test of yaw signs refuses them. A person is unknown or has too few
                frames.
            ConfigError: an option is out of range, or h5py is not installed.
        """
        files = _files(data_folder(root, "mpiifacegaze", WHERE))
        participants = self.people_to_load(files, "participant")
        people, lost = {}, {}
        for path in with_progress([files[person] for person in participants], "participants"):
            columns = _patches(path)
            frames = len(columns["gaze"]) // 2
            rng = np.random.default_rng([self.split_seed, int(path.stem[1:])])
            parts = deal_at_random([np.arange(frames)], self.shares, rng, f"frames of {path.stem}")
            people[path.stem] = Splits(*(frame_samples(columns, part) for part in parts))
            lost[path.stem] = int(columns["lost"][0])
        about = {
            "licence": "CC BY-NC-SA 4.0 (MPIIFaceGaze): research use, not packaged",
            "citation": "Zhang, Sugano, Fritz, Bulling: It's written all over your face: "
            "full-face appearance-based gaze estimation. CVPR workshops 2017",
            "split": f"within each person, {self.percent} % of the frames at random (seed "
            f"{self.split_seed}); the days of the frames are not known, so one day may be in "
            "several parts and scores are optimistic; both eyes of a frame are in one part",
            "angles": "radians (pitch, yaw) of the face, from its centre, in its normalised "
            "camera; right eyes are mirrored and their yaws flipped",
            "left out": f"{sum(lost.values())} frames where an eye leaves the picture",
        }
        return Federation("mpiifacegaze", people, about)


def _files(folder: Path) -> dict[str, Path]:
    if files := {path.stem: path for path in sorted(folder.glob("p[0-9][0-9].mat"))}:
        return files
    raw = sorted(folder.glob("p[0-9][0-9]/p[0-9][0-9].txt"))
    reason = f"{raw[0]} belongs to the raw release, which is not read" if raw else "no pXX.mat"
    raise DataError(f"{reason} in {folder}: {WHERE}")


def _patches(path: Path) -> Arrays:
    """Return `image`, `gaze` and `pose` of both eyes of a person's frames.

    The arrays come from the cache, if it has them.

    `lost` `[1]` counts the frames in which an eye leaves the picture.
    """
    stat = path.stat()
    # Hashing 1.8 GB would cost as much as reading them: size and time stand for the content.
    key = {"version": VERSION, "person": path.stem, "size": stat.st_size, "time": stat.st_mtime_ns}
    return cached("mpiifacegaze", key, lambda: _cut_all(path))


def _cut_all(path: Path) -> Arrays:
    eyes: tuple[list[NDArray], list[NDArray]] = ([], [])
    rows = []
    with _opened(path) as (data, label):
        labels = np.asarray(label[()], float)
        refuse_nan(labels, "Data/label", path)
        verify_angles(path, path.stem, labels[:, :2], labels[:, 2:4])
        corners = eye_corners(labels[:, 4:12])
        _verify_head_sign(path, corners, labels[:, 3])
        for start in range(0, len(labels), CHUNK):
            for row, face in enumerate(_grey(data[start : start + CHUNK]), start):
                centres = corners[row].mean(1)
                left, right = (cut(face, tuple(centres[eye]), EYE_WIDTH) for eye in (1, 0))
                if left is not None and right is not None:
                    eyes[0].append(left)
                    eyes[1].append(right)
                    rows.append(row)
    if not rows:
        raise DataError(
            f"{path}: the landmarks of every face lie outside its {SIDE} x {SIDE} pixels: {WHERE}"
        )
    left, right = map(np.stack, eyes)
    # Some conversions store pixels in [0, 1]; as whole numbers they would all be black.
    if left.max() <= 1:
        raise DataError(f"{path}: pixels of Data/data reach 1, 0 to 255 are needed: {WHERE}")
    columns = both_eyes(left, right, labels[rows, :2], labels[rows, 2:4])
    verify_yaw_sign([columns], str(path))
    return {**columns, "lost": np.array([len(labels) - len(rows)])}


def _grey(faces: NDArray) -> Iterator[Image.Image]:
    """Yield grey pictures of BGR faces `[n, 3, height, width]`."""
    for face in faces:
        yield Image.fromarray(face[::-1].transpose(1, 2, 0).clip(0, 255).astype(np.uint8)).convert(
            "L"
        )


def eye_corners(landmarks: NDArray) -> NDArray:
    """Return the eye corners `[n, eye, corner, xy]` of landmarks `[n, 8]`.

    Eyes and corners are sorted from the image left to the image right.
    """
    points = landmarks.reshape(-1, 2, 2, 2)
    # The release mirrors some faces: sort by place, as the numbers do not tell left from right.
    points = np.take_along_axis(points, points[..., :1].argsort(2), 2)
    return np.take_along_axis(points, points[..., :1].mean(2, keepdims=True).argsort(1), 1)


def _verify_head_sign(path: Path, corners: NDArray, yaw: NDArray) -> None:
    """Check that the yaw of the head poses fits the landmarks.

    Outer corners of eyes are deeper in the head than inner corners. If a head turns to the image
    left (positive yaw), the corners of the eye on the image left come closer together in the
    picture, and the corners of the other eye move apart.

    Raises:
        DataError: the correlation of yaw and landmarks is below `WRONG`.
    """
    widths = np.linalg.norm(corners[:, :, 1] - corners[:, :, 0], axis=2)
    if len(yaw) < ENOUGH or widths.min() <= 0 or yaw.std() < 1e-6:
        return
    ratio = np.log(widths[:, 1] / widths[:, 0])
    if ratio.std() < 1e-6:
        return
    agreement = np.corrcoef(ratio, yaw)[0, 1]
    if agreement < WRONG:
        raise DataError(
            f"{path}: heads with a greater yaw turn to the image right by their landmarks "
            f"(correlation {agreement:.2f}), positive yaw must be the image left: flip the signs "
            f"of Data/label, or take the published files; {WHERE}"
        )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a file, verify shapes, and yield its HDF5 data sets `Data/data` and `Data/label`."""
    with open_hdf5(path, "reading MPIIFaceGaze", WHERE) as reader:
        data, label = (_dataset(reader, name) for name in ("data", "label"))
        frames = len(label)
        expected = (frames, 3, SIDE, SIDE), (frames, COLUMNS)
        if (data.shape, label.shape) != expected or not frames:
            raise DataError(
                f"{path} is of another version, Data/data is {data.shape} and Data/label "
                f"{label.shape} instead of (n, 3, {SIDE}, {SIDE}) and (n, {COLUMNS}): {WHERE}"
            )
        yield data, label


def _dataset(reader: Hdf5Reader, name: str) -> Any:
    group = reader.group(reader.file, "Data")
    node = None if group is None else reader.child(group, name)
    if node is None or not isinstance(node, reader.h5py.Dataset) or node.dtype.kind not in "uif":
        raise reader.fault(f"of another version, it lacks numbers in Data/{name}")
    return reader.dataset(node, f"Data/{name}")


def check(root: Path) -> list[Check]:
    """Compare a folder with the published totals; return the lines of `vergence data check`.

    The totals are those of people and of frames per person. Labels are checked for NaN, degrees and
    the signs of yaws.
    """
    lines = Checks()
    with lines.reading("one file per participant"):
        files = _files(root)
        lines.append(compare("participants", len(files), PEOPLE, WHERE))
        for path in with_progress(list(files.values()), "participants"):
            with lines.reading(path.stem):
                columns = _patches(path)
                frames = len(columns["gaze"]) // 2 + int(columns["lost"][0])
                lines.append(compare(f"{path.stem}: frames", frames, FRAMES, WHERE))
    return lines
