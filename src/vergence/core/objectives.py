"""Training objectives other than the task's own loss, and losses sample by sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


def each(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the losses of a batch's samples, `[batch]`, each as the task would alone.

    One after the other where a loss looks at values to decide, or draws numbers.
    """
    told = {name: batch[name] for name in task.labels or batch}

    def alone(output: Any, told: Batch) -> Tensor:
        one = mapped(lambda part: part[None], output)
        return task.loss(one, {name: column[None] for name, column in told.items()})

    try:
        return vmap(alone)(output, told)
    except RuntimeError:
        rows = ({name: column[at] for name, column in told.items()} for at in range(len(output)))
        return torch.stack([alone(one, row) for one, row in zip(output, rows, strict=True)])
