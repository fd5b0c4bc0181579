"""What reads bytes from elsewhere, fed one by one: both ends of a line, and a run's files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.test_methods import build, task_of
from tests.deployment.test_remote_clients import COUNTS, PEOPLE, Loop
from tests.drills import mutants
from tests.drills.mutants import FORBIDDEN, Tried
from tests.engine.toys import LOCAL, STAMP, run_toy
from vergence.core.aggregation import Sum
from vergence.core.serialization import unpack, unpack_file
from vergence.deployment.remote_clients import (
    RemoteClients,
    SentRequest,
    remote_people,
    remote_pool,
)
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.records import ClientState
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory, read_manifest
from vergence.experiment.registry import names
from vergence.experiment.schema import load
from vergence.methods.fedcpf import FedCPF

LIMIT = 1 << 21
"""Bytes that a message may have in the drills: twice that may be used for one."""
METHODS = ("fedavg", "fedselect", "fedcpf", "scaffold", "fedpac", "splitfed", "smashed_average")


@dataclass
class SumRequest:
    """A request as a server sends it, and its honest answer."""

    sent: SentRequest
    client: str
    request: bytes
    answer: bytes


class Talk:
    """A short run over a line, whose words can be said again: mutated, to either end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.method = folder, build(name)
        self.loop = Loop(self.method, folder / "homes")
        self.said: dict[str, tuple[bytes, bytes]] = {}
        self.heard: list[SumRequest] = []
        path = RunDirectory(folder / "server", STAMP, elsewhere=True)
        path.open()
        plan = self.loop.plan = Plan(rounds=2, evaluate_every=1, solver="sequential")
        run_rounds(
            self.method,
            task_of(self.method),
            federation=remote_people("toy", COUNTS),
            plan=plan,
            folder=path,
            pool_factory=self._pool,
        )
        self.heard = [asked for asked in self.heard if self.hear(asked, asked.answer)]
        self.homes = {client: self.loop.home(client) for client in PEOPLE.clients}
        shutil.copytree(folder / "homes", folder / "kept")

    def _pool(self, runner: Any) -> Any:
        remote, roll = remote_pool(self.loop, LIMIT)(runner)
        assert isinstance(remote, RemoteClients)
        honest, ask = remote._read, self.loop.ask

        def listening(client: str, request: bytes) -> bytes:
            self.said[client] = request, (answer := ask(client, request))
            return answer

        def noting(sent: SentRequest, answer: bytes | Exception) -> Any:
            if not sent.turn.then:
                client = sent.turn.client
                self.heard.append(SumRequest(sent, client, *self.said[client]))
            return honest(sent, answer)

        self.loop.ask = listening
        remote._read = noting  # type: ignore[method-assign]
        self.honest = honest
        return remote, roll

    def hear(self, asked: SumRequest, data: bytes) -> bool:
        """Let the server have an answer; it must never raise, and say what tables can hold."""
        receipt, sealed = self.honest(asked.sent, data)[0]
        said = [receipt.status, receipt.filed, *receipt.metrics, *receipt.measured.items()]
        str(said).encode()
        receipt.status.encode()
        if "alloc" in receipt.status or "MemoryError" in receipt.status:
            raise MemoryError(receipt.status)
        if sealed is not None:
            Sum().add(sealed)
        return receipt.status == "ok"

    def carry(self, asked: SumRequest, data: bytes) -> bool:
        """Let a client have a request; it must raise nothing but a `VergenceError`."""
        self.homes[asked.client].answer(data)
        return True

    def restore(self) -> None:
        """Put everybody's states back, and check that nothing was written elsewhere."""
        homes = self.folder / "homes"
        strays = [p.name for p in self.folder.iterdir()] + [p.name for p in homes.iterdir()]
        assert sorted(strays) == sorted(["homes", "kept", "server", *PEOPLE.clients]), strays
        shutil.rmtree(homes)
        shutil.copytree(self.folder / "kept", homes)


def counts() -> dict[str, Tried]:
    """Return what is counted, by kind. Settings name modules: those are imported, and no others."""
    kinds = ("answers", "requests", *KINDS)
    return {kind: Tried(FORBIDDEN) if kind == "config.toml" else Tried() for kind in kinds}


