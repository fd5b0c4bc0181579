"""LeNet for 36 x 60 eye patches, head pose at the last linear layer.

Used by `deployment.private_inference.client`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from vergence.core.options import Positive
from vergence.core.task import Model
from vergence.data.eye_images.crop import HEIGHT, WIDTH
from vergence.errors import ConfigError
from vergence.models.small_cnn import SmallCnnNet

HIDDEN = 500


@dataclass(frozen=True)
class LeNet(Model):
    """The LeNet of Zhang et al. 2015 as in hysts/pytorch_mpiigaze: 1,827,076 parameters.

    That code trains it by SGD at lr 0.01 (momentum 0.9, Nesterov, weight decay 1e-4, batch 32, MSE)
    for 10 epochs, and takes a tenth of the rate after epochs 8 and 9. The thesis trains its second
    model by Adam and does not state the rate.

    Args:
        channels: filters of its two convolutions; (20, 80) is the thesis's second model with
            2,922,106 parameters, 520 of them in the first convolution, which its clients keep.
        pose: whether the last layer also takes the head pose; without it that layer has four
            weights fewer, and head pose need not leave a client.

    Source: eyeimages design note, sections 1.1 and 1.3; the thesis's section 4.6.1 for `pose`.
    """

    channels: tuple[Positive, Positive] = (20, 50)
    pose: bool = True

    image: ClassVar[tuple[int, int, int]] = (1, HEIGHT, WIDTH)

    def build(self) -> LeNetNet:
        """Return the network, initialised from torch's global generator."""
        return LeNetNet(*self.channels, self.pose)


class LeNetNet(SmallCnnNet):
    """Network from grey patches `[B, 1, 36, 60]` in [0, 1] and head poses to gaze angles.

    The pose is `[B, 2]`, the output (pitch, yaw) in radians.

    There is no activation after the convolutions, as in the original.
    """

    def __init__(self, first: int, second: int, pose: bool = True) -> None:
        sizes = (1, HEIGHT, WIDTH), 2, (first, second), HIDDEN
        super().__init__(*sizes, pad=False, side_inputs=2 * pose)
        # The initial weights of hysts/pytorch_mpiigaze.
        nn.init.normal_(self.conv1.weight, std=0.1)
        nn.init.normal_(self.conv2.weight, std=0.01)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def stage(self, name: str, x: Tensor, *side_inputs: Tensor) -> Tensor:
        """Return the output of a layer for its input.

        Raises:
            ConfigError: patches of another size.
        """
        if name == "conv1" and tuple(x.shape[1:]) != self.image:
            crops = tuple(x.shape[2:]) == (9, 15)
            mend = "model small_eye for 9 x 15 crops" if crops else "a model for such data"
            raise ConfigError(
                f"lenet takes eye patches [B, 1, {HEIGHT}, {WIDTH}], got {list(x.shape)}; "
                f"use {mend}"
            )
        if name in ("conv1", "conv2"):
            return self.get_submodule(name)(x)
        return super().stage(name, x, *side_inputs)
