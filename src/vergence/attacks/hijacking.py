"""Feature-space hijacking: a malicious server sends false gradients to reconstruct the images.

The server never trains the task. On images of shadow people it trains its own encoder (`pilot`)
with a decoder back to pictures, and then a critic that distinguishes the pilot's features from the
client's. The "gradient" it returns trains the client's layers to deceive the critic: their features
become like the pilot's, and the decoder then works on them too. Labels from clients are ignored.

Source: Pasquini, Ateniese and Bernaschi, "Unleashing the tiger: inference attacks on split
learning", CCS 2021, Algorithm 1; critic and gradient penalty as in its public code (Gulrajani et
al., "Improved training of Wasserstein GANs", NeurIPS 2017, equation 3).
Differs: pilot and decoder are trained before the client connects and are then fixed, so that the
attack begins with the first batch; the decoder starts at the mean image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from vergence.attacks.inverse_network import InverseNet, outputs_without_graph
from vergence.attacks.training import learn
from vergence.core.options import NamedOptions
from vergence.core.task import isolated_randomness


@dataclass(frozen=True)
class HijackSettings(NamedOptions, label="hijack"):
    """Settings for building and training a malicious server.

    Attributes:
        epochs: passes over the shadow people's images before the client connects.
        rate: Adam's learning rate for pilot and decoder.
        critic_rate: Adam's learning rate for the critic.
        critic_steps: training steps of the critic per batch of the client.
        penalty: weight of the gradient penalty, which keeps the critic's slope at 1.
        width: channels of decoder and critic.
        rank: features of the decoder's linear path.
        seed: seed of initial weights and of all draws.
    """

    epochs: Annotated[int, Gt(0)] = 10
    rate: Annotated[float, Gt(0)] = 2e-3
    critic_rate: Annotated[float, Gt(0)] = 1e-3
    critic_steps: Annotated[int, Gt(0)] = 3
    penalty: Annotated[float, Ge(0)] = 10.0
    width: Annotated[int, Gt(0)] = 16
    rank: Annotated[int, Gt(0)] = 64
    seed: int = 0


class Hijacker:
    """A malicious server that answers a client's smashed data and reconstructs the pictures."""

    def __init__(
        self, images: Tensor, inputs: Tensor, pilot: nn.Module, how: HijackSettings | None = None
    ) -> None:
        """Train pilot and decoder on the shadow people, before any client connects.

        Args:
            images: shadow people's images, `[samples, 1, height, width]` in [0, 1].
            inputs: the same images in the form that a client's layers take, `[samples, ...]`.
            pilot: layers with the architecture of the clients', which is public; they are trained
                in place from the server's own weights.
            how: rates and sizes.
        """
        self.how, self.images, self.inputs, self.pilot = (
            how or HijackSettings(),
            images,
            inputs,
            pilot,
        )
        self.draws = torch.Generator().manual_seed(self.how.seed)
        # Initial weights come from torch's global generator, which a run must not see advanced.
        with isolated_randomness():
            torch.manual_seed(self.how.seed)
            with torch.no_grad():
                features = pilot(inputs[:256])
            self.decoder = InverseNet(features, images, self.how.width, self.how.rank)
            self.critic = critic(features, self.how.width)
        # Little momentum: the client's features move with every batch, and old gradients mislead.
        self.judging = torch.optim.Adam(
            self.critic.parameters(), self.how.critic_rate, betas=(0.5, 0.9)
        )
        self._train_on_shadows()

    def answer(self, smashed: Tensor) -> Tensor:
        """Train the critic on a client's batch `[samples, ...]`; return the gradient to send back.

        A client that descends along it makes features that the critic takes for the pilot's.
        """
        smashed = smashed.detach()
        for _ in range(self.how.critic_steps):
            rows = torch.randint(len(self.features), (len(smashed),), generator=self.draws)
            self._judge(self.features[rows], smashed)
        features = smashed.clone().requires_grad_(True)
        (pull,) = torch.autograd.grad(-self.critic(features).mean(), features)
        return pull

    def reconstruct(self, smashed: Tensor) -> Tensor:
        """Return the pictures behind smashed data, `[samples, 1, height, width]` in (0, 1)."""
        return self.decoder.reconstruct(smashed)

    def _train_on_shadows(self) -> None:
        """Train pilot and decoder on shadow images, and compute the pilot's features of them."""

        def loss(rows: Tensor, _: object) -> Tensor:
            return functional.mse_loss(
                self.decoder(self.pilot(self.inputs[rows])), self.images[rows]
            )

        both = nn.ModuleList([self.pilot, self.decoder])
        learn(both, loss, len(self.images), self.how.epochs, self.how.rate, self.how.seed)
        self.features = outputs_without_graph(self.pilot, self.inputs)

    def _judge(self, mine: Tensor, theirs: Tensor) -> None:
        """Train the critic one step: high on the pilot's features, low on the client's."""
        # Gulrajani et al., equation 3: the slope is held at 1 on random points between the two.
        share = torch.rand(len(mine), *[1] * (mine.ndim - 1), generator=self.draws)
        between = (share * mine + (1 - share) * theirs).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        steep = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        margin = self.critic(theirs).mean() - self.critic(mine).mean()
        self.judging.zero_grad()
        (margin + self.how.penalty * steep).backward()
        self.judging.step()


def critic(features: Tensor, width: int) -> nn.Module:
    """Return a network that scores features of the shape `[samples, ...]` by one number each."""
    if features.ndim == 4:
        layers = [
            nn.Conv2d(features.shape[1], width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        ]
    else:
        layers = [nn.Flatten(), nn.Linear(features[0].numel(), 4 * width), nn.LeakyReLU(0.2)]
    size = nn.Sequential(*layers)(features[:1]).shape[1]
    return nn.Sequential(
        *layers, nn.Linear(size, 2 * width), nn.LeakyReLU(0.2), nn.Linear(2 * width, 1)
    )
