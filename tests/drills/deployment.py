"""A server and three clients as processes on this machine, over TLS with node keys."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from vergence.deployment.folders import EVENTS, EXPERIMENT, ServerSide, write_settings
from vergence.deployment.folders import settings as read_settings
from vergence.experiment.run import start
from vergence.experiment.schema import check

CLIENTS = ("p00", "p01", "p02")
TABLE: dict[str, Any] = {
    "task": {"name": "gaze_angle"},
    "model": {"name": "small_eye"},
    "federation": {"name": "eye_synthetic", "people": 3, "samples": 60, "size": "9x15"},
    "methods": ["fedavg", {"name": "fedcpf", "rate": 0.2}],
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 16, "lr": 0.01},
    "run": {"rounds": 2, "seeds": [0], "evaluate_every": 0, "solver": "sequential"},
}
COMMAND = "import sys; from vergence.cli.deploy import deploy; deploy(sys.argv[1:])"


def fedcpf(rounds: int) -> dict[str, Any]:
    """Return an experiment of FedCPF alone, with so many rounds."""
    return {**TABLE, "methods": TABLE["methods"][1:], "run": {**TABLE["run"], "rounds": rounds}}


def simulated(table: Mapping[str, Any], out: Path) -> dict[str, dict[str, str]]:
    """Run an experiment in this process; return every method's fingerprints, by seed."""
    start(check(dict(table)), out)
    return fingerprints(out)


def sums_opened(spent: Path) -> int:
    """Return how many sums an end's record of what it gave away says were opened."""
    names = [line.split(" ", 1)[1] for line in spent.read_text().splitlines()]
    return sum(not name.startswith(("question of ", "row of ", "attempt ")) for name in names)


def fingerprints(run: Path) -> dict[str, dict[str, str]]:
    """Return every method's fingerprints, by seed, of a run that is done."""
    found = sorted(run.glob("*/results.json")) or sorted(run.glob("results.json"))
    read = [json.loads(file.read_text()) for file in found]
    return {results["method"]: results["fingerprint"] for results in read}


class Deployment:
    """Folders and commands; `deployed` ends every process.

    It listens on every address, as deployments of several machines do: attacks come from another.
    """

    def __init__(
        self,
        folder: Path,
        table: Mapping[str, Any] = TABLE,
        roles: Sequence[str] = (),
        clients: Sequence[str] = CLIENTS,
        listen: str = "0.0.0.0",
        **settings: Any,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        (folder / "exp.toml").write_text(tomli_w.dumps(table))
        made = self.run(
            "init",
            folder / "exp.toml",
            "--clients",
            ",".join(clients),
            "--address",
            self.address,
            "--listen",
            listen,
            "--out",
            folder / "out",
            *roles,
        ).wait(120)
        assert made == 0, self.said()
        if settings:
            side = replace(read_settings(self.server, ServerSide), **settings)
            write_settings(self.server, side)

    @property
    def address(self) -> str:
        """Where clients reach the server."""
        return f"127.0.0.1:{self.port}"

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.folder / "out" / "server"

    def client(self, name: str) -> Path:
        """Return a client's folder."""
        return self.folder / "out" / "clients" / name

    def hand_out(self, table: Mapping[str, Any]) -> None:
        """Give everybody another experiment."""
        for folder in (self.server, *map(self.client, CLIENTS)):
            (folder / EXPERIMENT).write_text(tomli_w.dumps(table))

    def run(
        self,
        *arguments: object,
        said: Path | None = None,
        before: Sequence[str] = (),
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start a command of `vergence deploy`; what it prints goes to a file.

        `before` comes before the command, as `ip netns exec NAME` does.
        """
        with (said or self.folder / "said.txt").open("ab") as file:
            process = subprocess.Popen(
                [*before, sys.executable, "-c", COMMAND, *map(str, arguments)],
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "VERGENCE_STATE": str(self.folder / "user"),
                    **environment,
                },
            )
        self.started.append(process)
        return process

    def serve(self, **how: Any) -> subprocess.Popen[bytes]:
        """Start the server."""
        return self.run("serve", self.server, **how)

    def join(self, name: str, **how: Any) -> subprocess.Popen[bytes]:
        """Start a client."""
        return self.run("join", self.client(name), **how)

    def said(self) -> str:
        """Return what commands printed."""
        return (self.folder / "said.txt").read_text()

    def events(self, folder: Path | None = None) -> str:
        """Return the events of a folder, the server's by default."""
        file = (folder or self.server) / EVENTS
        return file.read_text() if file.exists() else ""

    def until(
        self, words: str | Callable[[], Any], seconds: float, folder: Path | None = None
    ) -> None:
        """Wait until an event is told, or anything else is so."""
        holds = (lambda: words in self.events(folder)) if isinstance(words, str) else words
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not '{words}': {self.events()}{self.said()}"
            time.sleep(0.1)

    def table(self, name: str) -> list[dict[str, str]]:
        """Return the rows of a table of the run's, of its only method."""
        (file,) = (self.server / "run").rglob(name)
        with file.open() as rows:
            return list(csv.DictReader(rows))

    def fingerprints(self) -> dict[str, dict[str, str]]:
        """Return every method's fingerprints, by seed, of methods that are done."""
        return fingerprints(self.server / "run")

    def rounds(self) -> int:
        """Return how many rounds have ended so far, those that were done again counted again."""
        return self.events().count(" replies")

    def processes_of(self, folder: Path) -> list[int]:
        """Return the processes that work for a folder, by what they were started with."""
        marks, found = (str(folder.resolve()), f"VERGENCE_DEPLOY={folder.resolve()}"), []
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                words += (process / "environ").read_bytes().split(b"\0")
                if process.name.isdigit() and any(mark.encode() in words for mark in marks):
                    found.append(int(process.name))
        return found

    def kill(self, folder: Path) -> None:
        """Kill all that works for a folder at once, as a power cut does."""
        while numbers := [n for n in self.processes_of(folder) if not ended(n)]:
            for number in numbers:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            for process in self.started:
                process.poll()

    def leftovers(self) -> list[str]:
        """Return processes that still work for this deployment."""
        found = []
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace")
                if str(self.folder) in words:
                    found.append(words.replace("\0", " "))
        return found

    def close(self) -> None:
        """End everything."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ended(number: int) -> bool:
    """Tell whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def deployed(
    folder: Path,
    table: Mapping[str, Any] = TABLE,
    roles: Sequence[str] = (),
    kind: type[Deployment] = Deployment,
    **settings: Any,
) -> Iterator[Deployment]:
    """Give a deployment; every process is ended with this block."""
    folder.mkdir(parents=True, exist_ok=True)
    made = kind(folder, table, roles, **settings)
    try:
        yield made
    finally:
        made.close()
