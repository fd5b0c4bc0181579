"""Global-local correlation blocks and a small decoder on frozen EfficientNet-Lite0 features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models import motion, pretrained
from vergence.models.glc.attention import GLCBlock
from vergence.models.glc.reference_map import Reference, ReferenceMap

POOL = (3, 4)
"""The frame's summary that the global token is made from, rows x columns."""


@dataclass(frozen=True)
class GlcFeatures(Model):
    """A small head on frozen features: convolutions around GLC blocks, and a learned bias map.

    Args:
        width: channels after the first convolution; the GLC blocks and the decoder run at half.
        heads: heads of the GLC blocks.
        blocks: number of GLC blocks.
        grid: rows and columns of the heat map, twice those of the features: (30, 40) for frames of
            240 x 320.
        standardise: scale every feature channel to mean 0 and deviation 1 as measured once on
            public pictures (the training images of the packaged OSIE sample), so that no client
            need tell anything about its own frames.
        motion: add channels that tell what moves.
        reference: a map that learns nothing, by which the network's map is multiplied and as which
            it starts.

    Source: Lai et al. 2022 (GLC attention); head as in the OSIE reference.
    """

    width: int = 64
    heads: int = 4
    blocks: int = 1
    grid: tuple[int, int] = (30, 40)
    standardise: bool = True
    motion: bool = False
    reference: Reference = "none"

    head: ClassVar[tuple[str, ...]] = ("head.*", "bias", "reference.*")

    @property
    def sees_motion(self) -> bool:
        """True if the motion of frames goes in, for the network or for its reference map."""
        return self.motion or self.reference == "motion"

    def build(self) -> GlcFeaturesNet:
        """Return the head, initialised from torch's global generator.

        Raises:
            ConfigError: a width the heads do not divide, or an odd grid.
        """
        check_head("glc_features", self.width, self.heads, self.blocks, self.grid)
        return GlcFeaturesNet(self)

    def prepare(self, federation: Federation) -> Federation:
        """Replace the rows of bank `frames`, uint8 `[n, H, W, 3]`, by features.

        The result is float16 `[n, 432, ceil(H/16), ceil(W/16)]`, cached (see `pretrained`).

        Raises:
            ConfigError: no bank `frames`, or frames that do not fit `grid`.
        """
        found = pretrained.in_place_of_frames(
            federation, "glc_features", self.grid, self.standardise
        )
        return motion.with_motion(found, federation) if self.sees_motion else found


