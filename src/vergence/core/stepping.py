"""One optimiser step on one batch, of a network or a piece of one: what split learning is made of.

A `Fit` trains on data that lie at hand; here every batch arrives from another machine, and the
gradient of what came in goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.core.fitting import SLOTS, Local, OptimiserState, clip_, stepper, take_gradients
from vergence.core.params import Params
from vergence.core.site import Batch
from vergence.core.task import Task

Network = Callable[[Task], Task]
"""Which network is meant: the run's task to the task of a piece of it."""


@dataclass(frozen=True)
class Step:
    """Train `params` by one step on this batch, in their own memory and the optimiser's.

    Whoever asks gives both away and goes on with what comes back. `wrt` names the column of the
    batch whose gradient is wanted.
    """

    params: Params
    optimiser: OptimiserState
    batch: Batch
    local: Local
    on: Network
    wrt: str | None = None


@dataclass(frozen=True)
class Stepped:
    """Parameters and optimiser after a step, the batch's mean loss before it, and a gradient."""

    params: Params
    optimiser: OptimiserState
    loss: float
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Forward:
    """Ask for a network's output on a batch, in training mode, without its graph.

    `rows` says which of a client's training samples they are.
    """

    params: Params
    batch: Batch
    on: Network
    rows: Tensor | None = None


class Trainers:
    """Answers `Step` and `Forward` for a task and the pieces of its network."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.found: dict[Task, Trainer] = {}

    def answer(self, ask: Step | Forward, progress: float) -> Stepped | Tensor:
        """Answer what a method asks; `progress` is the share of rounds done."""
        on = ask.on(self.task)
        if on not in self.found:
            self.found[on] = Trainer(on)
        trainer = self.found[on]
        return trainer.step(ask, progress) if isinstance(ask, Step) else trainer.forward(ask)


class Trainer:
    """Takes steps with one task's network, whose parameters are made views of what it is given."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.module = task.module().train()
        self.layout = Params.of(self.module).layout
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in self.layout.names]
        self.views: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def forward(self, ask: Forward) -> Tensor:
        """Answer a `Forward`."""
        self._bind(ask.params)
        with torch.no_grad():
            return self.task.forward(self.module, ask.batch)

    def step(self, ask: Step, progress: float = 0.0) -> Stepped:
        """Answer a `Step`. `progress` is the share of rounds done, for the schedule."""
        tensors, batch, given = self._bind(ask.params), ask.batch, None
        if ask.wrt is not None:
            given = batch[ask.wrt].detach().requires_grad_()
            batch = {**batch, ask.wrt: given}
        loss = self.task.loss(self.task.forward(self.module, batch), batch)
        loss.backward()
        state = started(ask.params, ask.optimiser, ask.local)
        if tensors:
            gradients = take_gradients(self.parameters)
            clip_(gradients, ask.local.clip)
            buffers = [self._views(name, slot.flat) for name, slot in state.slots.items()]
            count = torch.tensor(float(state.steps))
            stepper(tensors, buffers, ask.local, ask.local.rate(progress), count)(gradients)
        after = OptimiserState(state.slots, state.steps + 1)
        gradient = None if given is None else given.grad
        return Stepped(ask.params, after, float(loss.detach()), gradient)

    def _bind(self, params: Params) -> list[Tensor]:
        """Let the network's parameters be views of this memory; nothing is copied."""
        known = self.views.get("")
        views = self._views("", params.flat)
        if known is None or known[1] is not views:
            for parameter, view in zip(self.parameters, views, strict=True):
                parameter.data = view
        return views

    def _views(self, name: str, flat: Tensor) -> list[Tensor]:
        if name not in self.views or self.views[name][0] is not flat:
            self.views[name] = flat, [self.layout.view(flat, n) for n in self.layout.names]
        return self.views[name][1]


def started(params: Params, optimiser: OptimiserState, local: Local) -> OptimiserState:
    """Return the optimiser's state with zeros where it has no buffer yet."""
    names = SLOTS[local.optimiser] if local.buffers else ()
    if set(optimiser.slots) == set(names):
        return optimiser
    slots = {name: optimiser.slots.get(name, params * 0.0) for name in names}
    return OptimiserState(slots, optimiser.steps)
