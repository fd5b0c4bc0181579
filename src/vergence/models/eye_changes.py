"""Random changes of eye crops in training that leave the gaze as it is: place, light and shade.

Used by `tasks.gaze_angle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from vergence.core.options import NamedOptions

Strength = Annotated[float, Interval(ge=0, le=10)]
BLACK = -2.0
"""Value of a black pixel, which a change of contrast leaves black."""


@dataclass(frozen=True)
class EyeChanges(NamedOptions, label="augment"):
    """Standard deviations of random changes of training crops, drawn in every batch; 0: no change.

    Attributes:
        shift: deviation of the shift across and down, in pixels; the border's values fill the gap.
        contrast: deviation of the logarithm of a factor on each pixel's distance from black.
        brightness: deviation of a number added to all pixels, whose values have deviation 1.
        shade: deviation of the slope of a shade across and down, from the middle to the border.
    """

    shift: Strength = 0.0
    contrast: Strength = 0.0
    brightness: Strength = 0.0
    shade: Strength = 0.0

    def __bool__(self) -> bool:
        return any((self.shift, self.contrast, self.brightness, self.shade))

    def apply(self, crops: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
        """Return changed crops, with random numbers from torch's global generator."""
        count, _, height, width = crops.shape

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, device=crops.device, dtype=crops.dtype)

        if self.shift:
            place = torch.eye(2, 3, device=crops.device, dtype=crops.dtype).repeat(count, 1, 1)
            # The grid's coordinates run from -1 to 1, so that a pixel is 2 / width of them.
            place[:, :, 2] += self.shift * normal(2) * 2 / place.new_tensor([width, height])
            grid = functional.affine_grid(place, list(crops.shape), align_corners=False)
            crops = functional.grid_sample(crops, grid, padding_mode="border", align_corners=False)
        if self.contrast:
            crops = (crops - BLACK) * torch.exp(self.contrast * normal(1, 1, 1)) + BLACK
        if self.brightness:
            crops = crops + self.brightness * normal(1, 1, 1)
        if self.shade:
            across = torch.linspace(-1, 1, width, device=crops.device, dtype=crops.dtype)
            down = torch.linspace(-1, 1, height, device=crops.device, dtype=crops.dtype)[:, None]
            crops = crops + self.shade * (normal(1, 1, 1) * across + normal(1, 1, 1) * down)
        return crops
