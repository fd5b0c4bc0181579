"""Files written whole or not at all; errors of a full or read-only disk in one line; CSV text."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vergence.errors import PartialRun


def part_of(path: Path) -> Path:
    """Path of a file while it is written, before it takes its name."""
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


def untorn(data: bytes) -> int:
    """Number of bytes of a file's whole lines: the writer of a torn last one died meanwhile."""
    return data.rfind(b"\n") + 1


def add_line(path: Path, line: str, secret: bool = False) -> None:
    """Add a line to a file that only grows; it is on the disk when this returns, with its name."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600 if secret else 0o666)
    with os.fdopen(number, "r+b") as file:
        file.truncate(file.seek(untorn(file.read())))  # else this goes on where one was torn
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    settle(path.parent)  # whoever made it may have been killed before this


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it, whose names are on the disk when this returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for each in missing:
        settle(each.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success it takes the place of `path`.

    The scratch keeps the ending of `path`, by which writers choose a format.

    Raises:
        PartialRun: the file cannot be written (disk full, no permission); `path` is as before.
    """
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PartialRun(
            f"cannot write {path}: {reason}; free some space or choose another place"
        ) from error
    finally:
        with suppress(OSError):  # a read-only disk refuses to remove what is not there
            scratch.unlink(missing_ok=True)


class Unsaved(PartialRun):
    """A file could not be written: why, and what to do."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or type(error).__name__
        self.mend = "make room"
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            self.mend = "make it writable"
        super().__init__(
            f"cannot save to {path}: {self.reason}; everything up to the last checkpoint is kept: "
            f"{self.mend}, then `vergence resume`"
        )


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Block whose failed writes (disk full, read-only, no permission) become one clear line.

    Raises:
        Unsaved: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        raise Unsaved(path, error) from None


def csv_of(rows: Iterable[Sequence[Any]]) -> str:
    """CSV text of rows, the first of them the names of the columns; a line ends in one newline."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def fields_of(text: str) -> io.StringIO:
    """CSV text as its reader wants it: a line break within quotes stays as it was written."""
    return io.StringIO(text, newline="")
