"""Safe reading of other people's image files: a few formats only, every fault one clear line."""

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

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
"""What is read, whatever a file is called. Pillow knows more: its EPS is run by Ghostscript."""
FAULTS = (
    *(OSError, ValueError, SyntaxError, TypeError, IndexError, KeyError, EOFError, OverflowError),
    *(MemoryError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError),
)
"""What decoding a damaged or hostile picture raises."""


@contextmanager
def opened(source: Path | BinaryIO, name: str, hint: str) -> Iterator[Image.Image]:
    """Yield a picture; what is done with it inside may raise what decoding raises.

    Args:
        source: the file.
        name: what it is called in an error.
        hint: what to do about it.

    Raises:
        DataError: it is of none of the formats that are read, damaged, or unpacks to more than
            Pillow allows (179 million pixels).
    """
    try:
        with warnings.catch_warnings():
            # Half of that is a large photograph, and no reason for a warning.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as picture:
                yield picture
    except FAULTS as fault:
        said = first_line(fault)
        if isinstance(fault, Image.UnidentifiedImageError):
            said = f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(f"cannot decode {name} ({said}): {hint}", code="file-unreadable") from fault
