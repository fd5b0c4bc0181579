"""Owner of a lock, found without trying to take it: a look must never keep a run from starting."""

from __future__ import annotations

import fcntl
import struct
import sys
from pathlib import Path

LINUX = sys.platform.startswith("linux")
FLOCK = "hhqqi0q" if LINUX else "qqihh"
"""The C structure `flock`: on Linux type, whence, start, length, process; BSD puts type last."""


def holder(path: Path) -> int | None:
    """Return the process that holds a file's lock; 0 if it is not seen from here, None if none.

    This process's own locks do not show.
    """
    kind = 0 if LINUX else 3
    asked: list[int] = [0] * 5
    asked[kind] = fcntl.F_WRLCK
    try:
        with path.open("rb") as file:
            found = struct.unpack(
                FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(FLOCK, *asked))
            )
    except OSError:
        return None
    return None if found[kind] == fcntl.F_UNLCK else found[4 if LINUX else 2]
