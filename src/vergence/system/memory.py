"""Memory of the machine and of this process, and the limit on open files.

Used by `deployment.transport.tls`, `engine.round_loop`, `engine.workers.pools`,
`engine.workers.ray_actors`, `engine.workers.shared_memory`, `live.statistics` and `results.write`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:
    resource = None

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8


def machine_bytes() -> int:
    """Return the memory of this machine in bytes; only for systems that can fork."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Return the main memory that programs may still take, in bytes; 0: unknown."""
    with suppress(OSError):
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        lines = dict(line.split(":", 1) for line in text.splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return 0


def peak_mb() -> float:
    """Return the peak memory of this process plus that of its largest ended child, in MB.

    Without POSIX there are no workers, and it is that of this process.
    """
    if resource is None:
        return _memory_by_psutil()[1]
    peak = sum(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return peak / (2**20 if sys.platform == "darwin" else 1024)


def memory_mb() -> tuple[float | None, float | None]:
    """Return the resident memory of this process, now and at its peak, in MB; None: unknown."""
    with suppress(OSError):
        text = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        kib = [fields[name].split()[0] if name in fields else None for name in ("VmRSS", "VmHWM")]
        now, peak = (None if value is None else float(value) / 1024 for value in kib)
        return now, peak
    if resource is None:
        return _memory_by_psutil()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None, most / (2**20 if sys.platform == "darwin" else 1024)


def _memory_by_psutil() -> tuple[float, float]:
    import psutil

    memory = psutil.Process().memory_info()
    return memory.rss / 2**20, getattr(memory, "peak_wset", memory.rss) / 2**20


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, instead of asking for new zeroed pages in every step.

    The engine calls it where its workers start.

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
        # Memory of a thread's own would have at most 64 MiB in one piece, and larger vectors would
        # be mapped and unmapped each time.
        mallopt(M_ARENA_MAX, 1)


def raise_open_files() -> None:
    """Let this process open as many files and connections as it may; nothing without such limit.

    Whatever serves a deployment calls it, as each connection takes a file.
    """
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
