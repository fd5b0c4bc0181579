"""One owner's labelled features, and the classes that its teacher sees in training."""

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
from vergence.core.naming import called
from vergence.core.randomness import RandomStream

Rows = NDArray[np.int64]
OWNER = "owner"
"""The one client."""


@dataclass(frozen=True)
class Lists:
    """Rows, from 0, that a teacher may learn from and is tested on.

    `given` and `withheld` are the two parts of `test_unseen` for a teacher that sees all classes.
    """

    trainval: Rows
    test_seen: Rows
    test_unseen: Rows
    given: Rows
    withheld: Rows


@dataclass(frozen=True)
class Kinds:
    """All classes in their order, and the numbers of the unseen ones."""

    names: tuple[str, ...]
    unseen: tuple[int, ...]

    @property
    def seen(self) -> tuple[int, ...]:
        """The numbers of the other classes."""
        return tuple(i for i in range(len(self.names)) if i not in self.unseen)

    def told(self, which: Sequence[int]) -> str:
        """Return the names of some classes in a row."""
        return ", ".join(self.names[i] for i in which)


@dataclass(frozen=True)
class Owned:
    """Options of features that one client, `owner`, holds.

    Attributes:
        teacher: `omniscient`: it learns from all classes, of unseen ones from the images that are
            given to it, and is tested on the others; `quasi` (quasi-omniscient): from seen classes
            alone, tested on all images of unseen ones. `unseen` then means unseen by the student:
            it has no images of any class.
        val: share of each class's training images that is for validation.
        split_seed: fixes what is drawn.
    """

    teacher: Literal["omniscient", "quasi"] = "omniscient"
    val: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    split_seed: int = 0

    @property
    def name(self) -> str:
        """The data set's name: that of its module."""
        return called(self)

    def draw(self, what: str) -> np.random.Generator:
        """Return the random numbers for `what`."""
        return RandomStream(self.name, self.split_seed, what).numpy()

    def held(
        self,
        columns: Mapping[str, Tensor],
        lists: Lists,
        kinds: Kinds,
        about: Mapping[str, str],
        banks: Mapping[str, SharedRows] = MappingProxyType({}),
    ) -> Federation:
        """Return the owner's federation; `columns` has `y` int64 `[n]`, the classes by number."""
        knows = self.teacher == "omniscient"
        learn = np.concatenate([lists.trainval, lists.given]) if knows else lists.trainval
        tested = lists.withheld if knows else lists.test_unseen
        rows = (
            *self._validated(learn, columns["y"].numpy()),
            np.concatenate([lists.test_seen, tested]),
        )
        train, val, test = (
            Samples(
                {name: column[torch.from_numpy(np.sort(part))] for name, column in columns.items()},
                banks,
            )
            for part in rows
        )
        saw = range(len(kinds.names)) if knows else kinds.seen
        told = {
            "classes": kinds.told(range(len(kinds.names))),
            "seen": kinds.told(kinds.seen),
            "unseen": kinds.told(kinds.unseen),
            "teacher": f"{self.teacher}, saw {len(saw)} of {len(kinds.names)} classes: "
            f"{kinds.told(saw)}",
        }
        return Federation(self.name, {OWNER: Splits(train, val, test)}, {**about, **told})

    def _validated(self, rows: Rows, y: NDArray[np.int64]) -> tuple[Rows, Rows]:
        """Split rows by class: of each, `val` of its rows, rounded, but not the last one."""
        draw, train, val = self.draw("validation"), [], []
        for kind in np.unique(y[rows]):
            own = draw.permutation(rows[y[rows] == kind])
            cut = min(round(self.val * len(own)), len(own) - 1)
            val.append(own[:cut])
            train.append(own[cut:])
        return np.concatenate(train), np.concatenate(val)


def shared_out(rows: Rows, y: NDArray[np.int64], draw: np.random.Generator) -> tuple[Rows, Rows]:
    """Return 80 % of the rows of every class, drawn, and the others."""
    given, withheld = [], []
    for kind in np.unique(y[rows]):
        own = draw.permutation(rows[y[rows] == kind])
        cut = len(own) * 4 // 5
        given.append(own[:cut])
        withheld.append(own[cut:])
    return np.sort(np.concatenate(given)), np.sort(np.concatenate(withheld))


def scaled(x: Float[np.ndarray, "n d"], rows: Rows) -> Float[Tensor, "n d"]:
    """Return features as float32, each scaled so that these rows span [0, 1]; a constant is 0."""
    low, high = x[rows].min(0), x[rows].max(0)
    spread = np.where(high > low, high - low, 1)
    return torch.from_numpy(((x - low) / spread).astype(np.float32))
