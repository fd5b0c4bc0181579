"""Global-local correlation (GLC) attention in O(N), and the transformer block around it.

Used by `models.glc.base` and `models.glc.glc_vit`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


def glc_mix(
    query: Float[Tensor, "batch tokens heads dim"],
    key: Float[Tensor, "batch tokens heads dim"],
    value: Float[Tensor, "batch tokens heads dim"],
) -> Float[Tensor, "batch tokens heads dim"]:
    """Let every token attend to itself and to the global token (number 0) alone.

    Token 0 sees only itself: both its scores and both its values are the same.

    Source: egovideo note section 0 (findings 1, 2); Lai et al., "In the Eye of Transformer", 2022.
    """
    # A softmax over two scores is a sigmoid of their difference: the published N x N matrix with
    # 1e8 off the diagonal and column 0 is never formed, and nothing overflows in half precision.
    scale = query.shape[-1] ** -0.5
    first = value[:, :1]
    score = (query * (key - key[:, :1])).sum(-1, keepdim=True)
    return first + torch.sigmoid(scale * score) * (value - first)


class SelfAttention(nn.Module):
    """Multi-head self-attention over `[batch, tokens, dim]`: full, or GLC (see `glc_mix`)."""

    def __init__(self, dim: int, heads: int, glc: bool) -> None:
        super().__init__()
        self.heads, self.glc = heads, glc
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the attended tokens, same shape."""
        batch, tokens, dim = x.shape
        heads = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = heads.unbind(2)
        if self.glc:
            mixed = glc_mix(query, key, value)
        else:
            by_head = (part.transpose(1, 2) for part in (query, key, value))
            mixed = functional.scaled_dot_product_attention(*by_head).transpose(1, 2)
        return self.proj(mixed.reshape(batch, tokens, dim))


class GLCBlock(nn.Module):
    """Pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).

    With `mlp_ratio` 0 there is no second half. A `silent` block starts as the identity.
    """

    def __init__(
        self, dim: int, heads: int, glc: bool, mlp_ratio: int = 4, silent: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, glc)
        last = [self.attention.proj]
        if mlp_ratio:
            self.norm2 = nn.LayerNorm(dim)
            last.append(nn.Linear(mlp_ratio * dim, dim))
            self.mlp = nn.Sequential(nn.Linear(dim, mlp_ratio * dim), nn.GELU(), last[-1])
        else:
            self.mlp = None
        # With last layers of 0 a block adds nothing: the layers around it first learn as without.
        if silent:
            for layer in last:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        """Return the transformed tokens, same shape."""
        x = x + self.attention(self.norm1(x))
        return x if self.mlp is None else x + self.mlp(self.norm2(x))
