"""The user's own pictures of faces, or patches of eyes, with a table of where people looked.

`root` holds a table and the pictures that the table names, by paths below root. For pictures of
faces, a row has the point looked at, in mm in the camera frame. Eyes are then cut out as
`vergence data patches` does (`face_patches`), with landmarks from the table or from networks (extra
`landmarks`). For patches of eyes, a row has one file for each eye, unmirrored, and the gaze as
angles.

Licence: that of the pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vergence.core.data import Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.options import NamedOptions
from vergence.data.eye_images.camera import Camera, read_camera
from vergence.data.eye_images.crop import HEIGHT, WIDTH
from vergence.data.eye_images.eye_patches import both_eyes, frame_samples, verify_yaw_sign
from vergence.data.eye_images.face_patches import patches_of
from vergence.data.eye_images.landmarks import Find, load_landmarker
from vergence.data.gaze_video.gaze_files import people_of_paths
from vergence.data.io.checks import (
    Check,
    CheckedFolder,
    Checks,
    data_folder,
    refuse_nan,
    with_progress,
)
from vergence.data.io.delimited_text import DelimitedTable, read_table
from vergence.data.io.image_files import open_image
from vergence.data.splits import PeopleOptions, deal_at_random, deal_in_order
from vergence.errors import ConfigError, DataError

WHERE = (
    "put a table and the pictures that it names below root; "
    "docs/how-to/own_recordings.md has examples"
)
FEW = "each of training, validation and test needs one: add pictures, or leave the person out"
POINTS = 7
"""Number of landmarks: four eye corners from the image left to right, mouth corners, nose."""


@dataclass(frozen=True)
class PictureColumns(NamedOptions, label="columns"):
    """Names of the table's columns, as its header has them.

    Attributes:
        picture: file with a picture of a face, below root.
        target: the point looked at: x, y, z in mm in the camera frame (x right, y down).
        landmarks: x and y of each of the seven landmarks in pixels, 14 columns; default: networks
            find them.
        left: file of the person's left eye, 60 x 36 pixels, in place of `picture`.
        right: file of the right eye.
        gaze: pitch (up) and yaw (to the image left) of the gaze, with `left` and `right`.
        pose: pitch and yaw of the head, with `left` and `right`; default: zeros.
        unit: unit of gaze and pose: deg or rad.
        person: name of the person; default: the name of a folder in the file's path, the first one
            in which the paths differ.
        session: a recording session or day. If it is set, the split is by whole sessions, in order;
            otherwise pictures are split at random.
    """

    picture: str = "picture"
    target: tuple[str, ...] = ("x", "y", "z")
    landmarks: tuple[str, ...] = ()
    left: str = ""
    right: str = ""
    gaze: tuple[str, ...] = ("pitch", "yaw")
    pose: tuple[str, ...] = ()
    unit: Literal["deg", "rad"] = "deg"
    person: str = ""
    session: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = {"target": (3,), "landmarks": (0, 2 * POINTS), "gaze": (2,), "pose": (0, 2)}
        for name, allowed in counts.items():
            if len(getattr(self, name)) not in allowed:
                raise ConfigError(
                    f"columns: {name} must be {allowed[-1]} names of columns, got "
                    f"{list(getattr(self, name))}"
                )
        if bool(self.left) != bool(self.right):
            raise ConfigError("columns: left and right go together; give both, or picture alone")

    def names(self) -> list[str]:
        """Return the names of all columns to read."""
        files = [self.left, self.right, *self.gaze, *self.pose]
        faces = [self.picture, *self.target, *self.landmarks]
        more = [name for name in (self.person, self.session) if name]
        return [*(files if self.left else faces), *more]


@dataclass(frozen=True)
class FacePictures(PeopleOptions, CheckedFolder, Dataset):
    """The user's own pictures of faces or eyes, as eye patches of 36x60 pixels with gaze angles.

    Attributes:
        table: the table's file name, below root.
        columns: names of the table's columns.
        camera: JSON file of the calibrated camera, below root; default: `Camera.guessed`.
    """

    table: str = "targets.csv"
    columns: PictureColumns = field(default_factory=PictureColumns)
    camera: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.columns, Mapping):
            object.__setattr__(self, "columns", PictureColumns(**self.columns))
        super().__post_init__()

    def load(self, root: str | None = None) -> Federation:
        """Read the pictures, cut out and verify the eyes, and split each person's pictures.

        Both eyes of a picture go to the same part of the split. Columns of the samples: `image`
        uint8 `[n, 1, 36, 60]`, `gaze` and `pose` float32 `[n, 2]`, (pitch, yaw) in radians, `side`
        int64 `[n]` (0 left, 1 right).

        Raises:
            ConfigError: an option is out of range, or landmarks must be found and the networks are
                missing.
            DataError: the table or a picture cannot be used, labels do not fit the pictures, or a
                person is unknown or has too few pictures.
        """
        folder = data_folder(root, "face_pictures", WHERE)
        read, left_out = self._read(folder)
        verify_yaw_sign([columns for columns, _ in read.values()], str(folder))
        persons = self.people_to_load(list(read), "person")
        people = {person: self._split(person, *read[person]) for person in persons}
        how = "whole sessions in order" if self.columns.session else "pictures at random"
        about = {
            "licence": "of the pictures at root; none is packaged",
            "citation": "own recordings",
            "split": f"within each person, {self.percent} %, {how} (seed {self.split_seed}); both "
            "eyes of a picture are in one part",
            "left_out": left_out,
            "angles": "radians (pitch, yaw); right eyes are mirrored and their yaws flipped",
        }
        return Federation("face_pictures", people, about)

    def check(self, root: Path) -> list[Check]:
        """Check every row's pictures; return the lines of `vergence data check`.

        A line states the number of usable pictures of each person.
        """
        out = Checks()
        with out.reading("pictures", ConfigError):
            read, left_out = self._read(root)
            verify_yaw_sign([columns for columns, _ in read.values()], str(root))
            for person, (columns, _) in read.items():
                count = len(columns["gaze"]) // 2
                what = f"{person}: pictures with both eyes"
                out.append(Check(what, f"{count}", "3 or more", count >= 3, FEW))
            out.append(Check("left out", left_out, "", True))
        return out

    def _read(
        self, root: Path
    ) -> tuple[dict[str, tuple[dict[str, NDArray], NDArray[np.str_]]], str]:
        """Return person -> (columns of both eyes, session of each picture), and a summary text.

        The summary counts the rows, the people and the pictures that were left out.
        """
        path = root / self.table
        table = read_table(path, self.columns.names(), "table of pictures and where people looked")
        if not len(table):
            raise DataError(f"{path} has no rows: {WHERE}")
        files = table.text(self.columns.left or self.columns.picture)
        if self.columns.person:
            persons = np.array([name.strip() for name in table.text(self.columns.person)])
        else:
            persons = np.array(people_of_paths(files))
        if (persons == "").any():
            row = int(np.argmax(persons == ""))
            raise DataError(
                f"{path}: row {table.line(row)}: whose picture is '{files[row]}'? set "
                "columns.person, or put the pictures into a folder per person"
            )
        sessions = np.array(table.text(self.columns.session) if self.columns.session else files)
        read, left_out = {}, 0
        for person in sorted(set(persons.tolist())):
            rows = np.flatnonzero(persons == person)
            columns, complete = self._eyes(root, table, rows)
            left_out += len(rows) - len(complete)
            read[person] = columns, sessions[rows[complete]]
        summary = f"{len(table)} rows read, {len(read)} people; left out: {left_out} pictures"
        return read, f"{summary} without a face or with an eye beyond the edge"

    def _eyes(
        self, root: Path, table: DelimitedTable, rows: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray], NDArray[np.int64]]:
        """Return the columns of both eyes of these rows, and the rows that show both eyes.

        The second array holds positions in `rows`.
        """
        if self.columns.left:
            gaze = self._angles(table, self.columns.gaze)[rows]
            pose = self._angles(table, self.columns.pose)[rows] if self.columns.pose else 0 * gaze
            left, right = (
                np.stack(
                    [
                        _patch(root, table, name, row)
                        for row in with_progress(rows.tolist(), "patches")
                    ]
                )
                for name in (self.columns.left, self.columns.right)
            )
            return both_eyes(left, right, gaze, pose), np.arange(len(rows))
        targets = np.stack([table.floats(name) for name in self.columns.target], 1)
        refuse_nan(targets, ", ".join(self.columns.target), table.path)
        camera = read_camera(root / self.camera) if self.camera else None
        pictures = (
            _picture(root, table, self.columns.picture, row)
            for row in with_progress(rows.tolist(), "pictures")
        )
        looked_at = {i: targets[row] for i, row in enumerate(rows)}
        return self._patches(table, rows, pictures, camera, looked_at)

    def _patches(
        self,
        table: DelimitedTable,
        rows: NDArray[np.int64],
        pictures: Iterator[NDArray[np.uint8]],
        camera: Camera | None,
        targets: Mapping[int, NDArray],
    ) -> tuple[dict[str, NDArray], NDArray[np.int64]]:
        if self.columns.landmarks:
            points = np.stack([table.floats(name) for name in self.columns.landmarks], 1)[rows]
            # The pictures come in the order of the rows, so the next landmarks are the picture's.
            known = iter(points.reshape(-1, POINTS, 2))

            def listed_landmarks(_: NDArray[np.uint8]) -> NDArray[np.float64] | None:
                marks = next(known)
                return marks if np.isfinite(marks).all() else None

            return _cut(pictures, camera, listed_landmarks, targets)
        return _cut(pictures, camera, load_landmarker(), targets)

    def _angles(self, table: DelimitedTable, names: Sequence[str]) -> NDArray[np.float64]:
        angles = np.stack([table.floats(name) for name in names], 1)
        refuse_nan(angles, ", ".join(names), table.path)
        largest = np.abs(angles).max()
        # Nobody looks within a degree and a half of the camera in every picture.
        if self.columns.unit == "deg" and names == self.columns.gaze and 0 < largest <= np.pi / 2:
            raise DataError(
                f"{table.path}: {', '.join(names)} reach {largest:.3g}, as degrees: for radians "
                "set columns.unit = 'rad'",
                code="bad-value",
            )
        angles = np.radians(angles) if self.columns.unit == "deg" else angles
        if np.abs(angles).max() > np.pi / 2:
            row = int(np.abs(angles).max(1).argmax())
            raise DataError(
                f"{table.path}: row {table.line(row)}: {', '.join(names)} is more than 90 degrees "
                f"from the camera, as {self.columns.unit}: correct columns.unit, or the row"
            )
        return angles

    def _split(
        self, person: str, columns: dict[str, NDArray], sessions: NDArray[np.str_]
    ) -> Splits:
        frames = len(columns["gaze"]) // 2
        if self.columns.session:
            names, number = np.unique(sessions, return_inverse=True)
            counts = np.bincount(number, minlength=len(names))
            dealt = deal_in_order(counts, self.shares, f"sessions of {person}")
            parts = tuple(np.flatnonzero(np.isin(number, part)) for part in dealt)
        else:
            # Keyed by the name, so that further people do not change this person's split.
            rng = np.random.default_rng([self.split_seed, *person.encode()])
            parts = deal_at_random([np.arange(frames)], self.shares, rng, f"pictures of {person}")
        return Splits(*(frame_samples(columns, part) for part in parts))


def _cut(
    pictures: Iterator[NDArray[np.uint8]],
    camera: Camera | None,
    find: Find,
    targets: Mapping[int, NDArray],
) -> tuple[dict[str, NDArray], NDArray[np.int64]]:
    patches = patches_of(pictures, camera, find, targets)
    names = ("image", "gaze", "pose")
    columns = {name: patches.columns[name] for name in names}
    # `frame_samples` adds the channel axis again.
    columns["image"] = columns["image"][:, 0]
    return columns, patches.columns["frame"][: len(columns["gaze"]) // 2]


def _find_file(root: Path, table: DelimitedTable, name: str, row: int) -> tuple[Path, str]:
    text = table.text(name)[row]
    # A Windows path takes both / and \, whichever system wrote the table.
    below = PureWindowsPath(text)
    file = root / below.as_posix()
    # A table from elsewhere must not make us read files outside root.
    if not file.is_file() or below.is_absolute() or below.drive or ".." in below.parts:
        raise DataError(
            f"{table.path}: row {table.line(row)}: '{name}' is '{text}', and there is no such file "
            f"below {root}: put it there, or remove the row"
        )
    return file, f"{file} ({table.path.name}, row {table.line(row)})"


def _picture(root: Path, table: DelimitedTable, name: str, row: int) -> NDArray[np.uint8]:
    """Return the pixels of a picture, RGB, upright.

    A phone may store a picture on its side; the EXIF orientation is applied.
    """
    file, what = _find_file(root, table, name, row)
    with open_image(file, what, "save it again, or remove the row") as stored:
        return np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))


def _patch(root: Path, table: DelimitedTable, name: str, row: int) -> NDArray[np.uint8]:
    """Return the grey pixels of a patch, uint8 `[36, 60]`; other sizes are resized.

    Raises:
        DataError: the patch has other proportions, or the file cannot be read.
    """
    file, what = _find_file(root, table, name, row)
    with open_image(file, what, "save it again, or remove the row") as stored:
        width, height = stored.size
        grey = stored.convert("L")
        small = grey.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
        pixels = np.asarray(grey if (width, height) == (WIDTH, HEIGHT) else small)
    # The slack is one pixel of rounding in either side.
    if abs(width * HEIGHT - height * WIDTH) > max(WIDTH, HEIGHT):
        raise DataError(
            f"{what} has {width} x {height} pixels: patches are {WIDTH} x {HEIGHT}, or larger in "
            "the same proportions; cut it again"
        )
    return pixels
