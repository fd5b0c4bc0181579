"""Kernel ridge regression on the pixels of an eye image and the head pose, for `fedridge`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, MultipleOf
from torch import Tensor, nn

from vergence.core.layers.kernel_head import KernelHead
from vergence.core.options import Positive
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.small_eye import NO_CHANNELS, standardized

SIDE = 0.3
"""Difference of the inputs of a left and a right eye, beside images of length 1."""


@dataclass(frozen=True)
class KernelEye(Model):
    """A `KernelHead` on standardised pixels, head pose and the side of the eye.

    Pixels have mean 0 and deviation 1, and are divided by the root of their number, so that every
    image has length 1, whatever its size. The method `fedridge`
    computes the parameters in closed form; gradient steps can train them, too.

    Args:
        image: channels, height and width of the images.
        features: number of random Fourier features of the common part.
        width: width parameter of the common kernel.
        own_centres: the most own samples that a person's part takes; 0: the network has no
            personal part.
        own_width: width parameter of the person's kernel.
        side: read the column `side` (0 left eye, 1 right eye), too.
    """

    image: tuple[Positive, Positive, Positive] = (1, 9, 15)
    features: Annotated[int, Ge(2), MultipleOf(2)] = 2000
    width: Annotated[float, Gt(0)] = 0.5
    own_centres: Annotated[int, Ge(0)] = 2500
    own_width: Annotated[float, Gt(0)] = 2.0
    side: bool = True

    def build(self) -> KernelEyeNet:
        """Return the network, with all parameters 0."""
        return KernelEyeNet(self)


class KernelEyeNet(nn.Module):
    """Network from images `[B, channels, H, W]`, pose `[B, 2]` and side `[B]` to angles `[B, 2]`.

    The angles are pitch and yaw in radians.
    """

    def __init__(self, model: KernelEye) -> None:
        super().__init__()
        self.image = model.image
        inputs = model.image[0] * model.image[1] * model.image[2] + 2 + model.side
        common, own = (model.features, model.width), (model.own_centres, model.own_width)
        self.head = KernelHead(inputs, 2, *common, *own)

    def forward(self, image: Tensor, pose: Tensor, *side: Tensor) -> Tensor:
        """Return the angles.

        Raises:
            ConfigError: images of another size.
        """
        if tuple(image.shape[1:]) != self.image:
            mend = "set model.image to their channels, height and width"
            raise ConfigError(
                f"kernel_eye was made for images {list(self.image)}, got {list(image.shape[1:])}; "
                f"{NO_CHANNELS if image.ndim == 3 else mend}"
            )
        return self.head(eye_inputs(image, pose, *side))


def eye_inputs(image: Tensor, pose: Tensor, *side: Tensor) -> Tensor:
    """Return the numbers of which kernels measure the distance, `[n, pixels + 2 or 3]`.

    `models.personal_eye` calls this, too.

    Args:
        image: images `[n, channels, height, width]`.
        pose: head pitch and yaw in radians, `[n, 2]`.
        side: 0 for a left and 1 for a right eye, `[n]`; may be left out.
    """
    pixels = standardized(image).flatten(1)
    sides = [SIDE * column.reshape(-1, 1) for column in side]
    return torch.cat([pixels / pixels.shape[1] ** 0.5, pose, *sides], 1)
