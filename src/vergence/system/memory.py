"""Memory of the machine and of this process, and the limit on open files."""

from __future__ import annotations

import ctypes
import os
import sys

try:
    import resource
except ImportError:
    resource = None

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def machine_bytes() -> int:
    """Memory of this machine; asked where processes can be forked alone."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_mb() -> float:
    """Most memory that this process had at once, and the largest of its children that have ended.

    Without POSIX it is this process alone, which has no workers there.
    """
    if resource is None:
        import psutil

        told = psutil.Process().memory_info()
        return getattr(told, "peak_wset", told.rss) / 2**20
    peak = sum(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return peak / (2**20 if sys.platform == "darwin" else 1024)


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, instead of asking for new zeroed pages in every step.

    A gradient of 7 MB is otherwise mapped and unmapped each time (up to 760 page faults a step).
    """
    if sys.platform == "win32":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Older versions refuse more than 32 MiB, and would then map everything over 128 KiB.
        if not mallopt(M_MMAP_THRESHOLD, 1 << 30):
            mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
        mallopt(M_TOP_PAD, 64 << 20)


def raise_open_files() -> None:
    """Let this process open as many files and connections as it may; nothing without such limit."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
