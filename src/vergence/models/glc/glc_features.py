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
from vergence.models import pretrained
from vergence.models.glc.attention import GLCBlock

POOL = (3, 4)
"""The frame's summary that the global token is made from, rows x columns."""


@dataclass(frozen=True)
class GlcFeatures(Model):
    """A small head on frozen features: convolutions around GLC blocks, and a learned bias map.

    `grid` is the heat map's rows and columns, twice those of the features: (30, 40) for frames
    of 240 x 320. `width` is the channels after the first convolution; the GLC blocks and the
    decoder run at half of it, with `heads` heads. `standardise` scales every feature channel to
    mean 0 and deviation 1 as measured once on public pictures (the training images of the
    packaged OSIE sample), so that no client need tell anything about its own frames.
    Source: Lai et al. 2022 (GLC attention); head as in the OSIE reference.
    """

    width: int = 64
    heads: int = 4
    blocks: int = 1
    grid: tuple[int, int] = (30, 40)
    standardise: bool = True

    head: ClassVar[tuple[str, ...]] = ("head.*", "bias")

    def build(self) -> GlcFeaturesNet:
        """Return the head, initialised from torch's global generator.

        Raises:
            ConfigError: a width the heads do not divide, or an odd grid.
        """
        if self.width < 4 or self.width % 4 or self.heads < 1 or (self.width // 2) % self.heads:
            raise ConfigError(
                f"glc_features: width {self.width} must be a multiple of 4, and half of it a "
                f"multiple of heads ({self.heads})"
            )
        if self.blocks < 0:
            raise ConfigError(f"glc_features: blocks must be 0 or more, got {self.blocks}")
        if len(self.grid) != 2 or any(n < 2 or n % 2 for n in self.grid):
            raise ConfigError(
                f"glc_features: grid {self.grid} must be two even numbers, twice the rows and "
                "columns of the features (one per 16 pixels)"
            )
        return GlcFeaturesNet(self)

    def prepare(self, federation: Federation) -> Federation:
        """Replace the rows of bank `frames`, uint8 `[n, H, W, 3]`, by features.

        The result is float16 `[n, 432, ceil(H/16), ceil(W/16)]`, cached (see `pretrained`).

        Raises:
            ConfigError: no bank `frames`, frames that do not fit `grid`, or no extra `pretrained`.
        """
        banks: dict[int, Tensor] = {}
        for splits in federation.people.values():
            for samples in (splits.train, splits.val, splits.test):
                if "frames" not in samples.banks:
                    raise ConfigError(
                        f"glc_features needs data with frames; '{federation.name}' has none"
                    )
                rows = samples.banks["frames"].rows
                self._check(rows)
                banks[id(rows)] = rows
        # Channels-last rows spare every training step a transposition of its batch.
        made = {
            key: pretrained.features(rows).contiguous(memory_format=torch.channels_last)
            for key, rows in banks.items()
        }
        if self.standardise:
            for features in made.values():
                pretrained.standardise(features)
        return federation.map_bank("frames", lambda rows: made[id(rows)])

    def _check(self, frames: Tensor) -> None:
        made = tuple(2 * -(-n // pretrained.STRIDE) for n in frames.shape[1:3])
        if made != tuple(self.grid):
            height, width = frames.shape[1:3]
            raise ConfigError(
                f"glc_features: frames of {height} x {width} pixels give a map of {made[0]} x "
                f"{made[1]}, but grid is {tuple(self.grid)}; set grid = {list(made)}"
            )


class GlcFeaturesNet(nn.Module):
    """Features `[B, T, 432, h, w]`, half or float, to logits `[B, T, 2h, 2w]`."""

    def __init__(self, options: GlcFeatures) -> None:
        super().__init__()
        width, half = options.width, options.width // 2
        self.grid = tuple(options.grid)
        self.reduce = nn.Conv2d(pretrained.CHANNELS, width, 1)
        self.local = nn.Conv2d(width, half, 3, padding=1)
        self.glance = nn.Linear(half * POOL[0] * POOL[1], half) if options.blocks else None
        self.blocks = nn.ModuleList(
            GLCBlock(half, options.heads, glc=True, mlp_ratio=0, silent=True)
            for _ in range(options.blocks)
        )
        self.decode = nn.Conv2d(half, half // 2, 3, padding=1)
        self.head = nn.Conv2d(half // 2, 1, 1)
        self.bias = nn.Parameter(torch.zeros(self.grid))

    def forward(
        self, features: Float[Tensor, "clips frames 432 rows columns"]
    ) -> Float[Tensor, "clips frames rows2 columns2"]:
        """Return logits of the heat map of every frame; the bias map is added to all.

        Raises:
            ConfigError: features of another size than `grid` was set for.
        """
        clips, steps, _, rows, columns = features.shape
        if (2 * rows, 2 * columns) != self.grid:
            raise ConfigError(
                f"glc_features: features of {rows} x {columns} do not fit grid {self.grid}, "
                f"which must be twice that; set grid = {[2 * rows, 2 * columns]}"
            )
        x = features.flatten(0, 1).float()
        x = functional.relu(self.reduce(x))
        x = functional.relu(self.local(x))
        if self.glance is not None:
            x = self.mix(x, self.glance, clips)
        x = functional.interpolate(x, scale_factor=2, mode="bilinear")
        x = self.head(functional.relu(self.decode(x)))
        return x.view(clips, steps, *self.grid) + self.bias

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
