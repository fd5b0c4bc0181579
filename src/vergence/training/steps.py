"""Single optimiser steps on one batch, of a network or a piece of one, for split learning.

A `Fit` trains on data on this machine; here every batch arrives from another machine, and the
gradient by the batch goes back.

Used by `attacks.label_inference`, `engine.client_executor`, `engine.protections.output_range`,
`engine.protections.split_defense`, `privacy.dp.mixing_probe` and `privacy.dp.private_step`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.core.data import Batch, copy_of
from vergence.core.layers.batch_norm import statistics_of
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.params import Params
from vergence.core.requests import Forward, Step, StepResult
from vergence.core.task import Task
from vergence.training.device import answer_on
from vergence.training.fused_optimizers import slots_of, stepper
from vergence.training.gradients import clip_, take_gradients


class Trainers:
    """Carries out `Step` and `Forward` requests for a task and the pieces of its network."""

    def __init__(self, task: Task, device: torch.device | str = "cpu") -> None:
        self.task, self.device = task, torch.device(device)
        self.trainers: dict[Task, Trainer] = {}

    def answer(self, ask: Step | Forward, progress: float) -> StepResult | Tensor:
        """Carry out a method's request; `progress` is the share of rounds done."""
        on = ask.on(self.task)
        if on not in self.trainers:
            self.trainers[on] = Trainer(on, self.device)
        trainer = self.trainers[on]
        return trainer.step(ask, progress) if isinstance(ask, Step) else trainer.forward(ask)


class Trainer:
    """Takes steps with one task's network, whose parameters become views of the caller's memory.

    On a GPU they are views of copies, unless the caller's parameters lie there.
    """

    def __init__(self, task: Task, device: torch.device | str = "cpu") -> None:
        self.task, self.device = task, torch.device(device)
        self.module = task.module().train().to(device)
        self.layout = Params.of(self.module).layout
        counted = statistics_of(self.module)
        trained = [name for name in self.layout.names if name not in counted]
        # Running statistics come last: optimisers get the first `moved` tensors alone.
        self.names, self.moved = (*trained, *counted), len(trained)
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in self.names]
        self.views: dict[str, tuple[Tensor, list[Tensor]]] = {}

    def forward(self, ask: Forward) -> Tensor:
        """Carry out a `Forward`: return the network's output on the request's batch."""
        return answer_on(self.device, ask, self._forward)

    @torch.no_grad()
    def _forward(self, ask: Forward) -> Tensor:
        self._bind(ask.params)
        return self.task.forward(self.module, copy_of(ask.batch))

    def step(self, ask: Step, progress: float = 0.0) -> StepResult:
        """Carry out a `Step`; `progress` is the share of rounds done, for the schedule.

        A batch without samples changes nothing, unless the request has its own `gradients`.
        """
        return answer_on(self.device, ask, lambda ask: self._step(ask, progress))

    def _step(self, ask: Step, progress: float) -> StepResult:
        # A copy: the batch is read again when its gradient comes back, and by protections.
        tensors, batch, leaf = self._bind(ask.params), copy_of(ask.batch), None
        if ask.wrt is not None:
            leaf = batch[ask.wrt].detach().requires_grad_()
            batch = {**batch, ask.wrt: leaf}
        state = with_buffers(ask.params, ask.optimiser, ask.local)
        if ask.gradients is not None:
            gradient_of, pull = ask.gradients(self.task, self.module, batch, ask.wrt)
            gradients, loss = [gradient_of[name] for name in self.names[: self.moved]], None
        elif not rows_of(batch):
            pull = None if leaf is None else torch.zeros_like(leaf)
            return StepResult(ask.params, state, 0.0, pull)
        else:
            if leaf is not None and ask.wrt is not None:
                # A network whose first layer works in place may not get the leaf itself.
                batch[ask.wrt] = leaf.clone()
            mean = self.task.loss(self.task.forward(self.module, batch), batch)
            mean.backward()
            gradients = take_gradients(self.parameters[: self.moved]) if tensors else []
            if tensors:
                clip_(gradients, ask.local.clip)
            pull, loss = None if leaf is None else leaf.grad, float(mean.detach())
        if tensors:
            slots = state.slots.items()
            buffers = [self._views(name, slot.flat)[: self.moved] for name, slot in slots]
            count = torch.full((), float(state.steps), device=self.device)
            stepper(tensors, buffers, ask.local, ask.local.learning_rate(progress), count)(
                gradients
            )
        after = OptimizerState(state.slots, state.steps + 1)
        return StepResult(ask.params, after, loss, pull)

    def _bind(self, params: Params) -> list[Tensor]:
        """Let the network's parameters be views of this memory; nothing is copied."""
        known = self.views.get("")
        views = self._views("", params.flat)
        if known is None or known[1] is not views:
            for parameter, view in zip(self.parameters, views, strict=True):
                parameter.data = view
        return views[: self.moved]

    def _views(self, name: str, flat: Tensor) -> list[Tensor]:
        if name not in self.views or self.views[name][0] is not flat:
            self.views[name] = flat, [self.layout.view(flat, n) for n in self.names]
        return self.views[name][1]


def rows_of(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return len(next(iter(batch.values())))


def with_buffers(params: Params, optimiser: OptimizerState, local: LocalTraining) -> OptimizerState:
    """Return the optimiser's state, with zeros for buffers that it does not have yet.

    `Trainer.step` calls this.
    """
    names = slots_of(local)
    if set(optimiser.slots) == set(names):
        return optimiser
    slots = {name: optimiser.slots.get(name, params * 0.0) for name in names}
    return OptimizerState(slots, optimiser.steps)
