"""Local training: what a method may ask for (`Fit`), and the solver that does it.

The solver keeps one resident network whose parameters, and their gradients, are views into two
flat vectors; starting a client is one copy, and proximal terms and masks are one operation each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from vergence.core.mask import Mask
from vergence.core.params import Layout, Params
from vergence.core.ranges import check_ranges
from vergence.core.site import Samples
from vergence.core.stream import Stream
from vergence.core.task import Task
from vergence.errors import ConfigError


@dataclass(frozen=True)
class Local:
    """How a client trains between two messages.

    `steps` batches if given, else `epochs` passes; the last, smaller batch of a pass is kept, so
    that a small client counts. `schedule` follows the share of rounds done.
    """

    epochs: Annotated[int, Ge(1)] = 1
    steps: Annotated[int, Ge(1)] | None = None
    batch: Annotated[int, Ge(1)] = 32
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Gt(0)] = 0.05
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, Ge(0)] = 1e-4
    clip: Annotated[float, Ge(0)] = 5.0
    schedule: Literal["constant", "cosine", "step"] = "constant"

    def __post_init__(self) -> None:
        check_ranges(self, "local")

    def rate(self, progress: float) -> float:
        """Return the learning rate after this share of the rounds."""
        match self.schedule:
            case "cosine":
                return self.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
            case "step":
                return self.lr * 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
            case _:
                return self.lr


@dataclass(frozen=True)
class OptimiserState:
    """Momentum buffers or moments, as one vector each, and the number of steps taken."""

    slots: Mapping[str, Params]
    steps: int


@dataclass(frozen=True)
class Fit:
    """A request for local training; see `conversation.fit`."""

    params: Params
    data: Samples
    local: Local
    trainable: Mask | None = None
    anchor: tuple[Params, float] | None = None
    optimiser: OptimiserState | None = None
    score_on: Samples | None = None


@dataclass(frozen=True)
class Compute:
    """Ask for something computed with parameters on data, nothing trained."""

    params: Params
    data: Samples
    want: Literal["loss", "outputs", "score"]


@dataclass(frozen=True)
class Fitted:
    """What training gave. `examples` is the task's weight of the data."""

    params: Params
    examples: float
    steps: int
    optimiser: OptimiserState
    metrics: Mapping[str, float] = field(default_factory=dict)


class Solver:
    """Trains and evaluates one task's network, one client after another."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = task.module()
        start = Params.of(self.module)
        self.layout: Layout = start.layout
        self.vector = nn.Parameter(start.flat.clone())
        self.gradient = torch.zeros_like(start.flat)
        self.vector.grad = self.gradient
        # torch imports its compiler with the first optimiser: here once, before workers fork.
        torch.optim.SGD([self.vector], 1.0)
        tensors = dict(self.module.named_parameters())
        for name in self.layout.names:
            tensors[name].data = self.layout.view(self.vector.data, name)
            tensors[name].grad = self.layout.view(self.gradient, name)

    def fit(self, ask: Fit, stream: Stream, progress: float = 0.0) -> Fitted:
        """Answer a `Fit`. `progress` is the share of rounds done, for the schedule."""
        if not len(ask.data):
            raise ConfigError("a client without training samples was asked to train")
        self.vector.data.copy_(ask.params.flat)
        frozen = None if ask.trainable is None else ~ask.trainable.bits
        optimiser = self._optimiser(ask, progress)
        self.module.train()
        losses, steps = 0.0, 0
        for rows in batches(len(ask.data), ask.local, stream):
            batch = ask.data.take(rows)
            self.gradient.zero_()
            loss = self.task.loss(self.task.forward(self.module, batch), batch)
            loss.backward()
            self._adjust_gradient(ask, frozen)
            optimiser.step()
            if frozen is not None:
                self.vector.data[frozen] = ask.params.flat[frozen]
            losses += float(loss.detach())
            steps += 1
        params = ask.params.like(self.vector.data.clone())
        metrics = {"loss": losses / max(steps, 1)}
        if ask.score_on is not None:
            metrics["score"] = self.score(params, ask.score_on)
        taken = steps + (ask.optimiser.steps if ask.optimiser else 0)
        state = self._optimiser_state(optimiser, taken)
        return Fitted(params, self.task.weigh(ask.data), steps, state, metrics)

    def _adjust_gradient(self, ask: Fit, frozen: Tensor | None) -> None:
        if ask.anchor is not None:
            centre, mu = ask.anchor
            self.gradient.add_(self.vector.data - centre.flat, alpha=mu)
        if frozen is not None:
            self.gradient[frozen] = 0.0
        if ask.local.clip:
            norm = torch.linalg.vector_norm(self.gradient)
            self.gradient.mul_((ask.local.clip / (norm + 1e-6)).clamp(max=1.0))

    def _optimiser(self, ask: Fit, progress: float) -> torch.optim.Optimizer:
        local, rate = ask.local, ask.local.rate(progress)
        if local.optimiser == "sgd":
            optimiser: torch.optim.Optimizer = torch.optim.SGD(
                [self.vector], rate, local.momentum, 0.0, local.weight_decay, local.nesterov,
                fused=True,
            )  # fmt: skip
        else:
            kind = torch.optim.AdamW if local.optimiser == "adamw" else torch.optim.Adam
            optimiser = kind([self.vector], rate, weight_decay=local.weight_decay, fused=True)
        if ask.optimiser is not None and ask.optimiser.slots:
            state = optimiser.state[self.vector]
            state.update({name: slot.flat.clone() for name, slot in ask.optimiser.slots.items()})
            if local.optimiser != "sgd":
                state["step"] = torch.tensor(float(ask.optimiser.steps))
        return optimiser

    def _optimiser_state(self, optimiser: torch.optim.Optimizer, steps: int) -> OptimiserState:
        state = optimiser.state[self.vector]
        slots = {
            name: Params(value.clone(), self.layout)
            for name, value in sorted(state.items())
            if isinstance(value, Tensor) and value.shape == self.vector.shape
        }
        return OptimiserState(slots, steps)

    def compute(self, ask: Compute) -> float | Tensor:
        """Answer a `Compute`."""
        answers = {"loss": self.loss, "outputs": self.outputs, "score": self.score}
        return answers[ask.want](ask.params, ask.data)

    @torch.no_grad()
    def outputs(self, params: Params, data: Samples, batch: int = 64) -> Tensor:
        """Return the network's outputs `[samples, ...]` in sample order, in evaluation mode."""
        self.vector.data.copy_(params.flat)
        self.module.eval()
        parts = [
            self.task.forward(self.module, data.take(rows)).float()
            for rows in torch.arange(len(data)).split(batch)
        ]
        return torch.cat(parts)

    def score(self, params: Params, data: Samples) -> float:
        """Return the task's score of these parameters on data."""
        return self.task.score(self.outputs(params, data), data)

    @torch.no_grad()
    def loss(self, params: Params, data: Samples, batch: int = 64) -> float:
        """Return the mean loss of these parameters on data."""
        self.vector.data.copy_(params.flat)
        self.module.eval()
        total = 0.0
        for rows in torch.arange(len(data)).split(batch):
            part = data.take(rows)
            total += float(self.task.loss(self.task.forward(self.module, part), part)) * len(rows)
        return total / len(data)


def batches(n: int, local: Local, stream: Stream) -> Iterator[Tensor]:
    """Yield the sample numbers of each batch, a fresh permutation per epoch."""
    generator, left, epoch = stream.torch(), local.steps, 0
    while left is not None or epoch < local.epochs:
        for rows in torch.randperm(n, generator=generator).split(local.batch):
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield rows
        epoch += 1
