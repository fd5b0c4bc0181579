"""The Mixture Transformer: every frame attends to the frames that two queries agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from vergence.core.task import Model

Mixture = Literal["maps", "values", "none"]


@dataclass(frozen=True)
class MixtureTransformer(Model):
    """Blocks of mixture attention over a clip's frames, then a score per frame.

    P(Q) = softmax(Q K^T / sqrt(d)),  Q^ = tanh(W Q)
    A^l  = mixture(P(Q), P(Q^)) V;  H^l = MLP(LN(A^l) + A^(l-1)) + H^(l-1),  A^0 = 0

    Attributes:
        features: numbers per frame.
        width: d, the length of queries, keys and values.
        blocks: number of blocks.
        mixture: how attention maps are mixed. `maps`: P(Q) P(Q^)^T, rows scaled to sum 1.
            `values`: (P(Q) V) (P(Q^) V)^T as Equation 4.5 is printed, divided by the number of
            frames. `none`: P(Q).

    Source: the Durham thesis, section 4.3.4, Equations 4.3 to 4.5.
    Differs: the matrix of Equation 4.5 as printed has rank d at most, which contradicts the text;
    the default multiplies maps without values, whose product has no such bound.
    docs/how-to/summaries.md lists the choices that the text leaves open.
    """

    features: Annotated[int, Ge(1)] = 1024
    width: Annotated[int, Ge(1)] = 256
    blocks: Annotated[int, Ge(1)] = 2
    mixture: Mixture = "maps"

    head: ClassVar[tuple[str, ...]] = ("score.*",)

    def build(self) -> MixtureNet:
        """Return the network, initialised from torch's global generator."""
        return MixtureNet(self.features, self.width, self.blocks, self.mixture)


class MixtureNet(nn.Module):
    """Network from features `[B, T, d]` and numbers of steps `[B]` to scores `[B, T]` (logits)."""

    def __init__(self, features: int, width: int, blocks: int, mixture: Mixture) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList(MixtureBlock(width, mixture) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return the scores; those beyond a clip's end have no meaning and no effect."""
        there = torch.arange(x.shape[1], device=x.device) < steps[:, None]
        h = self.embed(x)
        # A^0 of Equation 4.4.
        attended = torch.zeros_like(h)
        for block in self.blocks:
            h, attended = block(h, attended, there)
        return self.score(self.norm(h)).squeeze(2)


class MixtureBlock(nn.Module):
    """One block of Equation 4.4; `there` `[B, T]` tells frames from padding."""

    def __init__(self, width: int, mixture: Mixture) -> None:
        super().__init__()
        self.mixture: Mixture = mixture
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        if mixture != "none":
            self.associated = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, h: Tensor, before: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return this block's H and A, both `[B, T, width]`, from those of the block before."""
        value = self.value(h) * there[..., None]
        attended = self.attention(h, value, there) @ value
        return self.mlp(self.norm(attended) + before) + h, attended

    def attention(self, h: Tensor, value: Tensor, there: Tensor) -> Tensor:
        """Return the attention of every frame to every other, `[B, T, T]`, 0 to padding."""
        query, key = self.query(h), self.key(h)
        first = attention_map(query, key, there)
        if self.mixture == "none":
            return first
        second = attention_map(torch.tanh(self.associated(query)), key, there)
        if self.mixture == "values":
            mixed = (first @ value) @ (second @ value).mT
            return mixed * there[:, None] / there.sum(1)[:, None, None]
        # Both maps are positive, so that no row sums to 0.
        mixed = first @ second.mT * there[:, None]
        return mixed / mixed.sum(2, keepdim=True)


def attention_map(query: Tensor, key: Tensor, there: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(d)) over the frames that are there, `[B, T, T]`."""
    # Minus infinity, so that padding gets exactly 0 of a row's sum of 1.
    like = query @ key.mT / query.shape[2] ** 0.5
    return like.masked_fill(~there[:, None], -torch.inf).softmax(2)
