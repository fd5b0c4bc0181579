"""Safe reading of npz archives: an array's claimed size is checked before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

MOST = 1032
"""Bytes that one byte of a deflated file may stand for, and not more."""
SLACK = 1024
PLAIN = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""How numpy begins an array's file; the third way is for records."""


def member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return one array of an archive.

    Raises:
        ValueError: it is no array, one of objects, or claims another size than the file has.
    """
    info = archive.getinfo(f"{name}.npy")
    size = Path(archive.filename or "").stat().st_size
    packed = info.compress_size if info.compress_type == zipfile.ZIP_DEFLATED else None
    most = info.file_size if packed is None else packed * MOST + SLACK
    if (packed or info.file_size) > size or info.file_size > most:
        raise ValueError(f"{name} claims {info.file_size:,} bytes, the whole file has {size:,}")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in PLAIN:
            raise ValueError(f"{name} is of version {version}, which is no plain array's")
        shape, _, dtype = PLAIN[version](file)
        held = info.file_size - file.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"{name} claims to be {dtype} {shape}, but is {held:,} bytes long")
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