def check_head(model: str, width: int, heads: int, blocks: int, grid: tuple[int, int]) -> None:
    """Refuse options that make no head.

    Raises:
        ConfigError: a width the heads do not divide, or an odd grid.
    """
    if width < 4 or width % 4 or heads < 1 or (width // 2) % heads:
        raise ConfigError(
            f"{model}: width {width} must be a multiple of 4, and half of it a multiple of heads "
            f"({heads})"
        )
    if blocks < 0:
        raise ConfigError(f"{model}: blocks must be 0 or more, got {blocks}")
    if len(grid) != 2 or any(n < 2 or n % 2 for n in grid):
        raise ConfigError(
            f"{model}: grid {grid} must be two even numbers, twice the rows and columns of the "
            "features (one per 16 pixels)"
        )


def channels(with_motion: bool) -> int:
    """Number of channels that enter a network on frozen features: 432, or 436 with motion."""
    return pretrained.CHANNELS + (motion.CHANNELS if with_motion else 0)


class FeatureLayers(nn.Module):
    """Layers of a network on frozen features.

    Args:
        name: the network's, for messages.
        grid: rows and columns of its maps.
        width: channels after the first convolution.
        heads: of the attention in each block.
        blocks: GLC blocks.
        motion: whether channels that tell what moves enter, too.
        past: number of maps of its own that enter beside a frame.
        reference: the map that it starts as.
    """

    def __init__(
        self,
        name: str,
        grid: tuple[int, int],
        width: int,
        heads: int,
        blocks: int,
        motion: bool,
        past: int = 0,
        reference: Reference = "none",
    ) -> None:
        super().__init__()
        half = width // 2
        self.name, self.grid, self.motion = name, (grid[0], grid[1]), motion
        self.reduce = nn.Conv2d(channels(motion), width, 1)
        self.local = nn.Conv2d(width, half, 3, padding=1)
        if past:
            self.past = nn.Conv2d(past, half, 5, padding=2, bias=False)
            nn.init.zeros_(self.past.weight)  # it starts as a network of single frames
        self.glance = nn.Linear(half * POOL[0] * POOL[1], half) if blocks else None
        self.blocks = nn.ModuleList(
            GLCBlock(half, heads, glc=True, mlp_ratio=0, silent=True) for _ in range(blocks)
        )
        self.decode = nn.Conv2d(half, half // 2, 3, padding=1)
        self.head = nn.Conv2d(half // 2, 1, 1)
        self.bias = nn.Parameter(torch.zeros(self.grid))
        self.reference = None if reference == "none" else ReferenceMap(reference, self.grid)
        if self.reference is not None:
            for parameter in self.head.parameters():
                nn.init.zeros_(parameter)

    def start_from(
        self, features: Float[Tensor, "clips frames channels rows columns"]
    ) -> tuple[Tensor, Float[Tensor, "#clips #frames rows2 columns2"]]:
        """Input of the first layer, and what is added to the logits of the last."""
        if self.reference is None:
            return features, self.bias[None, None]
        moving = features[:, :, pretrained.CHANNELS :]
        entered = features if self.motion else features[:, :, : pretrained.CHANNELS]
        return entered, self.bias + self.reference(moving)

    def check_size(self, rows: int, columns: int) -> None:
        """Refuse features of another size than `grid` was set for.

        Raises:
            ConfigError: names the grid to set.
        """
        if (2 * rows, 2 * columns) != self.grid:
            raise ConfigError(
                f"{self.name}: features of {rows} x {columns} do not fit grid {self.grid}, "
                f"which must be twice that; set grid = {[2 * rows, 2 * columns]}"
            )


class GlcFeaturesNet(FeatureLayers):
    """Features `[B, T, 432, h, w]`, half or float, to logits `[B, T, 2h, 2w]`."""

    def __init__(self, options: GlcFeatures) -> None:
        o = options
        super().__init__(
            "glc_features", o.grid, o.width, o.heads, o.blocks, o.motion, reference=o.reference
        )

    def forward(
        self, features: Float[Tensor, "clips frames channels rows columns"]
    ) -> Float[Tensor, "clips frames rows2 columns2"]:
        """Return logits of the heat map of every frame; the bias map is added to all.

        Raises:
            ConfigError: features of another size than `grid` was set for.
        """
        clips, steps, _, rows, columns = features.shape
        self.check_size(rows, columns)
        entered, added = self.start_from(features)
        x = entered.flatten(0, 1).float()
        x = functional.relu(self.reduce(x))
        x = functional.relu(self.local(x))
        if self.glance is not None:
            x = self.mix(x, self.glance, clips)
        x = functional.interpolate(x, scale_factor=2, mode="bilinear")
        x = self.head(functional.relu(self.decode(x)))
        return x.view(clips, steps, *self.grid) + added

    def mix(self, x: Tensor, glance: nn.Linear, clips: int) -> Tensor:
        """Run the GLC blocks: all frames' positions, and one global token per clip."""
        frames, half, rows, columns = x.shape
        pooled = functional.adaptive_avg_pool2d(x, POOL).flatten(1)
        summary = glance(pooled).view(clips, -1, half).mean(1, keepdim=True)
        local = x.permute(0, 2, 3, 1).reshape(clips, -1, half)
        tokens = torch.cat([summary, local], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, 1:].reshape(frames, rows, columns, half).permute(0, 3, 1, 2)
