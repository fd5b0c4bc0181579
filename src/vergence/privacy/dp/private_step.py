"""Private gradient of one batch of a piece of a cut network, for an optimiser's step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vergence.core.data import Batch
from vergence.core.objectives import each
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
    """Sum of the batch's clipped gradients with noise, divided by the expected size of a batch.

    The gradient by what came in is that of the mean loss, as it is: it goes to nobody but the
    owner of the batch.

    Attributes:
        clip: L2 norm that one sample's gradient may have in this piece.
        deviation: of the noise on every entry of the sum.
        expected: samples in a batch on average.
        key: of the noise, for this step alone.

    Source: Abadi et al., "Deep learning with differential privacy", CCS 2016, Algorithm 1.
    """

    clip: float
    deviation: float
    expected: float
    key: NoiseKey

    def __call__(
        self, task: Task, module: nn.Module, batch: Batch, wrt: str | None
    ) -> tuple[Params, Tensor | None]:
        """Return the private gradient, and that of the mean loss by the column `wrt`."""
        total = Params.of(module) * 0.0
        pull = None if wrt is None else torch.zeros_like(batch[wrt])
        if rows_of(batch):
            with Clipper(module, self.clip) as clipper:
                losses = losses_of(task, task.forward(module, batch), batch)
                if wrt is not None:
                    (pull,) = torch.autograd.grad(losses.mean(), batch[wrt], retain_graph=True)
                clipper.gradients(losses, {name: total[name] for name in total})
        noised(total.flat, self.deviation, self.expected, self.key.draws())
        return total, pull


def losses_of(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the losses of a batch's samples, `[batch]`: the mean of them is the piece's loss."""
    if PULL in batch:
        return (output * batch[PULL]).flatten(1).sum(1) * len(output)
    return each(task.task if isinstance(task, Piece) else task, output, batch)


def mark(ask: Step) -> str:
    """Digest of all that a step is made of: another step gets other noise."""
    columns = [column.contiguous().numpy().tobytes() for _, column in sorted(ask.batch.items())]
    return digest(ask.params.flat.numpy().tobytes(), *columns)
