"""The loop over rounds of one seed: setup, rounds, finish.

A round draws a cohort, answers the method's requests to it, evaluates, and writes a checkpoint.

Used in most packages.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from vergence import console, profiling
from vergence.core.conversation import drive
from vergence.core.federation import Federation
from vergence.core.layers.averaged_statistics import averaging_statistics
from vergence.core.local_training import Precision
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, ServeGroups
from vergence.core.serialization import digest, pack, unpack
from vergence.core.task import Task
from vergence.engine import compatibility_check
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.early_stopping import VALIDATION, EarlyStopping
from vergence.engine.exchange import ClientExchange, ExchangeTotals
from vergence.engine.lab_runner import LabRunner
from vergence.engine.participation import Participation, pooled_method
from vergence.engine.plan import Plan
from vergence.engine.protections.setup import client_hooks, server_hooks
from vergence.engine.records import LabState
from vergence.engine.secure_sums import SecureSum, sums_for
from vergence.engine.solver_selection import (
    device_for,
    loads,
    precision_for,
    solver_for,
    stays_on,
)
from vergence.engine.storage.client_states import (
    ClientStateIndex,
    ClientStateStore,
    ResidentStateStore,
)
from vergence.engine.storage.run_directory import Checkpoint, RunDirectory, SolverChoice
from vergence.engine.virtual_clock import ClockState, VirtualClock, read_log
from vergence.engine.workers.pools import InProcess, WorkerPool, worker_pool
from vergence.engine.workers.ray_transfer import LostStates
from vergence.errors import ConfigError, StateError
from vergence.metrics.intervals import with_number
from vergence.privacy.hooks import ServerHooks
from vergence.system.memory import available_bytes
from vergence.system.processes import cpu_count
from vergence.training.device import products_in, room_on
from vergence.wire.codecs import Compression

RETURNS = 10
"""Times that a run goes back to its last checkpoint, as a machine died that had clients' states."""
# A larger state takes longer to hash and to write than a thread takes to start.
LARGE = 4_000_000
"""Number of a network's parameters above which a thread writes checkpoints."""
# One that trains and two that compute what methods do with results: each has several vectors of the
# model's size.
TURNS_AT_ONCE = 3
"""Number of threads that carry out turns of a large network in one process."""
UPLOAD = "upload"
"""Name in turns.csv for the raw data that are sent to a data centre."""
Tick = Callable[["RoundSummary"], object]
"""Called after every round, and once more when the last round's models have been measured. A run
ends after the round for which it returns True."""
PoolFactory = Callable[[ClientRunner], tuple[WorkerPool, ClientStateIndex]]
"""Makes the worker pool of a run, and the index of clients' states."""
MetricsAt = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Evaluation point (such as P0) -> person -> metric -> value."""
Begin = Callable[[], Checkpoint]
"""Copies clients' states into a run's folder, and returns the checkpoint that a run starts from."""


@dataclass(frozen=True)
class RoundSummary:
    """What a run tells its caller after a round.

    Attributes:
        seed: seed of the run.
        round: number of rounds that are done.
        metrics: means over people, of this round alone; without an evaluation these are the
            training loss, the number of replies, and what protections count.
        people: person -> metric -> value, from the last evaluation so far; empty before the first.
        processes: number of processes of this machine that train; 0 in a deployment, whose clients
            train.
        final: whether this is the evaluation after the last round and the method's `finish`.
        caution: what the method warns of in the server's step of this round; "": nothing.
    """

    seed: int
    round: int
    metrics: Mapping[str, float]
    people: Mapping[str, Mapping[str, float]]
    processes: int
    final: bool = False
    caution: str = ""


@dataclass(frozen=True)
class RunOutcome:
    """Result of one finished seed of a run.

    Attributes:
        fingerprint: SHA-256 over the final states and the training settings.
        server: final state of the method's server.
        clients: final state of every client that took part, by client.
    """

    fingerprint: str
    server: Any
    clients: Mapping[str, Any]


def run_rounds(
    method: Method,
    task: Task,
    *,
    federation: Federation,
    plan: Plan,
    folder: RunDirectory,
    tick: Tick | None = None,
    pool_factory: PoolFactory | None = None,
    begin: Begin | None = None,
) -> RunOutcome:
    """Run one seed to its end, from its checkpoint if it has one.

    Args:
        method: the method.
        task: the task, with the seed.
        federation: the clients' data.
        plan: the settings.
        folder: where tables, checkpoints and states are written.
        tick: called after every round.
        pool_factory: makes the worker pool, which runs clients' turns; None: processes of this
            machine.
        begin: returns a checkpoint to start from; None: the method's `setup` makes the first
            states.
    """
    run = partial(_run_on, method, task, federation, plan, folder, tick, pool_factory, begin)
    for _ in range(RETURNS):
        try:
            return run()
        except LostStates as lost:
            console.note(f"{lost}: the rounds since then are computed again")
            folder.open()
    return run()


def _run_on(
    method: Method,
    task: Task,
    federation: Federation,
    plan: Plan,
    folder: RunDirectory,
    tick: Tick | None,
    pool_factory: PoolFactory | None,
    begin: Begin | None,
) -> RunOutcome:
    """Run one seed from its checkpoint, if it has one, to its end; see `run_rounds`.

    Raises:
        LostStates: a machine of a Ray cluster died that had states of clients.
    """
    # Processes share the cores, one thread each; and sums of several threads have other last bits.
    torch.set_num_threads(1)
    compatibility_check.check(plan, method, task)
    plan.delivery.check()
    device = device_for(plan)
    setup = RunSetup.of(method, task, federation, plan, folder, here=pool_factory is None)
    sums = (
        None
        if plan.privacy.aggregation is None
        else sums_for(plan, setup.method, len(setup.trained_on.clients))
    )
    solving = setup.solver_choice(device)
    refuse_changed_hardware(device, precision_for(method, task, plan, device).name, solving, folder)
    hooks = server_hooks(plan, setup.method, task, setup.turns_on, folder.state)
    executor = setup.executor(device, solving, all_here=pool_factory is None)
    # What a protection computes with is in main memory.
    plain = pool_factory is None and not (hooks or executor.hooks)
    store = ClientStateStore(folder.state, task.seed, records_of(plan, setup.method, task))
    if plain and stays_on(device, setup.method, plan):
        store = ResidentStateStore(**vars(store) | {"device": device, "room": room_on(device)})
    runner = runner_for(plan, executor, store, sums)
    # CUDA does not work in forked processes, so one process trains everybody on a GPU.
    most = len(federation.clients) if device.type == "cpu" else 1
    if pool_factory is None:
        # A run without labs enters none of their code (`tests/engine/test_plain_run.py`).
        pool = worker_pool(runner, plan, most)
        far = plan.engine == "ray" and not plan.silos.labs
        if far or (plain and type(pool) is InProcess and stays_here(executor, plan)):
            room = available_bytes() / 4
            store = runner.store = ResidentStateStore(**vars(store), room=room)
            if sums is None and isinstance(pool, InProcess):
                pool.threads = min(TURNS_AT_ONCE, cpu_count())
        index = ClientStateIndex(store, plan.silos.lab_of if plan.silos.labs else {})
    else:
        pool, index = pool_factory(runner)
    exchange = setup.exchange(pool, index, solving.chunk, sums, hooks)
    with closing(pool), products_in(solving.precision), folder.writing():
        return RoundLoop(setup, exchange, executor, tick, begin).run(store)


def stays_here(executor: ClientExecutor, plan: Plan) -> bool:
    """Return whether states stay in main memory of the one process that trains on a CPU.

    Workers share states through files, whose pages the system keeps in memory.
    """
    # Others' methods may change a state in place, and a refused reply must leave it as it was.
    return (
        executor.solver.layout.n > LARGE
        and executor.how.device.type == "cpu"
        and type(executor.method).__module__.startswith("vergence.methods.")
        and not plan.silos.labs
    )


def records_of(plan: Plan, method: Method, task: Task) -> tuple[type, ...]:
    """Return the dataclasses of states: the server's, a person's, and with labs a lab's."""
    return (*method.state_records(task), *((LabState,) if plan.silos.labs else ()))


