"""Gradients of a training step: the loss, and changes to its gradients before the step.

Used by `training.bf16_weights`, `training.cuda_graphs`, `training.sequential`, `training.stacked`
and `training.steps`.
"""

# torch.optim is built on these kernels; they have no public names.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vergence.core.data import Batch
from vergence.core.local_training import Precision
from vergence.core.requests import Fit
from vergence.core.task import Task, map_outputs

Adjust = Callable[[list[Tensor]], list[Tensor]]


def training_loss(task: Task, module: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """Return the loss of a batch in training, its forward pass in this precision."""
    if precision in ("fp32", "tf32"):
        return task.loss(task.forward(module, batch), batch)
    device = next(module.parameters()).device.type
    # Without its cache: a CUDA graph must not hold casts of an earlier step's parameters.
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        output = task.forward(module, batch)
    return task.loss(map_outputs(Tensor.float, output), batch)


@torch.no_grad()
def clip_(gradients: list[Tensor], limit: float) -> None:
    """Shorten a batch's gradients in place to this norm over all of them; 0 leaves them.

    DP-SGD uses another function, which shortens every sample's gradient: `per_sample_gradients`.
    """
    if not limit:
        return
    if not gradients[0].is_cpu:
        clip_unread_(gradients, limit)
        return
    norms = torch.stack(torch._foreach_norm(gradients))
    # 1e-6 as in `torch.nn.utils.clip_grad_norm_`.
    norm = float(torch.linalg.vector_norm(norms)) + 1e-6
    if norm > limit:
        torch._foreach_mul_(gradients, limit / norm)


def clip_unread_(gradients: list[Tensor], limit: float) -> None:
    """Shorten a batch's gradients in place to this norm, as `clip_` does, without a branch on it.

    A branch would read the norm back from a GPU, which a recording cannot.
    """
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    norm = torch.linalg.vector_norm(norms) + 1e-6
    scale = torch.where(norm > limit, limit / norm, 1.0)
    for gradient in gradients:
        gradient.mul_(scale)


def take_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters' gradients, zeros where there are none, and remove them."""
    gradients = []
    for parameter in parameters:
        # Autograd's own buffers: adding into ours would cost two more passes over them. Inside a
        # CUDA graph the next backward allocates them from the graph's memory, at one address.
        grad, parameter.grad = parameter.grad, None
        gradients.append(torch.zeros_like(parameter) if grad is None else grad)
    return gradients


@contextmanager
def gradients_off(frozen: Sequence[Tensor]) -> Iterator[None]:
    """Compute no gradients of these parameters inside of the block; `take_gradients` gives zeros.

    The sequential solver uses it for layers that do not train. A backward pass then ends at the
    first layer that trains, which saves much of the time when only a head is trained.
    """
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def adjuster(
    ask: Fit,
    vector: Tensor,
    views: Callable[[Tensor], list[Tensor]],
    scratch: tuple[Tensor, list[Tensor]] | None,
) -> Adjust:
    """Return a function that changes gradients in place as a fit asks.

    Args:
        ask: the fit, with its `anchor`, `correction`, `trainable` and `local.clip`.
        vector: the flat vector of the parameters in training.
        views: function that returns a flat vector as the network's tensors, in the order of the
            gradients.
        scratch: memory of the size of `vector`, and its views; needed only with an `anchor`.
    """
    asked = (ask.anchor, ask.correction, ask.trainable)
    if asked == (None, None, None) and not ask.local.clip:
        return lambda gradients: gradients
    keep = push = None
    if ask.correction is not None:
        push = views(ask.correction.flat)
    if ask.trainable is not None:
        keep = views(ask.trainable.on(vector).to(vector.dtype))

    @torch.no_grad()
    def adjust(gradients: list[Tensor]) -> list[Tensor]:
        if ask.anchor is not None and scratch is not None:
            difference, parts = scratch
            torch.sub(vector, ask.anchor[0].flat, out=difference)
            torch._foreach_add_(gradients, parts, alpha=ask.anchor[1])
        if push is not None:
            torch._foreach_add_(gradients, push)
        if keep is not None:
            torch._foreach_mul_(gradients, keep)
        # Last: the limit is on the gradient that the optimiser gets.
        clip_(gradients, ask.local.clip)
        return gradients

    return adjust
