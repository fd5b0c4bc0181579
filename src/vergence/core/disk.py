"""Files that are there whole or not at all, on the disk for certain, or for their owner's eyes."""

from __future__ import annotations

import os
from pathlib import Path


def part_of(path: Path) -> Path:
    """Return where a file is written before it takes its name."""
    return path.with_name(path.name + ".part")


def write_whole(
    path: Path, *chunks: bytes | memoryview, lasting: bool = False, secret: bool = False
) -> None:
    """Write a file so that it is there whole or not at all.

    Args:
        path: the file.
        chunks: what is in it.
        lasting: it is on the disk when this returns: it outlasts a power cut.
        secret: nobody but its owner may read it.
    """
    part = part_of(path)
    try:
        if secret:
            part.touch(0o600)
            part.chmod(0o600)
        with part.open("r+b" if part.exists() else "wb") as file:
            file.writelines(chunks)
            file.truncate()
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if lasting:
            settle(path.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def settle(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, would outlast a blackout."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
