"""Solver trial: a short measurement, before the first round, of the faster solver here.

Used by `engine.solver_selection`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining, Precision
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Task
from vergence.training.cuda_graphs import STREAMS, Graphed
from vergence.training.sequential import Solver
from vergence.training.stacked import Stacked, Unstackable, groups_of

Wanted = Literal["auto", "sequential", "stacked"]
Kind = Literal["sequential", "stacked"]

# Larger stacks save 5 to 10 % more, but leave fewer stacks to deal to workers.
CHUNK = 25
"""Clients per stack."""
FEWEST = 8
"""Clients under which a stack is not worth its fixed cost."""
# With a single stack all workers but one would wait.
STACKS = 4
"""Stacks that a round is cut into at least, on a CPU."""
# Far beyond a core's cache stacking saves no time.
BLOCKS_BYTES = 64 << 20
"""Largest size of one stack's parameters."""
# A smaller advantage could be noise of the measurement.
CLEARLY = 1.25
"""How many times faster a stack must be to be chosen."""
# In a longer step arithmetic dominates, which stacking does not reduce.
LONG_STEP = 2e-3
"""Seconds of the longest step for which stacking is tried."""
BUDGET = 0.15
"""Seconds of repetitions after the warm-up: processor time; with a GPU, elapsed time."""
PATIENCE = 1.0
"""Seconds after which a trial on a busy machine ends in any case."""
STEPS = 4
"""Steps per client in the trial, or fewer if its clients take fewer."""


@dataclass(frozen=True)
class TimedSolver:
    """A solver, the clients it takes at once, the reason, and measured seconds per client."""

    solver: Kind
    chunk: int
    reason: str
    timings: Mapping[str, float] = field(default_factory=dict)


def choose_solver(
    task: Task,
    local: LocalTraining,
    sizes: Sequence[int],
    samples: Sequence[Samples],
    wanted: Wanted = "auto",
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
) -> TimedSolver:
    """Choose how a run's clients are trained.

    Args:
        task: what is learned.
        local: how clients train.
        sizes: training samples of every client of a usual round.
        samples: training data of a few clients, for the trial.
        wanted: `auto`, or a solver to use without a trial.
        device: the device of training; on a GPU the sequential solver is `Graphed`.
        precision: precision of training.

    Returns:
        A choice whose `chunk` does not depend on the machine or the measurement.

    Raises:
        Unstackable: `wanted` is `stacked` and the network cannot be.
    """
    place = torch.device(device)
    size, alike = (Counter(filter(None, sizes)).most_common(1) or [(0, 0)])[0]
    if wanted == "sequential":
        return TimedSolver("sequential", 1, "asked for")
    if callable(local.optimizer):
        return TimedSolver("sequential", 1, "an optimiser of one's own trains one by one")
    module = task.module()
    stacks = 1 if place.type == "cuda" else STACKS
    chunk = min(CHUNK, alike // stacks, BLOCKS_BYTES // max(_bytes(module), 1))
    fitting = [data for data in samples if len(data) == size] or list(samples[:1])
    if wanted == "stacked":
        if fitting:
            _Trial(task, local, fitting, place, precision, 2).stack()
        return TimedSolver("stacked", max(chunk, min(alike, FEWEST), 1), "asked for")
    reason = _reason_without_trial(task, module, place, alike, chunk, bool(fitting))
    if reason:
        return TimedSolver("sequential", 1, reason)
    return _measure(_Trial(task, local, fitting, place, precision, chunk))


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _reason_without_trial(
    task: Task, module: nn.Module, device: torch.device, alike: int, chunk: int, data: bool
) -> str | None:
    """Return the reason why no trial is needed; None if one is."""
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if device.type == "cpu" and any(isinstance(m, convolutions) for m in module.modules()):
        return "the network has convolutions, which stacking makes 1.7 to 2.1 times slower on a CPU"
    if _bytes(module) * FEWEST > BLOCKS_BYTES:
        return f"{FEWEST} clients' parameters are more than {BLOCKS_BYTES >> 20} MiB"
    if chunk < FEWEST:
        return f"{alike} clients of a round share a sample count, too few for stacks of {FEWEST}"
    if task.augments:
        return "the task augments samples at random, one by one"
    return None if data else "no client's data at hand for a trial"


class _Trial:
    """A few clients' first steps, sequential or stacked."""

    def __init__(
        self,
        task: Task,
        local: LocalTraining,
        samples: Sequence[Samples],
        device: torch.device,
        precision: Precision,
        chunk: int,
    ) -> None:
        per_epoch = -(-len(samples[0]) // local.batch)
        self.steps = min(STEPS, local.steps or local.epochs * per_epoch)
        short = replace(local, steps=self.steps)
        start = task.init()
        asks = [Fit(start, samples[i % len(samples)], short) for i in range(chunk)]
        self.asks = [asks[i] for i in groups_of(asks)[0]]
        self.streams = [RandomStream("trial", i) for i in range(len(self.asks))]
        self.device, self.chunk = device, len(self.asks)
        self.stacked = Stacked(task, device, precision)
        on_gpu = device.type == "cuda"
        gpu = Graphed(task, device, precision, STREAMS) if on_gpu else None
        self.alone = gpu or Solver(task, precision)
        # Processor time, as neighbours do not count in it; a GPU's work is not in it at all.
        self.clock = time.perf_counter if on_gpu else time.process_time

    def stack(self) -> float:
        """Train all at once; return seconds per client."""
        return self._timed(lambda: self.stacked.fit_all(self.asks, self.streams)) / self.chunk

    def sequence(self, clients: int) -> float:
        """Train some one by one, on a GPU side by side; return seconds per client."""

        def work() -> None:
            if isinstance(self.alone, Graphed):
                self.alone.fit_all(self.asks[:clients], self.streams[:clients])
                return
            for ask, stream in zip(self.asks[:clients], self.streams, strict=False):
                self.alone.fit(ask, stream)

        return self._timed(work) / clients

    def _timed(self, work: Callable[[], object]) -> float:
        started = self.clock()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock() - started


def _measure(trial: _Trial) -> TimedSolver:
    # The first of two warms up: libraries load, and memory is allocated.
    trial.sequence(1)
    alone = trial.sequence(1)
    if alone > LONG_STEP * trial.steps:
        step = alone / trial.steps
        return TimedSolver(
            "sequential",
            1,
            f"a step takes {step * 1e3:.1f} ms, too long for stacking to pay",
            {"sequential": alone},
        )
    try:
        trial.stack()
    except Unstackable as error:
        return TimedSolver("sequential", 1, str(error), {"sequential": alone})
    together, clients = trial.stack(), min(trial.chunk, FEWEST)
    spent, latest = 0.0, time.perf_counter() + PATIENCE
    while spent < BUDGET and time.perf_counter() < latest:
        one, several = trial.sequence(clients), trial.stack()
        # Disturbances only ever add time, so that the minimum is nearest to the truth.
        alone, together = min(alone, one), min(together, several)
        spent += one * clients + several * trial.chunk
    ratio = alone / together
    reason = (
        f"measured {alone * 1e3:.2f} ms per client one by one, {together * 1e3:.2f} ms in stacks "
        f"of {trial.chunk}: {ratio:.2f} times as fast, {CLEARLY} is needed"
    )
    timings = {"sequential": alone, "stacked": together}
    if ratio >= CLEARLY:
        return TimedSolver("stacked", trial.chunk, reason, timings)
    return TimedSolver("sequential", 1, reason, timings)
