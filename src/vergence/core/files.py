"""Atomic, durable file writes that follow no link, one-line errors of a full disk, CSV, JSON text.

A folder may be from somebody else, and a link in it would lead what is written there elsewhere.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vergence.errors import PartialRun, StateError
from vergence.system.file_access import BINARY, NOFOLLOW, settle


def part_of(path: Path) -> Path:
    """Path of a file while it is written, before it takes its name."""
    return path.with_name(path.name + ".part")


def open_in_place(path: Path, flags: int, mode: int = 0o666) -> int:
    """Descriptor of a file opened where it stands, never where a link of its name leads.

    Raises:
        OSError: it is a link (ELOOP), or cannot be opened.
    """
    if not NOFOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | NOFOLLOW | BINARY, mode)


def growing(path: Path) -> IO[bytes]:
    """File that is added to at its end, made if there is none.

    Raises:
        OSError: it is a link (ELOOP), or cannot be opened.
    """
    return os.fdopen(open_in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")


def cut(path: Path, length: int) -> None:
    """Cut a file to so many bytes.

    Raises:
        OSError: it is missing or a link, or cannot be written.
    """
    with os.fdopen(open_in_place(path, os.O_RDWR), "r+b") as file:
        file.truncate(length)


def refuse_links(folder: Path) -> None:
    """Refuse to write into a folder that holds links, wherever they lead.

    The folder itself may be one, or lie below one: whoever names it knows where it is.

    Raises:
        StateError: names the link, or a folder inside that cannot be looked into.
    """
    todo = [folder] if folder.is_dir() else []
    while todo:
        try:
            with os.scandir(todo.pop()) as found:
                entries = list(found)
        except FileNotFoundError:  # gone since it was seen
            continue
        except OSError as error:
            raise StateError(
                f"{error.filename} cannot be looked into ({error.strerror}), and links in it would "
                f"lead elsewhere what is written to {folder}: make it readable, or take it away"
            ) from None
        for entry in entries:
            if entry.is_symlink():
                raise StateError(
                    f"{entry.path} is a link to {Path(entry.path).readlink()}; nothing is written "
                    "to a run folder with links in it, as it would land elsewhere: take the link "
                    "away, or put a copy in its place"
                )
            if entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))


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
        with os.fdopen(_begun(part, secret), "r+b") as file:
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


def _begun(part: Path, secret: bool) -> int:
    """Descriptor of a file under way, a new one unless a plain file of this folder lies there.

    That one is written over, as its pages are in memory already.
    """
    with suppress(FileNotFoundError):
        about = part.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and not secret:
            return open_in_place(part, os.O_RDWR)
        part.unlink()  # a link, another file's second name, or one that others may read
    mode = 0o600 if secret else 0o666
    return open_in_place(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def untorn(data: bytes) -> int:
    """Number of bytes of a file's whole lines: the writer of a torn last one died meanwhile."""
    return data.rfind(b"\n") + 1


def add_line(path: Path, line: str, secret: bool = False) -> None:
    """Add a line to a file that only grows; it is on the disk when this returns, with its name."""
    number = open_in_place(path, os.O_RDWR | os.O_CREAT, 0o600 if secret else 0o666)
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
def replacing(path: Path, secret: bool = False) -> Iterator[Path]:
    """Yield a scratch path beside `path`; on success it takes the place of `path`.

    The scratch keeps the ending of `path`, by which writers choose a format. Of a `secret` it is
    there already, and nobody but its owner may read it; a writer that truncates it keeps that.

    Raises:
        PartialRun: the file cannot be written (disk full, no permission); `path` is as before.
    """
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.unlink(missing_ok=True)  # it may be a link
        if secret:
            os.close(open_in_place(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
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


def write_text(path: Path, text: str) -> None:
    """Write a page or a table for a reader, whole or not at all.

    Raises:
        PartialRun: it cannot be written; what was there is as before.
    """
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8", newline="\n")


class Unsaved(PartialRun):
    """A file could not be written: why, and what to do."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.reason = error.strerror or type(error).__name__
        refused = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        self.mend = "make it writable" if refused else "make room"
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


def parse_json(text: str | bytes) -> Any:
    """Value of a JSON text.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets within brackets, too deep to be read") from None


def fields_of(text: str) -> io.StringIO:
    """CSV text as its reader wants it: a line break within quotes stays as it was written."""
    return io.StringIO(text, newline="")
