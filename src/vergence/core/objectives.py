"""Training objectives other than the task's own loss, and losses sample by sample.

Used in `audit`, `core`, `methods` and `privacy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap

from vergence.core.data import Batch
from vergence.core.task import Task, map_outputs


class Objective(ABC):
    """A loss that training minimises in place of the task's own."""

    @abstractmethod
    def loss(self, task: Task, module: nn.Module, batch: Batch, draw: Generator) -> Tensor:
        """Return the mean loss over the batch (scalar) of a network in training mode.

        `draw` is a random generator for this training alone, in main memory: move what it draws to
        the batch's device. Tensors and `Params` in the fields of a dataclass are there already.
        """


@dataclass(frozen=True)
class FeatureAlignment(Objective):
    """The task's loss plus a term that pulls features towards the centre of the sample's class.

    The term is weight * mean((features - centre)^2), with the mean over samples and dimensions.
    `centres` is `[classes, d]`.
    """

    centres: Tensor
    weight: float

    def loss(self, task: Task, module: nn.Module, batch: Batch, draw: Generator) -> Tensor:
        """Return the task's loss plus the weighted distance to the centres."""
        output, features = task.features(module, batch)
        offset = features - self.centres[task.class_of(batch)]
        return task.loss(output, batch) + self.weight * offset.square().mean()


def loss_per_sample(task: Task, output: object, batch: Batch) -> Tensor:
    """Return the task's loss of every sample of a batch, `[batch]`.

    An output can be a structure of tensors. A tensor in it that does not have one row per sample is
    used whole for every sample.
    """
    # The loss of a task that names no labels may read any column.
    labels = {name: batch[name] for name in task.labels or batch}

    def loss_of_one(output: Tensor, labels: Batch) -> Tensor:
        return task.loss(output[None], {name: column[None] for name, column in labels.items()})

    # vmap refuses losses that branch on values or draw numbers; these are computed in a loop below.
    with suppress(RuntimeError):
        if isinstance(output, Tensor):
            return vmap(loss_of_one)(output, labels)
    samples, losses = len(next(iter(labels.values()))), []
    for at in range(samples):
        rows = slice(at, at + 1)
        single = map_outputs(
            lambda p, rows=rows: p[rows] if p.shape[:1] == (samples,) else p, output
        )
        losses.append(task.loss(single, {name: column[rows] for name, column in labels.items()}))
    return torch.stack(losses)
