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
# PFLlib's least number with batches of 10 images and a quarter of them for test: one batch of test.
FEWEST = 40
"""Fewest images of a person with split `dirichlet_by_class`."""
# A thousand draws for 20 people take a tenth of a second; PFLlib draws for ever.
DRAWS = 1000
"""Draws of split `dirichlet_by_class` after which it is refused."""


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
            section 3). `dirichlet_by_class`: unequal numbers; each class is divided by proportions
            of people, drawn from a symmetric Dirichlet distribution; who already has an equal part
            of all images gets none of the next classes, and all is drawn anew until everybody has
            at least 40 images (code of Yurochkin et al., "Bayesian nonparametric federated
            learning of neural networks", ICML 2019; the "practical" setting of PFLlib).
            `pathological`: each person has `kinds` random classes, and a class is divided equally
            among the people who have it. `table`: as `pathological`, with the classes of `table`.
            Each person's test images have the same classes as the training images.
        alpha: parameter of the Dirichlet distribution; the smaller it is, the fewer classes a
            person has.
        kinds: number of classes of each person with split `pathological`.
        table: class numbers of each person with split `table`, by default those of Table 3.1 in the
            AP-FL chapter. If the data have more classes than the table, the classes in order are
            cut into equal runs, and a number in the table means a run.
        unequal: whether a class is divided at random, not equally, with splits `pathological` and
            `table`: all but the last person who has it get a tenth to the whole of an equal part,
            and the last person gets the rest (the "pathological" setting of PFLlib).
        take: fraction of each published part's images to use, the same for every class, drawn at
            random.
        take_test: the same fraction of the published test part, if it differs; none: `take`.
        side: height and width in pixels to which images are resized; none: as published.
        val: fraction of a person's training images that is for validation; 0: none.
        test: fraction of a person's images that is for test, drawn from both published parts
            together; none: a person's test images are from the published test part.
        split_seed: seed of the division of images among people.
    """

    people: Annotated[int, Ge(1)] = 10
    split: Literal["iid", "dirichlet", "dirichlet_by_class", "shards", "pathological", "table"] = (
        "iid"
    )
    alpha: Annotated[float, Gt(0)] = 0.5
    kinds: Annotated[int, Ge(1)] = 2
    table: Table = TABLE_3_1
    unequal: bool = False
    take: Annotated[float, Interval(gt=0, le=1)] = 1.0
    take_test: Annotated[float, Interval(gt=0, le=1)] | None = None
    side: Annotated[int, Ge(4)] | None = None
    val: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    test: Annotated[float, Interval(gt=0, lt=1)] | None = None
    split_seed: int = 0

    @property
    def name(self) -> str:
        """The data set's name, which is the name of its module."""
        return registry_name(self)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        raise NotImplementedError

    def deal(
        self,
        parts: Mapping[str, PartitionPart],
        about: Mapping[str, str],
        published: Mapping[str, int] | None = None,
    ) -> Federation:
        """Divide the images of the parts `train` and `test` among people.

        `published` are the published numbers of images of the parts; none: all of them are here.

        Columns of the samples: `image` uint8 `[n, channels, H, W]`, `label` int64 `[n]`. Both are
        slices of one tensor per part, in which each person's images are consecutive.

        Raises:
            ConfigError: there are too many people for each to get images, or the classes cannot be
                divided as the options say.
        """
        here = {part: len(data.labels) for part, data in parts.items()}
        shares = {
            part: self._take(part) * n / (published or here)[part] for part, n in here.items()
        }
        parts = {part: self._thin_classes(part, data) for part, data in parts.items()}
        if self.test is not None:
            both = list(parts.values())
            labels = np.concatenate([data.labels for data in both])
            images = lambda: torch.cat([data.images() for data in both])  # noqa: E731
            parts = {"train": PartitionPart(labels, images)}
        labels = {part: data.labels for part, data in parts.items()}
        shards = 2 if self.split == "shards" else 1
        fewest = (len(own) // (shards if part == "test" else 2) for part, own in labels.items())
        self._refuse_more_people(min(fewest))
        owners = self._owners(labels, len(self.classes))
        cuts = {
            part: self._cuts(part, np.bincount(own, minlength=self.people))
            for part, own in owners.items()
        }
        # Everybody needs an image for training, one for test, and one for validation if there is
        # any.
        sizes = np.concatenate(list(cuts.values()), 1)[:, [0, -1] + [1] * (self.val > 0)]
        self._refuse_more_people(int((sizes > 0).all(1).sum()))
        dealt = [self._samples(part, parts[part], owners[part], cuts[part]) for part in parts]
        digits = max(3, len(str(self.people - 1)))
        people = {
            f"p{i:0{digits}d}": Splits(*(own for part in dealt for own in part[i]))
            for i in range(self.people)
        }
        test = (
            "test images from the published test file"
            if self.test is None
            else f"{self.test:g} of a person's images at random for test"
        )
        resized = "" if self.side is None else f"; resized to {self.side} x {self.side} pixels"
        details = {
            "split": f"{shares_text(shares)}{self._split_sentence()}; {self.val:g} of a person's "
            f"training images at random for validation; {test}{resized}",
            "classes": ", ".join(self.classes),
        }
        return Federation(self.name, people, {**about, **details})

    def _take(self, part: str) -> float:
        return (self.take_test if part == "test" else None) or self.take

    def _thin_classes(self, part: str, data: PartitionPart) -> PartitionPart:
        """Return the fraction `take` of each class's images in a part, in the file's order."""
        take = self._take(part)
        if take == 1:
            return data
        draw = RandomStream(self.name, self.split_seed, "take", part).numpy()
        by_class = np.split(
            np.lexsort((draw.random(len(data.labels)), data.labels)),
            np.bincount(data.labels).cumsum()[:-1],
        )
        # Sorted, so that the images of the file stay in their order.
        rows = np.sort(np.concatenate([own[: round(take * len(own))] for own in by_class]))
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
            "dirichlet_by_class": f"people's shares of each class from Dirichlet({self.alpha:g})",
            "pathological": f"{self.kinds} classes a person",
            "table": f"classes by a table: {self.table}",
        }
        return sentences[self.split] + ", in unequal numbers" * self.unequal

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
        counts = np.bincount(labels["train"], minlength=classes)
        if self.split == "dirichlet_by_class":
            shares = self._class_shares(counts, common)
            return {part: by_class_shares(own, shares, draws[part]) for part, own in labels.items()}
        has = (
            tabled(self.name, self.table, self.people, classes)
            if self.split == "table"
            else kinds_of(self.name, self.people, self.kinds, classes, common)
        )
        if not self.unequal:
            return {part: by_classes(own, has, draws[part]) for part, own in labels.items()}
        shares = unequal_shares(has, counts, common)
        return {part: by_class_shares(own, shares, draws[part]) for part, own in labels.items()}

    def _class_shares(self, counts: Rows, draw: np.random.Generator) -> NDArray[np.float64]:
        """Draw people's shares of each class for split `dirichlet_by_class`, `[people, classes]`.

        `counts` are the numbers of images of the classes.
        """
        equal = counts.sum() / self.people
        for _ in range(DRAWS):
            has, shares = np.zeros(self.people), []
            for count in counts:
                # Proportions may underflow to 0 for everybody who still gets images.
                drawn = draw.dirichlet(np.full(self.people, self.alpha)) + np.finfo(float).tiny
                own = drawn * (has < equal)
                shares.append(own / own.sum())
                has = has + shares[-1] * count
            if has.min() >= min(FEWEST, equal / 2):
                return np.stack(shares, 1)
        raise ConfigError(
            f"{self.name}: in {DRAWS:,} draws somebody of {self.people:,} people always had fewer "
            f"than {min(FEWEST, equal / 2):g} images; use fewer people or a larger alpha than "
            f"{self.alpha:g}"
        )

    def _cuts(self, part: str, sizes: Rows) -> Rows:
        """Return how many of each person's images of a part are for what.

        `sizes` has the number of images of each person. The columns are training, validation and,
        if both published parts are together in the part `train`, test; of the part `test` the only
        column is test.
        """
        if part == "test":
            return sizes[:, None]
        test = np.ceil((self.test or 0) * sizes).astype(np.int64)
        train = sizes - test
        # At least one image for validation if any, and one for training.
        val = np.clip(
            np.rint(self.val * train).astype(np.int64), int(self.val > 0), np.maximum(train - 1, 0)
        )
        return np.stack([train - val, val, test][: 2 if self.test is None else 3], 1)

    def _samples(
        self, part: str, data: PartitionPart, owner: Rows, cuts: Rows
    ) -> list[list[Samples]]:
        """Return each person's samples of one part, cut in random order as `cuts` says.

        `owner` is each image's person, and `cuts` each person's numbers of images.
        """
        draw = RandomStream(self.name, self.split_seed, part).numpy()
        order = np.lexsort((draw.random(len(owner)), owner))
        rows, sizes = torch.from_numpy(order), cuts.reshape(-1).tolist()
        whole = data.images()
        if self.side is not None:
            whole = resized(whole, self.side)
        images = whole.index_select(0, rows).split(sizes)
        own = torch.from_numpy(data.labels).index_select(0, rows).split(sizes)
        samples = [
            Samples({"image": image, "label": label})
            for image, label in zip(images, own, strict=True)
        ]
        width = cuts.shape[1]
        return [samples[i * width : (i + 1) * width] for i in range(self.people)]


def shares_text(shares: Mapping[str, float]) -> str:
    """Return which share of the published images of each part is used; "" if it is all of them.

    >>> shares_text({"train": 0.3, "test": 1.0})
    '0.3 of the published training images, 1 of the published test images; '
    >>> shares_text({"train": 0.06, "test": 0.06}), shares_text({"train": 1.0, "test": 1.0})
    ('0.06 of the published images; ', '')
    """
    train, test = (f"{shares[part]:.3g}" for part in ("train", "test"))
    if train == test:
        return "" if train == "1" else f"{train} of the published images; "
    return f"{train} of the published training images, {test} of the published test images; "


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


def unequal_shares(
    has: NDArray[np.bool_], counts: Rows, draw: np.random.Generator
) -> NDArray[np.float64]:
    """Draw unequal shares of each class for the people who have it, `[people, classes]`.

    All but the last of them get a tenth to the whole of an equal part, the last gets the rest.
    `has` `[people, classes]` says who has which class, and `counts` are the classes' numbers of
    images, of which whole ones are drawn.
    """
    shares = np.zeros(has.shape)
    for kind, count in enumerate(counts):
        owners = np.flatnonzero(has[:, kind])
        equal = count // len(owners)
        drawn = draw.integers(equal // 10, max(equal, 1), len(owners) - 1)
        shares[owners, kind] = np.append(drawn, count - drawn.sum()) / max(count, 1)
    return shares


def by_class_shares(labels: Rows, shares: NDArray[np.float64], draw: np.random.Generator) -> Rows:
    """Return each image's owner: the images of each class are cut, in random order, by `shares`.

    `shares` `[people, classes]` holds each person's part of a class.
    """
    owner = np.empty(len(labels), np.int64)
    for kind in range(shares.shape[1]):
        rows = draw.permutation(np.flatnonzero(labels == kind))
        ends = np.rint(shares[:, kind].cumsum() * len(rows)).astype(np.int64)
        owner[rows] = np.searchsorted(ends[:-1], np.arange(len(rows)), side="right")
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
