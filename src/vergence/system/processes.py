"""Processes: number of cores, forks, workers that end with their parent, groups of children.

Used in `deployment` and `engine`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext

PR_SET_PDEATHSIG = 1
POLL = 0.2
"""Seconds between checks that a parent still runs."""


def cpu_count() -> int:
    """Return the number of cores that this process may use, else that of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def can_fork() -> bool:
    """Return whether a process with loaded libraries can be forked."""
    # macOS has the call, but its own libraries may crash after it.
    return hasattr(os, "fork") and sys.platform != "darwin"


def fork_context() -> ForkContext:
    """Return multiprocessing's context that forks.

    Raises:
        ValueError: this system cannot fork.
    """
    return multiprocessing.get_context("fork")


def fork(work: Callable[[], object]) -> None:
    """Run `work` in a fork of this process; the fork ends after it."""
    if os.fork() == 0:
        try:
            work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def reap_forks() -> None:
    """Reap forks that have ended, so that no zombies remain."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with_parent() -> None:
    """End this worker when its parent ends, even if that is killed."""
    # Linux does it; elsewhere a thread waits for a pipe to close, of which workers forked later
    # have copies: they end one after the other.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is not None:
        watch = threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True)
        watch.start()


def end_with(parent: int) -> None:
    """End this process when the process that started it has ended.

    A deployment's Flower processes call it.
    """
    is_running = _running_check(parent)

    def watch() -> None:
        while is_running():
            time.sleep(POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _running_check(parent: int) -> Callable[[], bool]:
    if can_fork() or sys.platform == "darwin":
        return lambda: os.getppid() == parent
    # On Windows `getppid` returns the old number after the parent has ended.
    import psutil

    try:
        return psutil.Process(parent).is_running
    except psutil.NoSuchProcess:
        return lambda: False


def start_group(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process outside the reach of Ctrl-C, which `end_group` ends with its children."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=hasattr(os, "killpg"),
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def end_group(child: subprocess.Popen[bytes], at_once: bool = False) -> None:
    """Ask a process of `start_group`, and whatever it started, to end; or end it at once."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        return
    import psutil

    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(child.pid)
        for process in (*top.children(recursive=True), top):
            with suppress(psutil.NoSuchProcess):
                (process.kill if at_once else process.terminate)()


@contextmanager
def interrupted_by_end() -> Iterator[None]:
    """Block that whoever asks this process to end interrupts, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C in the block."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ask_to_end(process: int) -> None:
    """Ask a process to end; on Windows it is killed. `vergence deploy stop` calls it."""
    os.kill(process, signal.SIGTERM)
