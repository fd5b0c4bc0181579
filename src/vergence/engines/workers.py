"""Who carries out orders: this process, this process through bytes, or forked processes.

All give the same bits: an order and its result are the same whoever carries it out, and results
are put back into the order of the orders before anyone adds them up.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Protocol

import torch
from torch import Tensor

from vergence import errors
from vergence.core.mask import Mask
from vergence.core.state import pack, unpack
from vergence.core.wire import Sealed, decode, encode
from vergence.engines.turn import Done, Order, Worker
from vergence.errors import PartialRun, VergenceError

Known = Mapping[str, Mapping[str, Mask]]
"""Per client and tree, the mask the server already has."""


class Crew(Protocol):
    """Carries out orders and yields each result with its number, in any order."""

    def run(self, orders: Sequence[Order], known: Known) -> Iterator[tuple[int, Done]]:
        """Carry out the orders."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


class InProcess:
    """This process, one order after another."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run(self, orders: Sequence[Order], known: Known) -> Iterator[tuple[int, Done]]:
        """Carry out the orders one by one."""
        for number, order in enumerate(orders):
            yield number, self.worker.do(order)

    def close(self) -> None:
        """Nothing to stop."""


@dataclass(frozen=True)
class Parcel:
    """A result on its way: the sealed reply exactly as it would travel over a network."""

    done: Done
    wire: Tensor | None
    error: tuple[str, str] | None = None


class Bytes:
    """This process, but every order, reply and state is frozen to bytes and thawed again."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run(self, orders: Sequence[Order], known: Known) -> Iterator[tuple[int, Done]]:
        """Carry out the orders one by one, through bytes."""
        for number, order in enumerate(orders):
            mine = known.get(order.client, {})
            frozen = carry_out(self.worker, pack(_Job(order, mine)))
            yield number, thaw(self.worker, frozen, mine)

    def close(self) -> None:
        """Nothing to stop."""


@dataclass(frozen=True)
class _Job:
    order: Order
    known: Mapping[str, Mask]


def carry_out(worker: Worker, job: bytes) -> bytes:
    """Do a frozen order and freeze the result; an error travels as its name and text."""
    try:
        asked = unpack(job, _Job, *worker.records)
        done = worker.do(asked.order)
        sent = None
        if done.sealed is not None:
            sent = torch.frombuffer(bytearray(encode(done.sealed, asked.known)), dtype=torch.uint8)
        return pack(Parcel(replace(done, sealed=None), sent))
    except VergenceError as error:
        return pack(Parcel(Done(""), None, (type(error).__name__, str(error))))
    except Exception:
        return pack(Parcel(Done(""), None, ("RuntimeError", traceback.format_exc())))


def thaw(worker: Worker, frozen: bytes, known: Mapping[str, Mask]) -> Done:
    """Undo `carry_out`; raise the error it met."""
    parcel = unpack(frozen, Parcel, Sealed, *worker.records)
    if parcel.error is not None:
        name, text = parcel.error
        kind = getattr(errors, name, RuntimeError)
        raise kind(text)
    if parcel.wire is None:
        return parcel.done
    return replace(parcel.done, sealed=decode(parcel.wire.numpy().tobytes(), known))


class Forked:
    """Several forked processes, one thread each; they share this process's data by copy-on-write.

    They end with this process, however it ends: their pipe closes.
    """

    def __init__(self, worker: Worker, count: int) -> None:
        self.worker = worker
        self.pipes: list[Connection] = []
        self.processes = []
        context = multiprocessing.get_context("fork")
        for _ in range(count):
            here, there = context.Pipe()
            self.pipes.append(here)
            process = context.Process(
                target=_serve, args=(worker, there, list(self.pipes)), daemon=True
            )
            process.start()
            there.close()
            self.processes.append(process)

    def run(self, orders: Sequence[Order], known: Known) -> Iterator[tuple[int, Done]]:
        """Deal the orders to whoever is free, and yield results as they arrive."""
        todo = iter(enumerate(orders))
        busy: dict[Connection, int] = {}

        def deal(pipe: Connection) -> None:
            for number, order in todo:
                pipe.send_bytes(pack(_Job(order, known.get(order.client, {}))))
                busy[pipe] = number
                return

        try:
            for pipe in self.pipes:
                deal(pipe)
            while busy:
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    number = busy.pop(pipe)
                    frozen = pipe.recv_bytes()
                    deal(pipe)
                    client = orders[number].client
                    yield number, thaw(self.worker, frozen, known.get(client, {}))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise PartialRun(
                "a worker process died (killed, or out of memory); the last checkpoint is kept: "
                "free memory or use run.workers = 1, then `vergence resume`"
            ) from None

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _serve(worker: Worker, pipe: Connection, others: list[Connection]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    for other in others:
        other.close()
    try:
        while True:
            pipe.send_bytes(carry_out(worker, pipe.recv_bytes()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)


def crew(worker: Worker, engine: str, workers: int) -> Crew:
    """Return who carries out orders for `run.engine` and `run.workers`."""
    if engine == "bytes":
        return Bytes(worker)
    return InProcess(worker) if workers == 1 else Forked(worker, workers)