def runner_for(
    plan: Plan, worker: ClientExecutor, store: ClientStateStore, sums: SecureSum | None
) -> ClientRunner:
    """Make the runner of clients' tasks; if the plan has labs, a runner of labs' tasks."""
    runner = partial(LabRunner, plan.silos) if plan.silos.labs else ClientRunner
    return runner(worker, store, sums)


@dataclass(frozen=True)
class RunSetup:
    """Parts of a run that exist before its workers start.

    Attributes:
        method: the method.
        task: the task, with the seed.
        federation: the people and their data.
        trained_on: the clients that train: people, labs (without data in this federation), or one
            data centre with everybody's data.
        plan: the settings.
        folder: the run's folder.
    """

    method: Method
    task: Task
    federation: Federation
    trained_on: Federation
    plan: Plan
    folder: RunDirectory

    @classmethod
    def of(
        cls,
        method: Method,
        task: Task,
        federation: Federation,
        plan: Plan,
        folder: RunDirectory,
        here: bool = True,
    ) -> RunSetup:
        """Make the parts of a run.

        Args:
            method: the method.
            task: the task, with the seed.
            federation: the people and their data.
            plan: the settings.
            folder: the run's folder.
            here: whether people's data are on this machine. If not, `federation` lists the clients
                of a deployment; a lab is one client.
        """
        if not method.pooled:
            sites = plan.silos.grouped(federation) if here and plan.silos.labs else federation
            return cls(method, task, federation, sites, plan, folder)
        method, pooled = pooled_method(method, federation), federation.pooled()
        return cls(method, task, federation, pooled, plan, folder)

    @property
    def turns_on(self) -> Federation:
        """The data on which turns train: the clients' own, or those of the people in labs."""
        return self.federation if self.plan.silos.labs else self.trained_on

    @property
    def stream(self) -> RandomStream:
        """Stream of the run's random numbers."""
        return RandomStream("run", self.task.seed)

    @property
    def presence(self) -> Participation:
        """Rule for which clients take part in a round; a data centre always takes part."""
        return Participation() if self.method.pooled else self.plan.presence

    def solver_choice(self, device: torch.device) -> SolverChoice:
        """Return the run's training settings, such as the solver; a new run chooses them now."""
        # A resumed run keeps its solver: another one would give other last bits.
        solving = self.folder.solving
        if solving is None:
            clients = self.trained_on.clients
            cohort = self.presence.ask(clients, 0, self.stream) or clients
            with profiling.phase("trial"):
                solving = self.folder.solving = solver_for(
                    self.method, self.task, self.trained_on, cohort, self.plan, device
                )
        return solving

    def executor(
        self, device: torch.device, solving: SolverChoice, all_here: bool
    ) -> ClientExecutor:
        """Make the executor that runs clients' turns on this machine, with its protection hooks."""
        method, task, plan = self.method, self.task, self.plan
        # Nothing travels in a data centre, so there is nothing to compress.
        codec = Compression() if method.pooled else plan.wire
        return ClientExecutor(
            method,
            task,
            LocalData(self.turns_on, self.federation, all_here),
            self.stream,
            Computation(solving.precision, solving.solver == "stacked", device, codec),
            client_hooks(
                plan,
                method,
                task,
                self.turns_on,
                self.folder.state,
                here=all_here,
                device=device,
            ),
        )

    def exchange(
        self,
        pool: WorkerPool,
        index: ClientStateIndex,
        chunk: int,
        sums: SecureSum | None,
        hooks: Sequence[ServerHooks],
    ) -> ClientExchange:
        """Make the exchange, which answers the method's requests with turns run by the pool."""
        method, plan, clock = self.method, self.plan, None
        if not method.pooled:
            clock = virtual_clock_for(plan, method, self.trained_on, self.stream, self.task.seed)
        return ClientExchange(
            method,
            pool,
            self.presence,
            self.stream,
            index,
            loads(self.trained_on),
            chunk,
            virtual_clock=clock,
            sums=sums,
            server_hooks=hooks,
        )


