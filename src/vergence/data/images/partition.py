"""Division of labelled images among made-up people: options, and an owner for each image.

Used throughout `data`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.data.io.checks import Check, Checks, compare
from vergence.errors import ConfigError

Rows = NDArray[np.int64]
Table = tuple[tuple[int, ...], ...]
TABLE_3_1: Table = ((0, 1), (2, 3), (6, 7), (4, 5), (2, 4), (2, 3), (6, 7), (4, 5), (8, 9), (0, 1))
"""Classes of each of ten people in Table 3.1 of the AP-FL chapter."""
# Resizing works on floats: in chunks, they need little memory beside the bytes.
CHUNK = 4096


@dataclass(frozen=True)
class PartitionPart:
    """One published part of a data set, training or test.

    `labels` int64 `[n]` are class numbers from 0. `images` is a function that returns the images,
    uint8 `[n, channels, H, W]`.
    """

    labels: Rows
    images: Callable[[], Tensor]


@dataclass(frozen=True)
class Dealt(NamedOptions):
    """Options of data sets whose images are divided among as many people as wanted.

    Attributes:
        people: number of clients.
        split: how images are divided. `iid`: at random. `shards`: images are sorted by class and
            cut into two shards per person, so a person has about two classes (McMahan et al.,
            "Communication-efficient learning of deep networks from decentralized data", AISTATS
            2017, section 3). `dirichlet`: equal numbers of images; each person's class proportions
            are drawn from a symmetric Dirichlet distribution (Hsu, Qi, Brown, "Measuring the
            effects of non-identical data distribution for federated visual classification", 2019,
            section 3). `pathological`: each person has `kinds` random classes, and a class is
            divided equally among the people who have it. `table`: as `pathological`, with the
            classes of `table`. Each person's test images have the same classes as the training
            images.
        alpha: parameter of the Dirichlet distribution; the smaller it is, the fewer classes a
            person has.
        kinds: number of classes of each person with split `pathological`.
        table: class numbers of each person with split `table`, by default those of Table 3.1 in the
            AP-FL chapter. If the data have more classes than the table, the classes in order are
            cut into equal runs, and a number in the table means a run.
        take: fraction of each published part's images to use, the same for every class, drawn at
            random.
        side: height and width in pixels to which images are resized; none: as published.
        val: fraction of a person's training images that is for validation.
        split_seed: seed of the division of images among people.
    """

    people: Annotated[int, Ge(1)] = 10
    split: Literal["iid", "dirichlet", "shards", "pathological", "table"] = "iid"
    alpha: Annotated[float, Gt(0)] = 0.5
    kinds: Annotated[int, Ge(1)] = 2
    table: Table = TABLE_3_1
    take: Annotated[float, Interval(gt=0, le=1)] = 1.0
    side: Annotated[int, Ge(4)] | None = None
    val: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    split_seed: int = 0

    @property
    def name(self) -> str:
        """The data set's name, which is the name of its module."""
        return registry_name(self)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        raise NotImplementedError

    def deal(self, parts: Mapping[str, PartitionPart], about: Mapping[str, str]) -> Federation:
        """Divide the images of the parts `train` and `test` among people.

        Columns of the samples: `image` uint8 `[n, channels, H, W]`, `label` int64 `[n]`. Both are
        slices of one tensor per part, in which each person's images are consecutive.

        Raises:
            ConfigError: there are too many people for each to get images, or the classes cannot be
                divided as the options say.
        """
        parts = {part: self._thin_classes(part, data) for part, data in parts.items()}
        labels = {part: data.labels for part, data in parts.items()}
        shards = 2 if self.split == "shards" else 1
        self._refuse_more_people(min(len(labels["train"]) // 2, len(labels["test"]) // shards))
        owners = self._owners(labels, len(self.classes))
        sizes = {part: np.bincount(own, minlength=self.people) for part, own in owners.items()}
        # A person needs two training images (one for validation) and a test image.
        fed = int((np.minimum(sizes["train"] // 2, sizes["test"]) > 0).sum())
        self._refuse_more_people(self.people if fed == self.people else fed)
        train, test = (
            self._samples(part, parts[part], owners[part], sizes[part])
            for part in ("train", "test")
        )
        digits = max(3, len(str(self.people - 1)))
        people = {
            f"p{i:0{digits}d}": Splits(train[2 * i], train[2 * i + 1], test[i])
            for i in range(self.people)
        }
        resized = "" if self.side is None else f"; resized to {self.side} x {self.side} pixels"
        fewer = "" if self.take == 1 else f"{self.take:g} of the published images; "
        details = {
            "split": f"{fewer}{self._split_sentence()}; {self.val:g} of a person's training images "
            f"at random for validation; test images from the published test file{resized}",
            "classes": ", ".join(self.classes),
        }
        return Federation(self.name, people, {**about, **details})

    def _thin_classes(self, part: str, data: PartitionPart) -> PartitionPart:
        """Return the fraction `take` of each class's images in a part, in the file's order."""
        if self.take == 1:
            return data
        draw = RandomStream(self.name, self.split_seed, "take", part).numpy()
        by_class = np.split(
            np.lexsort((draw.random(len(data.labels)), data.labels)),
            np.bincount(data.labels).cumsum()[:-1],
        )
        # Sorted, so that the images of the file stay in their order.
        rows = np.sort(np.concatenate([own[: round(self.take * len(own))] for own in by_class]))
        return PartitionPart(data.labels[rows], lambda: data.images()[torch.from_numpy(rows)])

    def _refuse_more_people(self, most: int) -> None:
        if self.people > most:
            raise ConfigError(
                f"{self.name}: {self.people:,} people cannot each get images for training, "
                f"validation and test with split '{self.split}'; set people to at most {most:,}"
            )

    def _split_sentence(self) -> str:
        sentences = {
            "iid": "images dealt at random",
            "shards": "two shards of sorted classes a person",
            "dirichlet": f"class shares from Dirichlet({self.alpha:g})",
            "pathological": f"{self.kinds} classes a person",
            "table": f"classes by a table: {self.table}",
        }
        return sentences[self.split]

    def _owners(self, labels: Mapping[str, Rows], classes: int) -> dict[str, Rows]:
        """Return part -> the person's number for every image."""
        stream = RandomStream(self.name, self.split_seed, self.split)
        # One order of shards, one set of shares: a person is tested on the classes it trains on.
        common = stream.child("people").numpy()
        draws = {part: stream.child(part).numpy() for part in labels}
        if self.split == "iid":
            return {
                part: draws[part].permutation(len(own)) % self.people
                for part, own in labels.items()
            }
        if self.split == "shards":
            shards = common.permutation(2 * self.people) // 2
            return {part: by_shards(own, shards, draws[part]) for part, own in labels.items()}
        if self.split == "dirichlet":
            shares = common.dirichlet(np.full(classes, self.alpha), self.people)
            train = by_shares(labels["train"], shares, draws["train"])
            got = np.zeros((self.people, classes), np.int64)
            np.add.at(got, (train, labels["train"]), 1)
            # Not by the shares again: where classes are used up, others would have to fill in.
            return {"train": train, "test": by_counts(labels["test"], got, draws["test"])}
        if self.split == "table":
            has = tabled(self.name, self.table, self.people, classes)
        else:
            has = kinds_of(self.name, self.people, self.kinds, classes, common)
        return {part: by_classes(own, has, draws[part]) for part, own in labels.items()}

    def _samples(self, part: str, data: PartitionPart, owner: Rows, sizes: Rows) -> list[Samples]:
        """Return everybody's samples of one part.

        For "train" the list is: training samples of person 0, validation samples of person 0,
        training samples of person 1, and so on. For "test" there is one entry per person. `owner`
        is each image's person, and `sizes` each person's number of images.
        """
        draw = RandomStream(self.name, self.split_seed, part).numpy()
        order = np.lexsort((draw.random(len(owner)), owner))
        if part == "train":
            # At least one image for validation, and one for training.
            val = np.clip(np.rint(self.val * sizes).astype(np.int64), 1, sizes - 1)
            sizes = np.stack([sizes - val, val], 1).reshape(-1)
        rows, cuts = torch.from_numpy(order), sizes.tolist()
        whole = data.images()
        if self.side is not None:
            whole = resized(whole, self.side)
        images = whole.index_select(0, rows).split(cuts)
        own = torch.from_numpy(data.labels).index_select(0, rows).split(cuts)
        return [
            Samples({"image": image, "label": label})
            for image, label in zip(images, own, strict=True)
        ]


def by_shards(labels: Rows, shards: Rows, draw: np.random.Generator) -> Rows:
    """Return each image's owner: images are sorted by class and cut into equal runs.

    There are `len(shards)` runs, and `shards` holds the owner of each. Images of one class are
    shuffled before.
    """
    order = np.lexsort((draw.random(len(labels)), labels))
    owner = np.empty(len(labels), np.int64)
    owner[order] = shards[np.arange(len(labels)) * len(shards) // len(labels)]
    return owner


def by_shares(labels: Rows, shares: NDArray[np.float64], draw: np.random.Generator) -> Rows:
    """Return each image's owner, so that people get equal numbers and classes by `shares`.

    `shares` `[people, classes]` holds each person's class proportions. People draw in random order,
    everybody the same number of images; for each image, a class is drawn by the person's
    proportions. When a class is used up, a person draws from the other classes, by their
    proportions. When all of a person's classes are used up, the person draws from all classes, by
    the numbers of images left.
    """
    people = len(shares)
    remaining = np.bincount(labels, minlength=shares.shape[1])
    stacks = np.split(np.lexsort((draw.random(len(labels)), labels)), remaining.cumsum()[:-1])
    sizes = np.diff(np.arange(people + 1) * len(labels) // people)
    owner = np.empty(len(labels), np.int64)
    for person in draw.permutation(people):
        counts = np.zeros_like(remaining)
        while missing := int(sizes[person] - counts.sum()):
            wanted = shares[person] * (remaining > counts)
            # Shares so small that none of these classes would ever be drawn count as none.
            weights = wanted if wanted.sum() > 1e-9 else (remaining - counts).astype(np.float64)
            more = draw.multinomial(missing, weights / weights.sum())
            counts = np.minimum(counts + more, remaining)
        for stack, end, count in zip(stacks, remaining, counts, strict=True):
            owner[stack[end - count : end]] = person
        remaining = remaining - counts
    return owner


def by_counts(labels: Rows, counts: Rows, draw: np.random.Generator) -> Rows:
    """Return each image's owner, so that people get equal numbers, and classes like `counts`.

    `counts` `[people, classes]` are people's numbers of images in another part. In proportion to
    them, each person is due a number of images of each class, rounded down. An image left over goes
    to the person whose number was rounded down most, if the person still has room. The last images
    go to whoever has most room.
    """
    people, classes = counts.shape
    remaining = np.bincount(labels, minlength=classes)
    due = counts * (remaining / np.maximum(counts.sum(0), 1))
    quota = due.astype(np.int64)
    room = np.diff(np.arange(people + 1) * len(labels) // people) - quota.sum(1)
    remaining = remaining - quota.sum(0)
    for cell in np.lexsort((draw.random(due.size), (quota - due).reshape(-1))):
        person, kind = divmod(int(cell), classes)
        if room[person] > 0 and remaining[kind] > 0:
            quota[person, kind] += 1
            room[person], remaining[kind] = room[person] - 1, remaining[kind] - 1
    # What is left goes to whoever has most room, even if a person gets several of one class.
    for kind in np.repeat(np.arange(classes), remaining):
        person = int(room.argmax())
        quota[person, kind] += 1
        room[person] -= 1
    owner = np.empty(len(labels), np.int64)
    for kind in range(classes):
        rows = draw.permutation(np.flatnonzero(labels == kind))
        owner[rows] = np.repeat(np.arange(people), quota[:, kind])
    return owner


def by_classes(labels: Rows, has: NDArray[np.bool_], draw: np.random.Generator) -> Rows:
    """Return each image's owner: each class is divided equally, at random, among its people.

    `has` `[people, classes]` says who has which class. Every class must have a person.
    """
    owner = np.empty(len(labels), np.int64)
    for kind in range(has.shape[1]):
        rows = draw.permutation(np.flatnonzero(labels == kind))
        owners = np.flatnonzero(has[:, kind])
        # The shift by `kind` gives the images left over to another owner in every class.
        owner[rows] = owners[(np.arange(len(rows)) + kind) % len(owners)]
    return owner


def kinds_of(
    name: str, people: int, kinds: int, classes: int, draw: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw `kinds` classes for each person, and return them as bool `[people, classes]`.

    Every class is drawn for as many people as any other, up to a difference of one.

    Raises:
        ConfigError: `kinds` is more than there are classes, or there are too few people for all
            classes.
    """
    if kinds > classes or people * kinds < classes:
        raise ConfigError(
            f"{name}: {people:,} people with {kinds} classes each cannot share out {classes} "
            f"classes; set kinds to {-(-classes // people)} to {classes}, or people to "
            f"{-(-classes // kinds)} or more"
        )
    has, used = np.zeros((people, classes), bool), np.zeros(classes, np.int64)
    for own in has:
        # The classes with fewest owners so far come first; ties are drawn.
        own[np.lexsort((draw.random(classes), used))[:kinds]] = True
        used += own
    return has


def tabled(name: str, table: Table, people: int, classes: int) -> NDArray[np.bool_]:
    """Return the classes of each person by a table, as bool `[people, classes]`.

    Numbers in the table count from 0. If they are fewer than the classes, each stands for a run of
    consecutive classes.

    Raises:
        ConfigError: the table has another number of people, or its numbers do not stand for
            classes.
    """
    used = sorted({number for row in table for number in row})
    runs = len(used)
    if len(table) != people or not all(table):
        raise ConfigError(
            f"{name}: table must give each of {people} people some classes, it has "
            f"{len(table)} rows; set people to {len(table)}, or mend the table"
        )
    if used != list(range(runs)) or runs > classes:
        raise ConfigError(
            f"{name}: table must name all of 0 to at most {classes - 1} once or more, got {used}"
        )
    numbers = np.arange(classes) * runs // classes
    return np.stack([np.isin(numbers, row) for row in table])


def resized(images: Tensor, side: int) -> Tensor:
    """Return images resized to uint8 `[n, channels, side, side]`, bilinear with antialiasing."""
    chunks = [
        interpolate(chunk.float(), (side, side), mode="bilinear", antialias=True)
        for chunk in images.split(CHUNK)
    ]
    return torch.cat([chunk.round_().clamp_(0, 255).byte() for chunk in chunks])


def check_counts(
    read: Callable[[str], PartitionPart], counts: Mapping[str, int], classes: int, where: str
) -> list[Check]:
    """Compare the parts that `read` returns with expected counts; return the lines of a check.

    `counts` maps a part to its number of images. The number of images of the rarest class is
    compared with the number that each class has if all are equally frequent.
    """
    lines = Checks()
    for part, count in counts.items():
        with lines.reading(f"{part} images and labels"):
            data = read(part)
            lines.append(compare(f"{part} images", len(data.images()), count, where))
            rarest = int(np.bincount(data.labels, minlength=classes).min())
            least = f"images of the rarest class, {part}"
            lines.append(compare(least, rarest, count // classes, where))
    return lines
