"""Safe reading of image files from any source: only a few formats, and clear error messages.

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
"""File formats that are read, whatever the file's ending is."""
FAULTS = (
    *(OSError, ValueError, SyntaxError, TypeError, IndexError, KeyError, EOFError, OverflowError),
    *(MemoryError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError),
)
"""Exceptions that decoding a damaged or hostile picture can raise."""


@contextmanager
def open_image(source: Path | BinaryIO, name: str, hint: str) -> Iterator[Image.Image]:
    """Open a picture and yield it; errors of decoding in the block become a `DataError`.

    Args:
        source: the file's path, or an open file.
        name: the file's name in an error message.
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
                _refuse_unknown_colours(picture)
                yield picture
    except FAULTS as fault:
        reason = first_line(fault)
        if isinstance(fault, Image.UnidentifiedImageError):
            reason = f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise DataError(
            f"cannot decode {name} ({reason}): {hint}", code="file-unreadable"
        ) from fault


def _refuse_unknown_colours(picture: Image.Image) -> None:
    """Refuse a picture whose colours, as they were shown, the file does not say.

    Raises:
        ValueError: the picture has more than 8 bits a channel, or transparent parts.
    """
    # Pillow would cut 16 bits off at 255, so that nearly all becomes white.
    if picture.mode.startswith(("I", "F")):
        raise ValueError("more than 8 bits a channel, whose range is unknown: save it with 8 bits")
    alpha = picture.convert("RGBA").getchannel("A") if picture.has_transparency_data else None
    if alpha is not None and alpha.getextrema() != (255, 255):
        raise ValueError("transparent parts, behind which anything may have been: fill them")
