"""File locks: shared and exclusive ones of an open file, and one of a whole process.

POSIX locks where there are some. Elsewhere (Windows) the `filelock` library locks the first byte of
a file: others can read what follows it, and there are no shared locks.
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
    """Lock an open file, once whoever has it locked closes it; closing the file ends the lock.

    Two opened files of one process exclude each other, too.
    """
    if fcntl is None:
        lock_descriptor(file.fileno())
    else:
        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: IO) -> bool:
    """Lock an open file as `lock` does if nobody has it; True if this one has it now."""
    if fcntl is None:
        return lock_descriptor(file.fileno(), blocking=False)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_shared(file: IO) -> None:
    """Lock an open file for as many as only read it; nothing happens where that is unknown.

    There (Windows) the system itself keeps a file that somebody has mapped.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_SH)


def try_lock_shared_by_none(file: IO) -> bool:
    """Lock an open file if no reader has it; False where readers leave no trace."""
    return fcntl is not None and try_lock(file)


def try_process_lock(file: IO) -> bool:
    """Lock an open file for this process if no other one has it; True if it has it now.

    The lock ends with the process. Children do not inherit it: the lock of `lock` would live on in
    workers whose parent was killed.
    """
    if fcntl is None:
        return lock_descriptor(file.fileno(), blocking=False)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_owner(path: Path) -> int | None:
    """Process that holds a file's process lock; 0 if it is not seen from here, None if none does.

    POSIX tells without a try to take it, so that a look never keeps a run from starting, and this
    process's own locks do not show. Elsewhere the look takes the lock for a moment.
    """
    try:
        if fcntl is None:
            with path.open("r+b") as file:
                return None if try_process_lock(file) else 0
        kind = 0 if LINUX else 3
        asked: list[int] = [0] * 5
        asked[kind] = fcntl.F_WRLCK
        with path.open("rb") as file:
            found = struct.unpack(
                FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(FLOCK, *asked))
            )
    except OSError:
        return None
    return None if found[kind] == fcntl.F_UNLCK else found[4 if LINUX else 2]
