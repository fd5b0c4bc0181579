"""Safe reading of npz archives: an array's claimed size is checked before memory is allocated.

Used by `data.io.checks`.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

# Deflate packs at most 258 bytes into 2 bits: a larger claim is a lie about the size.
MAX_DEFLATE_RATIO = 1032
"""Most bytes to which one byte of a deflated file can unpack."""
SLACK = 1024
"""Bytes that an archive member may claim beyond that ratio."""
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""NumPy header version -> its reader. Version 3, for records with names, is not read."""


def read_member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return the array with this name in an npz archive.

    Raises:
        ValueError: the member is no array, holds objects, or its stated size is wrong.
    """
    info = archive.getinfo(f"{name}.npy")
    # The directory of a zip is the sender's claim: check it before anything is unpacked.
    size = Path(archive.filename or "").stat().st_size
    packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else None
    most = info.file_size if packed is None else packed * MAX_DEFLATE_RATIO + SLACK
    if (packed or info.file_size) > size or info.file_size > most:
        raise ValueError(f"{name} claims {info.file_size:,} bytes, the whole file has {size:,}")
    with archive.open(info) as file:
        if (version := np.lib.format.read_magic(file)) not in HEADER_READERS:
            raise ValueError(f"{name} is of version {version}, which is no plain array's")
        shape, _, dtype = HEADER_READERS[version](file)
        length = info.file_size - file.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != length:
        raise ValueError(f"{name} claims to be {dtype} {shape}, but is {length:,} bytes long")
    # No pickle: an array of objects would run code of whoever wrote the file.
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
