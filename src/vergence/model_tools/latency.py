"""Latency of calls, measured in turn so that a busy moment affects all of them equally.

Used by `model_tools.onnx_export` and `model_tools.pruning_study`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np


def medians(
    calls: Sequence[Callable[[], object]], rounds: int = 200, seconds: float = 20.0
) -> list[float]:
    """Return the median milliseconds of processor time of each call, over interleaved rounds.

    Args:
        calls: functions to time; each is called once per round.
        rounds: number of rounds.
        seconds: wall time after which no new round begins, if there were three.
    """
    # A first round is not counted: it fills caches and allocates memory.
    for call in calls:
        call()
    taken: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(taken) < rounds and (len(taken) < 3 or time.perf_counter() < end):
        now = [0.0] * len(calls)
        # Every other round runs backwards, so that no call always follows the same one.
        for place in range(len(calls))[:: -1 if len(taken) % 2 else 1]:
            # Processor time: on one thread it is what a free machine takes, whatever else runs.
            start = time.process_time()
            calls[place]()
            now[place] = time.process_time() - start
        taken.append(now)
    return [1e3 * float(t) for t in np.median(taken, axis=0)]
