"""Split-learning clients with a defence at the cut, and how an attacker simulates the defence.

A defence does three things: it constrains the client's layers during training, it changes smashed
data before they are sent, and it gives an attacker who knows it data of the same kind to train on.

Used by `audit.smashed_data`.
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
    """A client without a defence, which sends smashed data as they are."""

    fresh = False
    """Whether the same image is sent with new noise every time."""

    def constrain(self, front: nn.Module, height: int, width: int) -> None:
        """Constrain the client's layers in place, after every step of training."""

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return the data that the client sends in place of smashed data `[samples, ...]`."""
        return smashed

    def imitation(self, times: int = 1) -> Imitate:
        """Return a function from clean smashed data to the mean of `times` sends of them."""
        return lambda smashed, _: smashed


@dataclass(frozen=True)
class PixelNoise(UndefendedClient):
    """Laplace noise of scale `level` behind a first convolution of operator norm 1 (PixelDP).

    Pixels are in [0, 1]. Rectifying and max-pooling never enlarge an L1 change, so that noise may
    be added behind them too.
    """

    level: float

    fresh = True

    def constrain(self, front: nn.Module, height: int, width: int) -> None:
        """Divide the first convolution by its operator norm."""
        conv = front.get_submodule("conv1")
        assert isinstance(conv, nn.Conv2d)
        normalise_(conv, height, width)

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return smashed data with fresh noise for this round."""
        return noisy(smashed, self.level, "l1_l1", secret.child(round).draws())

    def imitation(self, times: int = 1) -> Imitate:
        """Return a function that adds noise of the same variance as the mean of `times` sends."""

        def imitate(smashed: Tensor, generator: Generator) -> Tensor:
            if times == 1:
                # torch draws no Laplace noise from a generator; the difference of
                # two exponentials is Laplace.
                one, other = torch.empty(2, *smashed.shape).exponential_(generator=generator)
                return smashed + self.level * (one - other)
            # Laplace noise of scale b has variance 2 b^2; a mean of several is nearly Gaussian.
            normal = torch.randn(smashed.shape, generator=generator)
            return smashed + self.level * (2 / times) ** 0.5 * normal

        return imitate


@dataclass(frozen=True)
class Clipped(UndefendedClient):
    """A client that clips smashed vectors and adds noise, once per image and state of its layers.

    Attributes:
        bottleneck: clip and noise.
        fresh: the layers are trained between two sends, so that each send has new noise.
    """

    bottleneck: Bottleneck
    fresh: bool = False

    def released(
        self, smashed: Tensor, images: Tensor, round: int, layers: Params, secret: NoiseKey
    ) -> Tensor:
        """Return the clipped vectors with noise that depends on image and layers."""
        # The layers stand still here: a key per round stands for training between two sends.
        secret = secret.child(round) if self.fresh else secret
        return self.bottleneck.released(smashed, images.tolist(), layers, secret)

    def imitation(self, times: int = 1) -> Imitate:
        """Return a function that clips and adds noise, less of it where sends can be averaged."""
        # Noise that repeats with every send does not average away.
        thinner = times**0.5 if self.fresh else 1.0

        def imitate(smashed: Tensor, generator: Generator) -> Tensor:
            noise = torch.randn(smashed.shape, generator=generator)
            return self.bottleneck.clipped(smashed) + self.bottleneck.deviation / thinner * noise

        return imitate


def defended_client(defence: SplitDefense, noise_spec: NoiseSpec | None) -> UndefendedClient:
    """Return a client of a run with this defence and noise.

    The audit of smashed data attacks its messages.

    Args:
        defence: at the cut.
        noise_spec: scale of its noise, None where it adds none.
    """
    if isinstance(defence, BottleneckCut) and noise_spec is not None:
        return Clipped(Bottleneck(defence.clip, noise_spec.scale), fresh=not defence.freezes_layers)
    return UndefendedClient() if noise_spec is None else PixelNoise(noise_spec.scale)


def client_messages(
    sender: str,
    smashed: Tensor,
    defence: UndefendedClient,
    rounds: int,
    layers: Params,
    secret: NoiseKey,
    batch: int = 256,
) -> tuple[ObservedMessages, ...]:
    """Return the messages of a client about all its images in several rounds, with fixed layers.

    The audit of smashed data reconstructs images from them.

    Args:
        sender: the client's name.
        smashed: outputs of its layers for its images, `[samples, ...]`.
        defence: defence at the cut.
        rounds: number of rounds; every image is sent once in each.
        layers: parameters of the client's layers.
        secret: key of this client's noise.
        batch: number of images that are sent together.
    """
    # A key per batch: with one key all batches would carry the same noise, and their differences
    # none.
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
