"""One owner's pictures of seen and unseen classes, as squares that a network turns into features.

The network's `prepare` does it (`vergence.models.pretrained.in_place_of_images`): a data set reads
files, and knows no networks.

Used by `data.images.cifar10_unseen` and `data.images.image_folder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from vergence.core.data import SharedRows
from vergence.core.federation import Federation
from vergence.data.owner import ClassNames, OwnerOptions, RowLists, Rows
from vergence.data.zero_shot.semantics import plain
from vergence.errors import ConfigError, nearest


@dataclass(frozen=True)
class Pictured(OwnerOptions):
    """Options of pictures, in addition to those of `OwnerOptions`.

    Attributes:
        unseen: names of the unseen classes.
        side: pixels of the squares that the network gets.
    """

    unseen: tuple[str, ...] = ()
    side: Annotated[int, Ge(32)] = 96

    def kinds(self, names: tuple[str, ...]) -> ClassNames:
        """Return the classes and which are unseen.

        Raises:
            ConfigError: a name of no class, or none or all of them.
        """
        wanted = {plain(name) for name in self.unseen}
        for name in sorted(wanted - set(names)):
            raise ConfigError(f"{self.name}: unseen has no class '{name}'{nearest(name, names)}")
        if len(wanted) in (0, len(names)):
            raise ConfigError(
                f"{self.name}: unseen must name some of the {len(names)} classes but not all, of "
                f"{', '.join(names)}; got {list(self.unseen)}"
            )
        return ClassNames(names, tuple(i for i, name in enumerate(names) if name in wanted))

    def pictured(
        self,
        images: Tensor,
        y: Rows,
        train: Rows,
        test: Rows,
        kinds: ClassNames,
        about: Mapping[str, str],
    ) -> Federation:
        """Return the owner's federation of images uint8 `[n, 3, side, side]`.

        Columns: `y` int64 `[n]`; the bank `image`, looked up by `row`, holds all images, whoever
        learns from which, so that they are turned into features once.

        Args:
            images: images of all classes.
            y: classes of the images.
            train: rows to learn from, of seen classes and, if the teacher may, of unseen ones.
            test: rows to test on; of unseen ones those that an omniscient teacher is tested on.
            kinds: the classes.
            about: licence, citation and split.
        """
        # Unseen rows of the training list are those that an omniscient teacher learns from.
        hidden = np.isin(y, kinds.unseen)
        trained, tested = hidden[train], hidden[test]
        lists = RowLists(
            train[~trained],
            test[~tested],
            np.concatenate([train[trained], test[tested]]),
            train[trained],
            test[tested],
        )
        columns = {"row": torch.arange(len(y)), "y": torch.from_numpy(y)}
        details = {
            "features": f"pictures of {self.side} x {self.side} pixels, for a network to turn "
            "into features",
            **about,
        }
        return self.federation(columns, lists, kinds, details, {"image": SharedRows(images, "row")})
