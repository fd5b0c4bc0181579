"""The image classifier of the AP-FL chapter: no padding, no normalisation, 512 hidden units."""

from __future__ import annotations

from dataclasses import dataclass

from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.small_cnn import SmallCnnNet

CHANNELS, HIDDEN = (32, 64), 512
# Without padding two convolutions and two poolings leave one pixel of 16 and none of fewer.
LEAST = 16
"""Rows and columns of the smallest images."""


@dataclass(frozen=True)
class ApflCnn(Model):
    """Two 5 x 5 convolutions, each rectified and pooled by 2 x 2, and two linear layers.

    32 x 32 pixels become 28, 14, 10, 5: 64 x 5 x 5 = 1600 numbers enter the first linear layer, as
    in its source, which resizes all images to 32 x 32; 876,938 parameters in grey, 878,538 in
    colour. 28 x 28 pixels become 24, 12, 8, 4: 1024 numbers, 582,026 parameters. These are also the
    sizes of the network "CNN" of PFLlib, which gets centred pixels.

    Attributes:
        image: (channels, height, width) of the images.
        classes: number of classes.
        centred: whether the network turns pixels in [0, 1] into pixels in [-1, 1] first.

    Source: the AP-FL chapter, section 3.4.1, "Implement Details": two 5 x 5 convolutions of 32 and
    64 channels and "two fully connected layers each with 1600, 512 units".
    Differs: the text says 1600 and 512 units; 1600 is the number of outputs of the convolutions.
    """

    image: tuple[int, int, int] = (1, 32, 32)
    classes: int = 10
    centred: bool = False

    def build(self) -> SmallCnnNet:
        """Return the network, initialised from torch's global generator.

        Raises:
            ConfigError: images too small, or fewer than two classes.
        """
        shaped = len(self.image) == 3 and self.image[0] > 0 and min(self.image[1:]) >= LEAST
        if not shaped or self.classes < 2:
            raise ConfigError(
                f"apfl_cnn: image must be (channels, height, width), at least 1 x {LEAST} x "
                f"{LEAST}, and classes at least 2, as (3, 32, 32) and 10; got {self.image} and "
                f"{self.classes}"
            )
        return SmallCnnNet(
            self.image, self.classes, CHANNELS, HIDDEN, pad=False, centred=self.centred
        )
