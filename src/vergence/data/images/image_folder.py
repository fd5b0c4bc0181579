"""The user's own pictures, in one folder per class, for zero-shot learning of unseen classes.

Layout of `root`: `CLASS/*.jpg`, `.jpeg` or `.png`. A folder's name is the name of its class, with +
or _ for a space. Other files, and names that begin with a dot, are ignored. A method's option
`semantics` says how classes are described: by their names, or by a file of vectors
(`vergence.data.zero_shot.semantics`).

Licence: that of the pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vergence.core.federation import Dataset, Federation
from vergence.data.images.owner_images import Pictured
from vergence.data.io.checks import Check, Checks, data_folder, with_progress
from vergence.data.io.image_files import open_image
from vergence.data.io.path_patterns import NOT_DATA
from vergence.data.owner import split_unseen
from vergence.data.zero_shot.semantics import plain
from vergence.errors import DataError

ENDINGS = {".jpg", ".jpeg", ".png"}
# One of five is for testing.
LEAST = 5
"""Fewest pictures of a class."""
WHERE = "root must hold a folder of .jpg or .png pictures for each class"


@dataclass(frozen=True)
class ImageFolder(Pictured, Dataset):
    """Pictures from one folder per class, for zero-shot learning.

    Of each class, a random 80 % are for training and validation, the others for test. Pictures are
    cut to their middle square and resized to `side`. The options are those of `Pictured`; `unseen`
    must be given.
    """

    def load(self, root: str | None = None) -> Federation:
        """Find and read the pictures, and split each class at random.

        Raises:
            DataError: there are fewer than two classes, a class has too few pictures, or a picture
                cannot be decoded.
            ConfigError: `unseen` is not given, or names no class.
        """
        classes = classes_of(data_folder(root, self.name, WHERE))
        kinds = self.kinds(tuple(classes))
        y = np.repeat(np.arange(len(classes)), [len(paths) for paths in classes.values()])
        images = squares([path for paths in classes.values() for path in paths], self.side)
        train, test = split_unseen(np.arange(len(y)), y, self.draw("test"))
        about = {
            "licence": "that of the pictures",
            "citation": "none",
            "split": f"of every class 80 % at random to learn from, {self.val:g} of that for "
            "validation",
            "semantics": "names, or a file of vectors",
        }
        return self.pictured(images, y, train, test, kinds, about)


def classes_of(folder: Path) -> dict[str, list[Path]]:
    """Return class name -> paths of its pictures; both are in alphabetical order.

    Raises:
        DataError: there are fewer than two classes, two classes have the same name, or a class has
            too few pictures.
    """
    classes: dict[str, list[Path]] = {}
    for home in sorted(path for path in folder.iterdir() if path.is_dir()):
        if NOT_DATA.fullmatch(home.name):
            continue
        paths = sorted(
            path
            for path in home.iterdir()
            if path.suffix.lower() in ENDINGS and not NOT_DATA.fullmatch(path.name)
        )
        # Two folders may differ in + and _ only, which both stand for a space.
        name = plain(home.name)
        if name in classes:
            raise DataError(f"{folder}: two folders are called '{name}': rename one; {WHERE}")
        if len(paths) < LEAST:
            raise DataError(
                f"{home} has {len(paths)} pictures, a class needs {LEAST} or more: add some, or "
                f"take the folder away; {WHERE}"
            )
        classes[name] = paths
    if len(classes) < 2:
        raise DataError(f"{folder} holds {len(classes)} classes, 2 or more are needed: {WHERE}")
    return classes


def squares(paths: Sequence[Path], side: int) -> Tensor:
    """Return the middle squares of pictures, upright and resized, uint8 `[n, 3, side, side]`.

    Raises:
        DataError: a picture cannot be decoded.
    """
    rows = np.empty((len(paths), side, side, 3), np.uint8)
    for row, path in zip(rows, with_progress(paths, "pictures"), strict=True):
        with open_image(path, str(path), "replace it or take it away") as image:
            # Phones store many pictures on their side and note it in the EXIF header.
            upright = ImageOps.exif_transpose(image).convert("RGB")
        row[:] = np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.LANCZOS))
    return torch.from_numpy(rows.transpose(0, 3, 1, 2).copy())


def check(root: Path) -> list[Check]:
    """Count classes and pictures, decode every picture, and return the lines of the check."""
    lines = Checks()
    with lines.reading("pictures of every class"):
        classes = classes_of(root)
        squares([path for paths in classes.values() for path in paths], 32)
        sizes = [len(paths) for paths in classes.values()]
        lines += [
            Check("classes", str(len(sizes)), "2 or more", True),
            Check("pictures of a class", f"{min(sizes)} to {max(sizes)}", f"{LEAST} or more", True),
        ]
    return lines
