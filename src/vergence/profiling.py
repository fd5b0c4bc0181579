"""Seconds of a command, wall and CPU, by phase and by method: where the time goes.

Exactly one phase runs at any moment: entering one stops the one around it, so the seconds of all
phases add up to those of the command. Worker processes measure alike and hand over what they spent.
Nothing here touches a random number or a result, and without a profile `phase` does nothing.

Used in `cli`, `engine`, `experiment` and `video`.
"""

from __future__ import annotations

import builtins
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from threading import get_ident
from typing import Any

PHASES: Mapping[str, str] = {
    "import": "starting Python, loading modules",
    "data": "reading data, and their digest",
    "features": "fixed features of a network",
    "priors": "predictors that need no training",
    "trial": "which solver is faster",
    "training": "gradient steps",
    "forward": "networks on test and validation samples",
    "scores": "metrics of what networks said",
    "exchange": "messages, masks, sums, a method's own arithmetic",
    "checkpoints": "states and tables written and read",
    "statistics": "results of a run, tables of the comparison",
    "report": "figures and pages",
    "rest": "everything else",
}
"""The phases and their descriptions, in the order of tables."""
WORK = ("training", "forward")
"""The phases that a run is for; all others are what comes on top."""
FILE = "profile.csv"
HEAD = ("method", "phase", "wall_seconds", "cpu_seconds")
WAITING = "waiting"
"""Phase of waiting for workers; `settle` divides its wall time among their phases."""
LOADED = time.perf_counter()
"""Time at which this module was loaded, close to the program's start."""

Key = tuple[str, str]
"""Method and phase."""
Row = tuple[str, str, float, float]
"""Method, phase, wall and CPU seconds."""


class Profile:
    """Stopwatch that always runs for one phase of one method.

    Args:
        running: the phase with which it starts.
    """

    def __init__(self, running: str) -> None:
        self.wall: dict[Key, float] = defaultdict(float)
        self.cpu: dict[Key, float] = defaultdict(float)
        self.workers: dict[str, float] = defaultdict(float)
        self.method, self.running, self.thread = "", running, get_ident()
        self.at = time.perf_counter(), time.process_time()

    def _stop(self) -> None:
        """Add the time since the last stop to the running phase."""
        then, self.at = self.at, (time.perf_counter(), time.process_time())
        self.wall[self.method, self.running] += self.at[0] - then[0]
        self.cpu[self.method, self.running] += self.at[1] - then[1]

    @contextmanager
    def counting(self, method: str, phase: str) -> Iterator[None]:
        """Count the block for a method and a phase."""
        self._stop()
        before = self.method, self.running
        self.method, self.running = method, phase
        try:
            yield
        finally:
            self._stop()
            self.method, self.running = before

    def take_times(self) -> dict[str, tuple[float, float]]:
        """Return wall and CPU seconds by phase since the last call, for a worker's parent."""
        self._stop()
        times = {
            phase: (wall, self.cpu[key])
            for key, wall in self.wall.items()
            if (phase := key[1]) != WAITING
        }
        self.wall.clear()
        self.cpu.clear()
        return times

    def add(self, spent: Mapping[str, Sequence[float]]) -> None:
        """Add a worker's wall and CPU seconds by phase."""
        for phase, (wall, cpu) in spent.items():
            self.workers[phase] += wall
            self.cpu[self.method, phase] += cpu

    def settle(self) -> None:
        """Divide the time of waiting for workers among the workers' phases."""
        self._stop()
        waited = self.wall.pop((self.method, WAITING), 0.0)
        self.cpu[self.method, "exchange"] += self.cpu.pop((self.method, WAITING), 0.0)
        total = sum(self.workers.values())
        for phase, wall in self.workers.items():
            self.wall[self.method, phase] += waited * wall / total
        if not total:
            self.wall[self.method, "exchange"] += waited
        self.workers.clear()

    def rows(self) -> list[Row]:
        """Return method, phase, wall and CPU seconds, methods in the order in which they ran."""
        self._stop()
        methods = list(dict.fromkeys(method for method, _ in self.wall))
        return [
            (method, phase, self.wall[method, phase], self.cpu[method, phase])
            for method in methods
            for phase in PHASES
            if (method, phase) in self.wall
        ]


active: Profile | None = None
"""The profile of this command, if there is one."""
plain_import = builtins.__import__
OFF = nullcontext()


def start() -> Profile:
    """Begin a profile; the time until now is counted as `import`."""
    global active
    active = profile = Profile("rest")
    profile.wall["", "import"] = profile.at[0] - LOADED
    profile.cpu["", "import"] = profile.at[1]

    @wraps(plain_import)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with profile.counting(profile.method, "import"):
            return plain_import(*args, **kwargs)

    builtins.__import__ = timed
    return profile


def stop() -> None:
    """End the profile of this command."""
    global active
    active = None
    builtins.__import__ = plain_import


def phase(name: str) -> AbstractContextManager[None]:
    """Count the block for a phase, where there is a profile.

    A thread beside the one that began the profile counts for the phase that runs there.
    """
    if active is None or active.thread != get_ident():
        return OFF
    return active.counting(active.method, name)


def method(label: str) -> AbstractContextManager[None]:
    """Count the block for a method, where there is a profile."""
    return OFF if active is None else active.counting(label, active.running)


def in_worker() -> None:
    """Begin a new profile in a forked worker; the time until now is the parent's."""
    global active
    if active is not None:
        stop()
        active = Profile(WAITING)


def take_times() -> dict[str, dict[str, tuple[float, float]]]:
    """Return timings to send back to the parent process; empty when profiling is off."""
    return {} if active is None else {"spent": active.take_times()}


def add(note: Mapping[str, Any]) -> None:
    """Add the timings in a worker's note."""
    if active is not None:
        active.add(note.get("spent", {}))


def settle() -> None:
    """Divide the time of waiting for workers, where there is a profile."""
    if active is not None:
        active.settle()
