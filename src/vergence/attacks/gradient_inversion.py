"""Gradient inversion: the image whose gradient points where a client's update points.

One sample's gradient determines the sample nearly completely. The attacker starts from the mean
image or from noise and optimises the pixels until their gradient has the largest cosine with the
observed one, with a small penalty on the image's total variation.

Used by `audit.updates`.

Source: Geiping et al., "Inverting gradients: how easy is it to break privacy in federated
learning?", NeurIPS 2020, equation 4: cosine and total variation, Adam on the sign of the gradient,
a rate that falls by ten after 3/8, 5/8 and 7/8 of the steps, pixels kept in their range.
Differs: Adam's first step reveals only the signs of the gradient; then soft signs are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from vergence.core.options import NamedOptions
from vergence.core.params import Params

# Share of the median size of gradients below which a sign is soft: signs themselves are flat, and
# no pixel could be moved by them.
SOFT = 0.5


@dataclass(frozen=True)
class GradientInversion(NamedOptions, label="inversion"):
    """Settings of the search for an image.

    Attributes:
        steps: number of Adam's steps.
        rate: Adam's initial learning rate, for pixels in [0, 1].
        variation: weight of the total variation.
        signs: whether only signs of the gradient were observed, as after a first step of Adam.
    """

    steps: Annotated[int, Gt(0)] = 300
    rate: Annotated[float, Gt(0)] = 0.1
    variation: Annotated[float, Ge(0)] = 1e-3
    signs: bool = False

    def reconstruct(
        self,
        loss: Callable[[Tensor], Tensor],
        parameters: Sequence[Tensor],
        gradient: Sequence[Tensor],
        start: Tensor,
    ) -> Tensor:
        """Return the image in [0, 1] whose gradient is most like an observed one.

        Args:
            loss: function from an image to the loss of the model that the client was sent; it
                contains the labels, which the attacker knows or guesses.
            parameters: parameters that the loss depends on; they require gradients.
            gradient: the observed gradient, one tensor per parameter, at any scale.
            start: initial image, `[1, channels, height, width]` in [0, 1].
        """
        image = start.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([image], self.rate)
        # The source's schedule: the rate falls by ten after 3/8, 5/8 and 7/8 of the steps.
        drops = [self.steps * eighths // 8 for eighths in (3, 5, 7)]
        falling = torch.optim.lr_scheduler.MultiStepLR(optimiser, drops, 0.1)
        best, least = image.detach().clone(), float("inf")
        for _ in range(self.steps):
            caused = torch.autograd.grad(loss(image), parameters, create_graph=True)
            compared = soft_signs(caused) if self.signs else caused
            price = cosine_distance(compared, gradient) + self.variation * total_variation(image)
            # Steps by signs do not shrink near a minimum: the last image need not be the best.
            if (now := price.item()) < least:
                best, least = image.detach().clone(), now
            (slope,) = torch.autograd.grad(price, image)
            # Signs alone, as in the source: lengths of gradients differ by orders of magnitude.
            image.grad = slope.sign()
            optimiser.step()
            falling.step()
            with torch.no_grad():
                image.clamp_(0, 1)
        return best


def cosine_distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """Return 1 minus the cosine between two gradients, all their tensors taken together."""
    # All tensors are one vector: large layers weigh more, as in the source's equation 4.
    dot = sum((a * b).sum() for a, b in zip(one, other, strict=True))
    lengths = [torch.stack([t.square().sum() for t in tensors]).sum() for tensors in (one, other)]
    # A gradient of zeros, of a model without a live unit, gives distance 1 in place of a NaN.
    return 1 - dot / (lengths[0] * lengths[1]).clamp(min=1e-30).sqrt()


def soft_signs(gradient: Sequence[Tensor]) -> list[Tensor]:
    """Return a smooth approximation of a gradient's signs, x / sqrt(x^2 + (median / 2)^2)."""
    sizes = torch.cat([part.detach().abs().flatten() for part in gradient])
    # Weights behind dead units have gradient 0: they would pull the median to 0.
    positive = sizes[sizes > 0]
    width = SOFT * positive.median() if len(positive) else torch.tensor(1.0)
    return [part / (part.square() + width.square()).sqrt() for part in gradient]


def total_variation(image: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, vertical plus horizontal."""
    down, across = image.diff(dim=2), image.diff(dim=3)
    return down.abs().mean() + across.abs().mean()


def gradient_of_update(change: Params, names: Sequence[str]) -> list[Tensor]:
    """Return the gradient, up to its scale, of an update that one step made.

    The audit of updates inverts it to images.
    """
    # After one step without momentum the change is minus the learning rate times the gradient.
    return [-change[name] for name in names]
