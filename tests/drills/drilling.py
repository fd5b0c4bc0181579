"""What all drills share: rows of the table, how much is drilled, processes, a folder to be in."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import torch

from tests.engine.toys import LOCAL
from vergence.methods.fedcpf import FedCPF

METHOD = FedCPF(local=LOCAL, rate=0.2)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    drill: str
    wanted: str
    found: str
    good: bool


ROWS = {
    "right": Row("a row, as was asked for", "this", "this", good=True),
    "wrong": Row("a row, as was asked for", "this", "something else", good=False),
}
"""What is printed where only the exit code is asked for."""


@dataclass(frozen=True)
class Sizes:
    """How much is drilled."""

    people: int = 10
    rounds: int = 50
    seeds: int = 5
    kills: int = 50
    messages: int = 100_000
    files: int = 10_000
    soak: int = 2000


SMALL = Sizes(people=4, rounds=5, seeds=2, kills=8, messages=4000, files=500, soak=300)


def asked(drills: Iterable[str], about: str, *, sizes: bool = False) -> argparse.Namespace:
    """Read the command line of `about`: which drills, all by default, and how much of each."""
    known = list(drills)
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("drills", nargs="*", help=f"of {', '.join(known)}; default: all")
    if sizes:
        parser.add_argument("--small", action="store_true", help="a minute instead of fifteen")
    more = "drill nothing, and give a row that is so: the exit code must tell"
    parser.add_argument("--row", choices=ROWS, help=more)
    given = parser.parse_args()
    if odd := [name for name in given.drills if name not in known]:
        parser.error(f"no drill '{odd[0]}'; there are: {', '.join(known)}")
    given.drills = given.drills or known
    return given


def printed(rows: Iterable[Row]) -> NoReturn:
    """Print rows as they come, and how many are as wanted.

    The exit code is 1 if one is not, or if there is none.
    """
    began, good, total = time.monotonic(), 0, 0
    print("| drill | wanted | found | |\n|---|---|---|---|", flush=True)
    for row in rows:
        good, total = good + bool(row.good), total + 1
        mark = "ok" if row.good else "FAILED"
        print(f"| {row.drill} | {row.wanted} | {row.found} | {mark} |", flush=True)
    print(f"\n{good} of {total} as wanted, {time.monotonic() - began:.0f} s")
    sys.exit(0 if good == total > 0 else 1)


def spread(work: Callable[..., Any], tasks: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Do tasks in new processes, two at a time."""
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        yield from [wait.result() for wait in [pool.submit(work, *task) for task in tasks]]


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder for a while, and this process one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
