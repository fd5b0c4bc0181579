"""A small conditional generator, which turns a class and noise into a row of numbers.

Used by `methods.fedgen`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConditionalNet(nn.Module):
    """Network from classes int64 `[batch]` and noise `[batch, noise]` to `[batch, out]`.

    Source: Zhu, Hong, Zhou, "Data-free knowledge distillation for heterogeneous federated
    learning", ICML 2021, and the authors' programme.
    Differs: the hidden layer is normalised within a sample, where theirs keeps running statistics
    of batches, which have no place among parameters.
    """

    def __init__(self, classes: int, noise: int, hidden: int, out: int) -> None:
        super().__init__()
        self.inner = nn.Linear(noise + classes, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.outer = nn.Linear(hidden, out)

    def forward(self, classes: Tensor, noise: Tensor) -> Tensor:
        """Return an output `[out]` for every class and its noise: `[batch, out]`."""
        return conditional(dict(self.named_parameters()), classes, noise)


def conditional(weights: Mapping[str, Tensor], classes: Tensor, noise: Tensor) -> Tensor:
    """Return the output of a `ConditionalNet` with these parameters for classes and noise."""
    # Without a module, whose parameters would have to be replaced: threads may call this at once.
    w = weights
    named = functional.one_hot(classes, w["inner.weight"].shape[1] - noise.shape[1])
    x = torch.cat([noise, named.to(noise.dtype)], 1)
    x = functional.linear(x, w["inner.weight"], w["inner.bias"])
    x = functional.layer_norm(x, x.shape[1:], w["norm.weight"], w["norm.bias"])
    return functional.linear(functional.relu(x), w["outer.weight"], w["outer.bias"])
