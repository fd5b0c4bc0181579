"""The inverse network: reconstructs eye images from smashed data, trained on other people's.

The attacker has images of shadow people and the outputs of the clients' layers for them, trains a
network on the inverse map, and applies it to the victim's smashed data. Three things make it
stronger than in its source:

* **Adaptive.** An attacker who knows the client's weights and the defence computes clean smashed
  data and applies the defence anew in every batch: the network cannot memorise the noise.
* **Averaging.** Several sends of an image with fresh noise are averaged first, and the network is
  trained on averages.
* **Too little training cannot make it worse than the mean image**, where it starts.

Used by `attacks.hijacking` and `audit.smashed_data`.

Source: SplitFed thesis, section 3.4; He, Zhang and Lee, "Model inversion attacks against
collaborative inference", ACSAC 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn import functional

from vergence.attacks.training import learn
from vergence.attacks.view import AttackerKnowledge, AttackerView, Imitate
from vergence.core.options import NamedOptions
from vergence.core.task import isolated_randomness
from vergence.errors import ConfigError

# The mean image is kept this far from 0 and 1, whose logits are infinite.
EDGE = 1e-3


@dataclass(frozen=True)
class InverseNetworkAttack(NamedOptions, label="inverse"):
    """Settings for building and training an inverse network.

    Attributes:
        epochs: passes over the shadow images.
        width: channels of its convolutions.
        rank: features of its linear path, whose every output depends on all smashed data.
        seed: seed of initial weights, order and noise.
    """

    epochs: Annotated[int, Gt(0)] = 12
    width: Annotated[int, Gt(0)] = 32
    rank: Annotated[int, Gt(0)] = 64
    seed: int = 0

    def train(self, smashed: Tensor, images: Tensor, defence: Imitate | None = None) -> InverseNet:
        """Return an inverse network trained on shadow people's smashed data and images.

        Args:
            smashed: `[samples, ...]`, as sent; or clean, if `defence` is given.
            images: the images they come from, `[samples, 1, height, width]` in [0, 1].
            defence: simulation of the defence, applied to clean smashed data in every batch.
        """
        as_is: Imitate = defence or (lambda clean, _: clean)
        generator = torch.Generator().manual_seed(self.seed)
        with isolated_randomness(), torch.no_grad():
            torch.manual_seed(self.seed)
            network = InverseNet(as_is(smashed, generator), images, self.width, self.rank)

        def loss(rows: Tensor, noise: torch.Generator) -> Tensor:
            return functional.mse_loss(network(as_is(smashed[rows], noise)), images[rows])

        learn(network, loss, len(images), self.epochs, seed=self.seed)
        return network

    def attack(
        self, view: AttackerView, prior: AttackerKnowledge, victim: str
    ) -> tuple[Tensor, Tensor]:
        """Return the numbers of a victim's images, and reconstructions `[images, 1, H, W]`.

        With the client's weights in the prior the attack is adaptive. Without, it learns from the
        messages of shadow people, whose sender is `shadow` and whose images have the prior's
        numbers.

        Raises:
            ConfigError: the prior holds no shadow images, or the view nothing to pair them with.
        """
        if prior.images is None:
            raise ConfigError(
                "inverse network: it needs images of shadow people; give them in AttackerKnowledge"
            )
        if prior.front is not None:
            network = self.train(
                outputs_without_graph(prior.front, prior.images), prior.images, prior.defence
            )
        else:
            images, smashed = view.averaged(SHADOW)
            network = self.train(smashed, prior.images[images])
        numbers, seen = view.averaged(victim)
        return numbers, network.reconstruct(seen)


SHADOW = "shadow"
"""Name of the sender of shadow people's smashed data in a view."""


class InverseNet(nn.Module):
    """Network from smashed data to images in (0, 1): convolutions plus a linear path plus the mean.

    The input's scale and mean, and the mean image, come from the pairs that it is built with.
    """

    mean: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, smashed: Tensor, images: Tensor, width: int, rank: int) -> None:
        super().__init__()
        height, columns = images.shape[2:]
        # Statistics per channel; layers and defences differ in scale by orders of magnitude, and a
        # dead channel has none.
        over = [0, *range(2, smashed.ndim)]
        self.register_buffer("shift", smashed.mean(over, keepdim=True))
        self.register_buffer("scale", smashed.std(over, keepdim=True).clamp(min=1e-9))
        self.register_buffer("mean", images.mean(0).clamp(EDGE, 1 - EDGE).logit())
        inputs, flat = smashed.shape[1], smashed[0].numel()
        spatial = smashed.ndim == 4
        # Poolings halve the image, so that the ratio of widths is about a power of two. A vector
        # has no grid: it is laid out at a quarter of the image's size.
        self.times = 2 ** round(math.log2(columns / smashed.shape[3])) if spatial else 4
        # Rounded up: `forward` cuts off the surplus rows and columns.
        self.grid = -(-height // self.times), -(-columns // self.times)
        self.enter = (
            nn.Conv2d(inputs, width, 3, padding=1)
            if spatial
            else nn.Sequential(
                nn.Linear(flat, width * math.prod(self.grid)), nn.Unflatten(1, (width, *self.grid))
            )
        )
        self.convolutions = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 8 * self.times**2, 3, padding=1),
            nn.PixelShuffle(self.times),
            nn.ReLU(),
            nn.Conv2d(8, 1, 3, padding=1),
        )
        self.linear = nn.Sequential(
            nn.Flatten(), nn.Linear(flat, rank), nn.Linear(rank, height * columns)
        )
        for last in (self.convolutions[-1], self.linear[-1]):
            # With zeros in the last layers the untrained network gives the mean image.
            nn.init.zeros_(last.weight)  # pyright: ignore[reportArgumentType]
            nn.init.zeros_(last.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, smashed: Tensor) -> Tensor:
        """Return images `[samples, 1, height, width]`."""
        x = (smashed - self.shift) / self.scale
        height, columns = self.mean.shape[1:]
        near = self.convolutions(self.enter(self._framed(x)))[..., :height, :columns]
        far = self.linear(x).view(len(x), 1, height, columns)
        return torch.sigmoid(self.mean + near + far)

    def _framed(self, x: Tensor) -> Tensor:
        """Return maps padded to the grid: convolutions without padding had removed a border."""
        if x.ndim != 4:
            return x
        rows, columns = (want - have for want, have in zip(self.grid, x.shape[2:], strict=True))
        return functional.pad(
            x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        )

    def reconstruct(self, smashed: Tensor, batch: int = 256) -> Tensor:
        """Return the images behind smashed data, without a graph."""
        self.eval()
        with torch.no_grad():
            return torch.cat([self(part) for part in smashed.split(batch)])


def outputs_without_graph(front: nn.Module, images: Tensor, batch: int = 256) -> Tensor:
    """Return the outputs of a client's layers for images, without a graph."""
    front.eval()
    with torch.no_grad():
        return torch.cat([front(part) for part in images.split(batch)])