def messages(talks: list[Talk], draw: random.Random, tried: dict[str, Tried]) -> Iterator[None]:
    """Feed mutated answers and requests in turn, for as long as they are asked for."""
    while True:
        for _ in range(500):
            talk = draw.choice(talks)
            asked = draw.choice(talk.heard)
            data = mutants.answer(asked.answer, draw)
            tried["answers"].one(data, lambda d, t=talk, a=asked: t.hear(a, d))
            yield
            data = mutants.state(asked.request, draw)
            tried["requests"].one(data, lambda d, t=talk, a=asked: t.carry(a, d))
            yield
        for talk in talks:
            talk.restore()


KINDS = ("state files", "server states", "checkpoints", "journals", "config.toml")


class Files:
    """The folder of an interrupted run, one of whose files is another for a moment."""

    def __init__(self, folder: Path) -> None:
        self.folder, method = folder / "run", FedCPF(local=LOCAL, rate=0.2)
        run_toy(self.folder, method, rounds=3)
        task = task_of(method)
        self.records = ClientExecutor(method, task, LocalData(PEOPLE, PEOPLE), None).records  # type: ignore[arg-type]
        self.config = folder / "config.toml"
        self.config.write_text(CONFIG)
        self.odd = folder / "odd"
        state = self.folder / "state"
        files = read_manifest(self.folder)["files"]
        self.honest = {
            "state files": [p.read_bytes() for p in sorted(state.glob("*.client.*.safetensors"))],
            "server states": [(state / files["server"][0]).read_bytes()],
            "checkpoints": [(state / "checkpoint.json").read_bytes()],
            "journals": [(state / files["clients"][0]).read_bytes()],
            "config.toml": [self.config.read_bytes()],
        }
        self.places = {
            "checkpoints": state / "checkpoint.json",
            "server states": state / files["server"][0],
            "journals": state / files["clients"][0],
        }
        # Once: type hints are looked up, and, as for a misspelt name, all modules are imported that
        # may have been meant (those of data sets take 50 MB, which are no input's).
        for kind, (first, *_) in self.honest.items():
            self.read(kind, first)
        for kind in ("tasks", "models", "data", "methods", "wire"):
            names(kind, object)

    def mutant(self, kind: str, draw: random.Random) -> bytes:
        """Return a file of this kind that went wrong."""
        change: dict[str, Callable[[bytes, random.Random], bytes]] = {
            "checkpoints": mutants.sheet,
            "journals": mutants.bytewise,
            "config.toml": mutants.toml,
        }
        return change.get(kind, mutants.state)(draw.choice(self.honest[kind]), draw)

    def read(self, kind: str, data: bytes) -> bool:
        """Read one; anything but a `VergenceError` is a crash."""
        if kind in self.places:
            self.places[kind].write_bytes(data)
            try:
                folder = RunDirectory(self.folder, STAMP)
                folder.open()
                folder.load(0, self.records)
            finally:
                for name, place in self.places.items():
                    place.write_bytes(self.honest[name][0])
            return True
        self.odd.write_bytes(data)
        if kind == "config.toml":
            load(self.odd)
        else:
            unpack_file(self.odd, ClientState, *self.records)
            unpack(data, ClientState, *self.records)
        return True


CONFIG = """
extends    = []
task       = { name = "toy" }
model      = { name = "linear", inputs = 4 }
federation = { name = "toy", people = 3, samples = 20, strength = 1.0 }
method     = { name = "fedcpf", rate = 0.2, limit = 0.5 }
local      = { epochs = 1, batch = 8, lr = 0.05, optimizer = "sgd" }
presence   = { lost = 0.1, gone = { p00 = 3 } }
wire       = { codec = "topk", share = 0.5, feedback = true }
run        = { rounds = 3, seeds = [0, 1], evaluate_every = 0, workers = 1, points = ["P0"] }
"""


def files(home: Files, draw: random.Random, tried: dict[str, Tried]) -> Iterator[None]:
    """Feed mutated files, for as long as they are asked for."""
    while True:
        for kind in home.honest:
            data = home.mutant(kind, draw)
            tried[kind].one(data, lambda d, k=kind: home.read(k, d))
            yield
