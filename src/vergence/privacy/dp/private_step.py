"""Private gradient of one batch, for an optimiser's step on a network or on a part of it.

Used by `engine.protections.dp_split`, `privacy.dp.dp_sgd_solver` and `privacy.dp.mixing_probe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vergence.core.data import Batch
from vergence.core.objectives import loss_per_sample
from vergence.core.params import Params
from vergence.core.requests import Step
from vergence.core.serialization import digest
from vergence.core.stages import PULL, Piece
from vergence.core.task import Task
from vergence.privacy.dp.dp_sgd import noised
from vergence.privacy.dp.per_sample_gradients import Clipper
from vergence.privacy.keyed_noise import NoiseKey
from vergence.training.steps import rows_of


@dataclass(frozen=True)
class PrivateGradients:
    """Computes a private gradient: the sum of a batch's clipped gradients, plus noise.

    The noisy sum is divided by the expected batch size. The gradient with respect to the input is
    that of the mean loss, without noise: only the owner of the batch receives it.

    Attributes:
        clip: largest L2 norm of one sample's gradient over the parameters of this part of the
            network.
        deviation: standard deviation of the noise on every entry of the sum.
        expected: expected number of samples in a batch.
        key: key of the noise, for this step alone.

    Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1.
    """

    clip: float
    deviation: float
    expected: float
    key: NoiseKey

    def __call__(
        self, task: Task, module: nn.Module, batch: Batch, wrt: str | None
    ) -> tuple[Params, Tensor | None]:
        """Return the private gradient of the parameters, and a gradient for the batch's input.

        The second gradient is that of the mean loss with respect to the column `wrt` of the batch;
        it is None if `wrt` is None.
        """
        total = Params.of(module) * 0.0
        pull = None if wrt is None else torch.zeros_like(batch[wrt])
        if rows_of(batch):
            with Clipper(module, self.clip) as clipper:
                pull = clipped_sum(clipper, task, batch, {n: total[n] for n in total}, wrt)
        noised(total.flat, self.deviation, self.expected, self.key.draws())
        return total, pull


def clipped_sum(
    clipper: Clipper, task: Task, batch: Batch, into: Mapping[str, Tensor], wrt: str | None = None
) -> Tensor | None:
    """Write the sum of a batch's clipped gradients into the tensors `into`.

    Return the gradient of the mean loss with respect to the column `wrt`, without noise or
    clipping; None if `wrt` is None.

    Args:
        clipper: the clipper of the task's network.
        task: task that computes the losses, one per sample.
        batch: one sample or more.
        into: tensors to overwrite, by the names of trainable parameters.
        wrt: name of a column of the batch, or None.
    """
    samples, pull = rows_of(batch), None

    def losses(batch: Batch) -> Tensor:
        output = task.forward(clipper.module, batch)
        if PULL in batch:
            return (output * batch[PULL]).flatten(1).sum(1) * samples
        return loss_per_sample(task.task if isinstance(task, Piece) else task, output, batch)

    def alone(at: int) -> Tensor:
        return losses({name: column[at : at + 1] for name, column in batch.items()})[0]

    together = losses(batch)
    if wrt is not None:
        (pull,) = torch.autograd.grad(together.mean(), batch[wrt], retain_graph=True)
    clipper.gradients(together, into, alone)
    return pull


def mark(ask: Step) -> str:
    """Return a digest of all inputs of a step, so that different steps get different noise."""
    return digest(
        ask.params.flat.numpy().tobytes(),
        *(column.contiguous().numpy().tobytes() for _, column in sorted(ask.batch.items())),
    )
