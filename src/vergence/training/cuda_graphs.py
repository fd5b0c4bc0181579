"""Local training on one GPU: a local step is recorded once as a CUDA graph and replayed.

A step of a small network is some hundred kernels of a few microseconds each; started one by one
from Python they leave a GPU idle nine tenths of the time (engines.md, section 5). A graph starts
them together, but runs on fixed memory: parameters, optimiser, the client's data and the order of
its samples live in static tensors that are filled before the first replay, and a batch's rows of a
bank (a person's video frames, say) in tensors that are filled before each. Of a client whose data
stay in main memory (`device.training_copies`), the static tensors hold the next few batches.
Nothing is read back before the end. On a CPU the same code runs without the recording.

Used by `engine.client_executor`, `engine.solver_selection`, `training.solver_trial` and
`training.stacked`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from vergence.core.data import Batch, Samples, SharedRows
from vergence.core.local_training import LocalTraining, OptimizerState, Precision
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit, FitResult
from vergence.core.task import Task, join_outputs, map_outputs
from vergence.errors import ConfigError
from vergence.training.batches import batches
from vergence.training.device import in_main_memory
from vergence.training.fused_optimizers import slots_of, stepper
from vergence.training.gradients import clip_unread_, training_loss
from vergence.training.graph_recorder import CudaGraphRecorder, Program
from vergence.training.prefetching import Prefetcher
from vergence.training.sequential import FlatNetwork

# Libraries choose algorithms and allocate workspaces in the first steps; torch advises three.
WARM_UP = 3
"""Steps before recording."""
STREAMS = 4
"""Clients trained side by side on a GPU; each replays its own graph."""
BATCH = 64
"""Samples of a forward pass without gradients."""
# Their steps take more than 5 ms. With 70 million, four clients held 15 to 22 GiB, and trained a
# sixth faster than one. By the size, and not by a measured time: the same run does the same.
LARGE = 10_000_000
"""Parameters of a network from which two clients are trained side by side."""
# Copying so little at once takes less time than gathering it batch by batch.
AT_ONCE = 64 << 20
"""Bytes of a client's data in main memory up to which all of them are copied for a training."""
# A recording keeps the memory of one step. There is one for each batch size and kind of request.
PROGRAMS = 32
"""Number of recordings beyond which a `GraphSlot` drops them all."""


Trained = tuple[Tensor, Tensor, list[Tensor], int]
"""Parameters, sum of losses, optimiser's buffers and steps of a fit that is queued on a device."""


class Uncapturable(ConfigError):
    """A network whose step cannot be recorded as a CUDA graph."""


class RecordedStep(NamedTuple):
    """A recorded step for one batch size, and the rows of banks that it reads."""

    step: Program
    rows: dict[str, Tensor]


