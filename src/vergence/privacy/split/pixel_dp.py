"""PixelDP: noise behind a first convolution whose operator norm is known, and its guarantee.

A change of L in the pixels (L1, or L2) changes what the convolution makes of them by at most
Delta L: noise of scale Delta l hides it with epsilon = L / l (Laplace). Delta is the norm of the
operator, padding, stride and dilation included; a norm of the kernel's numbers is another number,
and mostly too small. This hides single pixels. It is no promise about an image (see `promise`).

Used by `attacks.defended_clients`, `audit.smashed_data`, `engine.protections.split_defense` and
`privacy.split.defense`.

Source: Lecuyer et al., "Certified robustness to adversarial examples with differential privacy",
IEEE S&P 2019, Section IV. The norm is computed here, not bounded.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.keyed_noise import NoiseStream, hidden

Norm = Literal["l1_l1", "l1_l2", "l2_l2"]
"""Operator norms from a change of pixels to a change of outputs. Laplace noise needs the first,
Gaussian noise the second for changes in L1 and the third for changes in L2."""
ABOVE = 1 + 1e-6
"""Margin by which weights are divided in addition to their norm, so that rounding keeps it <= 1."""


@torch.no_grad()
def sensitivity(conv: nn.Conv2d, height: int, width: int, norm: Norm = "l1_l1") -> float:
    """Return the operator norm of a convolution on images `[channels, height, width]`.

    A column of the operator is the effect of one pixel on all outputs; the transposed convolution
    of ones with |w| (or w^2) sums every column at once. The L1 to L1 norm is the largest column
    sum, L1 to L2 the largest column norm. The L2 to L2 norm is bounded by the largest singular
    value over the frequencies of a torus in which the image does not wrap: this is exact for the
    torus, and never below the norm for the image. The bias has no effect.

    Raises:
        ConfigError: the padding repeats or mirrors pixels.
    """
    if conv.padding_mode != "zeros":
        raise ConfigError(
            f"the norm of a convolution needs padding_mode 'zeros'; got '{conv.padding_mode}'"
        )
    if norm == "l2_l2":
        return _spectral(conv, height, width)
    weight = conv.weight.double()
    columns = _columns(conv, weight.abs() if norm == "l1_l1" else weight.square(), height, width)
    largest = float(columns.max())
    return largest if norm == "l1_l1" else largest**0.5


def _columns(conv: nn.Conv2d, weight: Tensor, height: int, width: int) -> Tensor:
    image = torch.zeros(1, conv.in_channels, height, width, dtype=torch.float64)
    image.requires_grad_(True)
    # The gradient of a sum is the transposed convolution, whatever stride and padding leave over.
    with torch.enable_grad():
        out = functional.conv2d(
            image, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups
        )
        return torch.autograd.grad(out.sum(), image)[0]


def _spectral(conv: nn.Conv2d, height: int, width: int) -> float:
    weight = conv.weight.double()
    rows, columns = (
        size + step * (taps - 1)
        for size, step, taps in zip((height, width), conv.dilation, conv.kernel_size, strict=True)
    )
    spread = torch.zeros(*weight.shape[:2], rows, columns, dtype=torch.float64)
    spread[..., :: conv.dilation[0], :: conv.dilation[1]][
        ..., : conv.kernel_size[0], : conv.kernel_size[1]
    ] = weight
    waves = torch.fft.rfft2(spread).movedim((0, 1), (2, 3))
    groups = waves.chunk(conv.groups, dim=2)
    return max(float(torch.linalg.matrix_norm(group, 2).max()) for group in groups)


@torch.no_grad()
def normalise_(conv: nn.Conv2d, height: int, width: int, norm: Norm = "l1_l1") -> float:
    """Divide a convolution's weights by its operator norm, in place; return its new norm.

    This is called after every step, before the next forward pass, so that noise of scale l needs no
    sensitivity that depends on data. Weights of 0 stay 0.

    Source: SplitFed thesis, section 4.4.1.
    """
    before = sensitivity(conv, height, width, norm)
    if before:
        conv.weight.div_(before * ABOVE)
    return sensitivity(conv, height, width, norm)


def noisy(smashed: Tensor, level: float, norm: Norm, draws: NoiseStream) -> Tensor:
    """Return a normalised convolution's smashed data with noise: Laplace, or Gaussian for L2.

    Args:
        smashed: `[samples, ...]`; gradients pass unchanged.
        level: l, the scale (Laplace) or the standard deviation (Gaussian).
        norm: norm by which the convolution was normalised.
        draws: random numbers of this client, round and batch, fresh in every forward pass.
    """
    kind = draws.laplace if norm == "l1_l1" else draws.gaussian
    return hidden(smashed, level, kind(smashed.numel()))


def promised(level: float, norm: Norm, change: float, passes: int, delta: float = 1e-5) -> float:
    """Return epsilon for two inputs that differ by `change`, sent `passes` times with fresh noise.

    The change is in L1, or in L2 for a spectral norm; delta applies only to Gaussian noise.
    """
    if norm == "l1_l1":
        return passes * change / level
    return gaussian_epsilon(np.sqrt(passes) * change / level, delta)


def promise(level: float, height: int, width: int, passes: int) -> str:
    """Return a text on what Laplace noise of this level guarantees, and what it does not."""
    image = promised(level, "l1_l1", height * width, passes)
    return (
        f"empirical obfuscation: epsilon {1 / level:g} per unit of L1 change for each forwarded "
        f"sample (one pixel by 1.0, pixels in [0, 1]); for a whole {height}x{width} image sent "
        f"{passes} times the same noise is epsilon {image:,.0f}: no image-level or user-level "
        "guarantee"
    )
