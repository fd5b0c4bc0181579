"""Features of images of seen and unseen classes: the data sets usual in zero-shot learning.

Layout of `root`, one folder per set (AWA1, AWA2, APY, ...): `res101.mat` with `features`
`[2048, n]` and `labels` `[n, 1]` from 1, and `att_splits.mat` (`vergence.data.zero_shot.splits`).

Licence: research use, not packaged. Source: Xian, Lampert, Schiele, Akata, "Zero-shot learning: a
comprehensive evaluation of the good, the bad and the ugly", TPAMI 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vergence.core.federation import Dataset, Federation
from vergence.data.io.checks import Check, compare, data_folder, refuse_nan
from vergence.data.owner import ClassNames, OwnerOptions, scale_features
from vergence.data.zero_shot.splits import ClassSplits, check_counts, features_of, read_split
from vergence.errors import DataError

FEATURES = "res101.mat"
WHERE = (
    f"root must hold {FEATURES} and att_splits.mat of the data xlsa17, published with 'Zero-shot "
    "learning: the good, the bad and the ugly' (Xian et al., MPI Informatik); without "
    f"{FEATURES}, zsl_synthetic makes features on the same lists"
)
ABOUT = {
    "licence": "research use",
    "citation": "Xian, Lampert, Schiele, Akata, Zero-shot learning: a comprehensive evaluation of "
    "the good, the bad and the ugly, TPAMI 2019",
}


@dataclass(frozen=True)
class Xlsa17(OwnerOptions, Dataset):
    """ResNet-101 features of images of seen and unseen classes.

    The options are those of `OwnerOptions`. Each feature is scaled so that its values on the images
    of the list `trainval` (seen classes, for training and validation) span [0, 1]. Other images may
    have values outside [0, 1].
    """

    def load(self, root: str | None = None) -> Federation:
        """Read and verify the features, and scale them.

        Columns of the samples: `x` float32 `[n, 2048]`, and `y` int64 `[n]`, the class.

        Raises:
            DataError: a file is missing or damaged, or labels and lists do not agree.
        """
        folder = data_folder(root, "xlsa17", WHERE)
        split = read_split(folder)
        x, y = features_of(folder, FEATURES, WHERE)
        refuse_nan(x, "features", folder / FEATURES)
        kinds = labelled(split, y)
        lists, teacher_sentence = split.of_teacher(y, self.draw("unseen"))
        columns = {"x": scale_features(x, lists.trainval), "y": torch.from_numpy(y)}
        about = {
            **ABOUT,
            "features": f"ResNet-101, {x.shape[1]}-d, scaled by trainval",
            "split": f"published lists; {teacher_sentence}; {self.val:g} of trainval for "
            "validation",
            "semantics": str(split.path),
        }
        return self.federation(columns, lists, kinds, about)


def labelled(split: ClassSplits, y: np.ndarray) -> ClassNames:
    """Return all classes, and which are unseen: those of the images in the list `test_unseen`.

    Raises:
        DataError: a label is no class, the number of labels is wrong, or a class is both seen and
            unseen.
    """
    if len(y) != split.images or y.min() < 0 or y.max() >= len(split.names):
        raise DataError(
            f"{split.path.parent}: {FEATURES} has {len(y):,} labels from {y.min() + 1} to "
            f"{y.max() + 1}, att_splits.mat {split.images:,} images of {len(split.names)} classes; "
            "take both files of one set"
        )
    unseen = np.unique(y[split.lists["test_unseen"]])
    # A class on both sides shows that the two files belong to different sets.
    for name in ("trainval", "test_seen"):
        if len(both := np.intersect1d(unseen, y[split.lists[name]])):
            raise DataError(
                f"{split.path}: class '{split.names[both[0]]}' is in test_unseen_loc and in "
                f"{name}_loc; take both files of one set"
            )
    return ClassNames(split.names, tuple(unseen.tolist()))


def check(root: Path) -> list[Check]:
    """Compare lists with Table 5.1, and features with lists; return the lines of a check."""
    lines = check_counts(root)
    with lines.reading(FEATURES):
        split = read_split(root)
        x, y = features_of(root, FEATURES, WHERE)
        labelled(split, y)
        lines.append(compare(f"images in {FEATURES}", len(x), split.images, WHERE))
    return lines
