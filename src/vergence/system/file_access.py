"""Files as systems open, protect and settle them: flags, rights of others, words on the disk.

Used by `core.files`, `data.gaze_video.clip_cache`, `deployment.keys`,
`deployment.private_inference.party_seed` and `privacy.release_log`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
"""Flag of a file that is opened where it stands, never where a link leads; 0 where unknown."""
BINARY = getattr(os, "O_BINARY", 0)
"""Flag of a file whose bytes are kept as they are: Windows would change ends of lines."""
HAS_MODES = hasattr(os, "geteuid")
"""Whether a file's mode says who may read it; Windows keeps that elsewhere."""
SYNC_FOLDERS = os.name != "nt"
"""Whether a folder can be opened to write its names to the disk; Windows writes them by itself."""


def is_open_to_others(path: Path) -> bool:
    """True if other users may read or write a file; not known, and False, where modes say nothing.

    On Windows a file has the rights of the folder it lies in: a user's own folder is that user's.
    """
    return HAS_MODES and bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def settle(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, would outlast a blackout."""
    if path.is_dir() and not SYNC_FOLDERS:
        return
    number = os.open(path, os.O_RDONLY if SYNC_FOLDERS else os.O_RDWR | BINARY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
