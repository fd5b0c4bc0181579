"""Defences at the cut of split learning, as settings of a run: the table `privacy.cut`.

A defence does up to four things to a client's layers and their outputs (smashed data): it
constrains the layers' weights, bounds their outputs, adds a term to their loss, and adds noise to
what leaves the client. Noise is drawn once per picture and state of the layers: the same vector is
always sent with the same noise, and never with that of another vector
(`privacy/split/bottleneck.py`).

Used in `attacks`, `audit`, `engine`, `experiment` and `privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor, nn

from vergence.core.data import Batch, Samples
from vergence.core.options import NamedOptions
from vergence.core.stages import Piece, Staged
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.privacy.dp.budget import Budget
from vergence.privacy.keyed_noise import NoiseKey, NoiseKind, NoiseStream, hidden
from vergence.privacy.split.bottleneck import Bottleneck, image_noise
from vergence.privacy.split.nopeek import penalty
from vergence.privacy.split.pixel_dp import normalise_, sensitivity

SHAPED = 1e-5
"""A norm is left as it is if it is below 1 by no more: else weights would shrink step by step."""
IMAGE = "image"
"""The column of pictures, whose pixels a defence may count."""


@dataclass(frozen=True)
class NoiseSpec:
    """Noise on smashed data.

    Attributes:
        kind: name of the distribution.
        scale: standard deviation (Gaussian) or scale (Laplace), in units of smashed data.
        multiple: the scale as a multiple of the sensitivity.
    """

    kind: NoiseKind
    scale: float
    multiple: float

    def fresh(self, smashed: Tensor, draws: NoiseStream) -> Tensor:
        """Return smashed data with noise drawn from `draws`."""
        return hidden(smashed, self.scale, draws.standard(self.kind, smashed.numel()))

    def bound(self, smashed: Tensor, images: Sequence[int], secret: NoiseKey) -> Tensor:
        """Return smashed data with noise that depends only on each image and this secret."""
        each = smashed[0].numel() if len(smashed) else 0
        return hidden(smashed, self.scale, image_noise(self.kind, each, images, secret))


@dataclass(frozen=True)
class SplitDefense:
    """Base of defences at the cut; each defence overrides the methods that it uses."""

    @property
    def freezes_layers(self) -> bool:
        """True if the clients' layers are never trained."""
        return False

    def check(self, front: Piece) -> None:
        """Refuse layers for which the defence's guarantee does not hold."""
        return

    def constrain(self, front: nn.Module, height: int, width: int) -> None:
        """Constrain the weights of the client's layers, in place; images have this size."""
        return

    def shaped(self, smashed: Tensor) -> Tensor:
        """Return bounded smashed data `[samples, ...]`, before noise; gradients pass through."""
        return smashed

    def term(self, images: Tensor, smashed: Tensor) -> Tensor | float:
        """Return the term that the client adds to its loss."""
        return 0.0

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec | None:
        """Return the noise, if the defence adds any.

        Args:
            releases: number of states of the layers through which a picture is sent in a run.
            gain: change of the network's input when a pixel goes from black to white.
        """
        return None

    def cost(self, multiple: float) -> float:
        """Return the cost of one release for a picture; costs add up."""
        return 0.0

    def epsilon_of(self, cost: float) -> float:
        """Return the epsilon that a sum of costs amounts to."""
        return 0.0

    @property
    def epsilon_limit(self) -> float:
        """The epsilon that a picture may spend."""
        return math.inf


@dataclass(frozen=True)
class BottleneckCut(SplitDefense, Budget):
    """Clips every picture's smashed vector, and adds Gaussian noise to every feature.

    Args:
        clip: largest L2 norm of a picture's smashed vector.
        epsilon: budget of one picture over a run (of one seed and method), against any other
            picture in its place.
        noise: standard deviation of the noise on a feature, as a multiple of `clip`; if `epsilon`
            is given too, a client stops before a picture spends more than it.
        delta: the delta at which epsilon is computed.
        name: `bottleneck`.
        frozen: whether clients do not train their layers. A picture then counts as one release
            however often it is sent, and no update of the layers could reveal it.
    """

    where = "privacy.cut"
    name: Literal["bottleneck"] = "bottleneck"
    frozen: bool = False

    @property
    def freezes_layers(self) -> bool:
        """True if the clients' layers are never trained."""
        return self.frozen

    def bottleneck(self, releases: int) -> Bottleneck:
        """Return clip and noise if a picture is released this number of times."""
        if self.noise is not None:
            return Bottleneck(self.clip, self.noise * self.clip)
        return Bottleneck.for_budget(self.clip, self.epsilon or 0.0, self.delta, releases)

    def shaped(self, smashed: Tensor) -> Tensor:
        """Return every vector shortened to `clip`."""
        return Bottleneck(self.clip, self.clip).clipped(smashed)

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec:
        """Return the noise; replacing a picture moves a clipped vector by at most 2 `clip`."""
        deviation = self.bottleneck(releases).deviation
        return NoiseSpec("gaussian", deviation, deviation / (2 * self.clip))

    def cost(self, multiple: float) -> float:
        """Return mu squared, as releases compose like Gaussian mechanisms."""
        return multiple**-2

    def epsilon_of(self, cost: float) -> float:
        """Return epsilon at `delta`, against any other picture in this one's place."""
        return gaussian_epsilon(math.sqrt(cost), self.delta) if cost else 0.0

    @property
    def epsilon_limit(self) -> float:
        """The epsilon that a picture may spend."""
        return math.inf if self.epsilon is None else self.epsilon


