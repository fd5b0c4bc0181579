"""Labelled samples of one person in one npz file, on which `vergence adapt` adapted a model.

Layout of `root`: `own_samples.npz`. Most arrays are columns with one row per sample, with the
task's names (`image`, `gaze`, `pose`). Other arrays hold rows that many samples share. They are
named `NAME@COLUMN`, such as `frames@frame_ids`, where COLUMN holds each sample's row numbers in the
array. The samples for training come first.

Used by `adaptation.adapted_run`, `adaptation.own_data`, `deployment.private_inference.client`,
`experiment.run` and `video.predict_angles`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import Dataset, Federation
from vergence.data.io.checks import data_folder, read_npz
from vergence.errors import DataError

FILE = "own_samples.npz"
WHERE = "an npz with the columns of the run's task, a row per sample"
SHARED = "@"
"""Sign between the name of an array of shared rows and the column with the row numbers."""


@dataclass(frozen=True)
class OwnSamples(Dataset):
    """Samples of one person, stored together with the model that was adapted to them.

    Attributes:
        person: name of the person.
        learned: number of samples, from the first one, that are for training and validation; the
            others are for test. If it is 0 or the number of all samples, every part has all
            samples.
        licence: licence of the data.
    """

    person: str = "me"
    learned: Annotated[int, Ge(0)] = 0
    licence: str = "the person's own"

    next_to_experiment: ClassVar[bool] = True

    def load(self, root: str | None = None) -> Federation:
        """Read the file, and split its samples as `learned` says.

        Raises:
            DataError: the file is missing, damaged or empty.
        """
        every = read_samples(data_folder(root, "own_samples", WHERE) / FILE)
        rows = torch.arange(len(every))
        own, other = (every.subset(rows[: self.learned]), every.subset(rows[self.learned :]))
        # A part must not be empty; the note below then says that scores are of training samples.
        own, other = (own if len(own) else every), (other if len(other) else every)
        separate = 0 < self.learned < len(every)
        about = {
            "licence": self.licence,
            "citation": "none",
            "split": f"{self.learned} samples were learned from, the others are for test"
            if separate
            else "every part holds all samples: scores are of samples that may have been learned "
            "from",
        }
        return Federation("own_samples", {self.person: Splits(own, own, other)}, about)


def read_samples(path: Path) -> Samples:
    """Read the samples of an npz file; float64 becomes float32.

    Raises:
        DataError: the file is missing or damaged, holds no sample, or its columns differ in length.
    """
    table = read_npz(path, {}, WHERE, optional=None)
    arrays = {name: _tensor(rows) for name, rows in table.items()}
    shared = {name: rows for name, rows in arrays.items() if SHARED in name}
    columns = {name: rows for name, rows in arrays.items() if name not in shared}
    lengths = {name: len(rows) if rows.ndim else 0 for name, rows in columns.items()}
    if not lengths or min(lengths.values()) == 0:
        raise DataError(f"{path} holds no sample: give {WHERE}")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise DataError(f"{path}: columns must have a row per sample each; {listed}")
    banks = {}
    for name, rows in shared.items():
        bank, _, by = name.partition(SHARED)
        numbers = columns.get(by)
        if numbers is None or numbers.is_floating_point():
            raise DataError(f"{path}: {name} needs a column '{by}' of whole numbers: its rows")
        # A negative number would silently take a row from the end.
        if int(numbers.min()) < 0 or int(numbers.max()) >= len(rows):
            raise DataError(
                f"{path}: column '{by}' points to rows {int(numbers.min())} to "
                f"{int(numbers.max())} of {name}, which has {len(rows)}"
            )
        columns[by] = numbers.long()
        banks[bank] = SharedRows(rows, by)
    return Samples(columns, banks)


def _tensor(rows: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor of a type that torch computes with.

    Unsigned integers of more than one byte become int64, and float64 becomes float32.
    """
    if rows.dtype.kind == "f" and rows.dtype.itemsize > 2:
        rows = rows.astype(np.float32)
    elif rows.dtype.kind == "u" and rows.dtype.itemsize > 1:
        rows = rows.astype(np.int64)
    # Files may have the byte order of another machine, which torch refuses.
    return torch.from_numpy(np.ascontiguousarray(rows, rows.dtype.newbyteorder("=")))


def pack_samples(samples: Samples) -> bytes:
    """Return samples as the bytes of an npz file; of shared rows, only those in use are stored.

    An adapted run stores its samples in this form.
    """
    arrays = {name: column.numpy() for name, column in samples.columns.items()}
    used: dict[str, torch.Tensor] = {}
    for bank in samples.banks.values():
        if bank.by not in used:
            used[bank.by], places = samples.columns[bank.by].unique(return_inverse=True)
            arrays[bank.by] = places.numpy()
    for name, bank in samples.banks.items():
        arrays[f"{name}{SHARED}{bank.by}"] = bank.rows[used[bank.by]].numpy()
    body = io.BytesIO()
    np.savez_compressed(body, allow_pickle=False, **arrays)
    return body.getvalue()
