"""ResNet-18 for eye patches, head pose at the last layer.

Used by `models.cross_encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.stages import Staged
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.resnet_preact import Shortcut, check_patches, initialise

WIDENING = (1, 2, 4, 8)
"""Channels of the four stages, as multiples of the first."""


@dataclass(frozen=True)
class ResNet18(Model):
    """The residual network of 18 layers on one grey channel: 11,168,710 parameters.

    Its stem is one 3 x 3 convolution without max-pooling: the usual 7 x 7 stem of stride 2 with
    pooling leaves 9 x 15 pixels of a 36 x 60 patch before the first block. BatchNorm is GroupNorm
    here, as running statistics are not parameters. The thesis (Model 3) does not state its stem.

    Attributes:
        channels: channels of the first stage; the others have 2, 4 and 8 times as many.
        groups: number of groups into which GroupNorm divides the channels.
        stride: stride of the stem: 2 for 36 x 60 patches, 1 for 9 x 15 crops.
        pose: whether head pose joins the last layer; without it the network has four weights
            fewer and head pose need not leave a client.

    Trained by Adam in the thesis, which gives no rate; the table of docs/results/eye_models.md
    takes 1e-3.
    Source: eyeimages design note, section 1.3, Model 3; He et al. 2016, "Deep residual learning for
    image recognition"; Wu & He 2018, "Group normalization".
    """

    channels: Annotated[int, Ge(1)] = 64
    groups: Annotated[int, Ge(1)] = 32
    stride: Annotated[int, Interval(ge=1, le=2)] = 2
    pose: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channels % self.groups:
            raise ConfigError(
                f"resnet18: channels must be a multiple of groups, got {self.channels} and "
                f"{self.groups}"
            )

    def build(self) -> ResNet18Net:
        """Return the network, initialised from torch's global generator."""
        return ResNet18Net(self.channels, self.groups, self.stride, self.pose)


class ResNet18Net(Staged):
    """Network from patches `[B, 1, H, W]` and pose `[B, 2]` to (pitch, yaw) in radians."""

    def __init__(self, channels: int, groups: int, stride: int, pose: bool = True) -> None:
        super().__init__()
        blocks_of = {f"block{i}": (f"blocks.{i}",) for i in range(2 * len(WIDENING))}
        self.stages = {"conv": ("conv", "norm"), **blocks_of, "fc": ("fc",)}
        self.reads = frozenset({"fc"} if pose else ())
        self.conv = nn.Conv2d(1, channels, 3, stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, channels)
        blocks, before = [], channels
        for factor in WIDENING:
            after = factor * channels
            blocks += [
                BasicBlock(before, after, 1 + (factor > 1), groups),
                BasicBlock(after, after, 1, groups),
            ]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(before + 2 * pose, 2)
        initialise(self)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of one stage for its input: stem, block, or mean with last layer.

        Raises:
            ConfigError: pictures that are not grey, or smaller than 9 x 15.
        """
        match name:
            case "conv":
                check_patches("resnet18", x)
                return functional.relu(self.norm(self.conv(x)))
            case "fc":
                x = x.mean((2, 3))
                return self.fc(torch.cat([x, *side_inputs], 1) if self.reads else x)
            case _:
                return self.blocks[int(name.removeprefix("block"))](x)


class BasicBlock(nn.Module):
    """3 x 3, norm, ReLU, 3 x 3, norm, plus the block's input (projected to its shape), ReLU."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.project = (
            nn.Identity()
            if before == after
            else nn.Sequential(Shortcut(before, after, stride), nn.GroupNorm(groups, after))
        )

    def forward(
        self, x: Float[Tensor, "batch before h w"]
    ) -> Float[Tensor, "batch after rows cols"]:
        """Return the maps, of half the size where the stride is 2."""
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.project(x))
