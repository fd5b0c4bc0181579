"""ResNet-preact-8 for eye patches: three pre-activation blocks, head pose at the last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.ranges import check_ranges
from vergence.core.task import Model
from vergence.errors import ConfigError


@dataclass(frozen=True)
class ResNetPreact(Model):
    """A residual network of 8 layers, as in hysts/pytorch_mpiigaze: 77,046 parameters.

    It takes patches of any size from 9 x 15 on: the last maps are averaged. BatchNorm is GroupNorm
    here, whose statistics are of one picture: running averages over a client's pictures are not
    parameters and must not be averaged over people.

    Attributes:
        channels: of the first stage; the others have twice and four times as many.
        groups: into which GroupNorm puts the channels; 1 is LayerNorm over the whole picture.

    Trained there by SGD at lr 0.1 (momentum 0.9, Nesterov, weight decay 1e-4, batch 32, MSE) for 40
    epochs, a tenth of it after 30 and 35.
    Source: eyeimages design note, section 1.2; He et al. 2016, "Identity mappings in deep residual
    networks"; Wu & He 2018, "Group normalization".
    """

    channels: Annotated[int, Ge(1)] = 16
    groups: Annotated[int, Ge(1)] = 4

    def __post_init__(self) -> None:
        check_ranges(self, "resnet_preact")
        if self.channels % self.groups:
            raise ConfigError(
                f"resnet_preact: channels must be a multiple of groups, got {self.channels} and "
                f"{self.groups}"
            )

    def build(self) -> ResNetPreactNet:
        """Return the network, initialised from torch's global generator."""
        return ResNetPreactNet(self.channels, self.groups)


class ResNetPreactNet(nn.Module):
    """Patches `[B, 1, H, W]` and pose `[B, 2]` to (pitch, yaw) in radians."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.stage1 = Block(channels, channels, 1, groups)
        self.stage2 = Block(channels, 2 * channels, 2, groups)
        self.stage3 = Block(2 * channels, 4 * channels, 2, groups)
        self.norm = nn.GroupNorm(groups, 4 * channels)
        self.fc = nn.Linear(4 * channels + 2, 2)
        initialise(self)

    def forward(
        self, image: Float[Tensor, "batch 1 height width"], pose: Float[Tensor, "batch 2"]
    ) -> Float[Tensor, "batch 2"]:
        """Return the gaze.

        Raises:
            ConfigError: pictures that are not grey, or smaller than 9 x 15.
        """
        check_patches("resnet_preact", image)
        x = self.stage3(self.stage2(self.stage1(self.conv(image))))
        x = functional.relu(self.norm(x)).mean((2, 3))
        return self.fc(torch.cat([x, pose], 1))


class Block(nn.Module):
    """Norm, ReLU, 3 x 3, norm, ReLU, 3 x 3, plus what came in.

    As in the public code the shortcut starts behind the first ReLU, also where it is the identity.
    """

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.project = (
            nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)
        )

    def forward(
        self, x: Float[Tensor, "batch before h w"]
    ) -> Float[Tensor, "batch after rows cols"]:
        """Return the maps, of half the size where the stride is 2."""
        x = functional.relu(self.norm1(x))
        inner = functional.relu(self.norm2(self.conv1(x)))
        return self.conv2(inner) + self.project(x)


def initialise(network: nn.Module) -> None:
    """Draw convolutions Kaiming-normal over their fan-out; biases of linear layers become zero.

    Linear weights and norms stay as torch draws them, uniform within 1/sqrt(inputs) and ones.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)


def check_patches(model: str, image: Tensor) -> None:
    """Accept grey pictures of at least 9 x 15 pixels.

    Raises:
        ConfigError: pictures of another kind.
    """
    if image.ndim != 4 or image.shape[1] != 1 or image.shape[2] < 9 or image.shape[3] < 15:
        raise ConfigError(
            f"{model} takes grey eye patches [B, 1, H, W] of at least 9 x 15, got "
            f"{list(image.shape)}"
        )
