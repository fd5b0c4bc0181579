"""Linear upsampling by two, with the same gradients in every run, also on a GPU.

Used by `models.glc.glc_causal`, `models.glc.glc_features` and `models.glc.glc_vit`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MODES = {4: "bilinear", 5: "trilinear"}
"""Number of dimensions -> torch's name of linear interpolation."""


def double(x: Tensor, *dims: int) -> Tensor:
    """Return `x` with twice as many entries along some dimensions, interpolated linearly.

    As `torch.nn.functional.interpolate` with `align_corners=False`, which a CPU takes.

    Args:
        x: samples x channels x steps x rows x columns, or without steps.
        dims: which of the last two or three dimensions, as counted from the first.
    """
    if x.device.type == "cpu":
        factors = tuple(2 if dim in dims else 1 for dim in range(2, x.ndim))
        return functional.interpolate(x, scale_factor=factors, mode=MODES[x.ndim])
    # On CUDA the gradient of torch's function is summed in an order that differs between runs.
    for dim in dims:
        x = between(x, dim)
    return x


def between(x: Tensor, dim: int) -> Tensor:
    """Return `x` with twice as many entries along `dim`, by weighted sums of neighbours.

    The two entries made of one lie a quarter of a step before and after it; beyond the edges the
    edges are repeated.
    """
    n = x.shape[dim]
    left = torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, n - 1)], dim)
    right = torch.cat([x.narrow(dim, 1, n - 1), x.narrow(dim, n - 1, 1)], dim)
    pair = torch.stack([0.75 * x + 0.25 * left, 0.75 * x + 0.25 * right], dim + 1)
    return pair.flatten(dim, dim + 1)
