"""Generated features for zero-shot learning, of classes with attributes and known likelihoods.

A random non-negative linear map turns the attributes of a class into its mean features. A sample is
its class's mean times gamma noise, feature by feature. So the likelihood of every class is known,
and no classifier has a better expected accuracy than one that predicts the likeliest class.

Without root, there are 16 made-up classes, named by a size, a colour and a shape; four of them are
unseen. Their attributes are their words (semantics `words`). With root, classes, attributes and
lists of images come from an att_splits.mat (`zero_shot.splits`). Which class an image has is then
drawn, with equal numbers.

Used by `tasks.zero_shot`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.federation import Dataset, Federation
from vergence.core.randomness import RandomStream
from vergence.data.io.checks import Check, Checks, compare, data_folder
from vergence.data.owner import ClassNames, OwnerOptions, RowLists, Rows, split_unseen
from vergence.data.zero_shot.semantics import meanings
from vergence.data.zero_shot.splits import (
    AUTHORS,
    BASE,
    WHERE,
    ClassSplits,
    check_counts,
    read_split,
)
from vergence.errors import ConfigError, nearest

WORDS = (
    ("tiny", "small", "large", "huge"),
    ("red", "green", "blue", "white"),
    ("round", "square", "flat", "long"),
)
NAMES = tuple(
    f"{size} {colour} {WORDS[2][i ^ j]}"
    for i, size in enumerate(WORDS[0])
    for j, colour in enumerate(WORDS[1])
)
"""Names of the 16 classes. Any two words of different kinds are together in one name."""
UNSEEN = tuple(NAMES[i] for i in (0, 6, 11, 13))
"""Unseen classes by default. Each word is in one of them and in three seen classes."""
LEAST = 0.05
"""Least mean of a feature, as a fraction of the mean over all; a mean of 0 has no likelihood."""


@dataclass(frozen=True)
class ZslSynthetic(OwnerOptions, Dataset):
    """Generated features of seen and unseen classes.

    The options of `OwnerOptions` apply too.

    Attributes:
        features: number of features; None: 64 without root, 2048 with root.
        images: number of samples of each class, without root; 80 % of a seen class are for
            training.
        share: fraction of the images of every list to use, with root.
        noise: standard deviation of a feature, divided by its mean in the class.
        unseen: names of the unseen classes; empty: four of the sixteen, or with root the published
            ones.
        seed: seed of the random map and of the noise.
    """

    features: Annotated[int, Ge(1)] | None = None
    images: Annotated[int, Ge(10)] = 60
    share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    noise: Annotated[float, Gt(0)] = 1.5
    unseen: tuple[str, ...] = ()
    seed: int = 0

    def load(self, root: str | None = None) -> Federation:
        """Generate the data: `x` float32 `[n, features]` and `y` int64 `[n]`, the class.

        With `root`, classes and lists of images come from the att_splits.mat in it; features are
        generated all the same. Each feature is scaled so that its maximum is 1 over the images of
        seen classes for training and validation.

        Raises:
            DataError: `root` is given, and its att_splits.mat is missing or damaged.
            ConfigError: a name in `unseen` is no class. Or `root` is given without `unseen`, and
                the data set in it is not AWA1, AWA2 or aPY.
        """
        return self.made(root)[0]

    def made(self, root: str | None = None) -> tuple[Federation, Float[Tensor, "classes d"]]:
        """Return the data, and the mean features of each class from which they were drawn."""
        parts = (
            self._word_classes()
            if root is None
            else self._published_classes(data_folder(root, self.name, WHERE))
        )
        attributes, kinds, y, lists, details = parts
        means = self._means(attributes, self.features or (64 if root is None else 2048))
        shape = 1 / self.noise**2
        noise = RandomStream(self.name, self.seed, "noise").numpy()
        x = noise.standard_gamma(shape, (len(y), means.shape[1]), dtype=np.float32)
        # Gamma noise of this shape has mean `shape`: dividing by it gives the class's mean.
        x *= (means / shape)[y]
        top = x[lists.trainval].max(0)
        columns = {"x": torch.from_numpy(x / top), "y": torch.from_numpy(y)}
        about = {
            "licence": "generated",
            "citation": "none",
            "features": f"generated, {x.shape[1]}-d, noise {self.noise:g}",
            **details,
        }
        return self.federation(columns, lists, kinds, about), torch.from_numpy(means / top)

    def _means(self, attributes: NDArray[np.float64], d: int) -> NDArray[np.float32]:
        """Return the mean features `[classes, d]`: a random map of the attributes.

        Few entries of the map are large.
        """
        draw = RandomStream(self.name, self.seed, "map").numpy()
        weights = draw.gamma(0.2, size=(attributes.shape[1], d))
        means = np.clip(attributes, 0, None) @ weights
        # A feature with mean 0 would be constant and have no likelihood.
        return np.maximum(means, LEAST * means.mean()).astype(np.float32)

    def _word_classes(
        self,
    ) -> tuple[NDArray[np.float64], ClassNames, Rows, RowLists, dict[str, str]]:
        names = self.unseen or UNSEEN
        if unknown := set(names) - set(NAMES):
            name = min(unknown)
            raise ConfigError(
                f"zsl_synthetic: unseen has '{name}', which is no class{nearest(name, NAMES)}"
            )
        kinds = ClassNames(NAMES, tuple(sorted(NAMES.index(name) for name in names)))
        y = np.repeat(np.arange(len(NAMES)), self.images)
        hidden, rows = np.isin(y, kinds.unseen), np.arange(len(y))
        train, test = split_unseen(rows[~hidden], y, self.draw("seen"))
        lists = RowLists(
            train, test, rows[hidden], *split_unseen(rows[hidden], y, self.draw("unseen"))
        )
        details = {
            "split": "of every seen class 80 % for training, 20 % for test",
            "semantics": "words",
        }
        return meanings(NAMES, "words").vectors.numpy(), kinds, y, lists, details

    def _published_classes(
        self, folder: Path
    ) -> tuple[NDArray[np.float64], ClassNames, Rows, RowLists, dict[str, str]]:
        split = read_split(folder)
        kinds = split.kinds(self.unseen)
        split = thinned(split, self.share, self.draw("share"))
        y = np.empty(split.images, np.int64)
        for name, rows in split.lists.items():
            among = kinds.unseen if "unseen" in name else kinds.seen
            y[rows] = self.draw(name).permutation(np.resize(among, len(rows)))
        lists, teacher_sentence = split.of_teacher(y, self.draw("given"))
        details = {
            "split": f"published lists, {self.share:g} of each; {teacher_sentence}; "
            f"{self.val:g} of it for validation; which class an image is of is drawn, in equal "
            "shares: real labels lie in res101.mat",
            "semantics": str(split.path),
        }
        return split.attributes, kinds, y, lists, details


def thinned(split: ClassSplits, share: float, draw: np.random.Generator) -> ClassSplits:
    """Return a split with a random fraction `share` of the images of every list.

    The remaining images are numbered anew from 0.
    """
    within = {"test_unseen"} & split.lists.keys() if AUTHORS[0] in split.lists else set()
    subsets = {
        name: draw.permutation(rows)[: max(1, round(share * len(rows)))]
        for name, rows in split.lists.items()
        if name not in within
    }
    # The authors' two lists are the parts of test_unseen and must stay so after thinning.
    if within:
        subsets["test_unseen"] = np.concatenate([subsets[name] for name in AUTHORS])
    numbers = np.sort(np.concatenate([subsets[name] for name in BASE]))
    lists = {name: np.searchsorted(numbers, np.sort(subsets[name])) for name in split.lists}
    return replace(split, lists=lists)


def check(root: Path | None = None) -> list[Check]:
    """Compare lists with Table 5.1, and samples with lists; return the lines of a check.

    Without a folder, only the number of generated samples is checked.
    """
    lines = Checks() if root is None else check_counts(root)
    with lines.reading("samples", ConfigError):
        data = ZslSynthetic(features=1)
        (owner,) = data.load(root and str(root)).people.values()
        wanted = len(NAMES) * data.images if root is None else read_split(root).images
        made = sum(map(len, (owner.train, owner.val, owner.test)))
        lines.append(compare("samples", made, wanted))
    return lines
