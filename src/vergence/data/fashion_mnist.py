"""Fashion-MNIST: 70,000 grey pictures of clothes in 10 classes, dealt to made-up people.

Layout of `root`: the four IDX files as published, `train-images-idx3-ubyte.gz`,
`train-labels-idx1-ubyte.gz`, `t10k-images-idx3-ubyte.gz`, `t10k-labels-idx1-ubyte.gz`.

Licence: MIT, Zalando SE; not packaged. Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image
dataset for benchmarking machine learning algorithms", arXiv:1708.07747, 2017.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from numpy.typing import NDArray
from torch import Tensor

from vergence.core.ranges import check_ranges
from vergence.core.site import Dataset, Federation, Samples, Splits
from vergence.core.stream import Stream
from vergence.data.checks import Check, compare, data_folder, need_file, unreadable
from vergence.errors import ConfigError, DataError

CLASSES, SIDE = 10, 28
TRAIN, TEST = 60_000, 10_000
CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
FILES = {"train": "train", "test": "t10k"}
WHERE = (
    "root must hold the four files of github.com/zalandoresearch/fashion-mnist "
    "(train-images-idx3-ubyte.gz and so on; Debian has them as dataset-fashion-mnist)"
)
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class FashionMnist(Dataset):
    """Pictures of clothes, dealt to as many people as wanted.

    Attributes:
        people: clients; at most 10,000, with `shards` 5,000.
        split: how images are dealt. `iid`: at random. `shards`: sorted by class and cut into two
            shards per person, who so has about two classes (McMahan et al., "Communication-
            efficient learning of deep networks from decentralized data", AISTATS 2017, section 3).
            `dirichlet`: equal numbers, each person with class shares of its own, drawn from a
            symmetric Dirichlet distribution (Hsu, Qi, Brown, "Measuring the effects of
            non-identical data distribution for federated visual classification", 2019, section 3).
            Test images are dealt to the same people by the same classes.
        alpha: of the Dirichlet distribution; the smaller, the fewer classes a person has.
        val: share of a person's training images that is for validation.
        split_seed: fixes who gets which image.
    """

    people: Annotated[int, Ge(1)] = 1000
    split: Literal["iid", "dirichlet", "shards"] = "iid"
    alpha: Annotated[float, Gt(0)] = 0.5
    val: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "fashion_mnist")

    def load(self, root: str | None = None) -> Federation:
        """Read, verify and deal.

        Columns: `image` uint8 `[n, 1, 28, 28]`, `label` int64 `[n]` in 0..9; both are ranges of one
        tensor per file, in which a person's images lie side by side.

        Raises:
            DataError: a file is missing, truncated or of another kind.
            ConfigError: more people than can get images.
        """
        folder = data_folder(root, "fashion_mnist", WHERE)
        labels = {part: _labels(folder, part) for part in FILES}
        shards = 2 if self.split == "shards" else 1
        most = min(len(labels["train"]) // 2, len(labels["test"]) // shards)
        if self.people > most:
            raise ConfigError(
                f"fashion_mnist: {self.people:,} people cannot each get images for training, "
                f"validation and test with split '{self.split}'; set people to at most {most:,}"
            )
        owners = self._owners(labels)
        train = self._parts(folder, "train", labels["train"], owners["train"])
        test = self._parts(folder, "test", labels["test"], owners["test"])
        digits = max(3, len(str(self.people - 1)))
        people = {
            f"p{i:0{digits}d}": Splits(train[2 * i], train[2 * i + 1], test[i])
            for i in range(self.people)
        }
        about = {
            "licence": "MIT, Zalando SE",
            "citation": "Xiao, Rasul, Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
            "split": f"{self._told()}; {self.val:g} of a person's training images at random for "
            "validation; test images from the published test file",
        }
        return Federation("fashion_mnist", people, about)

    def _told(self) -> str:
        told = {"iid": "images dealt at random", "shards": "two shards of sorted classes a person",
                "dirichlet": f"class shares from Dirichlet({self.alpha:g})"}  # fmt: skip
        return told[self.split]

    def _owners(self, labels: dict[str, Rows]) -> dict[str, Rows]:
        """Return the person number of every image, per part."""
        stream = Stream("fashion_mnist", self.split_seed, self.split)
        # One order of shards, one set of shares: a person is tested on the classes it trains on.
        common = stream.child("people").numpy()
        draws = {part: stream.child(part).numpy() for part in labels}
        if self.split == "iid":
            return {part: draws[part].permutation(len(own)) % self.people
                    for part, own in labels.items()}  # fmt: skip
        if self.split == "shards":
            shards = common.permutation(2 * self.people) // 2
            return {part: by_shards(own, shards, draws[part]) for part, own in labels.items()}
        shares = common.dirichlet(np.full(CLASSES, self.alpha), self.people)
        return {part: by_shares(own, shares, draws[part]) for part, own in labels.items()}

    def _parts(self, folder: Path, part: str, labels: Rows, owner: Rows) -> list[Samples]:
        """Return everybody's samples: training and validation in turn, or test."""
        draw = Stream("fashion_mnist", self.split_seed, part).numpy()
        order = np.lexsort((draw.random(len(owner)), owner))
        sizes = np.bincount(owner, minlength=self.people)
        if part == "train":
            val = np.clip(np.rint(self.val * sizes).astype(np.int64), 1, sizes - 1)
            sizes = np.stack([sizes - val, val], 1).reshape(-1)
        rows, cuts = torch.from_numpy(order), sizes.tolist()
        images = _images(folder, part, len(labels)).index_select(0, rows).split(cuts)
        own = torch.from_numpy(labels).index_select(0, rows).split(cuts)
        return [
            Samples({"image": image, "label": label})
            for image, label in zip(images, own, strict=True)
        ]


def by_shards(labels: Rows, shards: Rows, draw: np.random.Generator) -> Rows:
    """Return each image's owner: images sorted by class, cut into `len(shards)` equal runs.

    `shards` holds the owner of every run. Which images of a class lie together is drawn.
    """
    order = np.lexsort((draw.random(len(labels)), labels))
    owner = np.empty(len(labels), np.int64)
    owner[order] = shards[np.arange(len(labels)) * len(shards) // len(labels)]
    return owner


def by_shares(labels: Rows, shares: NDArray[np.float64], draw: np.random.Generator) -> Rows:
    """Return each image's owner: equal numbers, classes by `shares` `[people, classes]`.

    People are served in an order drawn anew. Each draws its classes by its shares; where a class is
    used up, by its shares of the others, and where all of its own are, by what is left.
    """
    people = len(shares)
    left = np.bincount(labels, minlength=shares.shape[1])
    stacks = np.split(np.lexsort((draw.random(len(labels)), labels)), left.cumsum()[:-1])
    sizes = np.diff(np.arange(people + 1) * len(labels) // people)
    owner = np.empty(len(labels), np.int64)
    for person in draw.permutation(people):
        taken = np.zeros_like(left)
        while missing := int(sizes[person] - taken.sum()):
            wanted = shares[person] * (left > taken)
            # Shares so small that none of these classes would ever be drawn count as none.
            weights = wanted if wanted.sum() > 1e-9 else (left - taken).astype(np.float64)
            more = draw.multinomial(missing, weights / weights.sum())
            taken = np.minimum(taken + more, left)
        for stack, end, count in zip(stacks, left, taken, strict=True):
            owner[stack[end - count : end]] = person
        left = left - taken
    return owner


def _labels(folder: Path, part: str) -> Rows:
    path = folder / f"{FILES[part]}-labels-idx1-ubyte.gz"
    labels = read_idx(path, (), {"train": TRAIN, "test": TEST}[part]).astype(np.int64)
    if len(labels) and labels.max() >= CLASSES:
        raise DataError(f"{path}: labels must be 0 to {CLASSES - 1}, got {labels.max()}: {WHERE}")
    return labels


def _images(folder: Path, part: str, labels: int) -> Tensor:
    """Return the images uint8 `[n, 1, 28, 28]`, a read-only view of the file's bytes."""
    path = folder / f"{FILES[part]}-images-idx3-ubyte.gz"
    images = read_idx(path, (SIDE, SIDE), {"train": TRAIN, "test": TEST}[part])
    if len(images) != labels:
        raise DataError(f"{path} holds {len(images):,} images for {labels:,} labels: {WHERE}")
    return torch.from_numpy(images).unsqueeze(1)


def read_idx(path: Path, inner: tuple[int, ...], expected: int) -> NDArray[np.uint8]:
    """Return the bytes of a gzipped IDX file, uint8 `[n, *inner]`, n as its header says.

    `expected` items are made room for at first; there may be more or fewer.

    Source: the format's description by LeCun, Cortes and Burges, "The MNIST database".

    Raises:
        DataError: missing, damaged, truncated, longer than its header says, or of another shape.
    """
    need_file(path, WHERE)
    width = int(np.prod(inner, dtype=np.int64))
    head = 4 * (2 + len(inner))
    try:
        # One call with room for all of it: decompression is most of what loading costs.
        raw = zlib.decompress(path.read_bytes(), zlib.MAX_WBITS | 16, head + expected * width)
    except (OSError, zlib.error) as fault:
        raise DataError(f"cannot read {path} ({fault}): copy it anew; {WHERE}") from fault
    magic = 0x0800 + 1 + len(inner)
    fields = np.frombuffer(raw[:head], ">u4").tolist() if len(raw) >= head else []
    if not fields or fields[0] != magic or tuple(fields[2:]) != inner:
        raise DataError(
            f"{path} is no IDX file of {'images' if inner else 'labels'} (its header is {fields}, "
            f"needed are {[magic, 'count', *inner]}): {WHERE}"
        )
    if len(raw) != head + fields[1] * width:
        raise DataError(
            f"{path} holds {len(raw) - head:,} bytes, its header says {fields[1] * width:,}: copy "
            f"it anew; {WHERE}"
        )
    return np.frombuffer(bytearray(raw), np.uint8, offset=head).reshape(-1, *inner)


def check(root: Path) -> list[Check]:
    """Compare a folder with what it must hold: images and labels of both parts."""
    lines = []
    for part, count in (("train", TRAIN), ("test", TEST)):
        try:
            labels = _labels(root, part)
            images = _images(root, part, len(labels))
        except DataError as fault:
            lines.append(unreadable(f"{part} images and labels", fault))
            continue
        lines.append(compare(f"{part} images", len(images), count, WHERE))
        each = np.bincount(labels, minlength=CLASSES)
        least = f"images of the rarest class, {part}"
        lines.append(compare(least, int(each.min()), count // CLASSES, WHERE))
    return lines
