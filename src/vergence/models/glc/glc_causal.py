"""Streaming gaze maps: a map for each frame, from the frame and the network's last estimates.

Used by `model_tools.onnx_export`, `video.predict_maps` and `video.streaming`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from vergence.models.glc.base import POOL, FeatureLayers, FeatureModel
from vergence.models.glc.upsampling import double


class GazeContext(NamedTuple):
    """Memory of a stream: its last maps and summaries of their frames, newest last.

    Maps have a mean of 1; both are 0 where there was no frame yet.
    """

    maps: Float[Tensor, "streams context rows columns"]
    summaries: Float[Tensor, "streams context width"]


@dataclass(frozen=True)
class GlcCausal(FeatureModel):
    """The causal counterpart of `glc_features`: a small head on frozen features, for streams.

    For every frame it takes that frame's features, its own maps of the last `context` frames, and a
    global token made of the frame's and those frames' summaries. Training, too, uses its own
    estimates from the first step on, without a gradient through them, and no labels as inputs.

    Args:
        context: number of earlier frames whose maps it takes.

    Source: after ARGaze (arXiv:2602.05132, 2026): autoregressive, a bounded context of estimates.
    Differs: a small convolutional head with a GLC block in place of a transformer decoder; own
    estimates in place of teacher forcing.
    """

    width: Annotated[int, Ge(4)] = 32
    context: Annotated[int, Ge(1)] = 4

    def build(self) -> GlcCausalNet:
        """Return the head, initialised from torch's global generator."""
        return GlcCausalNet(self)


class GlcCausalNet(FeatureLayers):
    """Network from features `[B, T, 432, h, w]`, half or float, to logits `[B, T, 2h, 2w]`.

    Frames are processed one after the other.
    """

    def __init__(self, options: GlcCausal) -> None:
        super().__init__(options, options.context)
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
        """Return the context of streams before their first frame."""
        streams, _, _, rows, columns = features.shape
        half = self.local.out_channels
        maps = features.new_zeros(streams, self.context, rows, columns, dtype=torch.float32)
        return GazeContext(maps, maps.new_zeros(streams, self.context, half))

    def step(
        self, features: Float[Tensor, "streams channels rows columns"], context: GazeContext
    ) -> tuple[Float[Tensor, "streams rows2 columns2"], GazeContext]:
        """Return the next frame's logits, and the context for the frame after it."""
        entered, added = self.start_from(features[:, None])
        x = self.local(functional.relu(self.reduce(entered[:, 0].float())))
        x = functional.relu(x + self.past(context.maps))
        summaries = context.summaries
        if self.glance is not None:
            now = self.glance(functional.adaptive_avg_pool2d(x, POOL).flatten(1))
            summaries = torch.cat([summaries, now[:, None]], 1)
            x = self.mix(x, summaries.mean(1, keepdim=True))
        x = double(x, 2, 3)
        logits = self.head(functional.relu(self.decode(x)))[:, 0] + added[:, 0]
        # Scaled to a mean of 1: values of a map that sums to 1 would shrink with its resolution.
        own = logits.detach().flatten(1).softmax(1).view_as(logits) * self.bias.numel()
        maps = torch.cat([context.maps, functional.avg_pool2d(own[:, None], 2)], 1)
        return logits, GazeContext(maps[:, 1:], summaries[:, -self.context :])

    def mix(self, x: Tensor, token: Float[Tensor, "streams 1 half"]) -> Tensor:
        """Run the GLC blocks: the frame's positions, each with itself and the global token."""
        tokens = torch.cat([token, x.flatten(2).transpose(1, 2)], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return tokens[:, 1:].transpose(1, 2).reshape(x.shape)
