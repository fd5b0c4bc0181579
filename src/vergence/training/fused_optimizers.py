"""SGD, Adam and AdamW as one fused kernel per step, over lists of tensors.

Used by `training.cuda_graphs`, `training.few_shot`, `training.sequential`, `training.stacked` and
`training.steps`.
"""

# torch.optim is built on these kernels; they have no public names.

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vergence.core.local_training import LocalTraining

SLOTS = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
}
"""The buffers of each optimiser, by torch's names."""
KERNELS = {name: getattr(torch, f"_fused_{name}_") for name in SLOTS}
"""The kernels behind `torch.optim` with `fused=True`."""


def stepper(
    tensors: list[Tensor],
    buffers: list[list[Tensor]],
    local: LocalTraining,
    rate: float | Tensor,
    count: Tensor,
) -> Callable[[list[Tensor]], None]:
    """Return a function that takes one optimiser step over lists of tensors and their buffers.

    `count` is the number of steps so far, and increases; a rate in a tensor is read in every step.
    """
    # Without the bookkeeping of `torch.optim`: 23 % of a step of a network of 29,000 parameters.
    kernel = KERNELS[local.optimizer]
    if local.optimizer == "sgd":
        momentum = buffers[0] if buffers else []

        def sgd(gradients: list[Tensor]) -> None:
            kernel(
                tensors,
                gradients,
                momentum,
                weight_decay=local.weight_decay,
                momentum=local.momentum,
                lr=rate,
                dampening=0.0,
                nesterov=local.nesterov,
                maximize=False,
                # torch copies the first gradient into the momentum; adding it to 0 is the same.
                is_first_step=False,
            )

        return sgd
    first, second = buffers
    counts = [count] * len(tensors)

    def adam(gradients: list[Tensor]) -> None:
        count.add_(1)
        kernel(
            tensors,
            gradients,
            first,
            second,
            [],
            counts,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=local.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return adam
