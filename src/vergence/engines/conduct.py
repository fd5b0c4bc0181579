"""The only loop: setup, rounds (cohort, conversation, evaluation, checkpoint), finish."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from vergence.core.conversation import Request
from vergence.core.method import Method
from vergence.core.ranges import check_ranges
from vergence.core.site import Federation
from vergence.core.state import digest, pack
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.engines.presence import Presence
from vergence.engines.simulator import Simulator, Tally
from vergence.engines.store import Folder, Progress
from vergence.engines.turn import Worker, drive
from vergence.engines.workers import crew
from vergence.errors import ConfigError

UPLOAD = "upload"
"""The verb under which a data centre's raw data is counted."""
Point = Literal["P0", "P1", "P2"]
Tick = Callable[[int, int, Mapping[str, float]], None]
"""Called after every round with the seed, the rounds done, and the round's mean metrics."""


@dataclass(frozen=True)
class Plan:
    """How a run goes: rounds, seeds, who evaluates when, how often to save.

    `points` adds P1 (after local training) and P2 (the server's model) to P0 (what a client
    predicts with after the round's download). `workers` 0 means one per core.
    """

    rounds: Annotated[int, Ge(1)] = 20
    seeds: tuple[int, ...] = (0,)
    engine: Literal["simulator", "bytes"] = "simulator"
    workers: Annotated[int, Ge(0)] = 0
    evaluate_every: Annotated[int, Ge(0)] = 5
    checkpoint_every: Annotated[int, Ge(1)] = 1
    points: tuple[Point, ...] = ("P0",)
    presence: Presence = field(default_factory=Presence)

    def __post_init__(self) -> None:
        check_ranges(self, "run")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(
                f"run: seeds must be different numbers, at least one; got {self.seeds}"
            )
        unknown = [p for p in self.points if p not in ("P0", "P1", "P2")]
        if unknown or "P0" not in self.points:
            raise ConfigError(f"run: points must hold P0 and may add P1, P2; got {self.points}")

    @property
    def hands(self) -> int:
        """Number of worker processes."""
        return self.workers or max(len(os.sched_getaffinity(0)), 1)


@dataclass(frozen=True)
class Outcome:
    """One finished seed: its fingerprint, final states, and the last evaluation."""

    fingerprint: str
    server: Any
    clients: Mapping[str, Any]


def conduct(
    method: Method,
    task: Task,
    federation: Federation,
    plan: Plan,
    folder: Folder,
    tick: Tick | None = None,
) -> Outcome:
    """Run one seed (the task's) to its end, from its checkpoint if there is one."""
    torch.set_num_threads(1)
    stream = Stream("run", task.seed)
    trained_on = federation.pooled() if method.pooled else federation
    worker = Worker(method, task, trained_on, federation, stream)
    hands = crew(worker, plan.engine, min(plan.hands, len(federation.clients)))
    presence = Presence() if method.pooled else plan.presence
    simulator = Simulator(method, hands, presence, stream)
    try:
        conductor = _Conductor(method, task, federation, trained_on, plan, folder, simulator, tick)
        return conductor.run(worker)
    finally:
        hands.close()


