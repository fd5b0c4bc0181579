"""Drills over Flower: clients killed in every round, and a server or a client killed anywhere."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen

from tests.drills.deployment import CLIENTS, Deployment, deployed, fedcpf, simulated
from tests.drills.drilling import Row
from tests.engine.toys import STAMP
from tests.lines import Line
from vergence.core.serialization import unpack
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.folders import ClientSide, settings
from vergence.deployment.joined_node import deployable
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.experiment.schema import check

RATES = (0.3, 0.5, 0.7)
LABEL = "fedcpf"
MOMENT = 1.5
"""Seconds within which somebody is killed: those of three rounds."""
WHOLE = 900.0
"""Seconds that a few rounds may take at most."""


@dataclass
class Silent(Line):
    """A line to clients of whom some say nothing in some rounds: (client, round from 1)."""

    ends: dict[str, AnsweringClient]
    silent: set[tuple[str, int]]

    def ask(self, client: str, request: bytes) -> bytes:
        """Answer, or say nothing."""
        what = unpack(request, ClientRequest)
        if what.kind == "turn" and (client, what.message.round + 1) in self.silent:
            raise ClientLost("silent")
        note = {"kind": "request", "run": "silence", "label": LABEL, "seed": 0}
        return self.ends[client].work(note, request)


def with_silence(deployment: Deployment, rounds: int, silent: set[tuple[str, int]]) -> str:
    """Return the fingerprint of the run without processes in which clients are silent like this."""
    folders = {client: deployment.client(client) for client in CLIENTS}
    sides = {c: replace(settings(f, ClientSide), run="silence") for c, f in folders.items()}
    ends = {c: AnsweringClient(folder, sides[c]) for c, folder in folders.items()}
    experiment = deployable(check(fedcpf(rounds)))
    federation = remote_people("eye_synthetic", {c: end.samples for c, end in ends.items()})
    folder = RunDirectory(deployment.folder / "silence", STAMP, elsewhere=True)
    folder.open()
    return run_rounds(
        experiment.methods[LABEL],
        experiment.task(0),
        federation=federation,
        plan=experiment.plan,
        folder=folder,
        pool_factory=remote_pool(Silent(ends, silent)),
    ).fingerprint


@dataclass
class RunningDeployment:
    """A server and its clients, who are started again whenever they have ended."""

    deployment: Deployment
    processes: dict[str, Popen[bytes]] = field(default_factory=dict)
    servings: int = 0

    def folder(self, name: str) -> Path:
        """Return whose folder it is: a client's, or the server's."""
        return self.deployment.client(name) if name in CLIENTS else self.deployment.server

    def start(self, *names: str) -> None:
        """Start who does not run."""
        for name in names:
            if name not in self.processes or self.processes[name].poll() is not None:
                join = self.deployment.join
                self.servings += name == "server"
                self.processes[name] = join(name) if name in CLIENTS else self.deployment.serve()

    def kill(self, name: str) -> None:
        """Kill one with everything that works for it."""
        self.deployment.kill(self.folder(name))
        self.processes[name].wait()

    def finish(self) -> None:
        """Go on until the server is done, and again if it stopped."""
        end = time.monotonic() + WHOLE
        while self.processes["server"].poll() != 0:
            self.start("server", *CLIENTS)
            assert time.monotonic() < end, self.deployment.events()
            time.sleep(0.2)


@contextmanager
def running(rounds: int, **settings: float) -> Iterator[RunningDeployment]:
    """Give a deployment that runs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        deployed(Path(folder), fedcpf(rounds), **settings) as deployment,
    ):
        made = RunningDeployment(deployment)
        made.start("server", *CLIENTS)
        yield made


def turns(deployment: Deployment) -> dict[tuple[str, int], str]:
    """Return what became of every turn; there is one row for each."""
    rows = [
        (row["client"], int(row["round"]), row["status"]) for row in deployment.table("turns.csv")
    ]
    twice = [turn for turn, count in Counter(row[:2] for row in rows).items() if count > 1]
    assert not twice, f"counted twice: {twice}"
    return {(client, number): status for client, number, status in rows}


