"""Options and layers of networks on frozen EfficientNet-Lite0 features.

Used by `models.glc.glc_causal` and `models.glc.glc_features`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.core.options import Positive
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models import motion, pretrained
from vergence.models.glc.attention import GLCBlock
from vergence.models.glc.reference_map import Reference, ReferenceMap

POOL = (3, 4)
"""Rows and columns of the frame's summary that becomes the global token."""


@dataclass(frozen=True)
class FeatureModel(Model):
    """Options of a small head on frozen features.

    Args:
        width: channels after the first convolution; the GLC blocks and the decoder run at half.
        heads: heads of the GLC blocks.
        blocks: number of GLC blocks.
        grid: rows and columns of the heat map, twice those of the features: (30, 40) for frames of
            240 x 320.
        standardise: scale every feature channel to mean 0 and deviation 1, as measured on public
            pictures (the training images of the packaged OSIE sample), so that no client need
            reveal anything about its own frames.
        motion: add channels that show what moves.
        reference: a map without learning, by which the network's map is multiplied; at the start
            the network's map equals it.
    """

    width: Annotated[int, Ge(4)] = 64
    heads: Positive = 4
    blocks: Annotated[int, Ge(0)] = 1
    grid: tuple[Annotated[int, Ge(2)], Annotated[int, Ge(2)]] = (30, 40)
    standardise: bool = True
    motion: bool = False
    reference: Reference = "none"

    head: ClassVar[tuple[str, ...]] = ("head.*", "bias", "reference.*")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 4 or self.width // 2 % self.heads:
            raise ConfigError(
                f"{registry_name(self)}: width {self.width} must be a multiple of 4, and half of "
                f"it a multiple of heads ({self.heads})"
            )
        if any(side % 2 for side in self.grid):
            raise ConfigError(
                f"{registry_name(self)}: grid {self.grid} must be two even numbers, twice the rows "
                "and columns of the features (one per 16 pixels)"
            )

    @property
    def sees_motion(self) -> bool:
        """True if the network or its reference map takes the motion of frames.

        `prepare`, ONNX export and streaming read it.
        """
        return self.motion or self.reference == "motion"

    def prepare(self, federation: Federation) -> Federation:
        """Replace the rows of bank `frames`, uint8 `[n, H, W, 3]`, by features.

        A run calls this once before training.

        The result is float16 `[n, 432, ceil(H/16), ceil(W/16)]`, cached (see `pretrained`).

        Raises:
            ConfigError: no bank `frames`, or frames that do not fit `grid`.
        """
        found = pretrained.in_place_of_frames(
            federation, registry_name(self), self.grid, self.standardise
        )
        return motion.with_motion(found, federation) if self.sees_motion else found


def channels(with_motion: bool) -> int:
    """Return the number of channels of frozen features: 432, with motion 436."""
    return pretrained.CHANNELS + (motion.CHANNELS if with_motion else 0)


class FeatureLayers(nn.Module):
    """Layers of a network on frozen features.

    Args:
        options: options of the network.
        past: number of the network's own earlier maps that it takes with a frame.
    """

    def __init__(self, options: FeatureModel, past: int = 0) -> None:
        super().__init__()
        o, half = options, options.width // 2
        self.name, self.grid, self.motion = registry_name(o), (o.grid[0], o.grid[1]), o.motion
        self.reduce = nn.Conv2d(channels(o.motion), o.width, 1)
        self.local = nn.Conv2d(o.width, half, 3, padding=1)
        if past:
            self.past = nn.Conv2d(past, half, 5, padding=2, bias=False)
            # With weights of 0 it starts as a network of single frames.
            nn.init.zeros_(self.past.weight)
        self.glance = nn.Linear(half * POOL[0] * POOL[1], half) if o.blocks else None
        self.blocks = nn.ModuleList(
            GLCBlock(half, o.heads, glc=True, mlp_ratio=0, silent=True) for _ in range(o.blocks)
        )
        self.decode = nn.Conv2d(half, half // 2, 3, padding=1)
        self.head = nn.Conv2d(half // 2, 1, 1)
        self.bias = nn.Parameter(torch.zeros(self.grid))
        self.reference = None if o.reference == "none" else ReferenceMap(o.reference, self.grid)
        # With logits of 0 the network starts as its reference map.
        if self.reference is not None:
            for parameter in self.head.parameters():
                nn.init.zeros_(parameter)

    def start_from(
        self, features: Float[Tensor, "clips frames channels rows columns"]
    ) -> tuple[Tensor, Float[Tensor, "#clips #frames rows2 columns2"]]:
        """Return the input of the first layer, and the logits that are added to the last one's."""
        if self.reference is None:
            return features, self.bias[None, None]
        moving = features[:, :, pretrained.CHANNELS :]
        entered = features if self.motion else features[:, :, : pretrained.CHANNELS]
        return entered, self.bias + self.reference(moving)

    def check_size(self, rows: int, columns: int) -> None:
        """Refuse features of another size than `grid` was set for.

        Raises:
            ConfigError: the size differs; the message names the grid to set.
        """
        if (2 * rows, 2 * columns) != self.grid:
            raise ConfigError(
                f"{self.name}: features of {rows} x {columns} do not fit grid {self.grid}, "
                f"which must be twice that; set grid = {[2 * rows, 2 * columns]}"
            )
