"""Processes of parties on this machine: started together, and where one fails all are stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from vergence.errors import StateError

LOG = "log.txt"
"""What a party said, in its folder."""
BETWEEN = 0.1


class Costs(NamedTuple):
    """Processor seconds and peak memory (kB) of a process that has ended."""

    processor_s: float
    peak_kb: int


def tells_costs() -> bool:
    """True where a system tells what a process used."""
    return hasattr(os, "wait4")


def ended(child: subprocess.Popen[bytes]) -> Costs | None:
    """Costs of a child that has ended, None if it runs; sets its exit code.

    Raises:
        AttributeError: not `tells_costs`.
    """
    number, status, usage = os.wait4(child.pid, os.WNOHANG)
    if not number:
        return None
    child.returncode = os.waitstatus_to_exitcode(status)
    return Costs(usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def run_parties(
    commands: Sequence[Sequence[str | Path]],
    places: Sequence[Path],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Costs]:
    """Run parties to their end, each in its own folder, and return what they used.

    Standard input stays open as long as this process lives.

    Raises:
        StateError: with the last line of the first that failed; this system does not tell costs.
    """
    if not tells_costs():
        raise StateError(
            "private inference runs on Linux and macOS alone: this system does not tell what a "
            "party's process used; run it on one of these"
        )
    used: dict[int, Costs] = {}
    with ExitStack() as stack:
        running = []
        for command, place in zip(commands, places, strict=True):
            log = stack.enter_context((place / LOG).open("w", encoding="utf-8"))
            party = subprocess.Popen(
                command, cwd=place, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )
            running.append(stack.enter_context(party))
            stack.callback(party.kill)
        while len(used) < len(running):
            for rank, party in enumerate(running):
                if rank not in used:
                    costs = ended(party)
                    if costs:
                        used[rank] = costs
                if party.returncode:
                    told = last_line(
                        (places[rank] / LOG).read_text(encoding="utf-8", errors="replace")
                    )
                    raise StateError(f"private inference: party {rank} failed: {told}")
            meanwhile()
            time.sleep(BETWEEN)
    return [used[rank] for rank in range(len(running))]


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
