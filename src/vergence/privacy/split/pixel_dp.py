"""PixelDP: noise behind a first convolution whose operator norm is known, and its guarantee.

If two images differ by L (in the L1 or L2 norm), the outputs of the convolution differ by at most
Delta L. Laplace noise of scale Delta l then gives epsilon = L / l. Delta is the norm of the
convolution as an operator, with padding, stride and dilation; a norm of the kernel's weights is
another number, and usually too small. This hides single pixels. It gives no guarantee for a whole
image (see `promise`).

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
"""Operator norm: norm of a change of pixels, and norm of the change of outputs. Laplace noise needs
`l1_l1`. Gaussian noise needs `l1_l2` for L1 changes of pixels, and `l2_l2` for L2 changes."""
ABOVE = 1 + 1e-6
"""Factor on the norm by which weights are divided, so that rounding leaves a norm of at most 1."""
SHAPED = 1e-5
"""Weights with a norm from 1 - `SHAPED` to 1 are left as they are; otherwise they would shrink in
each step."""


@torch.no_grad()
def sensitivity(conv: nn.Conv2d, height: int, width: int, norm: Norm = "l1_l1") -> float:
    """Return the operator norm of a convolution on images `[channels, height, width]`.

    A column of the operator's matrix is the effect of one pixel on all outputs. The transposed
    convolution of ones with |w| (or w^2) sums all columns at once. The norm `l1_l1` is the largest
    sum of absolute values of a column, and `l1_l2` the largest L2 norm of a column. For `l2_l2` the
    result is an upper bound: the norm of the convolution on a torus so large that the image does
    not wrap. The bias has no effect.

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
    """Divide a convolution's weights by its operator norm, in place; return the new norm.

    Images are `[channels, height, width]`. This is called between an optimiser step and the next
    forward pass, so that the sensitivity is always at most 1. If all weights are 0 they stay 0.

    Source: SplitFed thesis, section 4.4.1.
    """
    before = sensitivity(conv, height, width, norm)
    if before:
        conv.weight.div_(before * ABOVE)
    return sensitivity(conv, height, width, norm)


@torch.no_grad()
def normalise_filters_(conv: nn.Conv2d) -> None:
    """Divide each filter of a convolution by its own L1 norm, in place; zeros stay zeros.

    A filter's norm is the sum of its absolute weights, the largest one over the channels of the
    image. A change of one pixel by 1 then moves the outputs of one filter by at most 1 in L1, and
    those of all filters by at most their number.

    Source: SplitFed thesis, section 4.4.1, which does not say over what its norm is; this is the
    weaker reading.
    """
    each = conv.weight.double().abs().sum((2, 3)).amax(1)
    wrong = (each > 0) & ((each < 1 - SHAPED) | (each > 1))
    if wrong.any():
        conv.weight.div_(torch.where(wrong, each * ABOVE, 1.0).float()[:, None, None, None])


def noisy(smashed: Tensor, level: float, norm: Norm, draws: NoiseStream) -> Tensor:
    """Return the outputs of a normalised convolution with noise.

    The noise is Laplace noise if `norm` is `l1_l1`, else Gaussian noise.

    Args:
        smashed: the outputs, `[samples, ...]`; gradients pass through unchanged.
        level: scale (Laplace) or standard deviation (Gaussian) of the noise.
        norm: norm by which the convolution was normalised.
        draws: random numbers of this client, round and batch, new in every forward pass.
    """
    kind = draws.laplace if norm == "l1_l1" else draws.gaussian
    return hidden(smashed, level, kind(smashed.numel()))


def promised(level: float, norm: Norm, change: float, passes: int, delta: float = 1e-5) -> float:
    """Return epsilon for two images, each sent several times with fresh noise.

    Args:
        level: scale (Laplace, for `l1_l1`) or standard deviation (Gaussian) of the noise.
        norm: norm by which the convolution was normalised.
        change: distance of the images, in the L2 norm for `l2_l2`, else in the L1 norm.
        passes: how often an image is sent.
        delta: the delta at which epsilon is computed; unused for Laplace noise.
    """
    if norm == "l1_l1":
        return passes * change / level
    return gaussian_epsilon(np.sqrt(passes) * change / level, delta)


def promise(multiple: float, height: int, width: int, passes: int) -> str:
    """Return a text on what Laplace noise guarantees, and what it does not.

    Args:
        multiple: scale of the noise, divided by the L1 sensitivity to a pixel.
        height: height of an image in pixels.
        width: width of an image in pixels.
        passes: how often an image is sent.
    """
    image = promised(multiple, "l1_l1", height * width, passes)
    return (
        f"empirical obfuscation: epsilon {1 / multiple:g} per unit of L1 change for each forwarded "
        f"sample (one pixel by 1.0, pixels in [0, 1]); for a whole {height}x{width} image sent "
        f"{passes} times the same noise is epsilon {image:,.0f}: no image-level or user-level "
        "guarantee"
    )
