"""CIFAR-10 for zero-shot learning: classes that aPY has too, with aPY's attributes.

aPY is Attribute Pascal and Yahoo, a data set with attributes of classes. Layout of `root`: that of
`images.cifar10`. The attributes are in aPY's att_splits.mat, which a method names as its option
`semantics`. Class names are aPY's, such as "boat" for CIFAR's "ship" and "car" for CIFAR's
"automobile".

Some classes are unseen: no student sees images of them. The usual backbone has been trained on
ImageNet, which has these classes. So a backbone may have seen a class that is unseen by teacher and
student.

Licence: none stated; not packaged. Source: Krizhevsky, "Learning multiple layers of features from
tiny images", technical report, University of Toronto, 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.federation import Dataset, Federation
from vergence.data.images import cifar10
from vergence.data.images.owner_images import Pictured
from vergence.data.images.partition import PartitionPart, resized
from vergence.data.io.checks import data_folder
from vergence.data.owner import Rows
from vergence.errors import ConfigError

NAMES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "boat", "truck")
SHARED = ("aeroplane", "car", "bird", "cat", "dog", "horse", "boat")
"""Classes of CIFAR-10 that aPY has too, with attributes."""


@dataclass(frozen=True)
class Cifar10Unseen(Pictured, Dataset):
    """Colour pictures of seven classes that have attributes, or of all ten classes.

    The options of `Pictured` apply too.

    Attributes:
        among: `apy`: the seven classes that have attributes; `all`: the ten classes of CIFAR-10.
        images: number of images per class for training and validation, drawn at random from the
            published training files.
        tests: number of images per class for test, drawn at random from the published test file.
    """

    unseen: tuple[str, ...] = ("cat", "boat")
    among: Literal["apy", "all"] = "apy"
    images: Annotated[int, Ge(2)] = 100
    tests: Annotated[int, Ge(1)] = 50

    def load(self, root: str | None = None) -> Federation:
        """Read the images, draw some of each class at random, and enlarge them to `side` pixels.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: `unseen` names no class, or a class has fewer images than asked for.
        """
        kinds = self.kinds(SHARED if self.among == "apy" else NAMES)
        read, files, _ = cifar10.find_reader(data_folder(root, self.name, cifar10.WHERE))
        pictures, labels = [], []
        for part, count in (("train", self.images), ("test", self.tests)):
            source = read(part)
            rows, own = self._sample_rows(source, part, count, kinds.names)
            pictures.append(source.images()[torch.from_numpy(rows)])
            labels.append(own)
        cut, y = len(labels[0]), np.concatenate(labels)
        about = {
            **cifar10.ABOUT,
            "files": files,
            "split": f"{self.images} images a class of the published training file, {self.tests} "
            f"of the test file; {self.val:g} of what is learned from for validation",
            "semantics": "att_splits.mat of aPY, or a text model's vectors of the names",
        }
        images, rows = resized(torch.cat(pictures), self.side), np.arange(len(y))
        return self.pictured(images, y, rows[:cut], rows[cut:], kinds, about)

    def _sample_rows(
        self, source: PartitionPart, part: str, count: int, names: tuple[str, ...]
    ) -> tuple[Rows, Rows]:
        """Return `count` random rows of each class, and the number of each row's class.

        Raises:
            ConfigError: a class has fewer images.
        """
        draw, rows = self.draw(part), []
        for name in names:
            # aPY's names stand in the order of CIFAR's labels.
            if len(own := np.flatnonzero(source.labels == NAMES.index(name))) < count:
                raise ConfigError(
                    f"{self.name}: {len(own)} images of '{name}' in the {part} file, {count} "
                    f"wanted; set {'images' if part == 'train' else 'tests'} to at most {len(own)}"
                )
            rows.append(draw.permutation(own)[:count])
        return np.concatenate(rows), np.repeat(np.arange(len(names)), count)
