"""Siamese network for two views of an eye: that of SimCLR, and with a target that of BYOL."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Interval
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.cross_encoder import CrossEncoder, check_size, encoder
from vergence.models.unlabelled_eyes import glance_rows

# Views are neither flipped nor rotated: that would change where the eye looks.
SHIFT, ZOOM, GAIN, OFFSET, NOISE = 0.08, 0.1, 0.4, 0.2, 0.05
"""Largest shift (of half the image), zoom, change of contrast and of brightness; noise added."""


@dataclass(frozen=True)
class Siamese(Model):
    """The Cross-Encoder's encoder and a projector, for two views of an image.

    Attributes:
        options: options of the encoder; see model `cross_encoder`.
        hidden: width of the projector's (and predictor's) hidden layer.
        out: length of the vectors by which views are compared.
        target: whether there are a predictor, and a target network that follows encoder and
            projector, as BYOL needs them.
        decay: share of the target that remains in a training step.

    The target is part of the parameters: it is sent and averaged with them, so that a client stores
    nothing between rounds. Every training pass moves it towards the network before it is used; it
    gets no gradient. Train with weight_decay = 0, as weight decay would change the target too.

    Source: Chen et al., "A simple framework for contrastive learning of visual representations",
    ICML 2020; Grill et al., "Bootstrap your own latent", NeurIPS 2020.
    """

    head: ClassVar[tuple[str, ...]] = ("projector.*",)

    options: CrossEncoder = CrossEncoder()
    hidden: Annotated[int, Ge(1)] = 64
    out: Annotated[int, Ge(1)] = 32
    target: bool = False
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.99

    @property
    def gaze(self) -> int:
        """The length of the gaze code, the last values of `encode`."""
        return self.options.gaze

    def build(self) -> SiameseNet:
        """Return the network, initialised from torch's global generator."""
        return SiameseNet(self)

    def prepare(self, federation: Federation) -> Federation:
        """Return rows with the columns `eyes` and `whose`; see `unlabelled_eyes.glance_rows`.

        A run calls this once before training.
        """
        return glance_rows(federation)


class SiameseNet(nn.Module):
    """Network from eyes `[rows, eyes, 1, H, W]` in [0, 1] to vectors `[rows, eyes, 4, out]`.

    The four vectors are a query of either view and a key of either view. Without a target, keys are
    the queries. Views are drawn from torch's global generator in training; otherwise they are
    always the same.
    """

    def __init__(self, options: Siamese) -> None:
        super().__init__()
        self.size = tuple(map(int, options.options.size.split("x")))
        self.decay = options.decay
        codes = options.options.eye + options.options.gaze
        self.encoder = encoder(options.options)
        self.projector = _mlp(codes, options.hidden, options.out)
        if options.target:
            self.predictor = _mlp(options.out, options.hidden, options.out)
            self.target = nn.ModuleList([deepcopy(self.encoder), deepcopy(self.projector)])

    def encode(self, eyes: Tensor) -> Tensor:
        """Return the codes `[rows, eyes, codes]`, as the Cross-Encoder's network does."""
        check_size(eyes, self.size)
        return _through(self.encoder, eyes.flatten(0, 1)).unflatten(0, eyes.shape[:2])

    def forward(self, eyes: Tensor) -> Float[Tensor, "rows eyes 4 out"]:
        """Return queries and keys of two views."""
        check_size(eyes, self.size)
        images = eyes.flatten(0, 1)
        # In evaluation the same views every time, so that scores do not depend on earlier draws.
        draws = None if self.training else torch.Generator(eyes.device).manual_seed(0)
        both = torch.cat([view(images, draws), view(images, draws)])
        queries = keys = self.projector(_through(self.encoder, both))
        # BYOL alone has a target; SimCLR compares the projections themselves.
        if hasattr(self, "target"):
            with torch.no_grad():
                if self.training:
                    self.follow()
                head, top = self.target
                keys = top(_through(head, both))
            queries = self.predictor(queries)
        found = torch.stack([*queries.chunk(2), *keys.chunk(2)], 1)
        return found.unflatten(0, eyes.shape[:2])

    @torch.no_grad()
    def follow(self) -> None:
        """Move the target a step towards the network: target <- decay target + (1 - decay) own.

        `forward` calls this in training.
        """
        for target, own in self._followed():
            target.lerp_(own, 1 - self.decay)

    def _followed(self) -> Iterator[tuple[Tensor, Tensor]]:
        own = [*self.encoder.parameters(), *self.projector.parameters()]
        return zip(self.target.parameters(), own, strict=True)


def _mlp(before: int, hidden: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(before, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, after)
    )


def _through(stages: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(stages, nn.ModuleDict):
        raise ConfigError(f"an encoder is a row of named stages, got {type(stages).__name__}")
    for stage in stages.values():
        x = stage(x)
    return x


def view(images: Tensor, draws: torch.Generator | None) -> Tensor:
    """Return images `[n, 1, H, W]` in [0, 1] shifted, zoomed, re-lit and with noise, at random."""
    n, place = len(images), images.device

    def between(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand(n, *shape, generator=draws, device=place)
        return low + (high - low) * drawn

    move = torch.zeros(n, 2, 3, device=place)
    move[:, 0, 0] = move[:, 1, 1] = between(1 - ZOOM, 1 + ZOOM)
    move[:, :, 2] = between(-SHIFT, SHIFT, 2)
    grid = functional.affine_grid(move, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    gain, offset = between(1 - GAIN, 1 + GAIN, 1, 1, 1), between(-OFFSET, OFFSET, 1, 1, 1)
    noise = torch.randn(moved.shape, generator=draws, device=place)
    return (moved - 0.5) * gain + 0.5 + offset + NOISE * noise
