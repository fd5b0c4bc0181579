"""Latency of single calls, measured in turn so that a busy moment hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np


def medians(
    calls: Sequence[Callable[[], object]], rounds: int = 200, seconds: float = 20.0
) -> list[float]:
    """Return the median milliseconds of each call over interleaved rounds.

    Every round makes each call once, every other one in reverse order, after one round that is not
    counted. There are `rounds` of them, or as many as fit into `seconds`, three at least. It is the
    process's processor time that counts: for a call on one thread what a free machine takes,
    whatever else runs beside it.
    """
    for call in calls:
        call()
    taken: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(taken) < rounds and (len(taken) < 3 or time.perf_counter() < end):
        now = [0.0] * len(calls)
        for place in range(len(calls))[:: -1 if len(taken) % 2 else 1]:
            start = time.process_time()
            calls[place]()
            now[place] = time.process_time() - start
        taken.append(now)
    return [1e3 * float(t) for t in np.median(taken, axis=0)]
