"""File locks: shared and exclusive ones of an open file, and one of a whole process.

POSIX locks where there are some. Elsewhere (Windows) the `filelock` library locks the first byte of
a file: others can read what follows it, and there are no shared locks.

Used in `data`, `deployment`, `experiment` and `monitoring`.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

try:
    import fcntl
except ImportError:
    fcntl = None

LINUX = sys.platform.startswith("linux")
FLOCK = "hhqqi0q" if LINUX else "qqihh"
"""The C structure `flock`: on Linux type, whence, start, length, process; BSD puts type last."""


def lock(file: IO) -> None:
    """Wait for the exclusive lock of an open file; closing the file releases the lock.

    It also excludes other opened files of the same process.
    """
    if fcntl is None:
        lock_descriptor(file.fileno())
    else:
        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO) -> bool:
    """Take the lock of `lock` if it is free; return whether it was."""
    if fcntl is None:
        return lock_descriptor(file.fileno(), blocking=False)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_shared(file: IO) -> None:
    """Take a shared lock of an open file, for reading; on Windows do nothing."""
    # Windows itself refuses to replace a file that a process has mapped.
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH)


def try_lock_shared_by_none(file: IO) -> bool:
    """Take the lock of an open file if no reader has a shared one; False on Windows."""
    return fcntl is not None and try_lock(file)


def try_process_lock(file: IO) -> bool:
    """Take a lock that belongs to this process if no other process has it; return whether it has.

    The lock ends with the process, and children do not inherit it.
    """
    # The lock of `lock` would live on in workers whose parent was killed.
    if fcntl is None:
        return lock_descriptor(file.fileno(), blocking=False)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_owner(path: Path) -> int | None:
    """Return the process that has a file's process lock; 0 if unknown, None if no process has it.

    The locks of this process itself are not seen.
    """
    # POSIX answers without taking the lock, so that a look never keeps a run from starting.
    # Windows takes it for a moment.
    try:
        if fcntl is None:
            with path.open("r+b") as file:
                return None if try_process_lock(file) else 0
        kind = 0 if LINUX else 3
        asked: list[int] = [0] * 5
        asked[kind] = fcntl.F_WRLCK
        with path.open("rb") as file:
            lock_fields = struct.unpack(
                FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(FLOCK, *asked))
            )
    except OSError:
        return None
    return None if lock_fields[kind] == fcntl.F_UNLCK else lock_fields[4 if LINUX else 2]
