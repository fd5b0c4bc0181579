"""Worker pools, which run clients' tasks: in this process, in forked processes, or by Ray.

Used by `engine.exchange` and `engine.round_loop`.
"""

# All give the same bits: the result of a group of tasks does not depend on the worker, and groups
# are added up in their order.

from __future__ import annotations

import json
import math
import selectors
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from vergence import console, errors, profiling
from vergence.core.aggregation import Sum
from vergence.core.federation import Population
from vergence.core.files import JsonObject
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.serialization import pack, unpack
from vergence.engine.channel import ByteChannel
from vergence.engine.client_runner import ClientRunner
from vergence.engine.plan import Plan
from vergence.engine.records import ClientResult, ClientTask, GroupResult, TaskBatch
from vergence.engine.secure_sum_attempts import InProcessProtocol, with_opened_sum
from vergence.engine.secure_sums import PackedReply
from vergence.engine.storage.state_journal import StateRef
from vergence.engine.workers.process_main import WorkerProcess
from vergence.engine.workers.ray_actors import RayCluster
from vergence.engine.workers.shared_memory import Layouts, SharedArena, TaskTickets
from vergence.errors import PartialRun
from vergence.system.memory import keep_freed_memory
from vergence.system.processes import can_fork, fork_context

# Below so many seconds of training, starting processes takes longer than they save.
WORTH_FORKING = 1.0
# Measures of a slow core: seconds of a gradient step besides its arithmetic, multiplications and
# additions per second.
STEP_SECONDS, SUMS_PER_SECOND = 5e-4, 5e9
# Up to so many entries a network's sum takes a megabyte of memory, and many sums may wait.
SMALL = 250_000


class WorkerPool(Protocol):
    """Carries out batches of clients' tasks.

    A group's result must be read before the next one is requested, as its memory is reused.

    Attributes:
        count: number of processes that train; 0 in a deployment, whose clients train.
    """

    count: int

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Carry out a batch; yield each group's number and result, in any order."""
        ...

    def close(self) -> None:
        """Stop at once; unfinished groups do not count."""
        ...


class InProcess:
    """Carries out groups of clients' tasks in this process, one after another.

    Attributes:
        threads: how many turns are under way at once, each in a thread of its own; 1: one turn
            after the other, in the calling thread. One thread trains at a time, while the others
            compute what methods do with the results, and check and add up replies.
    """

    count = 1
    threads = 1

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Carry out the groups; yield each group's number and result, in order."""
        numbers = range(len(batch.groups))
        # A profile has one phase at any moment.
        if self.threads == 1 or batch.kind != "turn" or profiling.active is not None:
            for number in numbers:
                yield number, self.runner.carry_out(batch, number, Sum())
            return
        # All threads read it, and the first would make it.
        _ = self.runner.fresh
        running: deque[Future[GroupResult]] = deque()
        with ThreadPoolExecutor(self.threads, "turns", torch.set_num_threads, (1,)) as threads:
            for number in numbers:
                running.append(threads.submit(self.runner.carry_out, batch, number, Sum()))
                if len(running) == self.threads:
                    yield number + 1 - self.threads, running.popleft().result()
            for number in numbers[len(numbers) - len(running) :]:
                yield number, running.popleft().result()

    def close(self) -> None:
        """Do nothing: there is nothing to stop."""