class Graphed:
    """Trains one task's network on a device, for one client as `Solver.fit` or for several.

    Results lie where the request's parameters lie. Of several clients, `streams` are trained side
    by side, each in memory of its own; two at most if the network has `LARGE` parameters.
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
        self.lanes = [GraphSlot(task, self.device, precision)]
        while len(self.lanes) < (min(streams, 2) if self.lanes[0].layout.n >= LARGE else streams):
            self.lanes.append(GraphSlot(task, self.device, precision))

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
        trained: dict[int, Trained] = {}

        def work(numbers: Iterable[int], lane: GraphSlot) -> Iterator[bool]:
            for number in numbers:
                trained[number] = yield from lane.train(asks[number], streams[number], progress)

        shares = [range(n, len(asks), len(self.lanes)) for n in range(len(self.lanes))]
        going = list(map(work, shares, self.lanes))
        # A lane lets the others go on when it has queued a client's steps, or waits for a batch.
        while going:
            going = [each for each in going if next(each, False)]
        for share, lane in zip(shares, self.lanes, strict=True):
            mine = [trained[number] for number in share]
            lane.replay.end(made for flat, loss, slots, _ in mine for made in (flat, loss, *slots))
        scored = {n: ask.score_on for n, ask in enumerate(asks) if ask.score_on is not None}
        outputs = self.outputs_of(
            [(asks[n].params.like(trained[n][0]), data) for n, data in scored.items()]
        )
        scores = {
            n: {"score": self.task.score(output, in_main_memory(data).copy())}
            for (n, data), output in zip(scored.items(), outputs, strict=True)
        }
        # Reading the losses waits for the device: once for all clients, after all work is queued.
        losses = torch.stack([trained[n][1] for n in range(len(asks))]).tolist() if asks else []
        return [
            self._fitted(ask, trained[n], {"loss": losses[n] / trained[n][3], **scores.get(n, {})})
            for n, ask in enumerate(asks)
        ]

    def _fitted(self, ask: Fit, trained: Trained, metrics: dict[str, float]) -> FitResult:
        home, (flat, _, slots, steps) = ask.params.flat.device, trained
        state = None
        if ask.optimiser is not None:
            buffers: dict[str, Params] = {}
            for name, slot in zip(slots_of(ask.local), slots, strict=True):
                buffers[name] = ask.params.like(slot.to(home))
            state = OptimizerState(buffers, ask.optimiser.steps + steps)
        params = ask.params.like(flat.to(home))
        return FitResult(params, self.task.weigh(ask.data), steps, state, metrics)

    def outputs(self, params: Params, data: Samples, batch: int = BATCH) -> Tensor:
        """Return the outputs `[samples, ...]` in sample order, in evaluation mode, on the CPU."""
        return self.outputs_of([(params, data)], batch)[0]

    def outputs_of(
        self, models: Sequence[tuple[Params, Samples]], batch: int = BATCH
    ) -> list[Tensor]:
        """Return the outputs of several models, each on samples of its own, as `outputs` does.

        All of them are computed before the first is waited for. Samples of equal parameters fill
        batches together where the network is one of vergence's: of another nobody knows whether it
        looks at the rest of its batch.
        """
        task, lane = self.task, self.lanes[0]
        kinds = (type(task).__module__, type(task.network).__module__)
        own = all(kind.startswith(("vergence.tasks.", "vergence.models.")) for kind in kinds)
        groups: dict[object, list[int]] = {}
        for number, (params, data) in enumerate(models):
            rows = tuple((n, c.dtype, c.shape[1:]) for n, c in data.columns.items())
            groups.setdefault((id(params.flat), rows) if own else number, []).append(number)
        outputs: dict[int, Tensor] = {}
        lane.replay.begin()
        with lane.replay.here():
            for group in groups.values():
                parts = [models[number][1] for number in group]
                made = lane.outputs(models[group[0]][0], parts, batch)
                home = map_outputs(lambda part: part.to("cpu", non_blocking=True), made)
                for number, end in zip(group, accumulate(map(len, parts)), strict=True):
                    rows = slice(end - len(models[number][1]), end)
                    outputs[number] = map_outputs(lambda part, at=rows: part[at], home)
            lane.replay.settle()
        return [outputs[number] for number in range(len(models))]

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
        self.prefetcher = Prefetcher(device)
        self.source: tuple[Samples, list[Tensor]] | None = None

    def train(
        self, ask: Fit, stream: RandomStream, progress: float
    ) -> Generator[bool, None, Trained]:
        """Queue a fit without waiting for its end; pause where another lane had better go on."""
        if not len(ask.data):
            raise ConfigError("a client without training samples was asked to train")
        drawn = list(batches(ask.data, ask.local, stream, self.task))
        sizes = [len(rows) for rows in drawn]
        self.source = (ask.data, drawn) if self._far(ask.data) else None
        with self.replay.here(), torch.device(self.device):
            self._load_data(ask.data, drawn)
            if len(self.programs) > PROGRAMS:
                self._forget()
            with self.replay.drawing():
                programs = {size: self._program(ask, size) for size in dict.fromkeys(sizes)}
            self._load_start(ask, progress)
            self.replay.seed(stream.child("network").number())
        numbers, at = range(len(sizes)), 0
        # The prefetcher waits for copies to the device: meanwhile other lanes queue their steps.
        for part in [numbers] if self.source is None else [[number] for number in numbers]:
            with self.replay.here(), torch.device(self.device):
                for number in part:
                    program = programs[sizes[number]]
                    self._gather(program.rows, number, at)
                    program.step()
                    at += sizes[number]
            yield True
        with self.replay.here():
            wanted = slots_of(ask.local) if ask.optimiser else ()
            slots = [self.slots[name].clone() for name in wanted]
            return self.vector.clone(), self.loss.clone(), slots, len(sizes)

    def _far(self, data: Samples) -> bool:
        """Return whether data lie in main memory, and are too large to be copied at once."""
        columns = data.columns.values()
        tensors = [*columns, *(bank.rows for bank in data.banks.values())]
        there = all(tensor.device.type == self.device.type for tensor in columns)
        return not there and sum(tensor.nbytes for tensor in tensors) > AT_ONCE

    def _load_data(self, data: Samples, rows_of: Sequence[Tensor]) -> None:
        """Copy columns and order into static memory; growing it drops all recordings.

        Of streamed data nothing is copied yet; static memory is for a batch.
        """
        whole, most = self.source is None, max(map(len, rows_of))
        if not whole:
            rows_of = [torch.arange(len(rows)) for rows in rows_of]
        rows = torch.cat(list(rows_of))
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
            need = len(column) if whole else most
            if memory is None or not like or len(memory) < need:
                shape = (_rounded_up(need), *column.shape[1:])
                memory = self.columns[name] = torch.zeros(shape, dtype=column.dtype)
                self._forget()
            if whole:
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
            if not whole:
                none = bank.rows[:0].to(self.device)
                self.banks.setdefault(name, (replace(bank, rows=none), none))
            elif name not in self.banks or self.banks[name][0].rows is not bank.rows:
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

    def _gather(self, rows: Mapping[str, Tensor], number: int = 0, at: int = 0) -> None:
        """Copy a batch's rows of banks; it starts at `at` in the order.

        Of streamed data the columns are copied, too.
        """
        if self.source is not None:
            data, drawn = self.source
            batch = self.prefetcher.load(data, drawn[number])
            for name, memory in {**self.columns, **rows}.items():
                # A step for fewer samples is recorded by the first batch, too.
                part = batch[name][: len(memory)]
                memory[: len(part)].copy_(part)
            return
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
        self._gather(rows)
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
                    clip_unread_(gradients, local.clip)
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
    def outputs(self, params: Params, parts: Sequence[Samples], batch: int) -> Tensor:
        """Return the network's outputs in evaluation mode, for one part after the other."""
        self.vector.copy_(params.flat)
        self.module.eval()
        made = []
        for columns in _filled(parts, batch):
            moved = {name: self.replay.upload(column) for name, column in columns.items()}
            made.append(self.task.forward(self.module, moved))
        # A recorded step trains whatever the mode; where nothing is recorded it is read again.
        self.module.train()
        return join_outputs(made)


def _filled(parts: Sequence[Samples], batch: int) -> Iterator[Batch]:
    """Yield the samples of all parts in order, in batches that are full except for the last."""
    ends = list(accumulate(map(len, parts)))
    for at in range(0, ends[-1], batch):
        starts = [at - end + len(part) for part, end in zip(parts, ends, strict=True)]
        taken = [
            part.take(slice(max(start, 0), start + batch))
            for part, start in zip(parts, starts, strict=True)
            if -batch < start < len(part)
        ]
        yield {name: torch.cat([each[name] for each in taken]) for name in taken[0]}


def _bank_kind(bank: SharedRows) -> tuple[object, ...]:
    """Return the properties of a bank on which a recording depends, not its rows."""
    return bank.by, bank.rows.dtype, bank.rows.shape[1:]


def _rounded_up(n: int) -> int:
    """Round up to a power of two, so that clients of similar sizes share one recording."""
    return 1 << math.ceil(math.log2(n))
