"""A network with BatchNorm for 9 x 15 eye crops, with statistics kept at home or fixed."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import vergence as vg


class EyeNorms(nn.Module):
    """Crops `[B, 1, 9, 15]` and head pose `[B, 2]` to (pitch, yaw) in radians."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 24, 3, 2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(24 * 3 * 6, 32), nn.ReLU()),
        )
        self.last = nn.Linear(32 + 2, 2)

    def forward(self, image: Tensor, pose: Tensor) -> Tensor:
        """Angles of the crops."""
        return self.last(torch.cat([self.body(image), pose], 1))


@dataclass(frozen=True)
class EyeBatchNorm(vg.Model):
    """`EyeNorms`, whose running statistics stay at home, or stay as a new network has them."""

    statistics: Literal["home", "fixed"] = "home"

    def build(self) -> nn.Module:
        """Return the network, initialised from torch's global generator."""
        prepare = vg.personalize_batch_norm if self.statistics == "home" else vg.freeze_batch_norm
        return prepare(EyeNorms())
