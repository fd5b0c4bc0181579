"""Safe reading of HDF5 files: only values in the file itself, and no implausible sizes.

In this format, an array may take its bytes from any other file on the disk (external storage,
virtual data sets), a link may lead into another file, and a file of some kB may claim an array of
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
from vergence.data.io.matlab_tags import BASE_BUDGET, BUDGET_PER_BYTE
from vergence.errors import DataError, VergenceError, first_line


class Hdf5Reader:
    """Reader of an open HDF5 file that does not follow references to other files."""

    def __init__(self, h5py: Any, file: Any, path: Path, hint: str) -> None:
        self.h5py, self.file, self.path, self.hint = h5py, file, path, hint
        self.byte_budget = BASE_BUDGET + BUDGET_PER_BYTE * path.stat().st_size

    def child(self, group: Any, name: str) -> Any:
        """Return the member of a group with this name; None if there is none.

        Raises:
            DataError: the member is a link, which may lead into another file.
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
        """Return the group with this name in a group; None if there is none."""
        member = self.child(group, name)
        return member if isinstance(member, self.h5py.Group) else None

    def dataset(self, item: Any, name: str, kinds: str = "biuf") -> Any:
        """Return `item`, after checking that it is an HDF5 data set that is safe to read.

        Args:
            item: a member of a group.
            name: its name, for error messages.
            kinds: NumPy's letters of the types that it may hold; default: numbers.

        Raises:
            DataError: the item is no data set of these types, its values are in other files, or it
                is too large.
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
        """Return the array with this name in a group.

        Raises:
            DataError: there is none, its values are in other files, or it is too large.
        """
        return self.dataset(self.child(group, name), name)[()]

    def text(self, group: Any, name: str) -> str:
        """Return a text from the attribute or data set of this name; "" if there is neither."""
        value = group.attrs.get(name)
        if value is None and (member := self.child(group, name)) is not None:
            texts = self.dataset(member, name, "OSU")
            if texts.size != 1:
                raise self.fault(f"{name} holds {texts.size:,} texts instead of one")
            value = texts[()]
        value = "" if value is None else value
        return value.decode() if isinstance(value, bytes) else str(value)

    def fault(self, what: str) -> DataError:
        """Return the error for a fault `what` of this file; its message ends with the hint."""
        return DataError(f"{self.path}: {what}: {self.hint}", code="file-unreadable")


@contextmanager
def open_hdf5(path: Path, doing: str, hint: str) -> Iterator[Hdf5Reader]:
    """Open an HDF5 file, and yield its reader.

    Args:
        path: the file.
        doing: the work that needs h5py, as the beginning of an error message.
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
