"""Safe reading of other people's image files: a few formats only, every fault one clear line.

Used in `data` and `video`.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from vergence.errors import DataError, first_line

# Pillow opens more formats, and runs Ghostscript, a foreign program, on an EPS file.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
"""Formats that are read, whatever a file is called."""
FAULTS = (
    *(OSError, ValueError, SyntaxError, TypeError, IndexError, KeyError, EOFError, OverflowError),
    *(MemoryError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError),
)
"""Exceptions that decoding a damaged or hostile picture raises."""


@contextmanager
def open_image(source: Path | BinaryIO, name: str, hint: str) -> Iterator[Image.Image]:
    """Open a picture; errors of decoding inside the block become a `DataError`.

    Args:
        source: the file.
        name: its name in an error message.
        hint: what the user can do about a fault.

    Raises:
        DataError: the file is not of a supported format, is damaged, or unpacks to more than Pillow
            allows (179 million pixels).
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns from half its limit on: that is a large photograph, and harmless.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as picture:
                yield picture
    except FAULTS as fault:
        reason = first_line(fault)
        if isinstance(fault, Image.UnidentifiedImageError):
            reason = f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(
            f"cannot decode {name} ({reason}): {hint}", code="file-unreadable"
        ) from fault
