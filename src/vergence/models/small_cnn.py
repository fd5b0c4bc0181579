"""A small convolutional network for image classification, to be cut anywhere.

Used by `models.apfl_cnn` and `models.lenet`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.options import Positive
from vergence.core.stages import Staged
from vergence.core.task import Model
from vergence.errors import ConfigError

KERNEL = 5
# Two poolings by 2 x 2 leave one pixel of 4 and none of fewer.
LEAST = 4
"""Rows and columns of the smallest images."""


@dataclass(frozen=True)
class SmallCnn(Model):
    """Two 5 x 5 convolutions, each rectified and pooled, and two linear layers; 54,314 parameters.

    With channels (32, 64) and 512 hidden units it is the network of its source, which has
    1,663,370 parameters; the smaller default is for two cores.

    Attributes:
        image: (channels, height, width) of the images: (3, 32, 32) for CIFAR-10.
        classes: number of classes.
        channels: filters of the two convolutions.
        hidden: width of the first linear layer.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, section 3 (the MNIST CNN).
    """

    image: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: tuple[Positive, Positive] = (8, 16)
    hidden: Positive = 64

    def build(self) -> SmallCnnNet:
        """Return the network, initialised from torch's global generator.

        Raises:
            ConfigError: images are too small, or there are fewer than two classes.
        """
        shaped = len(self.image) == 3 and min(self.image) > 0 and min(self.image[1:]) >= LEAST
        if not shaped or self.classes < 2:
            raise ConfigError(
                f"small_cnn: image must be (channels, height, width), at least 1 x {LEAST} x "
                f"{LEAST}, and classes at least 2, as (1, 28, 28) and 10; got {self.image} and "
                f"{self.classes}"
            )
        return SmallCnnNet(self.image, self.classes, self.channels, self.hidden)


class SmallCnnNet(Staged):
    """Network from images `[B, *image]` in [0, 1] to unnormalised log-probabilities.

    With `pad` a convolution's output has the size of its input, otherwise 4 rows and columns less.
    The last layer also takes `side_inputs` numbers for each image, such as a head pose. With
    `centred` pixels in [0, 1] become pixels in [-1, 1] first.
    """

    cut = "pool1"

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        channels: tuple[int, int],
        hidden: int,
        pad: bool = True,
        side_inputs: int = 0,
        centred: bool = False,
    ) -> None:
        super().__init__()
        self.centred = centred
        self.stages = {
            "conv1": ("conv1",),
            "pool1": (),
            "conv2": ("conv2",),
            "pool2": (),
            "fc1": ("fc1",),
            "fc2": ("fc2",),
        }
        self.reads = frozenset({"fc2"} if side_inputs else ())
        self.image = tuple(image)
        (depth, rows, columns), (first, second) = image, channels
        edge = KERNEL // 2 if pad else 0
        self.conv1 = nn.Conv2d(depth, first, KERNEL, padding=edge)
        self.conv2 = nn.Conv2d(first, second, KERNEL, padding=edge)
        lost = KERNEL - 1 - 2 * edge
        left = [((side - lost) // 2 - lost) // 2 for side in (rows, columns)]
        self.fc1 = nn.Linear(second * left[0] * left[1], hidden)
        self.fc2 = nn.Linear(hidden + side_inputs, classes)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a layer for its input, rectified except for the last layer.

        Raises:
            ConfigError: images of another size.
        """
        match name:
            case "conv1":
                if tuple(x.shape[1:]) != self.image:
                    raise ConfigError(
                        f"the network takes images [B, {', '.join(map(str, self.image))}], got "
                        f"{list(x.shape)}; set model.image to their size"
                    )
                return functional.relu(self.conv1(2 * x - 1 if self.centred else x))
            case "conv2":
                return functional.relu(self.conv2(x))
            case "fc1":
                return functional.relu(self.fc1(x.flatten(1)))
            case "fc2":
                return self.fc2(torch.cat([x, *side_inputs], 1) if self.reads else x)
            case _:
                return functional.max_pool2d(x, 2)
