"""Write files atomically and durably, follow no links, report a full disk; CSV and JSON texts.

A folder may come from another person: a link in it could redirect a write to another file.

Used in most packages.
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

MISPLACED = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
"""Errors of a write at a place that a file or folder of another kind has."""
ELSEWHERE = "choose another folder, by --out, or out= in Python"
"""Advice in the error about a folder that cannot be written to."""


def part_of(path: Path) -> Path:
    """Return the path under which a file is written before it is renamed to `path`."""
    return path.with_name(path.name + ".part")


def open_in_place(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open the file at `path` itself, never the target of a link; return its descriptor.

    Raises:
        OSError: `path` is a link (ELOOP), or cannot be opened.
    """
    # Windows has no such flag: there a link is looked for, which leaves a moment to make one.
    if not NOFOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | NOFOLLOW | BINARY, mode)


def open_for_append(path: Path) -> IO[bytes]:
    """Open a file to append to it; create it if it does not exist.

    Raises:
        OSError: `path` is a link (ELOOP), or cannot be opened.
    """
    return os.fdopen(open_in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b")


def truncate_file(path: Path, length: int) -> None:
    """Truncate a file to `length` bytes.

    Raises:
        OSError: the file is missing, is a link, or cannot be written.
    """
    with os.fdopen(open_in_place(path, os.O_RDWR), "r+b") as file:
        file.truncate(length)


def refuse_links(folder: Path) -> None:
    """Refuse a folder that contains links, before something is written into it.

    The folder itself may be a link, or lie below a link: its path is the user's own choice.

    Raises:
        StateError: there is a link inside, or a folder inside that cannot be read; the message
            names it.
    """
    todo = [folder] if folder.is_dir() else []
    while todo:
        try:
            with os.scandir(todo.pop()) as listing:
                entries = list(listing)
        # Another process removed the folder since it was listed: nothing can be written there.
        except FileNotFoundError:
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
    """Write a file so that it appears complete or not at all.

    Args:
        path: the file.
        chunks: its content.
        lasting: whether to wait until the file is on the disk, so that it survives a power cut.
        secret: whether only the file's owner may read it.
    """
    part = part_of(path)
    try:
        with os.fdopen(_open_part(part, secret), "r+b") as file:
            file.writelines(chunks)
            file.truncate()
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        # The new name is an entry of the folder, which the system writes at another time.
        if lasting:
            settle(path.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _open_part(part: Path, secret: bool) -> int:
    """Open the scratch file of a write, and return its descriptor.

    An existing regular file is overwritten if it has no second hard link and `secret` is false.
    Otherwise a new file takes its place.
    """
    # Overwriting is faster than a new file: the pages are in memory already.
    with suppress(FileNotFoundError):
        about = part.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and not secret:
            return open_in_place(part, os.O_RDWR)
        # It is a link, a second name of another file, or readable by others: an adversary who put
        # it there would redirect the write, or read a secret.
        part.unlink()
    mode = 0o600 if secret else 0o666
    # O_EXCL refuses whatever somebody else put there since the look above.
    return open_in_place(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)


def complete_length(data: bytes) -> int:
    """Return the number of bytes of `data` up to the end of its last complete line."""
    return data.rfind(b"\n") + 1


def add_line(path: Path, line: str, secret: bool = False) -> None:
    """Append a line to a file; line and file name are on the disk when this returns.

    An incomplete last line, left by a writer that was killed, is removed first.
    """
    number = open_in_place(path, os.O_RDWR | os.O_CREAT, 0o600 if secret else 0o666)
    with os.fdopen(number, "r+b") as file:
        # A writer that was killed leaves half a line, and this one would continue it.
        file.truncate(file.seek(complete_length(file.read())))
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    # Always, not only for a new file: its creator may have been killed before this line.
    settle(path.parent)


def check_folder_place(path: Path) -> None:
    """Check that a folder is there or can be made: no file has its name, or that of one above it.

    Raises:
        StateError: a file has, or the system takes no such name.
    """
    try:
        places = (path, *path.parents)
        nearest = next(each for each in places if each.exists() or each.is_symlink())
    except OSError as error:
        raise StateError(
            f"there can be no folder {str(path)[:80]} ({error.strerror}); {ELSEWHERE}"
        ) from None
    if not nearest.is_dir():
        raise StateError(f"{nearest} is a file, or a link to no folder; {ELSEWHERE}")


def make_durable_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents; their names are on the disk when this returns."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(mode, parents=True, exist_ok=True)
    for each in missing:
        settle(each.parent)


@contextmanager
def replacing(path: Path, secret: bool = False) -> Iterator[Path]:
    """Yield a scratch path next to `path`; on success the scratch file replaces `path`.

    The scratch path keeps the ending of `path`, by which writers choose a format. With `secret`,
    the scratch file exists already and only its owner can read it; the caller truncates it.

    Raises:
        PartialRun: the file cannot be written (disk full, no permission); `path` is as before.
    """
    # Two processes that write the same file need a scratch file each.
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link of this name, put there by somebody else, would be followed by the writer.
        scratch.unlink(missing_ok=True)
        if secret:
            os.close(open_in_place(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield scratch
        with scratch.open("rb+") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        # Where a folder has the file's name, or a file that of a folder, space is no help.
        mend = "choose" if error.errno in MISPLACED else "free some space or choose"
        raise PartialRun(f"cannot write {path}: {reason}; {mend} another place") from error
    finally:
        # A read-only disk raises even where there is nothing to remove.
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all.

    Raises:
        PartialRun: the file cannot be written; an older file stays as it was.
    """
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8", newline="\n")


class Unsaved(PartialRun):
    """A file of a run could not be written; the message says why, and what to do."""

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
    """Turn failed writes in the block (disk full, read-only, no permission) into a one-line error.

    Raises:
        Unsaved: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        raise Unsaved(path, error) from None


def csv_of(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV text; the first row has the column names, lines end in one newline."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


JsonObject = dict[str, Any]
"""Parsed JSON object: its values are checked where they are read."""


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    # A few kilobytes of brackets exhaust Python's stack; the text is at fault, not the program.
    except RecursionError:
        raise ValueError("brackets within brackets, too deep to be read") from None


def fields_of(text: str) -> io.StringIO:
    """Return CSV text as a file for `csv.reader` that keeps line breaks within quotes."""
    return io.StringIO(text, newline="")