class Bytes(InProcess):
    """Carries out groups in this process; every task, reply and state is turned into bytes.

    The bytes are turned back at once: this shows what a network would carry.
    """

    def __init__(self, runner: ClientRunner) -> None:
        super().__init__(copy(runner))
        self.runner.channel = ByteChannel()
        self.protocol = InProcessProtocol(runner.sums) if runner.sums else None

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Carry out the groups one by one, and run the protocol of secure sums for all of them.

        Yields each group's number and result.
        """
        batch = replace(batch, tasks=[unpack(pack(task), ClientTask) for task in batch.tasks])
        first = batch.tasks[0].message if batch.kind == "turn" and batch.tasks else None
        form = None if first is None else self.runner.layout(first, batch.templates)
        if first is None or form is None or self.protocol is None:
            yield from super().run(batch)
            return
        done = list(super().run(replace(batch, reveal="each")))
        packed = [pair for _, result in done for pair in result.replies.items()]
        rows = {c: reply.words for c, reply in packed if isinstance(reply, PackedReply)}
        opened = self.protocol.total(form, first, rows)
        yield from with_opened_sum(done, opened)


class Forked:
    """Carries out groups of tasks in forked processes, which live as long as the run.

    Each process has one thread and its own network. Data are shared by copy-on-write. Messages and
    sums are in shared memory, states on disk; results go through a pipe. A free process takes the
    next group. Results are yielded in the order of the groups, so finished groups may have to wait
    for an earlier one. At most as many groups wait as there are slots of shared memory.
    """

    def __init__(self, runner: ClientRunner, count: int) -> None:
        context, self.count = fork_context(), count
        self.tickets = TaskTickets(context)
        # Every report of a worker wakes this process, which has no core of its own: where sums are
        # small, several groups are reported at once, and as many sums may wait.
        self.small = runner.worker.solver.layout.n <= SMALL
        slots = (4 if self.small else 2) * (count + 1)
        self.sent, *self.slots = (SharedArena(slots + 1) for _ in range(slots + 1))
        self.layouts = Layouts(runner.worker.solver.layout)
        self.ready = selectors.DefaultSelector()
        self.pipes: list[Connection] = []
        self.processes = []
        for _ in range(count):
            here, there = context.Pipe()
            self.pipes.append(here)
            self.ready.register(here, selectors.EVENT_READ)
            serve = WorkerProcess(
                runner, there, list(self.pipes), self.sent, self.tickets, self.slots, self.layouts
            )
            process = context.Process(target=serve.forever, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Send the batch to the processes; yield each group's number and result, in order."""
        first = self.tickets.settled
        many = max(len(batch.groups) // 16, 1) if self.small else 1
        text = json.dumps({"first": first, "many": many, **self._note(batch)}).encode()
        waiting: dict[int, JsonObject] = {}
        try:
            for pipe in self.pipes:
                pipe.send_bytes(text)
            for number in range(len(batch.groups)):
                while number not in waiting:
                    self._receive(waiting)
                note = waiting.pop(number)
                yield number, self._result(note, self.slots[number % len(self.slots)])
                self.tickets.settle()
            profiling.settle()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise PartialRun(
                "a worker process died (killed, or out of memory); the last checkpoint is kept: "
                "free memory or use run.workers = 1, then `vergence resume`"
            ) from None

    def _receive(self, waiting: dict[int, JsonObject]) -> None:
        """Receive reports of finished groups; add them to `waiting`: group number -> report."""
        with profiling.phase(profiling.WAITING):
            ready = self.ready.select()
        for key, _ in ready:
            assert isinstance(key.fileobj, Connection)
            note = json.loads(key.fileobj.recv_bytes())
            profiling.add(note)
            if "error" in note:
                name, text = note["error"]
                raise getattr(errors, name, RuntimeError)(text)
            waiting |= {group["group"]: group for group in note["done"]}

    def _note(self, batch: TaskBatch) -> JsonObject:
        """Write the batch's trees into shared memory, each once; describe the batch as JSON."""
        self.sent.clear()
        notes: dict[int, JsonObject] = {}
        messages: dict[int, JsonObject] = {}
        for task in batch.tasks:
            message = task.message
            if id(message) in messages:
                continue
            for params in message.trees.values():
                if id(params.flat) not in notes:
                    notes[id(params.flat)] = self.sent.write(params, self.layouts)
            trees = {name: notes[id(params.flat)] for name, params in message.trees.items()}
            messages[id(message)] = {**vars(message), "trees": trees}
        places = {key: place for place, key in enumerate(messages)}
        tasks = [(c.client, places[id(c.message)], c.file, c.spare) for c in batch.tasks]
        templates = {n: self.sent.write(p, self.layouts) for n, p in batch.templates.items()}
        return {
            **vars(batch),
            "tasks": tasks,
            "messages": list(messages.values()),
            "templates": templates,
        }

    def _result(self, note: JsonObject, slot: SharedArena) -> GroupResult:
        """Make the result of a group from a worker's report and the arrays in shared memory."""
        results = [thawed(result) for result in note["results"]]
        result = GroupResult(results, Sum())
        result.sum.count = note["count"]
        for name, (total, weight) in note["sums"].items():
            result.sum.totals[name] = slot.read(total, self.layouts)
            number = isinstance(weight, float)
            result.sum.weights[name] = weight if number else slot.read(weight, self.layouts)
        for client, reply in note["replies"].items():
            # A method may keep single replies, and the slot is used again: they are copied.
            trees = {
                name: SealedTree(
                    slot.read(total, self.layouts).copy(), slot.read_weight(weight, self.layouts)
                )
                for name, (total, weight) in reply["trees"].items()
            }
            result.replies[client] = SealedReply(reply["round"], trees, reply["metrics"])
        return result

    def close(self) -> None:
        """Kill the processes, even while they work."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self.ready.close()
        for pipe in self.pipes:
            pipe.close()


def thawed(note: JsonObject) -> ClientResult:
    """Return a client's result, rebuilt from plain data; `Forked` calls this."""
    filed = note["filed"]
    return ClientResult(**{**note, "filed": StateRef(*filed) if filed else None})


def worker_pool(runner: ClientRunner, plan: Plan, most: int) -> WorkerPool:
    """Make the worker pool for `run.engine` and `run.workers`, with at most `most` workers."""
    # Before the fork: the setting of the allocator is inherited by forked processes.
    keep_freed_memory()
    if plan.engine == "bytes":
        return Bytes(runner)
    if plan.engine == "ray":
        return RayCluster(runner, plan.workers, most)
    workers = min(plan.hands, most)
    if workers > 1 and not can_fork():
        if plan.workers:
            note_one_process(plan.workers)
        workers = 1
    if (
        not can_fork()
        or workers == 1
        or (not plan.workers and training_seconds(runner, plan) < WORTH_FORKING)
    ):
        return InProcess(runner)
    return Forked(runner, workers)


@cache
def note_one_process(asked: int) -> None:
    """Print, once, that this system runs in one process although the run asks for more."""
    console.note(
        f"run.workers = {asked}: this system cannot fork processes, so one trains everybody, with "
        'the same results; run.engine = "ray" has several'
    )


def training_seconds(runner: ClientRunner, plan: Plan) -> float:
    """Estimate an upper bound of the seconds that a run trains, without evaluation.

    The estimate counts one training per client and round. It is infinite for people who are made on
    demand. `worker_pool` calls this.
    """
    # An upper bound of the arithmetic: every parameter meets every number of a sample.
    people, local = runner.worker.trained_on.people, runner.worker.method.local
    if isinstance(people, Population):
        return math.inf
    total = 0.0
    for samples in (person.train for person in people.values()):
        rows = [*samples.columns.values(), *(bank.rows for bank in samples.banks.values())]
        numbers = sum(math.prod(row.shape[1:]) for row in rows)
        sums = 6 * runner.worker.solver.layout.n * numbers * local.batch
        steps = local.steps or local.epochs * math.ceil(len(samples) / local.batch)
        total += plan.rounds * steps * (STEP_SECONDS + sums / SUMS_PER_SECOND)
    return total
