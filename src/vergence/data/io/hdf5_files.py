"""Safe reading of HDF5 files: nothing outside the file, and no more than its size explains.

The format lets an array's bytes lie in any file of the disk that it names (external storage,
virtual data sets), lets a link lead into another file, and lets some kB claim an array of
terabytes. Source: "HDF5 User Guide", The HDF Group, sections on links, storage and filters.

Used by `data.eye_images.mpiifacegaze`, `data.video_summaries.annotations` and
`data.video_summaries.h5_files`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vergence.core.optional import import_optional
from vergence.data.io.checks import need_file
from vergence.errors import DataError, VergenceError, first_line

# Rows of zeros and ones are compressed to a hundredth; no other array that is read here is.
BASE_BUDGET, BUDGET_PER_BYTE = 2**26, 100
"""Bytes that a file's arrays may take together: a base, and so many per byte of the file."""


class Hdf5Reader:
    """Reader of an open HDF5 file that follows no reference out of it."""

    def __init__(self, h5py: Any, file: Any, path: Path, hint: str) -> None:
        self.h5py, self.file, self.path, self.hint = h5py, file, path, hint
        self.byte_budget = BASE_BUDGET + BUDGET_PER_BYTE * path.stat().st_size

    def child(self, group: Any, name: str) -> Any:
        """Return the member of a group with a name without a slash; None if there is none.

        Raises:
            DataError: the name is a link, perhaps into another file.
        """
        try:
            link = group.get(name, getlink=True)
        # h5py knows no class for a link of a type that its writer registered.
        except TypeError:
            link = name
        if link is None:
            return None
        # A link may lead into any HDF5 file of this machine, closed to the writer of this one.
        if not isinstance(link, self.h5py.HardLink):
            raise self.fault(f"{name} is a link that leads elsewhere, which is not followed")
        return group[name]

    def group(self, group: Any, name: str) -> Any:
        """Return a group in a group; None if there is none."""
        member = self.child(group, name)
        return member if isinstance(member, self.h5py.Group) else None

    def dataset(self, item: Any, name: str, kinds: str = "biuf") -> Any:
        """Return an HDF5 data set that is safe to read: in this file, and not too large.

        Args:
            item: a member of a group.
            name: its name, for the message.
            kinds: NumPy's letters of the kinds of numbers that it may hold.

        Raises:
            DataError: the member is not such a data set.
        """
        if not isinstance(item, self.h5py.Dataset) or item.dtype.kind not in kinds:
            raise self.fault(f"{name} holds no {'numbers' if kinds == 'biuf' else 'such values'}")
        # External storage and virtual data sets name other files, which could be any on the disk.
        if item.external or item.is_virtual:
            raise self.fault(f"the values of {name} lie in other files, which are not read")
        created = item.id.get_create_plist()
        filters = [created.get_filter(i)[0] for i in range(created.get_nfilters())]
        # Compression applied twice multiplies its ratio: some kB would unpack to gigabytes.
        if len(set(filters)) < len(filters):
            raise self.fault(f"{name} is packed twice over")
        # A chunk is unpacked whole, so one larger than its array counts with its own size.
        claimed = max(math.prod(item.shape), math.prod(item.chunks or ())) * item.dtype.itemsize
        if claimed > self.byte_budget:
            size = self.path.stat().st_size
            raise self.fault(
                f"{name} claims {claimed:,} bytes, with {self.byte_budget:,} left of what is "
                f"read of a file of {size:,}"
            )
        self.byte_budget -= claimed
        return item

    def array(self, group: Any, name: str) -> np.ndarray:
        """Return a group's array of this name.

        Raises:
            DataError: there is none, or it lies in another file or claims too much.
        """
        return self.dataset(self.child(group, name), name)[()]

    def text(self, group: Any, name: str) -> str:
        """Return a text from an attribute or a data set; empty where there is neither."""
        value = group.attrs.get(name)
        if value is None and (member := self.child(group, name)) is not None:
            texts = self.dataset(member, name, "OSU")
            if texts.size != 1:
                raise self.fault(f"{name} holds {texts.size:,} texts instead of one")
            value = texts[()]
        value = "" if value is None else value
        return value.decode() if isinstance(value, bytes) else str(value)

    def fault(self, what: str) -> DataError:
        """Return the error that names this file and what to do about it."""
        return DataError(f"{self.path}: {what}: {self.hint}", code="file-unreadable")


@contextmanager
def open_hdf5(path: Path, doing: str, hint: str) -> Iterator[Hdf5Reader]:
    """Open an HDF5 file.

    Args:
        path: the file.
        doing: what needs h5py, at the beginning of a sentence.
        hint: what the user can do about a wrong or damaged file.

    Raises:
        ConfigError: h5py is not installed.
        DataError: the file is missing or damaged, or its arrays need more memory than there is.
    """
    h5py = import_optional("h5py", doing, "hdf5")
    need_file(path, hint)
    try:
        with h5py.File(path, "r") as file:
            yield Hdf5Reader(h5py, file, path, hint)
    except VergenceError:
        raise
    # h5py raises exceptions of many kinds on damaged bytes.
    except Exception as fault:
        raise DataError(
            f"cannot read {path} ({first_line(fault)}): {hint}", code="file-unreadable"
        ) from fault
