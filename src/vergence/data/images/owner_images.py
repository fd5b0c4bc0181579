"""Pictures of seen and unseen classes that one owner has, as square inputs of a network.

A data set reads files, and knows no networks. The network's own `prepare` turns the pictures into
features (`vergence.models.pretrained.in_place_of_images`).

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
    """Options of picture data sets for zero-shot learning, besides those of `OwnerOptions`.

    Attributes:
        unseen: names of the classes of which the student sees no images.
        side: height and width in pixels of the network's input pictures.
    """

    unseen: tuple[str, ...] = ()
    side: Annotated[int, Ge(32)] = 96

    def kinds(self, names: tuple[str, ...]) -> ClassNames:
        """Return the names of all classes, with the numbers of those that `unseen` names.

        Raises:
            ConfigError: `unseen` names no class or all classes, or holds a name of no class.
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
        """Return the federation of one client, the owner, with these images.

        Columns of the samples: `y` int64 `[n]`, and `row` int64 `[n]`, the row in the array `image`
        uint8 `[all images, 3, side, side]`. All parts share this array, so each image is turned
        into features only once.

        Args:
            images: images of all classes, uint8 `[n, 3, side, side]`.
            y: class number of each image.
            train: rows for training, of all classes. Rows of unseen classes are used only by an
                omniscient teacher.
            test: rows for test, of all classes. A teacher that is not omniscient is also tested on
                the unseen classes' rows of `train`.
            kinds: names of the classes, and which are unseen.
            about: licence, citation and split, for `Federation.about`.
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
