"""Video transformer with global-local correlation attention: clips to gaze heat maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.glc.attention import GLCBlock
from vergence.models.glc.upsampling import double

Preset = Literal["tiny64", "cpu64", "small", "base"]
GlcMode = Literal["last", "all", "alternate"]
BLOCKS = 8


class GLCSize(NamedTuple):
    """Sizes of one preset of `GlcVit`: a column of the egovideo design note, section 2."""

    frames: int
    pixels: int
    patch: int
    dim: int
    heads: int
    global_dim: int
    decoder: int
    stages: int

    @property
    def grid(self) -> int:
        """Patches along one side of a frame."""
        return self.pixels // self.patch


SIZES: dict[str, GLCSize] = {
    "tiny64": GLCSize(4, 64, 8, 48, 4, 16, 32, 1),
    "cpu64": GLCSize(4, 64, 8, 96, 4, 32, 64, 1),
    "small": GLCSize(8, 256, 16, 384, 6, 96, 192, 2),
    "base": GLCSize(8, 256, 16, 768, 12, 96, 384, 2),
}
TUBE = 2
"""Frames in one patch."""


@dataclass(frozen=True)
class GlcVit(Model):
    """FedCPF's 8-block video transformer with GLC attention, at four sizes.

    Args:
        preset: size of the network, its clips and its heat map.
        glc_mode: where the GLC attention sits. `last`: eight blocks of full attention, then one GLC
            block whose tokens are concatenated with its input (as in the official GLC). `all`: all
            eight blocks use it, the literal reading of FedCPF; degenerate, for a token then sees
            only itself and the global token. `alternate`: blocks 2, 4, 6 and 8 use it; head and
            parameter count are those of `all`.

    Source: egovideo design note, section 2.
    """

    preset: Preset = "tiny64"
    glc_mode: GlcMode = "last"

    head: ClassVar[tuple[str, ...]] = ("decoder.*",)

    def build(self) -> GlcVitNet:
        """Return the network, initialised from torch's global generator.

        Raises:
            ConfigError: unknown preset or glc_mode.
        """
        return GlcVitNet(SIZES[self.preset], self.glc_mode)


class GlcVitNet(nn.Module):
    """Network from clips `[B, T, 3, H, W]` (normalised) to logits `[B, T, h, w]`."""

    def __init__(self, size: GLCSize, glc_mode: GlcMode) -> None:
        super().__init__()
        self.size = size
        steps, dim = size.frames // TUBE, size.dim
        patch = (TUBE, size.patch, size.patch)
        self.embed = nn.Conv3d(3, dim, patch, stride=patch)
        self.glance = Glance(size)
        self.spatial = nn.Parameter(torch.empty(1, size.grid**2, dim))
        self.temporal = nn.Parameter(torch.empty(steps, 1, dim))
        every = {"last": 0, "alternate": 2, "all": 1}[glc_mode]
        self.blocks = nn.ModuleList(
            GLCBlock(dim, size.heads, glc=bool(every) and i % every == every - 1)
            for i in range(BLOCKS)
        )
        self.last = GLCBlock(dim, size.heads, glc=True) if glc_mode == "last" else None
        width = dim if self.last is None else 2 * dim
        self.norm = nn.LayerNorm(width)
        self.decoder = Decoder(size, width)
        nn.init.normal_(self.spatial, std=0.02)
        nn.init.normal_(self.temporal, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def tokens(
        self, video: Float[Tensor, "clips frames 3 height width"]
    ) -> Float[Tensor, "clips steps rows columns tube 3 patch patch"]:
        """Return the patch behind each local token: token (t, y, x) is `[:, t, y, x]`.

        A patch holds two successive frames of a square of pixels.

        Raises:
            ConfigError: the clip has another shape than this preset takes.
        """
        size = self.size
        expected = (size.frames, 3, size.pixels, size.pixels)
        if tuple(video.shape[1:]) != expected:
            raise ConfigError(
                f"glc_vit takes clips [B, {', '.join(map(str, expected))}], "
                f"got {list(video.shape)}; choose a preset or a window of the data to match"
            )
        steps, grid, p = size.frames // TUBE, size.grid, size.patch
        cut = video.reshape(len(video), steps, TUBE, 3, grid, p, grid, p)
        return cut.permute(0, 1, 4, 6, 2, 3, 5, 7)

    def encode(
        self, tokens: Float[Tensor, "clips tokens dim"]
    ) -> Float[Tensor, "clips tokens width"]:
        """Run the transformer on the global token (first) and the local ones, to the last norm."""
        for block in self.blocks:
            tokens = block(tokens)
        if self.last is not None:
            tokens = torch.cat([tokens, self.last(tokens)], -1)
        return self.norm(tokens)

    def forward(
        self, video: Float[Tensor, "clips frames 3 height width"]
    ) -> Float[Tensor, "clips frames rows columns"]:
        """Return logits of the heat map of every frame."""
        patches = self.tokens(video)
        clips, steps, grid = patches.shape[:3]
        weight = self.embed.weight.permute(0, 2, 1, 3, 4).flatten(1)
        # A convolution whose kernel is its stride is a matrix product, which is faster as such.
        local = functional.linear(patches.flatten(4).flatten(1, 3), weight, self.embed.bias)
        summary = self.glance(local.view(clips, steps, grid, grid, -1))
        local = local + (self.temporal + self.spatial).flatten(0, 1)
        tokens = self.encode(torch.cat([summary[:, None], local], 1))
        return self.decoder(tokens[:, 1:].view(clips, steps, grid, grid, -1))


class Glance(nn.Module):
    """The global token: patch embeddings shrunk by convolutions to 2 x 2, then one linear map."""

    def __init__(self, size: GLCSize) -> None:
        super().__init__()
        g = size.global_dim
        self.reduce = nn.Linear(size.dim, g)
        self.shrink = nn.ModuleList(
            nn.Conv3d(g, g, 3, stride=(1, 2, 2), padding=1)
            for _ in range(int(math.log2(size.grid)) - 1)
        )
        self.proj = nn.Linear(size.frames // TUBE * 4 * g, size.dim)

    def forward(
        self, local: Float[Tensor, "clips steps rows columns dim"]
    ) -> Float[Tensor, "clips dim"]:
        """Return one token per clip."""
        x = functional.relu(self.reduce(local)).permute(0, 4, 1, 2, 3)
        for conv in self.shrink:
            x = functional.relu(conv(x))
        return self.proj(x.flatten(1))


def convolve(
    conv: nn.Module, x: Float[Tensor, "clips channels steps rows columns"]
) -> Float[Tensor, "clips made steps rows columns"]:
    """Return `conv(x)`; a single small clip is computed twice, which takes half as long."""
    # For one clip with channels x steps x rows of 20,480 or less PyTorch falls back on a plain loop
    # on the CPU; two of them go through oneDNN. Training keeps the order of its sums.
    alone = len(x) == 1 and x.device.type == "cpu" and x.shape[1:4].numel() <= 20_480
    if alone and not torch.is_grad_enabled():
        return conv(x.expand(2, -1, -1, -1, -1))[:1]
    return conv(x)


class Decoder(nn.Module):
    """Decodes local tokens to logits: stages double size and halve channels, then T doubles."""

    def __init__(self, size: GLCSize, width: int) -> None:
        super().__init__()
        channels = size.decoder
        self.reduce = nn.Linear(width, channels)
        self.stages = nn.ModuleList(
            nn.Conv3d(channels >> i, channels >> (i + 1), 3, padding=1) for i in range(size.stages)
        )
        self.head = nn.Linear(channels >> size.stages, 1)

    def forward(
        self, local: Float[Tensor, "clips steps rows columns width"]
    ) -> Float[Tensor, "clips frames rows2 columns2"]:
        """Return the logits of every frame."""
        x = self.reduce(local).permute(0, 4, 1, 2, 3)
        for conv in self.stages:
            x = double(x, 3, 4)
            x = functional.gelu(convolve(conv, x))
        x = self.head(x.permute(0, 2, 3, 4, 1))[..., 0]
        return double(x[:, None], 2)[:, 0]
