"""Logistic regression on pixels: the smallest image classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vergence.core.options import Classes, Positive
from vergence.core.stages import Staged
from vergence.core.task import Model
from vergence.errors import ConfigError


@dataclass(frozen=True)
class Softmax(Model):
    """One score per class, linear in the pixels; zeros at the start. 7,850 parameters by default.

    The problem is convex: methods can be compared by their distance to the one optimum.

    Attributes:
        image: (channels, height, width) of the images.
        classes: number of classes.
    """

    image: tuple[Positive, Positive, Positive] = (1, 28, 28)
    classes: Classes = 10

    def build(self) -> SoftmaxNet:
        """Return the network, with all parameters 0."""
        return SoftmaxNet(self.image, self.classes)


class SoftmaxNet(Staged):
    """Network from images `[B, *image]` in [0, 1] to unnormalised log-probabilities."""

    def __init__(self, image: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.stages = {"linear": ("linear",)}
        self.image = tuple(image)
        self.linear = nn.Linear(math.prod(image), classes)
        # The loss is convex, and no hidden units must be made different: zeros are a good start.
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the scores.

        Raises:
            ConfigError: images of another size.
        """
        if tuple(x.shape[1:]) != self.image:
            raise ConfigError(
                f"softmax takes images [B, {', '.join(map(str, self.image))}], got "
                f"{list(x.shape)}; set model.image to their size"
            )
        return self.linear(x.flatten(1))
