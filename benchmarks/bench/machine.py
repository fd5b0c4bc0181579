"""What a measurement ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import psutil


def describe() -> dict[str, str | int | float]:
    """Return processor, cores, memory, load and versions."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def processor() -> str:
    """Return the processor's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
