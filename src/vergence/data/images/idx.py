"""IDX files, the file format of MNIST and its successors: images and labels.

Used by `data.images.emnist` and `data.images.fashion_mnist`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.data.images.partition import PartitionPart, Rows, check_counts
from vergence.data.io.checks import Check, need_file
from vergence.errors import DataError

SIDE = 28


@dataclass(frozen=True)
class IdxFiles:
    """The four IDX files of a data set: images and labels of two parts, "train" and "test".

    Args:
        stems: part -> how the names of its two files begin.
        counts: part -> published number of images.
        classes: names of the classes, in the order of the labels.
        where: text at the end of every error message: what the folder must hold, and its source.
        first: the first class's label in the files.
        turned: whether images are stored by columns instead of rows.
    """

    stems: Mapping[str, str]
    counts: Mapping[str, int]
    classes: tuple[str, ...]
    where: str
    first: int = 0
    turned: bool = False

    def parts(self, folder: Path) -> dict[str, PartitionPart]:
        """Return "train" and "test" -> labels and images; images are read when they are needed.

        Raises:
            DataError: a file is missing, truncated or of another kind.
        """
        return {part: self.part(folder, part) for part in self.stems}

    def part(self, folder: Path, part: str) -> PartitionPart:
        """Return the labels and images of one part; images are read only when they are needed."""
        labels = self.labels(folder, part)
        return PartitionPart(labels, partial(self.images, folder, part, len(labels)))

    def labels(self, folder: Path, part: str) -> Rows:
        """Return the class numbers of a part's images, int64 `[n]`, from 0."""
        path = folder / f"{self.stems[part]}-labels-idx1-ubyte.gz"
        labels = read_idx(path, (), self.counts[part], self.where).astype(np.int64)
        last = self.first + len(self.classes) - 1
        if len(wrong := labels[(labels < self.first) | (labels > last)]):
            raise DataError(
                f"{path}: labels must be {self.first} to {last}, got {wrong[0]}: {self.where}"
            )
        return labels - self.first

    def images(self, folder: Path, part: str, labels: int) -> Tensor:
        """Return a part's images, upright, uint8 `[n, 1, 28, 28]`.

        Raises:
            DataError: the file is missing or damaged, or its number of images is not `labels`.
        """
        path = folder / f"{self.stems[part]}-images-idx3-ubyte.gz"
        images = read_idx(path, (SIDE, SIDE), self.counts[part], self.where)
        if len(images) != labels:
            raise DataError(
                f"{path} holds {len(images):,} images for {labels:,} labels: {self.where}"
            )
        tensor = torch.from_numpy(images).unsqueeze(1)
        return tensor.transpose(2, 3) if self.turned else tensor

    def check(self, root: Path) -> list[Check]:
        """Compare a folder with the published counts; return the lines of `vergence data check`."""
        return check_counts(partial(self.part, root), self.counts, len(self.classes), self.where)


def read_idx(path: Path, inner: tuple[int, ...], expected: int, where: str) -> NDArray[np.uint8]:
    """Return the array in a gzipped IDX file, uint8 `[n, *inner]`.

    The file's header states n. Memory is first reserved for `expected` items; n may be larger or
    smaller. `where` ends every error message.

    Source: the format's description by LeCun, Cortes and Burges, "The MNIST database".

    Raises:
        DataError: the file is missing, damaged or truncated, is longer than its header says, or has
            another shape.
    """
    need_file(path, where)
    width = int(np.prod(inner, dtype=np.int64))
    head = 4 * (2 + len(inner))
    try:
        # One call with room for all of it: decompression is most of what loading costs.
        raw = zlib.decompress(path.read_bytes(), zlib.MAX_WBITS | 16, head + expected * width)
    except (OSError, zlib.error) as fault:
        raise DataError(f"cannot read {path} ({fault}): copy it anew; {where}") from fault
    # Type 8 is unsigned bytes; the last byte counts the dimensions.
    magic = 0x0800 + 1 + len(inner)
    fields = np.frombuffer(raw[:head], ">u4").tolist() if len(raw) >= head else []
    if not fields or fields[0] != magic or tuple(fields[2:]) != inner:
        raise DataError(
            f"{path} is no IDX file of {'images' if inner else 'labels'} (its header is {fields}, "
            f"needed are {[magic, 'count', *inner]}): {where}"
        )
    if len(raw) != head + fields[1] * width:
        raise DataError(
            f"{path} holds {len(raw) - head:,} bytes, its header says {fields[1] * width:,}: copy "
            f"it anew; {where}"
        )
    # A copy, as torch takes writable arrays only.
    return np.frombuffer(bytearray(raw), np.uint8, offset=head).reshape(-1, *inner)
