"""Split-learning clients with a defence at the cut: what they send, and its imitation.

A defence does three things: it keeps the client's layers in shape while they are trained, it makes
what is sent, and it says what an attacker who knows it trains on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from vergence.attacks.view import Imitate, ObservedMessages
from vergence.core.params import Params
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.split.bottleneck import Bottleneck
from vergence.privacy.split.defense import BottleneckCut, NoiseSpec, SplitDefense
from vergence.privacy.split.pixel_dp import noisy, normalise_


class UndefendedClient:
    """No defence: smashed data as they are."""

    fresh = False
    """Whether the same image is sent with new noise every time."""

    def keep(self, front: nn.Module, height: int, width: int) -> None:
        """Bring the client's layers into shape, in place, after every step."""

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Data sent for smashed data `[samples, ...]` of these images in a round."""
        return smashed

    def imitation(self, times: int = 1) -> Imitate:
        """Attacker's change to clean smashed data, to match the mean of so many sends."""
        return lambda smashed, _: smashed


@dataclass(frozen=True)
class PixelNoise(UndefendedClient):
    """Laplace noise of scale `level` behind a first convolution of operator norm 1 (PixelDP).

    Pixels are in [0, 1]. Rectifying and max-pooling never enlarge an L1 change, so that noise may
    be added behind them too.
    """

    level: float

    fresh = True

    def keep(self, front: nn.Module, height: int, width: int) -> None:
        """Divide the first convolution by its operator norm."""
        conv = front.get_submodule("conv1")
        assert isinstance(conv, nn.Conv2d)
        normalise_(conv, height, width)

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return smashed data with noise of this round."""
        return noisy(smashed, self.level, "l1_l1", secret.child(round).draws())

    def imitation(self, times: int = 1) -> Imitate:
        """Return noise of the same variance: Laplace, or, of a mean of several, Gaussian."""

        def imitate(smashed: Tensor, generator: Generator) -> Tensor:
            if times == 1:
                one, other = torch.empty(2, *smashed.shape).exponential_(generator=generator)
                return smashed + self.level * (one - other)
            normal = torch.randn(smashed.shape, generator=generator)
            return smashed + self.level * (2 / times) ** 0.5 * normal

        return imitate


@dataclass(frozen=True)
class Clipped(UndefendedClient):
    """A clipped smashed vector with noise that is drawn once per image and state of the layers.

    `fresh`: the layers are trained between two sends, so that the noise is new.
    """

    bottleneck: Bottleneck
    fresh: bool = False

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return the vectors, shortened, with their images' noise."""
        secret = secret.child(round) if self.fresh else secret
        return self.bottleneck.released(smashed, images.tolist(), layers, secret)

    def imitation(self, times: int = 1) -> Imitate:
        """Return clipped vectors with noise, which averaging thins where it is new every time."""
        thinner = times**0.5 if self.fresh else 1.0

        def imitate(smashed: Tensor, generator: Generator) -> Tensor:
            noise = torch.randn(smashed.shape, generator=generator)
            return self.bottleneck.clipped(smashed) + self.bottleneck.deviation / thinner * noise

        return imitate


def standing(defence: SplitDefense, noise_spec: NoiseSpec | None) -> UndefendedClient:
    """Return the clients of a run with this defence, and this noise, as an attacker meets them."""
    if isinstance(defence, BottleneckCut) and noise_spec is not None:
        return Clipped(Bottleneck(defence.clip, noise_spec.scale), fresh=not defence.still)
    return UndefendedClient() if noise_spec is None else PixelNoise(noise_spec.scale)


def sends(
    sender: str,
    smashed: Tensor,
    defence: UndefendedClient,
    rounds: int,
    layers: Params,
    secret: NoiseKey,
    batch: int = 256,
) -> tuple[ObservedMessages, ...]:
    """Messages a client sends of all its images in so many rounds, with its layers fixed.

    Args:
        sender: the client's name.
        smashed: `[samples, ...]`, what its layers make of its images.
        defence: at the cut.
        rounds: in each of which every image is sent once.
        layers: the client's.
        secret: of this client, for its noise.
        batch: images that are sent together.
    """
    return tuple(
        ObservedMessages(
            sender,
            round,
            defence.released(smashed[rows], rows, round, layers, secret.child(int(rows[0]))),
            rows,
        )
        for round in range(rounds)
        for rows in torch.arange(len(smashed)).split(batch)
    )
