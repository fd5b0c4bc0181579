"""Seconds of a command, wall and CPU, by phase and by method: where the time goes.

Exactly one phase runs at any moment: entering one stops the one around it, so the seconds of all
phases add up to those of the command. Worker processes measure alike and hand over what they spent.
Nothing here touches a random number or a result, and without a profile `phase` does nothing.
"""

from __future__ import annotations

import builtins
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
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
"""What is told apart, in the order in which it is shown."""
WORK = ("training", "forward")
"""The phases that a run is for; all others are what comes on top."""
FILE = "profile.csv"
HEAD = ("method", "phase", "wall_seconds", "cpu_seconds")
WAITING = "waiting"
"""For workers: of the wall clock it is divided among what they were at meanwhile."""
LOADED = time.perf_counter()
"""When the program began, but for Python's own start."""

Key = tuple[str, str]
"""Method and phase."""
Row = tuple[str, str, float, float]
"""Method, phase, wall and CPU seconds."""


class Profile:
    """Stop watch with one hand: it always runs for one phase of one method.

    Args:
        running: the phase that it runs for.
    """

    def __init__(self, running: str) -> None:
        self.wall: dict[Key, float] = defaultdict(float)
        self.cpu: dict[Key, float] = defaultdict(float)
        self.workers: dict[str, float] = defaultdict(float)
        self.method, self.running = "", running
        self.at = time.perf_counter(), time.process_time()

    def _stop(self) -> None:
        """Note what was spent since the last stop for the phase that runs."""
        then, self.at = self.at, (time.perf_counter(), time.process_time())
        self.wall[self.method, self.running] += self.at[0] - then[0]
        self.cpu[self.method, self.running] += self.at[1] - then[1]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run for another phase meanwhile."""
        self._stop()
        before, self.running = self.running, name
        try:
            yield
        finally:
            self._stop()
            self.running = before

    @contextmanager
    def of(self, method: str) -> Iterator[None]:
        """Run for another method meanwhile."""
        self._stop()
        before, self.method = self.method, method
        try:
            yield
        finally:
            self._stop()
            self.method = before

    def handed(self) -> dict[str, tuple[float, float]]:
        """Wall and CPU seconds by phase since the last call, for the parent of a worker."""
        self._stop()
        told = {
            phase: (wall, self.cpu[key])
            for key, wall in self.wall.items()
            if (phase := key[1]) != WAITING
        }
        self.wall.clear()
        self.cpu.clear()
        return told

    def add(self, spent: Mapping[str, Sequence[float]]) -> None:
        """Add what a worker spent: phase -> wall and CPU seconds."""
        for phase, (wall, cpu) in spent.items():
            self.workers[phase] += wall
            self.cpu[self.method, phase] += cpu

    def settle(self) -> None:
        """Divide the time spent waiting for workers among what they were at."""
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
        """Method, phase, wall and CPU seconds, methods in the order in which they ran."""
        self._stop()
        methods = list(dict.fromkeys(method for method, _ in self.wall))
        return [
            (method, phase, self.wall[method, phase], self.cpu[method, phase])
            for method in methods
            for phase in PHASES
            if (method, phase) in self.wall
        ]


active: Profile | None = None
"""The profile of this command, if one is asked for."""
plain_import = builtins.__import__
OFF = nullcontext()


def start() -> Profile:
    """Begin a profile; what is past was starting Python and loading modules."""
    global active
    active = profile = Profile("rest")
    profile.wall["", "import"] = profile.at[0] - LOADED
    profile.cpu["", "import"] = profile.at[1]

    @wraps(plain_import)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with profile.phase("import"):
            return plain_import(*args, **kwargs)

    builtins.__import__ = timed
    return profile


def stop() -> None:
    """End the profile of this command."""
    global active
    active = None
    builtins.__import__ = plain_import


def phase(name: str) -> AbstractContextManager[None]:
    """Count what is done in this context for a phase, where there is a profile."""
    return OFF if active is None else active.phase(name)


def method(label: str) -> AbstractContextManager[None]:
    """Count what is done in this context for a method, where there is a profile."""
    return OFF if active is None else active.of(label)


def in_worker() -> None:
    """Begin anew in a process that was forked: what is past is the parent's."""
    global active
    if active is not None:
        stop()
        active = Profile(WAITING)


def handed() -> dict[str, dict[str, tuple[float, float]]]:
    """Part of a worker's note on what it spent, where there is a profile."""
    return {} if active is None else {"spent": active.handed()}


def add(note: Mapping[str, Any]) -> None:
    """Count what a worker's note says it spent."""
    if active is not None:
        active.add(note.get("spent", {}))


def settle() -> None:
    """Divide what this process waited for its workers, where there is a profile."""
    if active is not None:
        active.settle()