def refuse_changed_hardware(
    device: torch.device, precision: Precision, solving: SolverChoice, folder: RunDirectory
) -> None:
    """Refuse to resume a run on another kind of device, or in another precision.

    `run_rounds` calls this.

    Raises:
        StateError: device or precision has changed; the message says with which the run began.
    """
    # Bits would differ. Precision "auto" may choose otherwise on another machine.
    if solving.device != device.type:
        raise StateError(
            f"{folder.path} was begun on '{solving.device}', and now run.device is "
            f"'{device.type}': go on where it was begun, or start a new run elsewhere"
        )

    if solving.precision != precision:
        raise StateError(
            f"{folder.path} was begun in precision '{solving.precision}', and on this machine "
            f"run.precision = 'auto' is '{precision}': go on where it was begun, or start a new "
            "run elsewhere"
        )


def virtual_clock_for(
    plan: Plan, method: Method, federation: Federation, stream: RandomStream, seed: int
) -> VirtualClock | None:
    """Make the virtual clock of a run; None: the run has none.

    `RunSetup.exchange` calls this.
    """
    delivery, known, local = plan.delivery, loads(federation), method.local
    if not delivery.timed:
        return None

    def work(client: str) -> float:
        """Return the number of samples that a client trains on in a turn, repeats included."""
        if local.steps is not None:
            return local.steps * local.batch
        samples = known.get(client)
        # Clients elsewhere claim their numbers of samples: of none, a turn would take no time, and
        # nobody else would ever be waited for.
        return local.epochs * max(1, samples or len(federation.people[client].train))

    log = None if delivery.replay is None else read_log(delivery.replay, seed)
    return VirtualClock(delivery, plan.presence, stream, work, log)


