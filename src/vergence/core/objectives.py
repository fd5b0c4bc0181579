"""Training objectives other than the task's own loss, and losses sample by sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap

from vergence.core.data import Batch
from vergence.core.task import Task, mapped


class Objective(ABC):
    """A loss that a training minimises in place of the task's own."""

    @abstractmethod
    def loss(self, task: Task, module: nn.Module, batch: Batch, draw: Generator) -> Tensor:
        """Return the mean loss over the batch (scalar), of a network in training mode.

        `draw` is this training's own randomness.
        """


@dataclass(frozen=True)
class FeatureAlignment(Objective):
    """Pull features towards the centres `[classes, d]` of their samples' classes.

    Adds weight * mean((features - centre)^2), over batch and dimensions, to the loss.
    """

    centres: Tensor
    weight: float

    def loss(self, task: Task, module: nn.Module, batch: Batch, draw: Generator) -> Tensor:
        """Return the task's loss and the pull."""
        output, features = task.features(module, batch)
        apart = features - self.centres[task.class_of(batch)]
        return task.loss(output, batch) + self.weight * apart.square().mean()


def each(task: Task, output: Any, batch: Batch) -> Tensor:
    """Return the losses of a batch's samples, `[batch]`, each as the task would alone.

    One after the other where a loss looks at values to decide, or draws numbers, and where an
    output is more than a tensor: entries without a row for each sample are the same for all.
    """
    told = {name: batch[name] for name in task.labels or batch}

    def alone(output: Tensor, told: Batch) -> Tensor:
        return task.loss(output[None], {name: column[None] for name, column in told.items()})

    with suppress(RuntimeError):
        if isinstance(output, Tensor):
            return vmap(alone)(output, told)
    samples, losses = len(next(iter(told.values()))), []
    for at in range(samples):
        rows = slice(at, at + 1)
        one = mapped(lambda p, rows=rows: p[rows] if p.shape[:1] == (samples,) else p, output)
        losses.append(task.loss(one, {name: column[rows] for name, column in told.items()}))
    return torch.stack(losses)
