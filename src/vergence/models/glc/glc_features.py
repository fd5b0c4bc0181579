"""Global-local correlation blocks and a small decoder on frozen EfficientNet-Lite0 features.

Used by `model_tools.onnx_export`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.models.glc.base import POOL, FeatureLayers, FeatureModel
from vergence.models.glc.upsampling import double


@dataclass(frozen=True)
class GlcFeatures(FeatureModel):
    """A small head on frozen features: convolutions around GLC blocks, and a learned bias map.

    Source: Lai et al. 2022 (GLC attention); head as in the OSIE reference.
    """

    def build(self) -> GlcFeaturesNet:
        """Return the head, initialised from torch's global generator."""
        return GlcFeaturesNet(self)


class GlcFeaturesNet(FeatureLayers):
    """Network from features `[B, T, 432, h, w]`, half or float, to logits `[B, T, 2h, 2w]`."""

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
        x = double(x, 2, 3)
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
