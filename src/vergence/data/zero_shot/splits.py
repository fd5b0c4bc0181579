"""att_splits.mat: class names, attributes and lists of images of the usual zero-shot data sets.

The lists hold numbers of images, from 1. Each image is in exactly one of `trainval_loc`,
`test_seen_loc` and `test_unseen_loc`. The authors of SG-ZSL add three lists for an omniscient
teacher, which also learns from unseen classes. `tunseen_train_loc` and `tunseen_test_loc` are
images of unseen classes for its training and its test. `train_allclass_loc` are all its training
images. The lists `train_loc` and `val_loc` are not read: on AWA1, SUN and FLO they share images
with `test_seen_loc`.

Used by `data.synthetic.zsl_synthetic` and `data.zero_shot.xlsa17`.

Source: Xian, Lampert, Schiele, Akata, "Zero-shot learning: a comprehensive evaluation of the good,
the bad and the ugly", TPAMI 2019; SG-ZSL's lists: github.com/StefanDurhamUK/SG-ZSL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.io import whosmat

from vergence.data.io.checks import (
    Checks,
    compare,
    need_file,
    need_numbers,
    read_mat,
    refuse_nan,
)
from vergence.data.owner import ClassNames, RowLists, Rows, split_unseen
from vergence.data.zero_shot.semantics import names_of, plain
from vergence.errors import ConfigError, DataError, nearest

FILE = "att_splits.mat"
WHERE = f"root must hold {FILE} of the data xlsa17 (Xian et al., MPI Informatik), or SG-ZSL's"
BASE, AUTHORS = ("trainval", "test_seen", "test_unseen"), ("tunseen_train", "tunseen_test")
# att_splits.mat does not say which classes are unseen; only the labels in res101.mat do.
AWA = "sheep, seal, bat, giraffe, rat, bobcat, walrus, dolphin, horse, blue whale"
APY = (
    "cow, horse, motorbike, person, pottedplant, sheep, train, tvmonitor, donkey, goat, jetski, "
    "statue"
)
UNSEEN = (frozenset(AWA.split(", ")), frozenset(APY.split(", ")))
"""Published unseen classes of AWA and of aPY."""
# Table 5.1 prints 15,539 images of aPY; its own columns add up to 15,339, as the file has.
COUNTS = {
    "AWA1": (40, 10, 85, 30_475, 19_832, 4_958, 5_685, 4_542, 1_143),
    "AWA2": (40, 10, 85, 37_322, 23_527, 5_882, 7_913, 6_328, 1_585),
    "APY": (20, 12, 64, 15_339, 5_932, 1_483, 7_924, 6_333, 1_591),
}
"""Table 5.1 of the Durham thesis: folder name -> the numbers that `COLUMNS` names."""
COLUMNS = (
    "seen classes",
    "unseen classes",
    "attributes",
    "images",
    "trainval",
    "test seen",
    "test unseen",
    "unseen, given to an omniscient teacher",
    "unseen, its test",
)


@dataclass(frozen=True, eq=False)
class ClassSplits:
    """The content of one att_splits.mat.

    `attributes` `[classes, attributes]` describe each class. `lists` maps a list's name to image
    numbers from 0. The lists for an omniscient teacher, which also learns from unseen classes, are
    there only if the file has them.
    """

    path: Path
    names: tuple[str, ...]
    attributes: Float[np.ndarray, "classes attributes"]
    lists: dict[str, Rows]

    @property
    def images(self) -> int:
        """Number of images in all lists, each counted once."""
        return sum(len(self.lists[name]) for name in BASE)

    def of_teacher(self, y: NDArray[np.int64], draw: np.random.Generator) -> tuple[RowLists, str]:
        """Return the lists for a teacher, and a sentence on its images of unseen classes.

        `y` are the labels of all images. An omniscient teacher also learns from unseen classes. If
        the file has no lists for it, it trains on a random 80 % of the images of every such class.
        """
        trainval, seen, unseen = (self.lists[name] for name in BASE)
        if AUTHORS[0] in self.lists:
            teacher_rows, test_rows = (self.lists[name] for name in AUTHORS)
            sentence = "unseen images of an omniscient teacher by the authors' lists"
        else:
            teacher_rows, test_rows = split_unseen(unseen, y, draw)
            sentence = "80 % of each unseen class, drawn, for an omniscient teacher"
        return RowLists(trainval, seen, unseen, teacher_rows, test_rows), sentence

    def kinds(self, unseen: tuple[str, ...] = ()) -> ClassNames:
        """Return all classes, and which are unseen: those in `unseen`, or else those published.

        Raises:
            ConfigError: a name in `unseen` is no class; or `unseen` is empty, and the data set is
                not AWA1, AWA2 or aPY.
        """
        names = tuple(map(plain, unseen)) or next(
            (tuple(u) for u in UNSEEN if u <= set(self.names)), ()
        )
        if not names:
            raise ConfigError(
                f"{self.path} does not say which of its {len(self.names)} classes are unseen, and "
                "they are known for AWA1, AWA2 and aPY only; name them with unseen = [...]"
            )
        for name in names:
            if name not in self.names:
                raise ConfigError(f"unseen: no class '{name}'{nearest(name, self.names)}")
        return ClassNames(self.names, tuple(sorted(self.names.index(name) for name in names)))


def read_split(folder: Path) -> ClassSplits:
    """Read and verify the att_splits.mat in a folder.

    Raises:
        DataError: the file is missing or damaged. Its lists do not count from 1, or do not name
            every image once. The numbers of names and of attribute vectors differ.
    """
    path = need_file(folder / FILE, WHERE)
    names = names_of(str(path))
    attributes = read_mat(path, "att", WHERE).T
    need_numbers(attributes, "att", path, WHERE)
    attributes = attributes.astype(np.float64)
    if len(attributes) != len(names) or not np.isfinite(attributes).all():
        raise DataError(
            f"{path}: att must have one column of numbers for each of {len(names)} names, its "
            f"shape is {attributes.T.shape}: {WHERE}"
        )
    lists = {name: _list(path, name) for name in BASE}
    # An image in two lists would be tested on after training on it.
    whole = np.sort(np.concatenate(list(lists.values())))
    if not np.array_equal(whole, np.arange(len(whole))):
        first, last = int(whole[0]) + 1, int(whole[-1]) + 1
        raise DataError(
            f"{path}: {', '.join(f'{n}_loc' for n in BASE)} must name every image once, counting "
            f"from 1; they name {len(np.unique(whole)):,} of {len(whole):,}, from {first} to "
            f"{last:,}{' (do they count from 0?)' if first == 0 else ''}: {WHERE}"
        )
    lists |= _omniscient_teacher_lists(path, lists)
    return ClassSplits(path, names, attributes, lists)


def _list(path: Path, name: str) -> Rows:
    numbers = read_mat(path, f"{name}_loc", WHERE).ravel()
    if numbers.dtype.kind not in "iuf" or (numbers != np.round(numbers)).any():
        raise DataError(f"{path}: {name}_loc must hold whole numbers: {WHERE}")
    # MATLAB counts from 1.
    return numbers.astype(np.int64) - 1


def _omniscient_teacher_lists(path: Path, lists: dict[str, Rows]) -> dict[str, Rows]:
    """Return two lists of images of unseen classes for a teacher that also learns from these.

    `tunseen_train` are images that the teacher trains on, and `tunseen_test` those for its test.
    The result is empty if the file has no such lists (by the authors of SG-ZSL).

    Args:
        path: the att_splits.mat.
        lists: the file's other lists, by name.

    Raises:
        DataError: the two lists do not agree with the other lists.
    """
    there = {name for name, _, _ in whosmat(path)}
    if not there & {f"{name}_loc" for name in (*AUTHORS, "train_allclass")}:
        return {}
    halves = {name: _list(path, name) for name in AUTHORS}
    union = np.sort(np.concatenate(list(halves.values())))
    teacher = np.sort(np.concatenate([lists["trainval"], halves[AUTHORS[0]]]))
    if not np.array_equal(union, np.sort(lists["test_unseen"])):
        raise DataError(f"{path}: tunseen_*_loc must be the two parts of test_unseen_loc: {WHERE}")
    if not np.array_equal(teacher, np.sort(_list(path, "train_allclass"))):
        raise DataError(
            f"{path}: train_allclass_loc must be trainval_loc and tunseen_train_loc: {WHERE}"
        )
    return halves


def check_counts(root: Path) -> Checks:
    """Compare a folder's lists with Table 5.1; return the lines of `vergence data check`.

    The data set is recognised by the folder's name, or else by its number of images.
    """
    lines = Checks()
    with lines.reading(FILE, ConfigError):
        split = read_split(root)
        hidden = len(split.kinds().unseen)
        sizes = (len(split.lists[name]) if name in split.lists else 0 for name in (*BASE, *AUTHORS))
        counts = (
            len(split.names) - hidden,
            hidden,
            split.attributes.shape[1],
            split.images,
            *sizes,
        )
        # A folder may have any name: the number of images tells which set it is.
        named = COUNTS.get(root.name.upper())
        wanted = named or next((row for row in COUNTS.values() if row[3] == split.images), counts)
        lines += [compare(*line, WHERE) for line in zip(COLUMNS, counts, wanted, strict=True)]
    return lines


def features_of(folder: Path, file: str, hint: str) -> tuple[NDArray[np.float32], Rows]:
    """Return features `[n, d]` and labels `[n]`, from 0, of a file with the layout of res101.mat.

    Raises:
        DataError: the file is missing or damaged, or its numbers of features and of labels differ.
    """
    path = need_file(folder / file, hint)
    labels, features = (read_mat(path, name, hint) for name in ("labels", "features"))
    for name, values in (("labels", labels), ("features", features)):
        need_numbers(values, name, path, hint)
    refuse_nan(labels, "labels", path)
    labels = labels.ravel().astype(np.int64) - 1
    if features.ndim != 2 or features.shape[1] != len(labels) or not len(labels):
        raise DataError(
            f"{path}: features must have one column for each of {len(labels):,} labels, their "
            f"shape is {features.shape}: {hint}"
        )
    return np.ascontiguousarray(features.T, np.float32), labels
