"""EfficientNet-Lite0 with its ImageNet weights: the network whose features are frozen.

Used by `models.pretrained`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load as load_arrays
from torch import Tensor, nn

from vergence.errors import DataError

WEIGHTS = Path(__file__).with_name("efficientnet_lite0.safetensors")
SHA256 = "7dacf022537c9f9f8d7a5e37f94ee600ac3e4edaf86e9a9c72c4775d34d0c8b9"
"""SHA-256 of the packaged weights, which benchmarks/make_frozen_weights.py wrote."""
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, stride of the first block, expansion and output channels of every stage."""
STEM, HEAD = 32, 1280


class EfficientNetLite0(nn.Module):
    """The network without its classifier, for inputs `[n, 3, H, W]` of sides divisible by 32.

    Source: Tan & Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
    ICML 2019, in the variant "lite" of the authors: no squeeze-and-excitation, ReLU6 for swish.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = _layer(3, STEM, 3, 2)
        blocks, width = [], STEM
        for count, kernel, stride, expansion, out in STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                blocks.append(InvertedResidual(width, out, kernel, first, expansion))
                width = out
        self.blocks = nn.ModuleList(blocks)
        self.head = _layer(width, HEAD, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last feature map, `[n, 1280, H / 32, W / 32]`."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class InvertedResidual(nn.Module):
    """Inverted residual block: widen, filter every channel by itself, narrow.

    Source: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018.
    """

    def __init__(self, width: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = width * expansion
        widen = [_layer(width, inner, 1, 1)] if expansion > 1 else []
        filters = _layer(inner, inner, kernel, stride, groups=inner)
        # The narrow output is linear: an activation would lose part of what few channels say.
        self.layers = nn.Sequential(*widen, filters, _layer(inner, out, 1, 1)[:-1])
        self.residual = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, `[n, out, H / stride, W / stride]`."""
        made = self.layers(x)
        return made + x if self.residual else made


def load() -> EfficientNetLite0:
    """Return the network with its ImageNet weights, in evaluation mode.

    Raises:
        DataError: the packaged file was changed.
    """
    raw = WEIGHTS.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != SHA256:
        raise DataError(f"{WEIGHTS} has SHA-256 {found} instead of {SHA256}: install vergence anew")
    # On this device no random numbers are drawn for weights that are replaced at once.
    with torch.device("meta"):
        network = EfficientNetLite0()
    # `assign` takes the arrays themselves: parameters of the meta device have no memory to fill.
    network.load_state_dict(load_arrays(raw), assign=True)
    # Channels-last storage halves the time on a CPU and changes no bit of the result.
    network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return network.eval().requires_grad_(False)


def _layer(width: int, out: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
    """Return convolution, normalisation and ReLU6, padded as TensorFlow pads even sides."""
    convolution = nn.Conv2d(width, out, kernel, stride, groups=groups, bias=False)
    norm = nn.BatchNorm2d(out, eps=1e-3)
    # With a stride TensorFlow pads one row more behind than before; torch's own padding is even.
    before = (kernel - stride) // 2
    after = kernel - stride - before
    padded = [nn.ZeroPad2d((before, after, before, after))] if after else []
    return nn.Sequential(*padded, convolution, norm, nn.ReLU6())