@dataclass
class _Conductor:
    method: Method
    task: Task
    federation: Federation
    trained_on: Federation
    plan: Plan
    folder: Folder
    simulator: Simulator
    tick: Tick | None

    def run(self, worker: Worker) -> Outcome:
        seed, rounds = self.task.seed, self.plan.rounds
        progress = self.folder.load(seed, [*worker.records, Progress])
        if progress is None:
            server, start = self.method.server(self.task), 0
            if self.method.pooled:
                self.record_uploads()
            server = self.converse(self.method.setup(server, self.staying(0)), server, 0)
            self.report(0, server, 0.0)
            self.save(0, server)
        else:
            server, start = progress.server, progress.round
            self.simulator.clients = dict(progress.clients)
            self.simulator.known = {c: dict(m) for c, m in progress.known.items()}
        for at in range(start, rounds):
            server = self.one_round(at, server)
        began = time.perf_counter()
        server = self.converse(self.method.finish(server, self.staying(rounds)), server, rounds)
        tally = self.simulator.tally
        told = {("finish", m): float(np.mean(v)) for m, v in tally.metrics.items()}
        self.write_rounds(rounds + 1, told, self.cost(tally, time.perf_counter() - began))
        self.flush(rounds + 1, tally)
        self.final(server)
        clients = self.simulator.clients
        sha = fingerprint(server, clients, self.trained_on.clients)
        self.save(rounds, server, sha)
        return Outcome(sha, server, clients)

    def record_uploads(self) -> None:
        """Count what a data centre asks for: everybody's data, once, as the network takes it in."""
        rows = []
        for person, splits in self.federation.people.items():
            sent = sum(part.bytes() for part in (splits.train, splits.val))
            examples = self.task.weigh(splits.train)
            rows.append((self.task.seed, 0, person, UPLOAD, "data", sent, 0, examples,
                         "", 0, "", "ok"))  # fmt: skip
        self.folder.append("turns.csv", rows)

    def staying(self, at: int) -> list[str]:
        """Return the clients that have not left for good."""
        presence = self.simulator.presence
        return [c for c in self.trained_on.clients if presence.stays(c, at)]

    def one_round(self, at: int, server: Any) -> Any:
        began = time.perf_counter()
        simulator = self.simulator
        cohort = simulator.presence.ask(self.trained_on.clients, at, simulator.stream)
        points = ("P1",) if "P1" in self.plan.points and self.evaluates(at + 1) else ()
        if cohort:
            server = self.converse(self.method.round(server, cohort), server, at, points)
        self.report(at + 1, server, time.perf_counter() - began)
        if (at + 1) % self.plan.checkpoint_every == 0 or at + 1 == self.plan.rounds:
            self.save(at + 1, server)
        return server

    def converse(
        self, conversation: Any, server: Any, at: int, points: tuple[str, ...] = ()
    ) -> Any:
        """Hold one of the method's conversations and return the new server state."""

        def answer(ask: Any) -> Any:
            if not isinstance(ask, Request):
                raise ConfigError(f"a server cannot be asked for a {type(ask).__name__} yet")
            # Schedules run over the rounds: what comes after them starts at the full rate again.
            progress = at / self.plan.rounds % 1.0
            return self.simulator.exchange(ask, server, at, progress, points)

        return drive(conversation, answer)

    def evaluates(self, done: int) -> bool:
        every = self.plan.evaluate_every
        return bool(every) and (done % every == 0 or done == self.plan.rounds)

    def report(self, done: int, server: Any, seconds: float) -> None:
        """Write the rows of a round and start a new tally."""
        tally = self.simulator.tally
        means = {("train", m): float(np.mean(v)) for m, v in tally.metrics.items()}
        if done:
            means["train", "replies"] = float(tally.counted)
        if self.evaluates(done) and (done == 0 or done < self.plan.rounds):
            points = tuple(p for p in self.plan.points if p != "P1")
            found = self.simulator.evaluate(self.federation.clients, server, done, points)
            means |= averages(found)
        means |= averages(tally.measured)
        self.write_rounds(done, means, self.cost(tally, seconds))
        self.flush(done, tally)
        if self.tick is not None:
            self.tick(self.task.seed, done, {metric: v for (_, metric), v in means.items()})

    def flush(self, done: int, tally: Tally) -> None:
        """Write the turns of a round and start a new tally."""
        self.folder.append("turns.csv", [(self.task.seed, done, *row) for row in tally.turns])
        self.simulator.tally = Tally()

    def cost(self, tally: Tally, seconds: float) -> Sequence[Any]:
        """Return the last columns of rounds.csv: bytes per client, seconds, personal share."""
        share = self.simulator.personal_fraction()
        shown = "" if share is None else f"{share:.6f}"
        asked = max(len(tally.asked), 1)
        return tally.up / asked, tally.down / asked, f"{seconds:.3f}", shown

    def write_rounds(
        self, done: int, means: Mapping[tuple[str, str], float], cost: Sequence[Any]
    ) -> None:
        rows = [
            (self.task.seed, done, point, metric, repr(value), *cost)
            for (point, metric), value in means.items()
        ]
        self.folder.append("rounds.csv", rows)

    def final(self, server: Any) -> None:
        """Evaluate everybody at the end: the numbers every table shows.

        In rounds.csv they stand beside the cost of the last round, read back from there, since
        after a resume nobody remembers it.
        """
        points = tuple(p for p in self.plan.points if p != "P1")
        found = self.simulator.evaluate(self.federation.clients, server, self.plan.rounds, points)
        rows = [
            (self.task.seed, person, point, metric, repr(float(value)))
            for point, people in found.items()
            for person, metrics in people.items()
            for metric, value in metrics.items()
        ]
        self.folder.append("people.csv", rows)
        rounds = self.plan.rounds
        cost = self.folder.cost(self.task.seed, rounds) or self.cost(Tally(), 0.0)
        self.write_rounds(rounds, averages(found), cost)

    def save(self, done: int, server: Any, sha: str | None = None) -> None:
        simulator = self.simulator
        progress = Progress(done, server, simulator.clients, simulator.known)
        self.folder.save(self.task.seed, progress, sha)


def fingerprint(server: Any, clients: Mapping[str, Any], order: Sequence[str]) -> str:
    """Return the SHA-256 over the server state and the clients' own state digests, in order."""
    whole = hashlib.sha256(digest(pack(server)).encode())
    for client in order:
        state = clients.get(client)
        whole.update(f"{client}:{digest(pack(state)) if state is not None else ''}".encode())
    return whole.hexdigest()


def averages(
    found: Mapping[str, Mapping[str, Mapping[str, float]]],
) -> dict[tuple[str, str], float]:
    """Average every metric over people: (point, metric) -> mean."""
    means = {}
    for point, people in found.items():
        names = sorted({m for metrics in people.values() for m in metrics})
        for name in names:
            values = [metrics[name] for metrics in people.values() if name in metrics]
            means[point, name] = float(np.mean(values))
    return means
