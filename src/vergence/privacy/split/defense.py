"""Defences at the cut of split learning, as settings of a run: the table `privacy.cut`.

A defence does up to four things to a client's layers and their outputs (smashed data): it
constrains the layers' weights, bounds their outputs, adds a term to their loss, and adds noise to
the outputs that are sent. Noise is drawn once for each picture and state of the layers: a vector is
always sent with the same noise, and no other vector is sent with this noise
(`privacy/split/bottleneck.py`).

Used in `attacks`, `audit`, `engine`, `experiment` and `privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.options import NamedOptions
from vergence.core.stages import Piece, Staged
from vergence.core.tags import LATER
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.budget import Budget
from vergence.privacy.keyed_noise import NoiseKey, NoiseKind, NoiseStream, hidden
from vergence.privacy.split.bottleneck import Bottleneck, image_noise
from vergence.privacy.split.nopeek import penalty
from vergence.privacy.split.pixel_dp import (
    SHAPED,
    normalise_,
    normalise_filters_,
    sensitivity,
)

IMAGE = "image"
"""Name of the data column with pictures."""


@dataclass(frozen=True)
class NoiseSpec:
    """Noise on smashed data (the outputs of the client's layers).

    Attributes:
        kind: `gaussian` or `laplace`.
        scale: standard deviation (Gaussian) or scale (Laplace) of the noise on every value.
        multiple: `scale` divided by the sensitivity.
    """

    kind: NoiseKind
    scale: float
    multiple: float

    def fresh(self, smashed: Tensor, draws: NoiseStream) -> Tensor:
        """Return smashed data of any shape, with noise drawn from `draws`."""
        return hidden(smashed, self.scale, draws.standard(self.kind, smashed.numel()))

    def bound(self, smashed: Tensor, images: Sequence[int], secret: NoiseKey) -> Tensor:
        """Return smashed data with noise that is always the same for an image and a secret.

        Args:
            smashed: `[samples, ...]`.
            images: number of each sample's image in the client's data.
            secret: the key from which the noise follows.
        """
        each = smashed[0].numel() if len(smashed) else 0
        return hidden(smashed, self.scale, image_noise(self.kind, each, images, secret))


@dataclass(frozen=True)
class SplitDefense:
    """Base of defences at the cut of split learning; a defence overrides the methods it needs.

    The client's layers before the cut give smashed data, which the client sends to the server.
    """

    @property
    def freezes_layers(self) -> bool:
        """True if the clients' layers are never trained."""
        return False

    def check(self, front: Piece) -> None:
        """Raise an error if the defence's guarantee does not hold for the client's layers.

        Called before a run begins.
        """
        return

    def constrain(self, front: nn.Module, height: int, width: int) -> None:
        """Constrain the weights of the client's layers, in place.

        Called before each forward pass of the layers and after each training step. `height` and
        `width` are those of an input image, in pixels.
        """
        return

    def shaped(self, smashed: Tensor) -> Tensor:
        """Return smashed data `[samples, ...]` within the defence's bound, before noise.

        Called in each forward pass of the client's layers. Gradients pass through.
        """
        return smashed

    def term(self, images: Tensor, smashed: Tensor) -> Tensor | float:
        """Return the term that the client adds to its loss, for a batch.

        Args:
            images: the batch's images, `[samples, ...]`.
            smashed: the outputs of the client's layers for them, `[samples, ...]`.
        """
        return 0.0

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec | None:
        """Return the noise on smashed data; None if the defence adds no noise.

        Args:
            releases: number of releases of one picture in a run. Sending it again counts as a new
                release only if the layers have changed.
            gain: change of the network's input when a pixel goes from black to white.
        """
        return None

    def sensitivity(self, front: Piece) -> float:
        """Return the sensitivity of the client's layers for which `noise_spec` does not account."""
        return 1.0

    def cost(self, multiple: float) -> float:
        """Return the privacy cost of one release of a picture; costs add up over releases.

        `multiple` is the scale of the noise, divided by the sensitivity.
        """
        return 0.0

    def epsilon_of(self, cost: float) -> float:
        """Return the epsilon of several releases from the sum of their costs."""
        return 0.0

    @property
    def epsilon_limit(self) -> float:
        """Largest epsilon that a picture may spend; infinity if there is no limit."""
        return math.inf


@dataclass(frozen=True)
class BottleneckCut(SplitDefense, Budget):
    """Clips every picture's smashed vector, and adds Gaussian noise to every feature.

    The smashed vector is the output of the client's layers, which is sent to the server.

    Args:
        clip: largest L2 norm of a picture's smashed vector.
        epsilon: budget of one picture over a run (of one seed and method). Neighbouring data have
            any other picture in place of this picture.
        noise: standard deviation of the noise on a feature, as a multiple of `clip`; if `epsilon`
            is given too, a client stops before a picture spends more than `epsilon`.
        delta: the delta at which epsilon is computed.
        name: `bottleneck`.
        frozen: true: clients never train their layers. A picture then counts as one release however
            often it is sent, and no update of the layers can reveal it.
    """

    where = "privacy.cut"
    name: Literal["bottleneck"] = "bottleneck"
    frozen: bool = False

    @property
    def freezes_layers(self) -> bool:
        """True if the clients' layers are never trained."""
        return self.frozen

    def bottleneck(self, releases: int) -> Bottleneck:
        """Return the clip norm and the noise for `releases` releases of a picture in a run."""
        if self.noise is not None:
            return Bottleneck(self.clip, self.noise * self.clip)
        return Bottleneck.for_budget(self.clip, self.epsilon or 0.0, self.delta, releases)

    def shaped(self, smashed: Tensor) -> Tensor:
        """Return every picture's vector clipped to the norm `clip`; gradients pass through."""
        return Bottleneck(self.clip, self.clip).clipped(smashed)

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec:
        """Return the Gaussian noise; `gain` has no effect.

        The sensitivity is 2 `clip`: the largest change of a clipped vector if its picture changes.
        """
        deviation = self.bottleneck(releases).deviation
        return NoiseSpec("gaussian", deviation, deviation / (2 * self.clip))

    def cost(self, multiple: float) -> float:
        """Return 1 / `multiple`^2: the square of mu, for a Gaussian mechanism."""
        return multiple**-2

    def epsilon_of(self, cost: float) -> float:
        """Return epsilon at `delta`; neighbouring data have one picture replaced by any other."""
        return gaussian_epsilon(math.sqrt(cost), self.delta) if cost else 0.0

    @property
    def epsilon_limit(self) -> float:
        """Largest epsilon that a picture may spend; infinity if there is no budget."""
        return math.inf if self.epsilon is None else self.epsilon


@dataclass(frozen=True)
class NoPeekCut(SplitDefense, NamedOptions, label="privacy.cut"):
    """Adds the distance correlation of pictures and smashed data to the client's loss.

    Args:
        weight: weight of the distance correlation in the loss.
        name: `nopeek`.
    """

    weight: Annotated[float, Gt(0)]
    name: Literal["nopeek"] = "nopeek"

    def term(self, images: Tensor, smashed: Tensor) -> Tensor:
        """Return the weighted distance correlation of a batch."""
        return penalty(images, smashed, self.weight)


@dataclass(frozen=True)
class PixelCut(SplitDefense, NamedOptions, label="privacy.cut"):
    """Adds Laplace noise after a first convolution whose L1 norm is kept at most 1.

    Args:
        level: scale of the noise, for pixels in [0, 1]. A release has epsilon 1 / `level` for
            images whose L1 distance is 1, such as a single pixel that turns from black to white.
        name: `pixel_dp`.
        norm: `operator`: the norm of the whole convolution is kept at most 1. `filter`: the norm of
            each filter is; epsilon is then larger by the number of filters. The SplitFed thesis
            leaves open which of the two it means.
    """

    level: Annotated[float, Gt(0)]
    name: Literal["pixel_dp"] = "pixel_dp"
    norm: Literal["operator", "filter"] = field(default="operator", metadata={LATER: True})

    def check(self, front: Piece) -> None:
        """Raise an error unless a single convolution is the client's only layer with weights.

        Layers without weights behind the convolution must not enlarge an L1 change. This is not
        checked. ReLU does not enlarge it, nor does pooling over windows that do not overlap.

        Raises:
            ConfigError: the client has other layers with weights, or the norm of the convolution is
                not known.
        """
        module = front.module()
        conv = only_convolution(module)
        if conv is None:
            layers = ", ".join(dict.fromkeys(n.rpartition(".")[0] for n in front.init()))
            raise ConfigError(
                "privacy.cut = 'pixel_dp' knows the norm of one convolution, and here clients have "
                f"{layers or 'no weights'}; set `cut` to a stage behind the first convolution and "
                "before the next layer"
            )
        height, width = conv.kernel_size
        sensitivity(conv, height, width)

    def constrain(self, front: nn.Module, height: int, width: int) -> None:
        """Divide the convolution's weights by the norm, in place.

        `height` and `width` are those of an input image, in pixels.
        """
        conv = only_convolution(front)
        assert conv is not None
        if self.norm == "filter":
            normalise_filters_(conv)
        elif not 1 - SHAPED <= sensitivity(conv, height, width) <= 1:
            normalise_(conv, height, width)

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec:
        """Return the Laplace noise: its scale is `level` times `gain`.

        A pixel that turns from black to white moves smashed data by at most `gain` in L1, times
        the `sensitivity` of the layers.
        """
        return NoiseSpec("laplace", self.level * gain, self.level)

    def sensitivity(self, front: Piece) -> float:
        """Return the number of filters if each has a norm of its own, else 1."""
        conv = only_convolution(front.module())
        return float(conv.out_channels) if conv is not None and self.norm == "filter" else 1.0

    def cost(self, multiple: float) -> float:
        """Return the epsilon of one release, for images whose L1 distance is 1."""
        return 1 / multiple

    def epsilon_of(self, cost: float) -> float:
        """Return the epsilon of all releases, for images whose L1 distance is 1."""
        return cost


@dataclass(frozen=True)
class DefendedPiece(Piece):
    """The client's part of a split network with a defence, as it is trained.

    Attributes:
        defence: the defence of the outputs (smashed data).
    """

    defence: SplitDefense = SplitDefense()

    @classmethod
    def of(cls, front: Piece, defence: SplitDefense) -> DefendedPiece:
        """Return the client's part of a network with a defence."""
        return cls(front.network, seed=front.seed, whole=front.whole, defence=defence)

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return bounded smashed data before noise: the layers' outputs, `[samples, ...]`.

        First the layers' weights are constrained, in place.
        """
        # In every pass: the last step moved the weights, and noise is scaled to their norm.
        self.constrain(module, batch)
        return self.defence.shaped(super().forward(module, batch))

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of a batch plus the term of the defence."""
        return super().loss(output, batch) + self.defence.term(self.images(batch), output)

    def constrain(self, module: nn.Module, batch: Batch) -> None:
        """Constrain the layers' weights in place, for images of the size of the batch's."""
        self.defence.constrain(module, *self.images(batch).shape[-2:])

    def images(self, batch: Batch) -> Tensor:
        """Return the images of a batch, as the network takes them."""
        return self.task.inputs(batch)[0]


def stage_layers(network: Staged, stages: Sequence[str]) -> nn.ModuleList:
    """Return the layers of the named stages of a network."""
    paths = [path for name in stages for path in network.stages[name]]
    return nn.ModuleList(network.get_submodule(path) for path in paths)


def only_convolution(module: nn.Module) -> nn.Conv2d | None:
    """Return a module's convolution if it is the only layer with weights, else None.

    `PixelCut` calls this.
    """
    layers = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
    return layers[0] if len(layers) == 1 and isinstance(layers[0], nn.Conv2d) else None


def gain(task: Task, samples: Samples) -> float:
    """Return the largest change of an input value when its pixel turns from black to white.

    The task's normalisation determines it; `samples` give the shape of a picture.

    Raises:
        ConfigError: the samples have no pictures.
    """
    if IMAGE not in samples.columns:
        raise ConfigError(
            f"privacy.cut = 'pixel_dp' counts pixels, and these data have no column '{IMAGE}'"
        )
    ends = dict(samples.take(slice(0, 1)))
    image = ends[IMAGE]
    white = 1.0 if image.is_floating_point() else 255
    black, white = (
        task.inputs({**ends, IMAGE: torch.full_like(image, value)})[0] for value in (0, white)
    )
    return float((white - black).max())
