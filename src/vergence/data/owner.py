"""Data sets of one client, the owner, for zero-shot learning from a teacher to a student.

The owner's teacher model learns from labelled features. The student learns from the teacher,
without samples. Some classes are unseen: in training, only an omniscient teacher gets samples of
them.

Used throughout `data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.core.randomness import RandomStream

Rows = NDArray[np.int64]
OWNER = "owner"
"""Name of the one client of these data sets."""


@dataclass(frozen=True)
class RowLists:
    """Row numbers, from 0, of the samples for training and testing a teacher.

    `trainval` and `test_seen` are rows of seen classes; `test_unseen` are all rows of unseen
    classes. For an omniscient teacher, `unseen_train` and `unseen_test` divide `test_unseen`.
    """

    trainval: Rows
    test_seen: Rows
    test_unseen: Rows
    unseen_train: Rows
    unseen_test: Rows


@dataclass(frozen=True)
class ClassNames:
    """Names of all classes in the order of their numbers, and the numbers of the unseen classes."""

    names: tuple[str, ...]
    unseen: tuple[int, ...]

    @property
    def seen(self) -> tuple[int, ...]:
        """Numbers of the seen classes, which are all but the unseen ones."""
        return tuple(i for i in range(len(self.names)) if i not in self.unseen)

    def listing(self, which: Sequence[int]) -> str:
        """Return the names of the classes with the numbers `which`, separated by commas."""
        return ", ".join(self.names[i] for i in which)


@dataclass(frozen=True)
class OwnerOptions:
    """Options of data sets for zero-shot learning, whose only client is `owner`.

    Attributes:
        teacher: `omniscient`: the teacher learns from all classes. It is tested on the images of
            unseen classes that it did not learn from. `quasi` (quasi-omniscient): the teacher
            learns only from seen classes, and is tested on all images of unseen classes. The
            student has no images of any class.
        val: fraction of each class's training images that is for validation.
        split_seed: seed of all random splits.
    """

    teacher: Literal["omniscient", "quasi"] = "omniscient"
    val: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    split_seed: int = 0

    @property
    def name(self) -> str:
        """The data set's name, which is the name of its module."""
        return registry_name(self)

    def draw(self, what: str) -> np.random.Generator:
        """Return the random generator for a purpose, such as "validation"."""
        return RandomStream(self.name, self.split_seed, what).numpy()

    def federation(
        self,
        columns: Mapping[str, Tensor],
        lists: RowLists,
        kinds: ClassNames,
        about: Mapping[str, str],
        banks: Mapping[str, SharedRows] = MappingProxyType({}),
    ) -> Federation:
        """Return the federation of the owner, with training, validation and test samples.

        Args:
            columns: columns of all samples; `y` int64 `[n]` is the number of the class.
            lists: rows for training and testing a teacher.
            kinds: names of the classes, and which are unseen.
            about: entries for `Federation.about`.
            banks: shared arrays, to whose rows samples refer by a column of row numbers.
        """
        sees_all = self.teacher == "omniscient"
        learn = np.concatenate([lists.trainval, lists.unseen_train]) if sees_all else lists.trainval
        tested = lists.unseen_test if sees_all else lists.test_unseen
        rows = (
            *self._split_validation(learn, columns["y"].numpy()),
            np.concatenate([lists.test_seen, tested]),
        )
        train, val, test = (
            Samples(
                {name: column[torch.from_numpy(np.sort(part))] for name, column in columns.items()},
                banks,
            )
            for part in rows
        )
        saw = range(len(kinds.names)) if sees_all else kinds.seen
        notes = {
            "classes": kinds.listing(range(len(kinds.names))),
            "seen": kinds.listing(kinds.seen),
            "unseen": kinds.listing(kinds.unseen),
            "teacher": f"{self.teacher}, saw {len(saw)} of {len(kinds.names)} classes: "
            f"{kinds.listing(saw)}",
        }
        return Federation(self.name, {OWNER: Splits(train, val, test)}, {**about, **notes})

    def _split_validation(self, rows: Rows, y: NDArray[np.int64]) -> tuple[Rows, Rows]:
        """Return rows for training and rows for validation.

        The fraction `val` of each class is for validation.
        """
        draw, train, val = self.draw("validation"), [], []
        for kind in np.unique(y[rows]):
            own = draw.permutation(rows[y[rows] == kind])
            # A class of few rows keeps one for training.
            cut = min(round(self.val * len(own)), len(own) - 1)
            val.append(own[:cut])
            train.append(own[cut:])
        return np.concatenate(train), np.concatenate(val)


def split_unseen(rows: Rows, y: NDArray[np.int64], draw: np.random.Generator) -> tuple[Rows, Rows]:
    """Return a random 80 % of the rows of every class, and the other rows; both are sorted."""
    train, test = [], []
    for kind in np.unique(y[rows]):
        own = draw.permutation(rows[y[rows] == kind])
        cut = len(own) * 4 // 5
        train.append(own[:cut])
        test.append(own[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def scale_features(x: Float[np.ndarray, "n d"], rows: Rows) -> Float[Tensor, "n d"]:
    """Return features as float32, each scaled so that its values in `rows` span [0, 1].

    A feature that is constant in these rows becomes 0 in them.
    """
    low, high = x[rows].min(0), x[rows].max(0)
    spread = np.where(high > low, high - low, 1)
    return torch.from_numpy(((x - low) / spread).astype(np.float32))