def clients(rounds: int = 3) -> Iterator[Row]:
    """Kill clients in every round; they come back in the next one."""
    for rate in RATES:
        draw, killed = random.Random(f"over flower {rate}"), 0
        with running(rounds, answer_s=25.0, absent_s=25.0) as made:
            deployment = made.deployment
            deployment.until("round 0 of", WHOLE)
            for number in range(1, rounds + 1):
                marked = [client for client in CLIENTS if draw.random() < rate]
                for client in draw.sample(marked, len(marked)):
                    time.sleep(draw.uniform(0.0, 0.5))
                    made.kill(client)
                    killed += 1
                while f"round {number} of" not in deployment.events():
                    if made.processes["server"].poll() is not None:  # nobody was left
                        made.start("server", *CLIENTS)
                    time.sleep(0.1)
                made.start(*CLIENTS)
            made.finish()
            seen = turns(deployment)
            lost = {turn for turn, status in seen.items() if status != "ok"}
            silence = {LABEL: {"0": with_silence(deployment, rounds, lost)}}
            same = deployment.fingerprints() == silence
        whole = len(seen) == rounds * len(CLIENTS)
        yield Row(
            f"clients killed, {rate:.0%} a round, {rounds} rounds",
            "every round ends, each turn counts once, states as if the lost had been silent",
            f"{'all ended' if whole else 'NOT ALL ENDED'}; {killed} kills, {len(lost)} of "
            f"{len(seen)} turns lost, {made.servings - 1} times nobody was left; fingerprint "
            f"{'that of silence' if same else 'DIFFERENT'}",
            whole and same,
        )


def server(kills: int = 5) -> Iterator[Row]:
    """Kill the server at random moments, or as soon as a file is half written; start it again."""
    rounds, draw, inside = 2 * kills, random.Random("flower server"), 0
    with tempfile.TemporaryDirectory() as here:
        want = simulated(fedcpf(rounds), Path(here) / "run")
    with running(rounds) as made:
        deployment = made.deployment
        for number in range(kills):
            deployment.until(lambda n=2 * number: deployment.rounds() > n, WHOLE)
            if number % 2 == 0:
                inside += caught(deployment.server / "run", 20.0)
            else:
                time.sleep(draw.uniform(0.0, MOMENT))
            made.kill("server")
            made.start("server", *CLIENTS)
        made.finish()
        turns(deployment)
        same = deployment.fingerprints() == want
        back = made.servings - 1
    yield Row(
        f"server kill -9 at {kills} points",
        f"{kills}/{kills} resume, same fingerprint",
        f"{back}/{kills} resumed, {inside} of them killed while a file was half written; "
        f"fingerprint {'equal' if same else 'DIFFERENT'}",
        same and back == kills,
    )


def caught(folder: Path, seconds: float) -> bool:
    """Wait until a file is half written, which takes no millisecond; tell whether one was seen."""
    end = time.monotonic() + seconds
    states = [path for path in folder.rglob("*") if path.is_dir()] + [folder]
    while time.monotonic() < end:
        if any(name.endswith(".part") for path in states for name in os.listdir(path)):  # noqa: PTH208
            return True
    return False


def client(kills: int = 3) -> Iterator[Row]:
    """Kill a client at random moments; it comes back at once."""
    rounds, draw = 2 * kills, random.Random("flower client")
    with tempfile.TemporaryDirectory() as here:
        want = simulated(fedcpf(rounds), Path(here) / "run")
    with running(rounds) as made:
        deployment = made.deployment
        for number in range(kills):
            deployment.until(lambda n=2 * number: deployment.rounds() > n, WHOLE)
            time.sleep(draw.uniform(0.0, MOMENT))
            name = draw.choice(CLIENTS)
            made.kill(name)
            made.start(name)
        made.finish()
        seen, same = turns(deployment), deployment.fingerprints() == want
    good = [status for status in seen.values() if status == "ok"]
    yield Row(
        f"client kill -9 at {kills} points, back at once",
        "each turn counts once, same fingerprint",
        f"{len(good)} of {rounds * len(CLIENTS)} turns counted, none twice; fingerprint "
        f"{'equal' if same else 'DIFFERENT'}",
        same and len(good) == rounds * len(CLIENTS),
    )
