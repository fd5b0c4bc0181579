"""The reference solver: clients are trained one after the other.

It keeps one resident network whose parameters are views into one flat vector, so that starting a
client is one copy. Gradients are autograd's own tensors, the optimiser's buffers are resident and
set to zero, and one fused kernel takes the step.

Used in `api`, `audit`, `engine`, `privacy` and `training`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from vergence.core.data import Batch, Samples, copy_of
from vergence.core.layers.batch_norm import statistics_of, tracked_norms
from vergence.core.local_training import OptimizerState, Precision
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute, Fit, FitResult
from vergence.core.task import Task, join_outputs, map_outputs
from vergence.errors import ConfigError
from vergence.training.batches import batches
from vergence.training.bf16_weights import HalfNetwork, keep_types
from vergence.training.device import answer_on, batch_on, seed_generators
from vergence.training.fused_optimizers import OwnOptimizer, slots_of, stepper
from vergence.training.gradients import adjuster, gradients_off, take_gradients, training_loss

Copies = Mapping[int, tuple[Samples, Samples]]
"""Samples in main memory and their copy on a device, by the `id` of the former."""
NO_COPIES: Copies = MappingProxyType({})


class FlatNetwork:
    """A task's network on a device, whose parameters are views of one `vector`.

    With the precision "half" there is a second network, `half`, that training reads.
    """

    def __init__(
        self, task: Task, precision: Precision, device: torch.device | str = "cpu"
    ) -> None:
        self.task = task
        self.precision: Precision = precision
        self.module = task.module()
        start = Params.of(self.module)
        self.layout: Layout = start.layout
        self.module.to(device)
        self.vector = start.flat.to(device, copy=True)
        counted = statistics_of(self.module)
        self.trained = tuple(name for name in self.layout.names if name not in counted)
        named = dict(self.module.named_parameters())
        for name in self.layout.names:
            named[name].data = self.layout.view(self.vector, name)
        self.tensors = self._views(self.vector)
        self.parameters = [named[name] for name in self.trained]
        self.half = None
        # What it mends is a fault of the CPU's kernels.
        if precision == "bf16" and torch.device(device).type == "cpu":
            keep_types(self.module)
        if precision == "half":
            self.half = HalfNetwork(task.module().to(device).train(), self.layout, self.vector)

    def gradients(self) -> list[Tensor]:
        """Return the last backward pass's gradients of what is trained, in the layout's order."""
        return take_gradients(self.parameters)

    def renew(self) -> None:
        """Do nothing: the network reads the parameters themselves.

        Training calls this at the start and after every step; a network in half precision rounds
        again.
        """

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [self.layout.view(flat, name) for name in self.trained]


class Solver(FlatNetwork):
    """Trains and evaluates one task's network, one client after another.

    `precision` "bf16" runs forward and backward passes of training in bfloat16 where torch deems
    it safe; parameters, optimiser and evaluation stay in float32. "half" also keeps the weights
    that they read in bfloat16. A training with an objective of its own is in float32.

    On a GPU results lie where a request's parameters lie, and outputs in main memory. `copies` are
    samples that are there already, as `training_copies` returns them; batches of others are copied
    one by one.
    """

    def __init__(
        self,
        task: Task,
        precision: Precision = "fp32",
        device: torch.device | str = "cpu",
        copies: Copies = NO_COPIES,
    ) -> None:
        super().__init__(task, precision, device)
        self.device, self.copies = torch.device(device), copies
        # Reading a number waits for a GPU: there losses are added up, and read once.
        self.number: Callable[[Tensor], Any] = float if self.device.type == "cpu" else Tensor.double
        self.slots: dict[str, tuple[Tensor, list[Tensor]]] = {}
        self.scratch: tuple[Tensor, list[Tensor]] | None = None
        self.own: OwnOptimizer

    def _buffer(self) -> tuple[Tensor, list[Tensor]]:
        flat = torch.empty_like(self.vector)
        return flat, self._views(flat)

    def batch(self, data: Samples, rows: Tensor | slice) -> Batch:
        """Return samples as a batch on this solver's device."""
        if self.device.type == "cpu":
            return data.take(rows)
        return batch_on(self.device, self.copies.get(id(data), (data, data))[1], rows)

    def _mode(self, train: bool) -> None:
        # `train` visits every layer, and most calls change nothing.
        if self.module.training != train:
            self.module.train(train)

    def fit(self, ask: Fit, stream: RandomStream, progress: float = 0.0) -> FitResult:
        """Carry out a training request; `progress` is the share of rounds done, for the schedule.

        This seeds torch's global generator from `stream`, and does not restore its state.
        """
        return answer_on(self.device, ask, lambda ask: self._fit(ask, stream, progress))

    def _fit(self, ask: Fit, stream: RandomStream, progress: float) -> FitResult:
        self.vector.copy_(ask.params.flat)
        seed_generators(self.device, stream.child("network").number())
        step = self._optimiser(ask, progress)
        adjust = self._adjuster(ask)
        self._mode(train=True)
        network = self if self.half is None or ask.objective is not None else self.half
        network.renew()
        draw, losses, steps = stream.child("objective").torch(), 0.0, 0
        frozen = self._frozen(ask) if network is self and ask.objective is None else []
        with gradients_off(frozen):
            for rows in batches(ask.data, ask.local, stream, self.task):
                batch = self.batch(ask.data, rows)
                if ask.objective is None:
                    loss = training_loss(self.task, network.module, batch, self.precision)
                else:
                    loss = ask.objective.loss(self.task, self.module, batch, draw)
                # A loss without a gradient: no tensor that trains has a part in the output.
                if loss.requires_grad or not frozen:
                    loss.backward()
                step(adjust(network.gradients()))
                # Weight decay and momentum reach entries whose gradient is 0.
                if ask.trainable is not None:
                    ask.trainable.restore(self.vector, ask.params)
                network.renew()
                losses += self.number(loss.detach())
                steps += 1
        params = ask.params.like(self.vector.clone())
        metrics = {"loss": float(losses) / max(steps, 1)}
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        return FitResult(
            params, self.task.weigh(ask.data), steps, self._optimizer_state(ask, steps), metrics
        )

    def _frozen(self, ask: Fit) -> list[Tensor]:
        """Return the tensors of the network of which no entry trains in this fit."""
        if ask.trainable is None:
            return []
        trains = torch.stack([bits.any() for bits in self._views(ask.trainable.bits)]).tolist()
        return [p for p, keep in zip(self.parameters, trains, strict=True) if not keep]

    def _adjuster(self, ask: Fit) -> Callable[[list[Tensor]], list[Tensor]]:
        if ask.anchor is not None and self.scratch is None:
            self.scratch = self._buffer()
        return adjuster(ask, self.vector, self._views, self.scratch)

    def _optimiser(self, ask: Fit, progress: float) -> Callable[[list[Tensor]], None]:
        """Fill the resident buffers with zeros or the request's state; return the step."""
        before = ask.optimiser if ask.optimiser is not None else OptimizerState({}, 0)
        rate = ask.local.learning_rate(progress)
        if callable(ask.local.optimizer):
            self.own = OwnOptimizer(self.tensors, ask.local, rate, before, self._views)
            return self.own.step
        names = slots_of(ask.local)
        for name in names:
            if name not in self.slots:
                self.slots[name] = self._buffer()
            if name in before.slots:
                self.slots[name][0].copy_(before.slots[name].flat)
            else:
                self.slots[name][0].zero_()
        buffers = [self.slots[name][1] for name in names]
        count = torch.full((), float(before.steps), device=self.device)
        return stepper(self.tensors, buffers, ask.local, rate, count)

    def _optimizer_state(self, ask: Fit, steps: int) -> OptimizerState | None:
        if ask.optimiser is None:
            return None
        names = slots_of(ask.local)
        slots = {name: ask.params.like(self.slots[name][0].clone()) for name in names}
        if callable(ask.local.optimizer):
            slots = self.own.slots(ask.params)
        return OptimizerState(slots, ask.optimiser.steps + steps)

    def compute(self, ask: Compute) -> float | Tensor | Params | list[Tensor]:
        """Return what a `Compute` requests of the network, such as a loss or outputs."""
        return answer_on(
            self.device, ask, lambda ask: getattr(self, ask.want)(ask.params, ask.data)
        )

    def outputs(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return the network's outputs `[samples, ...]` in sample order, in evaluation mode."""
        return self._by_batch(
            params, data, batch, lambda part: self.task.forward(self.module, part)
        )

    def features(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return the inputs of the network's head, `[samples, d]`, in evaluation mode."""
        return self._by_batch(params, data, batch, lambda p: self.task.features(self.module, p)[1])

    @torch.no_grad()
    def _by_batch(
        self, params: Params, data: Samples, batch: int, compute: Callable[[Batch], Tensor]
    ) -> Tensor:
        self.vector.copy_(params.flat)
        self._mode(train=False)
        parts = (self.batch(data, slice(at, at + batch)) for at in range(0, len(data), batch))
        return map_outputs(Tensor.cpu, join_outputs([compute(part) for part in parts]))

    def sequences(self, params: Params, data: Samples) -> list[Tensor]:
        """Return the samples as sequences `[frames, d]`, whatever the parameters."""
        return self.task.sequences(data)

    def classes(self, params: Params, data: Samples) -> Tensor:
        """Return the class of every sample, int64 `[samples]`, whatever the parameters."""
        return self.task.class_of(copy_of(data.columns))

    def gradient(self, params: Params, data: Samples, batch: int = 64) -> Params:
        """Return the gradient of the loss in evaluation mode, over all samples."""
        self.vector.copy_(params.flat)
        self._mode(train=False)
        for at in range(0, len(data), batch):
            part = self.batch(data, slice(at, at + batch))
            loss = training_loss(self.task, self.module, part, "fp32")
            # Weighted by their sizes the batches' means add up to the mean over all samples.
            (loss * (min(batch, len(data) - at) / len(data))).backward()
        flat = torch.zeros_like(self.vector)
        for view, grad in zip(self._views(flat), take_gradients(self.parameters), strict=True):
            view.copy_(grad)
        return params.like(flat)

    @torch.no_grad()
    def statistics(self, params: Params, data: Samples, batch: int = 64) -> Params:
        """Return the parameters with running statistics of these data, a mean over batches.

        All other layers are in evaluation mode. If no batch has statistics, the parameters are
        returned unchanged.
        """
        self.vector.copy_(params.flat)
        self._mode(train=False)
        norms = tracked_norms(self.module).values()
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.forget()
            # Without a momentum every batch counts the same.
            norm.momentum, norm.training = None, True
        for at in range(0, len(data), batch):
            self.task.forward(self.module, self.batch(data, slice(at, at + batch)))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum, norm.training = momentum, False
        counted = all(float(norm.batches) for norm in norms)
        return params.like(self.vector.clone()) if counted else params

    def score(self, params: Params, data: Samples) -> float:
        """Return the task's score of these parameters on data."""
        return self.task.score(self.outputs(params, data), data.copy())

    @torch.no_grad()
    def loss(self, params: Params, data: Samples, batch: int = 64) -> float:
        """Return the mean loss of these parameters on data."""
        if not len(data):
            raise ConfigError("the loss of no samples was asked for; is a validation part empty?")
        self.vector.copy_(params.flat)
        self._mode(train=False)
        total = 0.0
        for at in range(0, len(data), batch):
            part = self.batch(data, slice(at, at + batch))
            size = min(batch, len(data) - at)
            total += self.number(self.task.loss(self.task.forward(self.module, part), part)) * size
        return float(total) / len(data)
