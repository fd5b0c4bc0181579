"""Video workloads: vergence's own heat-map networks, which no peer runs, on made-up rows.

Imported, it adds its networks to those of `plain`, which peers load without vergence.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bench.plain import NETWORKS
from vergence.models.glc.glc_features import GlcFeatures
from vergence.models.glc.glc_vit import GlcVit, Preset

CLIP, FEATURES = (4, 3, 64, 64), (2, 432, 15, 20)
"""Shapes of a clip for `glc_vit`, and of a clip's features for `glc_features`."""


class Video(nn.Module):
    """A heat-map network over clips that lie in packed rows; its mean map is what is learned."""

    def __init__(self, clip: tuple[int, ...], network: nn.Module) -> None:
        super().__init__()
        self.clip, self.network = clip, network

    def forward(self, rows: Tensor) -> Tensor:
        """Return the mean over a clip's frames of its map, `[B, rows, columns]`."""
        return self.network(rows.view(len(rows), *self.clip)).mean(1)


def video(preset: Preset) -> nn.Module:
    """Return `glc_vit` for clips of four frames of 64 x 64 pixels."""
    return Video(CLIP, GlcVit(preset).build())


def head() -> nn.Module:
    """Return `glc_features` for clips of two frames' features."""
    return Video(FEATURES, GlcFeatures().build())


def video_rows(
    people: int, each: int, clip: tuple[int, ...], grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Make clips `[people * each, numbers]` and maps `[people * each, *grid]` of noise."""
    generator = torch.Generator().manual_seed(0)
    n = people * each
    x = torch.randn(n, int(np.prod(clip)), generator=generator)
    return x, torch.rand(n, *grid, generator=generator)


NETWORKS.update(
    glc_tiny64=lambda: video("tiny64"), glc_cpu64=lambda: video("cpu64"), glc_features=head
)
