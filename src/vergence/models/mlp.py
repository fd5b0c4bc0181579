"""A multi-layer perceptron on features, as PE-ZSL and SG-ZSL have it, or on pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional

from vergence.core.federation import Federation
from vergence.core.options import Classes, Positive
from vergence.core.stages import Staged
from vergence.core.tags import LATER
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.pretrained import in_place_of_images


@dataclass(frozen=True)
class Mlp(Model):
    """Linear layers with LeakyReLU between them, from features or pixels to a score per class.

    Attributes:
        inputs: number of features; not read if `image` is given.
        hidden: width of every hidden layer.
        classes: number of classes.
        image: (channels, height, width) of images whose pixels are the features; none: features.

    Source: the Durham thesis, sections 5.4 and 6.4.2: 1024 and 512 units.
    """

    inputs: Positive = 64
    hidden: tuple[Positive, ...] = (1024, 512)
    classes: Classes = 16
    image: tuple[Positive, Positive, Positive] | None = field(default=None, metadata={LATER: True})

    def build(self) -> MlpNet:
        """Return the network, initialised from torch's global generator."""
        inputs = math.prod(self.image) if self.image else self.inputs
        return MlpNet((inputs, *self.hidden, self.classes), self.image is not None)

    def prepare(self, federation: Federation) -> Federation:
        """Return the data with features in place of pictures, if it has pictures.

        A run calls this once before training.
        """
        return in_place_of_images(federation)


class MlpNet(Staged):
    """Network from features `[B, inputs]` to unnormalised log-probabilities `[B, classes]`.

    With `pixels` it takes images `[B, channels, height, width]` with so many pixels.
    """

    def __init__(self, widths: tuple[int, ...], pixels: bool = False) -> None:
        super().__init__()
        self.pixels = pixels
        names = [*(f"hidden{i}" for i in range(1, len(widths) - 1)), "head"]
        self.stages = {name: (name,) for name in names}
        self.inputs = widths[0]
        for name, before, after in zip(names, widths, widths[1:], strict=False):
            self.add_module(name, nn.Linear(before, after))

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a layer for `x`.

        Raises:
            ConfigError: another number of features.
        """
        layer = self.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if self.pixels and x.ndim == 4:
            x = x.flatten(1)
        if x.ndim != 2 or x.shape[1] != layer.in_features:
            raise ConfigError(
                f"mlp takes features [B, {self.inputs}], got {list(x.shape)}; set model.inputs to "
                "their number"
            )
        x = layer(x)
        return x if name == "head" else functional.leaky_relu(x)
