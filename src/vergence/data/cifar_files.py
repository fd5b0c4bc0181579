"""The published layouts of CIFAR: binary records, and pickles of which arrays alone are read."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vergence.data.checks import need_file
from vergence.data.dealing import Part
from vergence.errors import DataError

SHAPE = (3, 32, 32)
PIXELS = 3072
KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""What a published pickle names: the parts of an array, and nothing that acts."""


@dataclass(frozen=True)
class Labels:
    """Where a record's class stands: the byte of a binary record of `head`, the key of a pickle."""

    byte: int
    head: int
    key: str


class _Arrays(pickle.Unpickler):
    """Reads arrays, lists, numbers and text; a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no image needs")
        return KNOWN[module, name]


def part_of(paths: Sequence[Path], labels: Labels, classes: int, where: str) -> Part:
    """Return the part that lies in these files, binary (`.bin`) or pickled, in their order.

    Raises:
        DataError: a file is missing, truncated or of another kind.
    """
    read = [
        (binary if path.suffix == ".bin" else pickled)(need_file(path, where), labels, where)
        for path in paths
    ]
    for path, (own, _) in zip(paths, read, strict=True):
        wrong = own[own >= classes]
        if len(wrong):
            raise DataError(f"{path}: labels must be 0 to {classes - 1}, got {wrong[0]}: {where}")
    pixels = [rows for _, rows in read]
    own = np.concatenate([own for own, _ in read]).astype(np.int64)
    return Part(own, partial(_images, pixels))


def _images(pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.concatenate(pixels).reshape(-1, *SHAPE))


def binary(path: Path, labels: Labels, where: str) -> tuple[NDArray, NDArray[np.uint8]]:
    """Return labels and pixels `[n, 3072]` of a file of records: labels, then red, green, blue."""
    raw, width = np.frombuffer(path.read_bytes(), np.uint8), labels.head + PIXELS
    if not len(raw) or len(raw) % width:
        raise DataError(
            f"{path} holds {len(raw):,} bytes, which are no whole records of {width:,}: copy it "
            f"anew; {where}"
        )
    records = raw.reshape(-1, width)
    return records[:, labels.byte], records[:, labels.head :]


def pickled(path: Path, labels: Labels, where: str) -> tuple[NDArray, NDArray[np.uint8]]:
    """Return labels and pixels `[n, 3072]` of a pickle as Python 2 wrote it."""
    try:
        with path.open("rb") as file:
            found = _Arrays(file, encoding="bytes").load()
        pixels, own = found[b"data"], np.asarray(found[labels.key.encode()])
    except KeyError as fault:
        raise DataError(f"{path} is of another version, it lacks {fault}: {where}") from fault
    except Exception as fault:  # a damaged pickle may raise anything
        raise DataError(f"cannot read {path} ({fault}): copy it anew; {where}") from fault
    fits = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and own.dtype.kind in "iu"
    if not fits or pixels.shape != (len(own), PIXELS) or own.ndim != 1 or (own < 0).any():
        raise DataError(f"{path} holds no images of {PIXELS} bytes with labels: {where}")
    return own, pixels
