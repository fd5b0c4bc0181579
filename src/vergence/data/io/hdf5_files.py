"""HDF5 files read within themselves, and no more of one than its size lets expect.

The format lets an array's bytes lie in any file of the disk that it names (external storage,
virtual data sets), lets a link lead into another file, and lets some kB claim an array of
terabytes. Source: "HDF5 User Guide", The HDF Group, sections on links, storage and filters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vergence.core.optional import needed
from vergence.data.io.checks import need_file
from vergence.errors import DataError, VergenceError, first_line

LEAST, TIMES = 2**26, 100
"""Bytes that a file's arrays may fill together, and how often the size of the file beside that.

Rows of noughts and ones are packed to a hundredth, nothing else of what is read here is.
"""


class Hdf5Reader:
    """An open HDF5 file, of which only what lies in it is read."""

    def __init__(self, h5py: Any, file: Any, path: Path, hint: str) -> None:
        self.h5py, self.file, self.path, self.hint = h5py, file, path, hint
        self.left = LEAST + TIMES * path.stat().st_size

    def child(self, group: Any, name: str) -> Any:
        """Content of a group under a name without a slash; None if there is nothing.

        Raises:
            DataError: the name leads elsewhere, perhaps into another file.
        """
        try:
            link = group.get(name, getlink=True)
        except TypeError:  # of a kind that its writer made up
            link = name
        if link is None:
            return None
        if not isinstance(link, self.h5py.HardLink):
            raise self.fault(f"{name} is a link that leads elsewhere, which is not followed")
        return group[name]

    def group(self, group: Any, name: str) -> Any:
        """Return a group in a group; None if there is none."""
        found = self.child(group, name)
        return found if isinstance(found, self.h5py.Group) else None

    def dataset(self, found: Any, name: str, kinds: str = "biuf") -> Any:
        """Return a data set that can be read: of these kinds, in this file, not too large.

        Raises:
            DataError: it is none.
        """
        if not isinstance(found, self.h5py.Dataset) or found.dtype.kind not in kinds:
            raise self.fault(f"{name} holds no {'numbers' if kinds == 'biuf' else 'such values'}")
        if found.external or found.is_virtual:
            raise self.fault(f"the values of {name} lie in other files, which are not read")
        known = found.id.get_create_plist()
        filters = [known.get_filter(i)[0] for i in range(known.get_nfilters())]
        if len(set(filters)) < len(filters):
            raise self.fault(f"{name} is packed twice over")
        claimed = max(math.prod(found.shape), math.prod(found.chunks or ())) * found.dtype.itemsize
        if claimed > self.left:
            size = self.path.stat().st_size
            raise self.fault(
                f"{name} claims {claimed:,} bytes, with {self.left:,} left of what is read of a "
                f"file of {size:,}"
            )
        self.left -= claimed
        return found

    def array(self, group: Any, name: str) -> np.ndarray:
        """Return the numbers that a group holds under a name.

        Raises:
            DataError: it holds none, or they lie elsewhere or claim too much.
        """
        return self.dataset(self.child(group, name), name)[()]

    def text(self, group: Any, name: str) -> str:
        """Return a text kept as an attribute or as a data set; empty where there is none."""
        found = group.attrs.get(name)
        if found is None and (held := self.child(group, name)) is not None:
            found = self.dataset(held, name, "OSU")
            if found.size != 1:
                raise self.fault(f"{name} holds {found.size:,} texts instead of one")
            found = found[()]
        found = "" if found is None else found
        return found.decode() if isinstance(found, bytes) else str(found)

    def fault(self, what: str) -> DataError:
        """Error of this file, in one line."""
        return DataError(f"{self.path}: {what}: {self.hint}", code="file-unreadable")


@contextmanager
def hdf5(path: Path, doing: str, hint: str) -> Iterator[Hdf5Reader]:
    """Open an HDF5 file.

    Args:
        path: the file.
        doing: what needs h5py, at the beginning of a sentence.
        hint: what to do about a file that is not as it should be.

    Raises:
        ConfigError: h5py is not installed.
        DataError: the file is missing or damaged, or its arrays need more memory than there is.
    """
    h5py = needed("h5py", doing, "hdf5")
    need_file(path, hint)
    try:
        with h5py.File(path, "r") as file:
            yield Hdf5Reader(h5py, file, path, hint)
    except VergenceError:
        raise
    except Exception as fault:  # a damaged file may raise anything
        raise DataError(
            f"cannot read {path} ({first_line(fault)}): {hint}", code="file-unreadable"
        ) from fault
