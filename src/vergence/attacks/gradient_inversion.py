"""Gradient inversion: the image whose gradient points where a client's update points.

One sample's gradient says nearly all about the sample. The attacker starts from the mean image or
from noise and moves pixels until the cosine between the gradient they would cause and the one that
was seen is largest, with a small price on the image's total variation.

Source: Geiping et al., "Inverting gradients: how easy is it to break privacy in federated
learning?", NeurIPS 2020, equation 4: cosine and total variation, Adam on the sign of the gradient,
a rate that falls by ten after 3/8, 5/8 and 7/8 of the steps, pixels kept in their range.
Differs: a first step of Adam tells the gradient's signs alone; then signs are compared, made soft.
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

SOFT = 0.5
"""Share of the median gradient size below which a sign counts as unsure."""


@dataclass(frozen=True)
class GradientInversion(NamedOptions, label="inversion"):
    """Settings of the search for an image.

    Attributes:
        steps: of Adam.
        rate: of Adam at the start, in pixels of range 1.
        variation: price of the total variation.
        signs: whether signs were seen in the place of gradients, as of a first step of Adam.
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
        """Return the image in [0, 1] whose gradient is most like one that was seen.

        Args:
            loss: of the model the client was given, on an image; labels, which the attacker knows
                or guesses, are within.
            parameters: that the loss depends on; they require gradients.
            gradient: that was seen, one tensor per parameter: of any length, its direction counts.
            start: `[1, channels, height, width]` in [0, 1].
        """
        image = start.clone().requires_grad_(True)
        optimiser = torch.optim.Adam([image], self.rate)
        drops = [self.steps * eighths // 8 for eighths in (3, 5, 7)]
        falling = torch.optim.lr_scheduler.MultiStepLR(optimiser, drops, 0.1)
        best, least = image.detach().clone(), float("inf")
        for _ in range(self.steps):
            caused = torch.autograd.grad(loss(image), parameters, create_graph=True)
            compared = softened(caused) if self.signs else caused
            price = cosine_distance(compared, gradient) + self.variation * total_variation(image)
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
    dot = sum((a * b).sum() for a, b in zip(one, other, strict=True))
    lengths = [torch.stack([t.square().sum() for t in tensors]).sum() for tensors in (one, other)]
    return 1 - dot / (lengths[0] * lengths[1]).clamp(min=1e-30).sqrt()


def softened(gradient: Sequence[Tensor]) -> list[Tensor]:
    """Return about the signs of a gradient: half of its median size is where they are unsure."""
    sizes = torch.cat([part.detach().abs().flatten() for part in gradient])
    there = sizes[sizes > 0]
    unsure = SOFT * there.median() if len(there) else torch.tensor(1.0)
    return [part / (part.square() + unsure.square()).sqrt() for part in gradient]


def total_variation(image: Tensor) -> Tensor:
    """Return the mean size of the steps between neighbours, down plus across."""
    down, across = image.diff(dim=2), image.diff(dim=3)
    return down.abs().mean() + across.abs().mean()


def of_update(change: Params, names: Sequence[str]) -> list[Tensor]:
    """Return the gradient behind an update of one plain step: minus the change."""
    return [-change[name] for name in names]
