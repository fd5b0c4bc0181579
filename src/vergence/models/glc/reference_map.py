"""A map without learning inside a network, multiplied by the network's own (product of experts).

Used by `models.glc.base`.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vergence.metrics.gaze_maps import centre_map
from vergence.metrics.map_priors import motion_maps

Reference = Literal["none", "centre", "motion"]
"""No map, a Gaussian in the middle, or that Gaussian times blurred motion."""


class ReferenceMap(nn.Module):
    """Logits of a map without learning: exponent * log(map), with a learned exponent, first 1.

    They are added to the network's own, so that the network's map is multiplied by
    map ^ exponent. A network whose own logits start at 0 thus starts as that map.
    Source: Hinton, "Training products of experts by minimizing contrastive divergence", 2002.
    """

    def __init__(self, kind: Reference, grid: tuple[int, int]) -> None:
        super().__init__()
        self.kind, self.grid = kind, grid
        self.exponent = nn.Parameter(torch.ones(1))

    def forward(
        self, moving: Float[Tensor, "clips frames motion rows columns"]
    ) -> Float[Tensor, "clips frames rows2 columns2"]:
        """Return logits for the motion of frames, which the map of the middle ignores."""
        heat = (
            motion_maps(moving)
            if self.kind == "motion"
            else centre_map(*self.grid).to(moving.device).expand(*moving.shape[:2], -1, -1)
        )
        return self.exponent * heat.log().float()
