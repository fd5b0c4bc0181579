"""A small convolutional network for eye images, head pose at the last linear layer.

Used by `models.kernel_eye` and `models.personal_eye`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.options import Positive
from vergence.core.stages import Staged
from vergence.core.tags import LATER
from vergence.core.task import Model
from vergence.errors import ConfigError

HEIGHT, WIDTH = 9, 15
# Without it the noise of a crop without contrast would be scaled up.
FAINT = 0.15
"""Number that is added to the deviation of a crop, in its units."""


NO_CHANNELS = "give images an axis of channels, image[:, None]"
"""What to do with images `[n, height, width]`."""


@dataclass(frozen=True)
class SmallEye(Model):
    """Three 3 x 3 convolutions and two linear layers; 22,774 parameters by default.

    Trained on one person's 2400 crops the default gets below 6 degrees within ten epochs of AdamW
    (1e-3, weight decay 1e-2, batch 32).

    Args:
        channels: filters of the first convolution, and of the two after it.
        hidden: width of the layer before the last one.
        pose: whether the last layer also takes the head pose; without it that layer has four
            weights fewer, and head pose need not leave a client. The data still need the column
            `pose`, which may be zeros.
        kernel: width of the first convolution's filters.
        standardize: give each crop mean 0 and deviation 1 first, so that light and skin matter
            less.
        dropout: share of the inputs of `fc1` and `fc2` that training drops.
        size: height and width of the images: 9 x 15 crops, or patches such as 36 x 60.
        shrink: side of the squares of pixels that are averaged before the first layer, so that
            patches need no more parameters than crops: 36 x 60 pixels shrunk by 2 are 18 x 30.
        side: whether the last layer also takes the column `side` (0 left eye, 1 right eye).
    """

    channels: tuple[Positive, Positive] = (16, 24)
    hidden: Positive = 32
    pose: bool = True
    kernel: Literal[3, 5, 7] = 3
    standardize: bool = False
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    size: tuple[Positive, Positive] = field(default=(HEIGHT, WIDTH), metadata={LATER: True})
    shrink: Positive = field(default=1, metadata={LATER: True})
    side: bool = field(default=False, metadata={LATER: True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.maps) < 1:
            raise ConfigError(
                f"small_eye: shrink = {self.shrink} leaves too few of {self.size[0]} x "
                f"{self.size[1]} pixels for three convolutions, which need 5 x 5; lower it"
            )
        if self.side and not self.pose:
            raise ConfigError("small_eye: side = true needs pose = true; set both, or neither")

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return (1, *self.size)

    @property
    def maps(self) -> tuple[int, int]:
        """Height and width of the last maps."""
        height, width = ((side // self.shrink + 1) // 2 - 2 for side in self.size)
        return height, width

    def build(self) -> SmallEyeNet:
        """Return the network, initialised from torch's global generator."""
        return SmallEyeNet(self)


class SmallEyeNet(Staged):
    """Network from images `[B, 1, H, W]`, pose `[B, 2]` and side `[B]` to angles `[B, 2]`.

    Pixels have mean 0 and scale 1; the angles are pitch and yaw in radians.
    """

    def __init__(self, options: SmallEye) -> None:
        super().__init__()
        self.options = options
        first, second = options.channels
        self.stages = {name: (name,) for name in ("conv1", "conv2", "conv3", "fc1", "fc2")}
        self.reads = frozenset({"fc2"} if options.pose else ())
        self.conv1 = nn.Conv2d(1, first, options.kernel, padding=options.kernel // 2)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(second, second, 3)
        rows, columns = options.maps
        self.fc1 = nn.Linear(second * rows * columns, options.hidden)
        self.fc2 = nn.Linear(options.hidden + 2 * options.pose + options.side, 2)
        if options.dropout:
            self.drop = nn.Dropout(options.dropout)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a layer for its input, rectified except for the last layer.

        Raises:
            ConfigError: images of another size.
        """
        match name:
            case "conv1":
                return functional.relu(self.conv1(self._pixels(x)))
            case "conv2":
                return functional.relu(self.conv2(x))
            case "conv3":
                return functional.relu(self.conv3(x))
            case "fc1":
                return functional.relu(self.fc1(self._dropped(x.flatten(1))))
            case _:
                x = self._dropped(x)
                columns = [column.reshape(len(x), -1) for column in side_inputs]
                return self.fc2(torch.cat([x, *columns], 1) if self.reads else x)

    def _pixels(self, x: Tensor) -> Tensor:
        """Return the images as the first layer sees them."""
        if tuple(x.shape[1:]) != self.options.image:
            height, width = self.options.size
            mend = "set model.size to the height and width of these images"
            raise ConfigError(
                f"small_eye takes eye crops [B, 1, {height}, {width}], got {list(x.shape)}; "
                f"{NO_CHANNELS if x.ndim == 3 else mend}"
            )
        x = standardized(x) if self.options.standardize else x
        return functional.avg_pool2d(x, self.options.shrink) if self.options.shrink > 1 else x

    def _dropped(self, x: Tensor) -> Tensor:
        return self.drop(x) if hasattr(self, "drop") else x


def standardized(crops: Tensor) -> Tensor:
    """Return images `[B, 1, H, W]` scaled to mean 0 and deviation 1; flat ones stay flat."""
    deviation, mean = torch.std_mean(crops, (2, 3), keepdim=True)
    return (crops - mean) / (deviation + FAINT)
