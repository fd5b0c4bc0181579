"""An eye model with a correction that was computed from one person's samples by kernels.

Used in `adaptation`, `experiment`, `model_tools`, `tasks` and `training`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vergence.core.layers.kernel_head import WIDTH, gaussian
from vergence.core.options import Positive
from vergence.core.task import Model
from vergence.models.kernel_eye import SIDE, eye_inputs
from vergence.models.small_eye import SmallEye

TERMS = 6
"""Number of the terms that `linear_terms` returns."""


@dataclass(frozen=True)
class PersonalEye(Model):
    """A shared eye model and a person's correction, as `vergence adapt` writes it.

    The centres of the kernel are the crops of the person's own samples, so the parameters must not
    leave the person's own machine.

    Args:
        shared: the shared model; in a file a table with the model's name and options.
        samples: number of the person's samples.
        inputs: length of the rows of `person_inputs`: the number of pixels and three more.
        side: read the column `side` (0 left eye, 1 right eye), too.
    """

    shared: Model = SmallEye()
    samples: Positive = 1
    inputs: Positive = 138
    side: bool = True

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images, if the shared model fixes them."""
        return getattr(self.shared, "image", None)

    def build(self) -> PersonalEyeNet:
        """Return the network, whose correction is 0."""
        return PersonalEyeNet(self)


class PersonalEyeNet(nn.Module):
    """Network from images `[B, channels, H, W]`, pose `[B, 2]` and side `[B]` to angles `[B, 2]`.

    The angles are pitch and yaw in radians.
    """

    def __init__(self, model: PersonalEye) -> None:
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(TERMS, 2))
        self.centres = nn.Parameter(torch.zeros(model.samples, model.inputs))
        self.coefficients = nn.Parameter(torch.zeros(model.samples, 2))
        self.shared = model.shared.build()
        self.shared_side = bool(getattr(model.shared, "side", False))

    def forward(self, image: Tensor, pose: Tensor, *side: Tensor) -> Tensor:
        """Return the angles."""
        predicted = self.shared(image, pose, *(side if self.shared_side else ()))
        inputs = person_inputs(image, pose, *side)
        change = linear_terms(predicted, inputs) @ self.linear
        return predicted + change + gaussian(inputs, self.centres, WIDTH) @ self.coefficients


def person_inputs(image: Tensor, pose: Tensor, *side: Tensor) -> Tensor:
    """Return `eye_inputs` with a column for the side, `[n, pixels + 3]`.

    Where sides are not known, they count as the middle of both, which changes no distance.
    """
    return eye_inputs(image, pose, *(side or (torch.full_like(pose[:, 0], 0.5),)))


def linear_terms(predicted: Tensor, inputs: Tensor) -> Tensor:
    """Return the terms that a correction is linear in, `[n, TERMS]`.

    They are 1, the side (-1 left, 1 right, 0 not known), head pitch and yaw, and the predicted
    pitch and yaw.
    """
    side = 2 * inputs[:, -1:] / SIDE - 1
    return torch.cat([torch.ones_like(side), side, inputs[:, -3:-1], predicted], 1)
