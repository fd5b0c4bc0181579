"""Local training on one GPU: a local step is recorded once as a CUDA graph and replayed.

A step of a small network is some hundred kernels of a few microseconds each; started one by one
from Python they leave a GPU idle nine tenths of the time (engines.md, section 5). A graph starts
them together, but runs on fixed memory: parameters, optimiser, the client's data and the order of
its samples live in static tensors that are filled before the first replay, and a batch's rows of a
bank (a person's video frames, say) in tensors that are filled before each. Nothing is read back
before the end. On a CPU the same code runs without the recording.

Used by `engine.client_executor`, `engine.solver_selection`, `training.solver_trial` and
`training.stacked`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vergence.core.data import Samples, SharedRows
from vergence.core.local_training import LocalTraining, OptimizerState, Precision
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult
from vergence.core.task import Task, join_outputs, map_outputs
from vergence.errors import ConfigError
from vergence.training.batches import batches
from vergence.training.device import in_main_memory
from vergence.training.fused_optimizers import slots_of, stepper
from vergence.training.gradients import training_loss
from vergence.training.graph_recorder import CudaGraphRecorder, Program
from vergence.training.sequential import FlatNetwork

# Libraries choose algorithms and allocate workspaces in the first steps; torch advises three.
WARM_UP = 3
"""Steps before recording."""
STREAMS = 4
"""Clients trained side by side on a GPU; each replays its own graph."""
# A recording keeps the memory of one step. There is one for each batch size and kind of request.
PROGRAMS = 32
"""Number of recordings beyond which a `GraphSlot` drops them all."""


class Uncapturable(ConfigError):
    """A network whose step cannot be recorded as a CUDA graph."""


class RecordedStep(NamedTuple):
    """A recorded step for one batch size, and the rows of banks that it reads."""

    step: Program
    rows: dict[str, Tensor]


class Graphed:
    """Trains one task's network on a device, for one client as `Solver.fit` or for several.

    Results lie where the request's parameters lie. Of several clients, `streams` are trained side
    by side, each in memory of its own.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        streams: int = 1,
    ) -> None:
        if streams < 1:
            raise ConfigError(f"streams must be 1 or more, got {streams}")
        self.task, self.device = task, torch.device(device)
        self.lanes = [GraphSlot(task, self.device, precision) for _ in range(streams)]

    def fit(self, ask: Fit, stream: RandomStream, progress: float = 0.0) -> FitResult:
        """Carry out a training request; `progress` is the share of rounds done, for the schedule.

        Raises:
            Uncapturable: the step reads a value back, or has work that depends on one.
        """
        return self.fit_all([ask], [stream], progress)[0]

    def fit_all(
        self, asks: Sequence[Fit], streams: Sequence[RandomStream], progress: float = 0.0
    ) -> list[FitResult]:
        """Carry out training requests of any kind, assigned in turn to parallel slots."""
        for lane in self.lanes:
            lane.replay.begin()
        trained = [
            self.lanes[number % len(self.lanes)].train(ask, stream, progress)
            for number, (ask, stream) in enumerate(zip(asks, streams, strict=True))
        ]
        for number, lane in enumerate(self.lanes):
            mine = trained[number :: len(self.lanes)]
            lane.replay.end(made for flat, loss, slots, _ in mine for made in (flat, loss, *slots))
        # Reading the losses waits for the device: once for all clients, after all work is queued.
        losses = torch.stack([loss for _, loss, _, _ in trained]).tolist() if trained else []
        return [
            self._fitted(ask, flat, slots, steps, loss)
            for ask, (flat, _, slots, steps), loss in zip(asks, trained, losses, strict=True)
        ]

    def _fitted(
        self, ask: Fit, flat: Tensor, slots: list[Tensor], steps: int, loss: float
    ) -> FitResult:
        home = ask.params.flat.device
        params = ask.params.like(flat.to(home))
        state = None
        if ask.optimiser is not None:
            buffers: dict[str, Params] = {}
            for name, slot in zip(slots_of(ask.local), slots, strict=True):
                buffers[name] = ask.params.like(slot.to(home))
            state = OptimizerState(buffers, ask.optimiser.steps + steps)
        metrics = {"loss": loss / steps}
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        return FitResult(params, self.task.weigh(ask.data), steps, state, metrics)

    def outputs(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return the outputs `[samples, ...]` in sample order, in evaluation mode, on the CPU."""
        lane = self.lanes[0]
        lane.replay.begin()
        with lane.replay.here():
            outputs = lane.outputs(params, data, batch)
        made: list[Tensor] = []
        map_outputs(lambda part: made.append(part) or part, outputs)
        lane.replay.end(made)
        return map_outputs(Tensor.cpu, outputs)

    def score(self, params: Params, data: Samples) -> float:
        """Return the task's score of these parameters on data; scores are computed on the CPU."""
        outputs = self.outputs(params, data)
        return self.task.score(outputs, in_main_memory(data).copy())


class GraphSlot(FlatNetwork):
    """Trains one client at a time in static memory, on one stream."""

    def __init__(self, task: Task, device: torch.device, precision: Precision) -> None:
        super().__init__(task, precision, device)
        self.device = device
        self.network = self if self.half is None else self.half
        self.replay = CudaGraphRecorder(device)
        self.start, self.centre, self.scratch = (torch.zeros_like(self.vector) for _ in range(3))
        self.keep = torch.ones(self.layout.n, dtype=torch.bool, device=device)
        self.slots: dict[str, Tensor] = {}
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        # As tensors, so that a schedule and a kept optimiser do not need another recording.
        # The GPU's kernels read a float32 rate whatever the parameters are, the CPU's any.
        rate = torch.float32 if device.type == "cuda" else torch.float64
        self.rate = torch.zeros((), dtype=rate, device=device)
        self.count = torch.zeros((), device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.order = torch.zeros(0, dtype=torch.int64, device=device)
        self.columns: dict[str, Tensor] = {}
        self.banks: dict[str, tuple[SharedRows, Tensor]] = {}
        self.programs: dict[tuple[object, ...], RecordedStep] = {}

    def train(
        self, ask: Fit, stream: RandomStream, progress: float
    ) -> tuple[Tensor, Tensor, list[Tensor], int]:
        """Queue a fit without waiting; return parameters, sum of losses, buffers, and steps."""
        if not len(ask.data):
            raise ConfigError("a client without training samples was asked to train")
        drawn = list(batches(ask.data, ask.local, stream, self.task))
        sizes = [len(rows) for rows in drawn]
        with self.replay.here(), torch.device(self.device):
            self._load_data(ask.data, torch.cat(drawn))
            if len(self.programs) > PROGRAMS:
                self._forget()
            with self.replay.drawing():
                programs = {size: self._program(ask, size) for size in dict.fromkeys(sizes)}
            self._load_start(ask, progress)
            self.replay.seed(stream.child("network").number())
            at = 0
            for size in sizes:
                self._gather(programs[size].rows, at)
                programs[size].step()
                at += size
            wanted = slots_of(ask.local) if ask.optimiser else ()
            slots = [self.slots[name].clone() for name in wanted]
            return self.vector.clone(), self.loss.clone(), slots, len(sizes)

    def _load_data(self, data: Samples, rows: Tensor) -> None:
        """Copy columns and order into static memory; growing it drops all recordings."""
        if len(rows) > len(self.order):
            self.order = torch.zeros(_rounded_up(len(rows)), dtype=torch.int64)
            self._forget()
        self.order[: len(rows)].copy_(rows)
        for name, column in data.columns.items():
            memory = self.columns.get(name)
            like = memory is not None and (memory.dtype, memory.shape[1:]) == (
                column.dtype,
                column.shape[1:],
            )
            if memory is None or not like or len(memory) < len(column):
                shape = (_rounded_up(len(column)), *column.shape[1:])
                memory = self.columns[name] = torch.zeros(shape, dtype=column.dtype)
                self._forget()
            memory[: len(column)].copy_(column)
        for name in set(self.columns) - set(data.columns):
            del self.columns[name]
            self._forget()
        # A bank is large, often shared by everybody, and not copied: no recording reads it.
        before = {name: _bank_kind(bank) for name, (bank, _) in self.banks.items()}
        if before != {name: _bank_kind(bank) for name, bank in data.banks.items()}:
            self.banks.clear()
            self._forget()
        for name, bank in data.banks.items():
            if name not in self.banks or self.banks[name][0].rows is not bank.rows:
                self.banks[name] = bank, bank.rows.to(self.device)

    def _load_start(self, ask: Fit, progress: float) -> None:
        """Set everything that warm-up, recording or the previous client has changed."""
        before = ask.optimiser if ask.optimiser is not None else OptimizerState({}, 0)
        self.vector.copy_(ask.params.flat)
        self.network.renew()
        for name, slot in self.slots.items():
            if name in before.slots:
                slot.copy_(before.slots[name].flat)
            else:
                slot.zero_()
        if ask.trainable is not None:
            self.start.copy_(ask.params.flat)
            self.keep.copy_(ask.trainable.bits)
        if ask.anchor is not None:
            self.centre.copy_(ask.anchor[0].flat)
        self.rate.fill_(ask.local.learning_rate(progress))
        self.count.fill_(float(before.steps))
        self.cursor.zero_()
        self.loss.zero_()

    def _gather(self, rows: Mapping[str, Tensor], at: int) -> None:
        """Copy the rows of banks that the batch starting at `at` in the order needs."""
        for name, out in rows.items():
            bank, source = self.banks[name]
            numbers = self.columns[bank.by].index_select(0, self.order[at : at + len(out)])
            torch.index_select(source, 0, numbers.reshape(-1), out=out.flatten(0, numbers.ndim - 1))

    def _program(self, ask: Fit, size: int) -> RecordedStep:
        """Return the recorded step for this batch size and kind of request."""
        local = ask.local
        mu = None if ask.anchor is None else ask.anchor[1]
        key = (
            size,
            mu,
            ask.trainable is None,
            local.optimizer,
            local.momentum,
            local.nesterov,
            local.weight_decay,
            local.clip,
        )
        if key not in self.programs:
            for name in slots_of(local):
                if name not in self.slots:
                    self.slots[name] = torch.zeros_like(self.vector)
            self.programs[key] = self._record(local, mu, ask.trainable is not None, size)
        return self.programs[key]

    def _forget(self) -> None:
        # A recording may still be running, and its memory goes when it goes.
        self.replay.settle()
        self.programs.clear()

    def _record(
        self, local: LocalTraining, mu: float | None, masked: bool, size: int
    ) -> RecordedStep:
        within = torch.arange(size)
        rows = {
            name: source.new_zeros(size, *self.columns[bank.by].shape[1:], *source.shape[1:])
            for name, (bank, source) in self.banks.items()
        }
        self._gather(rows, 0)
        names = slots_of(local)
        buffers = [self._views(self.slots[name]) for name in names]
        pull, keep = self._views(self.scratch), self._views(self.keep)
        step = stepper(self.tensors, buffers, local, self.rate, self.count)

        def work() -> None:
            order = self.order.index_select(0, self.cursor + within)
            batch = {name: column.index_select(0, order) for name, column in self.columns.items()}
            batch |= rows
            loss = training_loss(self.task, self.network.module, batch, self.precision)
            loss.backward()
            gradients = self.network.gradients()
            with torch.no_grad():
                if mu is not None:
                    torch.sub(self.vector, self.centre, out=self.scratch)
                    for gradient, part in zip(gradients, pull, strict=True):
                        gradient.add_(part, alpha=mu)
                if masked:
                    for gradient, part in zip(gradients, keep, strict=True):
                        gradient.mul_(part)
                if local.clip:
                    _clip(gradients, local.clip)
                step(gradients)
                # Weight decay and momentum reach entries whose gradient is 0.
                if masked:
                    torch.where(self.keep, self.vector, self.start, out=self.vector)
                self.network.renew()
                self.loss.add_(loss.detach())
                self.cursor.add_(size)

        self.module.train()
        for _ in range(WARM_UP):
            self.cursor.zero_()
            work()
        try:
            return RecordedStep(self.replay.capture(work), rows)
        # The network can be recorded: another solver would need the memory, too.
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise Uncapturable(
                f"a step of {type(self.module).__name__} cannot be recorded as a CUDA graph: "
                f"{str(error).strip().splitlines()[0]}; use the sequential solver"
            ) from error

    @torch.no_grad()
    def outputs(self, params: Params, data: Samples, batch: int) -> Tensor:
        """Return the network's outputs in evaluation mode."""
        self.vector.copy_(params.flat)
        self.module.eval()
        parts = []
        for at in range(0, len(data), batch):
            part = data.take(slice(at, at + batch))
            moved = {name: column.to(self.device) for name, column in part.items()}
            parts.append(self.task.forward(self.module, moved))
        # A recorded step trains whatever the mode; where nothing is recorded it is read again.
        self.module.train()
        return join_outputs(parts)


def _bank_kind(bank: SharedRows) -> tuple[object, ...]:
    """Return the properties of a bank on which a recording depends, not its rows."""
    return bank.by, bank.rows.dtype, bank.rows.shape[1:]


def _rounded_up(n: int) -> int:
    """Round up to a power of two, so that clients of similar sizes share one recording."""
    return 1 << math.ceil(math.log2(n))


def _clip(gradients: list[Tensor], limit: float) -> None:
    """Scale gradients in place to a norm of at most `limit`."""
    # A branch on the norm would read it back, which a recording cannot.
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    norm = torch.linalg.vector_norm(norms) + 1e-6
    scale = torch.where(norm > limit, limit / norm, 1.0)
    for gradient in gradients:
        gradient.mul_(scale)