@dataclass(frozen=True)
class NoPeekCut(SplitDefense, NamedOptions, label="privacy.cut"):
    """Adds the distance correlation of pictures and smashed data to the client's loss.

    Args:
        weight: weight of that term.
        name: `nopeek`.
    """

    weight: Annotated[float, Gt(0)]
    name: Literal["nopeek"] = "nopeek"

    def term(self, images: Tensor, smashed: Tensor) -> Tensor:
        """Return the weighted distance correlation of a batch."""
        return penalty(images, smashed, self.weight)


@dataclass(frozen=True)
class PixelCut(SplitDefense, NamedOptions, label="privacy.cut"):
    """Adds Laplace noise after a first convolution whose operator norm is kept at most 1.

    Args:
        level: l, the noise's scale for pixels in [0, 1]; epsilon is 1 / l for each release and unit
            of L1 change.
        name: `pixel_dp`.
    """

    level: Annotated[float, Gt(0)]
    name: Literal["pixel_dp"] = "pixel_dp"

    def check(self, front: Piece) -> None:
        """Refuse all layers except a single convolution whose norm is known.

        Layers behind the convolution must not enlarge an L1 change: rectifiers do not, nor does
        pooling over windows that do not overlap.

        Raises:
            ConfigError: names the weights that clients have.
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
        """Divide the convolution's weights by its operator norm."""
        conv = only_convolution(front)
        assert conv is not None
        if not 1 - SHAPED <= sensitivity(conv, height, width) <= 1:
            normalise_(conv, height, width)

    def noise_spec(self, releases: int, gain: float) -> NoiseSpec:
        """Return the noise: a pixel moves smashed data by at most `gain` in L1."""
        return NoiseSpec("laplace", self.level * gain, self.level)

    def cost(self, multiple: float) -> float:
        """Return the epsilon of one release per unit of L1 change."""
        return 1 / multiple

    def epsilon_of(self, cost: float) -> float:
        """Return the epsilon of all releases per unit of L1 change, as their costs add up."""
        return cost


@dataclass(frozen=True)
class DefendedPiece(Piece):
    """A client's stages with a defence at the cut, in the form in which they are trained."""

    defence: SplitDefense = SplitDefense()

    @classmethod
    def of(cls, front: Piece, defence: SplitDefense) -> DefendedPiece:
        """Return these stages with the defence."""
        return cls(front.network, seed=front.seed, whole=front.whole, defence=defence)

    def forward(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return bounded smashed data, before noise, from layers with constrained weights."""
        # In every pass: the last step moved the weights, and noise is scaled to their norm.
        self.constrain(module, batch)
        return self.defence.shaped(super().forward(module, batch))

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss with the defence's term."""
        return super().loss(output, batch) + self.defence.term(self.images(batch), output)

    def constrain(self, module: nn.Module, batch: Batch) -> None:
        """Constrain the layers' weights, in place."""
        self.defence.constrain(module, *self.images(batch).shape[-2:])

    def images(self, batch: Batch) -> Tensor:
        """Return the input of the network."""
        return self.task.inputs(batch)[0]


def stage_layers(network: Staged, stages: Sequence[str]) -> nn.ModuleList:
    """Return the layers of some stages of a whole network."""
    paths = [path for name in stages for path in network.stages[name]]
    return nn.ModuleList(network.get_submodule(path) for path in paths)


def only_convolution(module: nn.Module) -> nn.Conv2d | None:
    """Return the only layer with weights if it is a convolution, else None."""
    layers = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
    return layers[0] if len(layers) == 1 and isinstance(layers[0], nn.Conv2d) else None


def gain(task: Task, samples: Samples) -> float:
    """Return the largest change of the network's input when a pixel goes from black to white.

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
