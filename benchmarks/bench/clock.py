"""The clock's side: processes told to do rounds, their wall and processor seconds, their memory."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.bench.gate import MARK
from vergence.errors import PartialRun

SAMPLE_S = 0.25
"""How often memory is read during a warm-up; reading is not free."""
END_S = 20
"""How long a process may take to end after its last word."""


@dataclass(frozen=True)
class Turn:
    """What some rounds cost: seconds per round, and the gradient steps done so far (floor)."""

    wall: float
    cpu: float
    steps: int = 0


class Lane:
    """A process behind a gate (see `benchmarks.bench.gate`), and everything it started."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log, self.peak = name, log, 0
        self._lines: list[dict[str, Any]] = []
        self._rest = b""
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
            )
        self._ready = False

    def ready(self) -> None:
        """Wait until it can begin."""
        if not self._ready:
            self._hear()
            self._ready = True

    def turn(self, rounds: int, watch: bool = False) -> Turn:
        """Let it do rounds; with `watch` its memory is read meanwhile, which disturbs the time."""
        self.ready()
        before = processor_seconds(self.process.pid)
        self._say(rounds)
        told = self._hear(watch)
        cpu = processor_seconds(self.process.pid) - before
        self.watch()
        return Turn(told["wall"] / rounds, cpu / rounds, told.get("steps", 0))

    def finish(self) -> dict[str, Any]:
        """Let it end; return what it has to say at the end."""
        started = tree(self.process.pid)
        self._say(0)
        final = self._hear()["final"]
        with suppress(subprocess.TimeoutExpired):  # it has said all; what is left is killed
            self.process.wait(END_S)
        kill(started)
        return final

    def watch(self) -> None:
        """Note the memory in use, if it is the most so far."""
        self.peak = max(self.peak, memory(self.process.pid))

    def close(self) -> None:
        """Kill it and all it started, if it still lives."""
        kill(tree(self.process.pid))
        for pipe in (self.process.stdin, self.process.stdout):
            pipe_end(pipe)
        self.process.wait(10)

    def _say(self, rounds: int) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"%d\n" % rounds)
            self.process.stdin.flush()
        except BrokenPipeError:
            self._died()

    def _hear(self, watch: bool = False) -> dict[str, Any]:
        assert self.process.stdout is not None
        pipe = self.process.stdout.fileno()
        while not self._lines:
            ready, _, _ = select.select([pipe], [], [], SAMPLE_S)
            if watch:
                self.watch()
            if not ready:
                if self.process.poll() is not None:
                    self._died()
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                self._died()
            *whole, self._rest = (self._rest + data).split(b"\n")
            marked = [line.decode() for line in whole if line.startswith(MARK.encode())]
            self._lines += [json.loads(line.removeprefix(MARK)) for line in marked]
        return self._lines.pop(0)

    def _died(self) -> None:
        self.process.wait(10)
        said = self.log.read_text(errors="replace").strip().splitlines()
        last = next((line.strip() for line in reversed(said) if line.strip()), "nothing")
        raise PartialRun(f"bench: {self.name} ended early; its last words: {last[:300]}")


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill those that still live, the youngest first."""
    for process in reversed(processes):
        try:
            process.kill()
        except psutil.Error:
            continue


def pipe_end(pipe: IO[bytes] | None) -> None:
    """Close a pipe whose other end may be gone."""
    try:
        if pipe is not None:
            pipe.close()
    except BrokenPipeError:
        return


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and everything below it; nothing when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def processor_seconds(pid: int) -> float:
    """Return user and system seconds of a process tree, children that ended included.

    The kernel's processor clock of another process counts nanoseconds; its tables count hundredths
    of a second, too coarse for a round of fifty milliseconds.
    """
    total = 0.0
    for process in tree(pid):
        try:
            ended = process.cpu_times()
            total += time.clock_gettime((~process.pid << 3) | 2)
            total += ended.children_user + ended.children_system
        except (psutil.Error, OSError):
            continue
    return total


def memory(pid: int) -> int:
    """Return the bytes a process tree holds, each page counted once.

    By proportional set size; but of a library or program, the most that one process of the tree
    has of it, so that it does not matter who else on this machine has loaded the same one.
    """
    own, code = 0, {}
    for process in tree(pid):
        try:
            maps = process.memory_maps(grouped=True)
        except (psutil.Error, OSError):
            continue
        for found in maps:
            path = Path(found.path)
            if ".so" in path.name or "bin" in path.parts:
                code[path] = max(code.get(path, 0), found.rss)
            else:
                own += found.pss
    return own + sum(code.values())
