"""Memory of this process, as the system tells it."""

import mmap
import sys

import pytest

from vergence.system.memory import memory_mb


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a part is not known")
def test_memory_grows_by_what_is_held_and_the_peak_stays():
    before, _ = memory_mb()
    held = mmap.mmap(-1, 64 << 20)  # new pages: what the process freed before is not used again
    held.write(b"x" * (64 << 20))
    now, _ = memory_mb()
    assert now - before > 48
    held.close()
    _, peak = memory_mb()
    assert peak > now - 16  # the kernel counts both numbers loosely
