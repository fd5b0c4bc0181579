"""Streaming gaze maps: one frame in, one map out, given the recent past of its own estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.models import motion, pretrained
from vergence.models.glc.glc_features import POOL, FeatureLayers, check_head
from vergence.models.glc.reference_map import Reference


class GazeContext(NamedTuple):
    """Memory of a stream, newest last: its own last maps, and summaries of those frames.

    Maps have a mean of 1; both are 0 where there was no frame yet. Nothing else is remembered.
    """

    maps: Float[Tensor, "streams context rows columns"]
    summaries: Float[Tensor, "streams context width"]


@dataclass(frozen=True)
class GlcCausal(Model):
    """The causal counterpart of `glc_features`: a small head on frozen features, for streams.

    At every frame it sees that frame's features, its own maps of the last `context` frames, and
    a global token made of the frame's and those frames' summaries. It is trained as it is used: on
    its own estimates from the first step on, through which no gradient goes back. It is never
    given a label, so that none can leak into an estimate.

    Args:
        width: channels after the first convolution; the GLC blocks and the decoder run at half.
        heads: heads of the GLC blocks.
        blocks: number of GLC blocks.
        context: frames before, whose own maps it sees.
        grid: rows and columns of the heat map, twice those of the features: (30, 40) for frames of
            240 x 320.
        standardise: scale every feature channel to mean 0 and deviation 1 as measured once on
            public pictures (the training images of the packaged OSIE sample), so that no client
            need tell anything about its own frames.
        motion: add channels that tell what moves.
        reference: a map that learns nothing, by which the network's map is multiplied and as which
            it starts.

    Source: after ARGaze (arXiv:2602.05132, 2026): autoregressive, a bounded context of estimates.
    Differs: a small convolutional head with a GLC block in place of a transformer decoder; own
    estimates in place of teacher forcing.
    """

    width: int = 32
    heads: int = 4
    blocks: int = 1
    context: Annotated[int, Ge(1)] = 4
    grid: tuple[int, int] = (30, 40)
    standardise: bool = True
    motion: bool = False
    reference: Reference = "none"

    head: ClassVar[tuple[str, ...]] = ("head.*", "bias", "reference.*")

    @property
    def sees_motion(self) -> bool:
        """True if the motion of frames goes in, for the network or for its reference map."""
        return self.motion or self.reference == "motion"

    def build(self) -> GlcCausalNet:
        """Return the head, initialised from torch's global generator.

        Raises:
            ConfigError: a width the heads do not divide, or an odd grid.
        """
        check_head("glc_causal", self.width, self.heads, self.blocks, self.grid)
        return GlcCausalNet(self)

    def prepare(self, federation: Federation) -> Federation:
        """Replace the rows of bank `frames`, uint8 `[n, H, W, 3]`, by features.

        The result is float16 `[n, 432, ceil(H/16), ceil(W/16)]`, cached (see `pretrained`).

        Raises:
            ConfigError: no bank `frames`, or frames that do not fit `grid`.
        """
        found = pretrained.in_place_of_frames(federation, "glc_causal", self.grid, self.standardise)
        return motion.with_motion(found, federation) if self.sees_motion else found


class GlcCausalNet(FeatureLayers):
    """Features `[B, T, 432, h, w]`, half or float, to logits `[B, T, 2h, 2w]`, frame by frame."""

    def __init__(self, options: GlcCausal) -> None:
        o = options
        super().__init__(
            "glc_causal", o.grid, o.width, o.heads, o.blocks, o.motion, o.context, o.reference
        )
        self.context = options.context

    def forward(
        self, features: Float[Tensor, "clips frames channels rows columns"]
    ) -> Float[Tensor, "clips frames rows2 columns2"]:
        """Return logits of the map of every frame; each clip is a stream from its beginning.

        Raises:
            ConfigError: features of another size than `grid` was set for.
        """
        self.check_size(*features.shape[-2:])
        context, maps = self.start(features), []
        for frame in features.unbind(1):
            logits, context = self.step(frame, context)
            maps.append(logits)
        return torch.stack(maps, 1)

    def start(self, features: Float[Tensor, "streams frames channels rows columns"]) -> GazeContext:
        """Return the context of streams of which nothing has been seen."""
        streams, _, _, rows, columns = features.shape
        half = self.local.out_channels
        maps = features.new_zeros(streams, self.context, rows, columns, dtype=torch.float32)
        return GazeContext(maps, maps.new_zeros(streams, self.context, half))

    def step(
        self, features: Float[Tensor, "streams channels rows columns"], context: GazeContext
    ) -> tuple[Float[Tensor, "streams rows2 columns2"], GazeContext]:
        """Return the next frame's logits, and the context that the frame after it gets."""
        entered, added = self.start_from(features[:, None])
        x = self.local(functional.relu(self.reduce(entered[:, 0].float())))
        x = functional.relu(x + self.past(context.maps))
        summaries = context.summaries
        if self.glance is not None:
            now = self.glance(functional.adaptive_avg_pool2d(x, POOL).flatten(1))
            summaries = torch.cat([summaries, now[:, None]], 1)
            x = self.mix(x, summaries.mean(1, keepdim=True))
        x = functional.interpolate(x, scale_factor=2, mode="bilinear")
        logits = self.head(functional.relu(self.decode(x)))[:, 0] + added[:, 0]
        own = logits.detach().flatten(1).softmax(1).view_as(logits) * self.bias.numel()
        maps = torch.cat([context.maps, functional.avg_pool2d(own[:, None], 2)], 1)
        return logits, GazeContext(maps[:, 1:], summaries[:, -self.context :])

    def mix(self, x: Tensor, token: Float[Tensor, "streams 1 half"]) -> Tensor:
        """Run the GLC blocks: the frame's positions, each with itself and the global token."""
        tokens = torch.cat([token, x.flatten(2).transpose(1, 2)], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, 1:].transpose(1, 2).reshape(x.shape)
