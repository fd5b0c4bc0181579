"""Statistics of a live session: frames a second, latency, dropped frames and memory.

Used by `live.session`.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from vergence.system.memory import memory_mb

STEP_MS, LONGEST_MS = 0.1, 10_000.0
"""Width of a bin of the histogram of latencies, and start of its last bin."""


class LiveStatistics:
    """Counts frames and latencies.

    A histogram holds the latencies: a session of days needs no more memory than a short one.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(round(LONGEST_MS / STEP_MS) + 1, np.int64)
        self.began_s = self.last_s = perf_counter()
        self.frames, self.latency_ms = 0, 0.0

    def add(self, latency_s: float) -> None:
        """Count a frame with its latency."""
        # From the first frame on: the start of a camera takes seconds and is not part of the rate.
        if not self.frames:
            self.began_s = perf_counter()
        self.frames += 1
        self.last_s, self.latency_ms = perf_counter(), 1000 * latency_s
        self.counts[min(int(self.latency_ms / STEP_MS), len(self.counts) - 1)] += 1

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last one."""
        return self.last_s - self.began_s

    @property
    def rate(self) -> float:
        """Frames per second; 0 before the second frame."""
        return (self.frames - 1) / self.seconds if self.frames > 1 else 0.0

    def quantile_ms(self, share: float) -> float:
        """Return the latency that this share of the frames does not exceed, to a tenth of a ms."""
        rank = max(1, int(np.ceil(share * self.frames)))
        return float((np.searchsorted(self.counts.cumsum(), rank) + 1) * STEP_MS)

    def line(self, dropped: int) -> str:
        """Return all statistics in one line of text."""
        if not self.frames:
            return "no frame has a map or direction yet"
        now, peak = memory_mb()
        memory = ", ".join(
            f"{name} {value:.0f} MB"
            for name, value in (("memory", now), ("peak", peak))
            if value is not None
        )
        return (
            f"{self.frames} frames in {self.seconds:.1f} s: {self.rate:.1f} a second, {dropped} "
            f"dropped; latency {self.quantile_ms(0.5):.1f} ms median, {self.quantile_ms(0.99):.1f} "
            f"ms 99th percentile; {memory or 'memory not known on this system'}"
        )