@dataclass
class RoundLoop:
    """Runs setup, rounds and finish of one seed, and writes its tables and checkpoints."""

    setup: RunSetup
    exchange: ClientExchange
    executor: ClientExecutor
    tick: Tick | None
    begin: Begin | None

    def __post_init__(self) -> None:
        setup = self.setup
        self.method, self.task, self.plan, self.folder = (
            setup.method,
            setup.task,
            setup.plan,
            setup.folder,
        )
        self.federation, self.trained_on = setup.federation, setup.trained_on
        self.people: Mapping[str, Mapping[str, float]] = {}
        self.saved = time.monotonic()
        # In a deployment every round is on the disk before the next begins.
        self.large = self.executor.solver.layout.n > LARGE and not self.folder.elsewhere
        self.best: Checkpoint | None = None
        self.caution = ""

    def run(self, store: ClientStateStore) -> RunOutcome:
        """Run the seed to its end, from its checkpoint if there is one.

        Args:
            store: where the states lie, and of which dataclasses they may be made; a checkpoint
                with others is refused.
        """
        seed = self.task.seed
        fresh = store.placed(self.method.server(self.task))
        progress = self.folder.load(seed, (*store.records, ClockState, Message), fresh)
        if progress is None:
            began = time.perf_counter()
            server, start = store.placed(self.opening(fresh)), 0
            self.report(0, server, time.perf_counter() - began)
            if self.plan.checkpoint_every:
                self.save(0, server)
        else:
            server, start, self.best = store.placed(progress.server), progress.round, progress.best
            self.exchange.clients.restore(progress.filed)
            if self.best is not None:
                self.best = replace(self.best, server=store.placed(self.best.server))
                self.exchange.clients.best = dict(self.best.filed)
            if self.exchange.virtual_clock is not None:
                self.exchange.virtual_clock.restore(progress.engine_state)
            if progress.unmeasured:
                self.measure_late(start, server)
        while start < (rounds := self.folder.last_round(seed, self.plan.rounds)):
            self.exchange.begin(str(start))
            server = self.one_round(start, server)
            start += 1
        last = rounds
        if self.best is not None:
            rounds, server = self.best.round, self.best.server
            self.exchange.clients.restore(self.best.filed)
        began = time.perf_counter()
        self.exchange.begin("finish")
        there = self.exchange.presence.returned(self.trained_on.clients, last)
        before, tally = server, self.exchange.tally
        server = self.converse(self.method.finish(server, there), server, rounds)
        means = {("finish", m): float(np.mean(v)) for m, v in tally.metrics.items()}
        # Most methods do nothing at the end and return the same object: no row says 0 replies then.
        if server is not before:
            means["finish", "replies"] = float(tally.counted)
        self.write_rounds(last + 1, means, self.cost(tally, time.perf_counter() - began))
        self.flush(last + 1, tally)
        # A run that was stopped, or went back, has measured the models of this round already.
        known = self.measures_between(rounds) and self.plan.evaluates(rounds) and server is before
        self.final(server, rounds, last, known)
        index, solving = self.exchange.clients, self.folder.solving
        assert solving is not None
        packed = pack(server)
        sha = fingerprint(digest(packed), index.sha256(), solving)
        self.save(last, server, sha)
        if (home := store.at_home()) is not store:
            index.store, server = home, unpack(packed, *store.records)
        return RunOutcome(sha, server, index)

    def opening(self, fresh: object) -> object:
        """Return the server's state before the first round, and store clients' states.

        The states come from the method's `setup`, or from `begin` if that is given.
        """
        if self.method.pooled:
            self.record_uploads()
        self.exchange.begin("setup")
        if self.begin is None:
            there = self.exchange.presence.staying(self.trained_on.clients, 0)
            return self.converse(self.method.setup(fresh, there), fresh, 0)
        checkpoint = self.begin()
        for client, entry in checkpoint.filed.items():
            self.exchange.clients.commit(client, entry)
        return checkpoint.server

    def record_uploads(self) -> None:
        """Write to turns.csv the bytes of sending everybody's data to a data centre."""
        seed, weigh, people = self.task.seed, self.task.weigh, self.federation.people
        sent = {person: s.train.bytes() + s.val.bytes() for person, s in people.items()}
        rows = [
            (seed, 0, person, UPLOAD, "data", sent[person], 0, weigh(s.train), "", 0, "", "ok")
            for person, s in people.items()
        ]
        self.folder.append("turns.csv", rows)

    def one_round(self, at: int, server: object) -> object:
        """Run round `at` (from 0); return the server's new state."""
        began = time.perf_counter()
        exchange = self.exchange
        cohort = exchange.cohort(self.trained_on.clients, at)
        points, before = self.plan.points_in(at), server
        # An empty cohort means a round without a conversation. Under user-level privacy that would
        # tell that nobody was drawn, so the round is held and gets its noise.
        if cohort or any(hook.hides_cohort for hook in exchange.server_hooks):
            talk = self.method.round(server, cohort)
            if (names := self.task.averaged_statistics()) and not self.method.keeps_statistics:
                talk = averaging_statistics(talk, server, names)
            server = self.converse(talk, server, at, points)
        self.caution = self.method.caution(before, server)
        self.report(at + 1, server, time.perf_counter() - began)
        # A checkpoint fetches clients' states from the machines of a Ray cluster.
        rare = self.large or self.plan.engine == "ray"
        due = self.plan.checkpoint_due(at + 1, rare, time.monotonic() - self.saved)
        last = at + 1 == self.folder.last_round(self.task.seed, self.plan.rounds)
        best = self.best is not None and self.best.round == at + 1
        if self.plan.checkpoint_every and (due or last or best):
            self.save(at + 1, server)
        # An error of the thread that writes the last checkpoint ends the run now.
        self.folder.wait(0)
        return server

    def converse(
        self, conversation: object, server: object, at: int, points: tuple[str, ...] = ()
    ) -> object:
        """Run one of the method's server generators, such as a round, and answer its requests.

        Returns the server's new state.
        """

        def answer(ask: object) -> object:
            """Answer one request of the method's server half."""
            progress = self.plan.progress(at)
            if isinstance(ask, ServeGroups):
                return self.exchange.attend(ask, server, at, progress)
            if not isinstance(ask, Request):
                return self.executor.answer(ask, progress)
            return self.exchange.exchange(ask, server, at, progress, points)

        return drive(conversation, answer)

    def report(self, done: int, server: object, seconds: float) -> None:
        """Finish a round: evaluate if that is due, write the round's rows, and call `tick`."""
        tally = self.exchange.tally
        means = {("train", m): float(np.mean(v)) for m, v in tally.metrics.items()}
        if done:
            means["train", "replies"] = float(tally.counted)
            if self.exchange.virtual_clock is not None:
                means["train", "clock"] = self.exchange.virtual_clock.clock
            for hook in self.exchange.server_hooks:
                means |= {("train", name): value for name, value in hook.metrics().items()}
            numbers = self.method.server_metrics(server)
            means |= {("train", name): value for name, value in numbers.items()}
        if (points := self.plan.points_at(done)) and self.measures_between(done):
            means |= self.measure(done, server, points)
        means |= self.write_curves(done, tally.measured)
        self.write_rounds(done, means, self.cost(tally, seconds))
        self.flush(done, tally)
        if any(point == VALIDATION for point, _ in means):
            self.watch(done, server, means)
        if self.tell(done, means) is True and done:
            self.refuse_stop()
            self.folder.stop(self.task.seed, done, "on_round returned True")

    def measures_between(self, done: int) -> bool:
        """Return whether people are evaluated after this round before `finish`, if that is due."""
        # Else `final` measures after the last round, when `finish` has been held.
        return done < self.plan.rounds or self.plan.early_stopping.restores

    def evaluate(
        self, server: object, done: int, points: tuple[str, ...]
    ) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Evaluate people after a round; return evaluation point -> person -> metric -> value."""
        metrics_at = self.exchange.evaluate(
            measured(self.federation, self.plan), server, done, points
        )
        self.people = metrics_at.get("P0", self.people)
        return metrics_at

    def measure_late(self, done: int, server: object) -> None:
        """Evaluate after a round, if it is due, in a run for which this was the last one before."""
        if points := self.plan.points_at(done):
            means = self.measure(done, server, points)
            self.write_rounds(done, means, self.folder.cost(self.task.seed, done) or ())
            if VALIDATION in points:
                self.watch(done, server, means)

    def measure(
        self, done: int, server: object, points: tuple[str, ...]
    ) -> dict[tuple[str, str], float]:
        """Evaluate people between rounds; return (evaluation point, metric) -> mean over people."""
        return self.write_curves(done, self.evaluate(server, done, points))

    def write_curves(self, done: int, metrics_at: MetricsAt) -> dict[tuple[str, str], float]:
        """Write each person's scores after a round to curves.csv; return means over people.

        Nothing is written if a protection hides people.
        """
        if metrics_at and not self.plan.privacy.hiding:
            # The results of a lab's turn, at P1, are means over its people, under the lab's name.
            people = {*measured(self.federation, self.plan)}
            rows = [
                (self.task.seed, done, point, person, metric, repr(float(value)))
                for point, values in metrics_at.items()
                for person, metrics in values.items()
                for metric, value in metrics.items()
                if person in people
            ]
            self.folder.append("curves.csv", rows)
        return averages(metrics_at)

    def watch(self, done: int, server: object, means: Mapping[tuple[str, str], float]) -> None:
        """End the run if the metric of early stopping no longer improves; mark the best states."""
        rule, clients = self.plan.early_stopping, self.exchange.clients
        names = [name for point, name in means if point == VALIDATION]
        metric = rule.watched(self.task.headline, names)
        values = self.folder.values(self.task.seed, VALIDATION, metric)
        lower = metric in self.task.lower_is_better
        if rule.restores and rule.best(values, lower) == len(values) - 1:
            clients.mark_best()
            self.best = Checkpoint(done, server, clients.best)
            # No checkpoint names files before the end, so replaced ones are not needed.
            if not self.plan.checkpoint_every:
                clients.pin()
        if done and rule.ends(values, lower):
            evaluations = plural(rule.patience, "evaluation")
            why = f"{metric} on validation samples has not gained for {evaluations}"
            self.folder.stop(self.task.seed, done, why)

    def refuse_stop(self) -> None:
        """Refuse to end a run whose protections fix the number of rounds beforehand.

        Raises:
            ConfigError: names the protection.
        """
        try:
            replace(self.plan, evaluate_every=1, early_stopping=EarlyStopping(patience=1))
        except ConfigError as error:
            raise ConfigError(f"on_round returned True, which ends a run: {error}") from None

    def tell(
        self, done: int, means: Mapping[tuple[str, str], float], final: bool = False
    ) -> object:
        """Call `tick` with a summary of a round; return its result, or None without a `tick`."""
        if self.tick is None:
            return None
        # Metrics at P1 and P2 have the names of those at P0, with which a client predicts.
        metrics = {name: v for (point, name), v in means.items() if point in ("train", "P0")}
        processes = self.exchange.pool.count
        caution = "" if final else self.caution
        return self.tick(
            RoundSummary(self.task.seed, done, metrics, self.people, processes, final, caution)
        )

    def flush(self, done: int, tally: ExchangeTotals) -> None:
        """Write a round's turns and clock events to their tables, and reset the round's totals."""
        self.folder.append("turns.csv", [(self.task.seed, done, *row) for row in tally.turns])
        if (virtual_clock := self.exchange.virtual_clock) is not None:
            self.folder.append("events.csv", [(self.task.seed, *row) for row in virtual_clock.rows])
            virtual_clock.rows.clear()
        self.exchange.tally = ExchangeTotals()

    def cost(self, tally: ExchangeTotals, seconds: float) -> Sequence[str | float]:
        """Return the last columns of rounds.csv.

        They are bytes up and down per client, seconds, and the mean personal fraction of
        parameters.
        """
        share = self.exchange.personal_fraction()
        text = "" if share is None else f"{share:.6f}"
        asked = max(len(tally.asked), 1)
        return tally.up / asked, tally.down / asked, f"{seconds:.3f}", text

    def write_rounds(
        self, done: int, means: Mapping[tuple[str, str], float], cost: Sequence[str | float]
    ) -> None:
        """Write a row of rounds.csv for every mean, each with the cost of the round.

        `means` maps (evaluation point, metric) to a mean over people.
        """
        rows = [
            (self.task.seed, done, point, metric, repr(value), *cost)
            for (point, metric), value in means.items()
        ]
        self.folder.append("rounds.csv", rows)

    def final(self, server: object, rounds: int, last: int, known: bool) -> None:
        """Evaluate people at the end; write people.csv and the last rows of rounds.csv.

        Args:
            server: the server's state.
            rounds: number of rounds in which the models were trained.
            last: number of rounds that are done.
            known: whether rounds.csv has the scores of these models already.
        """
        metrics_at = self.evaluate(server, rounds, self.plan.final_points)
        rows = [
            (self.task.seed, person, point, metric, repr(float(value)))
            for point, people in metrics_at.items()
            for person, metrics in people.items()
            for metric, value in metrics.items()
        ]
        self.folder.append("people.csv", rows)
        # The cost of the last round is read back from its rows: a run that was resumed after them
        # does not have it in memory.
        cost = self.folder.cost(self.task.seed, rounds) or self.cost(ExchangeTotals(), 0.0)
        means = averages(metrics_at)
        if not known:
            self.write_rounds(rounds, means, cost)
        self.tell(last, means, final=True)

    def save(self, done: int, server: object, sha: str | None = None) -> None:
        """Write a checkpoint; with a fingerprint `sha`, the last checkpoint of a finished seed."""
        virtual_clock = self.exchange.virtual_clock if sha is None else None
        engine_state = {} if virtual_clock is None else virtual_clock.engine_state()
        best, self.saved = None if self.best is None else self.best.round, time.monotonic()
        # What is late on a virtual clock changes in place.
        self.folder.background = self.large and virtual_clock is None
        index, seed = self.exchange.clients, self.task.seed
        self.folder.save(seed, done, server, index, sha, engine_state, best)


def measured(federation: Federation, plan: Plan) -> Sequence[str]:
    """Return the people to evaluate: everybody who has test samples, or a random sample of them.

    All are returned if nobody's test samples are on this machine, as on the server of a deployment.
    """
    people, few = federation.clients, plan.evaluate_people
    if (scored := federation.scored_people) and len(scored) < len(people):
        people = tuple(scored)
    if not few or few >= len(people):
        return people
    # The stream knows no seed: methods, seeds and rounds are compared on the same people.
    places = RandomStream("measured", few).numpy().choice(len(people), few, replace=False)
    return [people[int(i)] for i in sorted(places)]


def fingerprint(server: str, clients: Mapping[str, str], solving: SolverChoice) -> str:
    """Return the SHA-256 over the training settings and the digests of all states.

    Args:
        server: digest of the server's state.
        clients: client -> digest of its state.
        solving: the training settings.
    """
    # Training settings go in too: another solver gives other last bits.
    settings = f"{solving.solver} {solving.chunk} {solving.precision} {solving.device} "
    whole = hashlib.sha256((settings + server).encode())
    for client, sha in sorted(clients.items()):
        whole.update(f"{client}:{sha}".encode())
    return whole.hexdigest()


def averages(metrics_at: MetricsAt) -> dict[tuple[str, str], float]:
    """Average every metric over people; return (evaluation point, metric) -> mean.

    NaN values are left out.
    """
    return {
        (point, name): float(np.mean(with_number(m[name] for m in people.values() if name in m)))
        for point, people in metrics_at.items()
        for name in sorted({name for metrics in people.values() for name in metrics})
    }
