"""The floor: the plain gradient steps of a round, with no federated learning around them.

As fast as plain PyTorch goes on a processor: one thread per process, convolution weights
channels-last in one flat buffer, the fused optimiser, gradients dropped and not zeroed, batches
that lie ready in memory. `python -m benchmarks.bench.floor JOB PROCESSES SHARE` does rounds when
its clock says so (see `benchmarks.bench.gate`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn

import benchmarks.bench.video  # noqa: F401  # its networks
from benchmarks.bench.gate import Gate
from benchmarks.bench.plain import LOSSES, Job
from vergence.system.processes import die_with_parent

READY = 8
"""Batches kept ready, of as many clients."""


class Steps:
    """One network in one flat buffer, and batches to step on."""

    def __init__(self, job: Job) -> None:
        self.job, self.loss = job, LOSSES[job.loss]
        self.module = job.module()
        self.flat = flatten(self.module)
        self.optimiser = torch.optim.SGD(self.module.parameters(), job.lr, job.momentum, fused=True)
        some = [job.rows(c) for c in range(min(READY, len(job.sizes)))]
        self.ready = [(x[: job.batch].clone(), y[: job.batch].clone()) for x, y in some]
        self.done = 0

    def client(self, rows: int) -> None:
        """Take the steps of a client with so many rows."""
        for start in range(0, rows, self.job.batch):
            x, y = self.ready[self.done % len(self.ready)]
            left = rows - start
            if left < len(x):
                x, y = x[:left], y[:left]
            self.optimiser.zero_grad(set_to_none=True)
            self.loss(self.module(x), y).backward()
            self.optimiser.step()
            self.done += 1


def flatten(module: nn.Module) -> Tensor:
    """Make all parameters views of one flat buffer, convolution weights channels-last."""
    parameters = list(module.parameters())
    flat = torch.empty(sum(p.numel() for p in parameters))
    start = 0
    for parameter in parameters:
        part = flat[start : start + parameter.numel()]
        if parameter.dim() == 4:
            out, into, high, wide = parameter.shape
            view = part.view(out, high, wide, into).permute(0, 3, 1, 2)
        else:
            view = part.view_as(parameter)
        view.copy_(parameter.detach())
        parameter.data = view
        start += parameter.numel()
    return flat


def deal(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """Deal clients by their number of rows, longest first, each to whoever has least to do."""
    hands: list[list[int]] = [[] for _ in range(processes)]
    for size in sorted(sizes, reverse=True):
        min(hands, key=sum).append(size)
    return hands


class Floor:
    """So many single-thread processes (1: this one alone) that do the steps of a round."""

    def __init__(self, job: Job, processes: int) -> None:
        self.job, self.processes = job, processes
        self.pipes: list[Connection] = []
        self.steps = Steps(job) if processes == 1 else None
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)  # imports its compiler once, here
        context = multiprocessing.get_context("fork")
        for _ in range(processes if processes > 1 else 0):
            here, there = context.Pipe()
            self.pipes.append(here)
            others = list(self.pipes)
            context.Process(target=_serve, args=(job, there, others), daemon=True).start()
            there.close()

    def round(self, clients: Sequence[int]) -> list[int]:
        """Do the steps of these clients; return how many clients each process was dealt."""
        hands = deal([self.job.sizes[c] for c in clients], self.processes)
        if self.steps is not None:
            for rows in hands[0]:
                self.steps.client(rows)
        for pipe, hand in zip(self.pipes, hands, strict=False):
            pipe.send_bytes(json.dumps(hand).encode())
        for pipe in self.pipes:
            pipe.recv_bytes()
        return [len(hand) for hand in hands]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()


def _serve(job: Job, pipe: Connection, others: list[Connection]) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    for other in others:
        other.close()
    steps = Steps(job)
    try:
        while True:
            for rows in json.loads(pipe.recv_bytes()):
                steps.client(rows)
            pipe.send_bytes(b"done")
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)


def main(folder: str, processes: str, share: str) -> None:
    """Do rounds until the clock says 0; of every round only each SHARE-th client."""
    die_with_parent()
    torch.set_num_threads(1)
    gate, job = Gate(), Job.load(Path(folder), mapped=True)
    floor, number, steps = Floor(job, int(processes)), 0, 0
    while gate.between_rounds(steps=steps):
        clients = job.cohorts[number % job.rounds][:: int(share)]
        floor.round(clients)
        steps += sum(job.steps(c) for c in clients)
        number += 1
    floor.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
