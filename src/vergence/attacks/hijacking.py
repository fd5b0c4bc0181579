"""Feature-space hijacking: a server that sends gradients of its own to reconstruct the images.

The server never trains the task. On images of shadow people it trains an encoder of its own
(`pilot`) with a decoder back to pictures, and then a critic that tells the pilot's features from
the client's. What it returns as "the gradient" draws the client's layers to where the critic takes
them for the pilot: then the decoder sees through them too. Labels that come beside are ignored.

Source: Pasquini, Ateniese and Bernaschi, "Unleashing the tiger: inference attacks on split
learning", CCS 2021, Algorithm 1; critic and gradient penalty as in its public code (Gulrajani et
al., "Improved training of Wasserstein GANs", NeurIPS 2017, equation 3).
Differs: pilot and decoder are trained before the client comes and then stand still, so that the
first batch is hijacked already; the decoder starts at the mean image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from vergence.attacks.inverse_network import InverseNet, through
from vergence.attacks.training import learn
from vergence.core.options import NamedOptions
from vergence.core.task import own_randomness


@dataclass(frozen=True)
class HijackSettings(NamedOptions, label="hijack"):
    """Settings for building and training a malicious server.

    Attributes:
        epochs: passes over the shadow people before the client comes.
        rate: Adam's, of pilot and decoder.
        critic_rate: Adam's, of the critic.
        critic_steps: of the critic per batch of the client.
        penalty: price of a critic whose slope is not 1.
        width: channels of decoder and critic.
        rank: features of the decoder's linear path.
        seed: of everything.
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
    """A malicious server: it answers a client's smashed data and reconstructs the pictures."""

    def __init__(
        self, images: Tensor, inputs: Tensor, pilot: nn.Module, how: HijackSettings | None = None
    ) -> None:
        """Prepare, with nothing seen yet.

        Args:
            images: of shadow people, `[samples, 1, height, width]` in [0, 1].
            inputs: the same as a client's layers take them, `[samples, ...]`.
            pilot: layers with the shape of the clients', which are public; its weights are the
                server's own and are trained in place.
            how: rates and sizes.
        """
        self.how, self.images, self.inputs, self.pilot = (
            how or HijackSettings(),
            images,
            inputs,
            pilot,
        )
        self.draws = torch.Generator().manual_seed(self.how.seed)
        with own_randomness():
            torch.manual_seed(self.how.seed)
            with torch.no_grad():
                features = pilot(inputs[:256])
            self.decoder = InverseNet(features, images, self.how.width, self.how.rank)
            self.critic = critic(features, self.how.width)
        self.judging = torch.optim.Adam(
            self.critic.parameters(), self.how.critic_rate, betas=(0.5, 0.9)
        )
        self._train_on_shadows()

    def answer(self, smashed: Tensor) -> Tensor:
        """Train the critic on a client's batch `[samples, ...]`; return the gradient to send back.

        The client that follows it downhill makes features that the critic takes for the pilot's.
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
        """Train pilot and decoder on shadow images; keep what the pilot makes of them."""

        def loss(rows: Tensor, _: object) -> Tensor:
            return functional.mse_loss(
                self.decoder(self.pilot(self.inputs[rows])), self.images[rows]
            )

        both = nn.ModuleList([self.pilot, self.decoder])
        learn(both, loss, len(self.images), self.how.epochs, self.how.rate, self.how.seed)
        self.features = through(self.pilot, self.inputs)

    def _judge(self, mine: Tensor, theirs: Tensor) -> None:
        """Train the critic: high on the pilot's features, low on the client's, of slope 1."""
        share = torch.rand(len(mine), *[1] * (mine.ndim - 1), generator=self.draws)
        between = (share * mine + (1 - share) * theirs).requires_grad_(True)
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        steep = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        margin = self.critic(theirs).mean() - self.critic(mine).mean()
        self.judging.zero_grad()
        (margin + self.how.penalty * steep).backward()
        self.judging.step()


def critic(features: Tensor, width: int) -> nn.Module:
    """Return a network that tells features of the shape `[samples, ...]` apart by one number."""
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
