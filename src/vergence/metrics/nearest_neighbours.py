"""Nearest neighbours of samples, and the share of samples whose neighbour is of their own kind."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def nearest(
    x: Float[Tensor, "n d"], others: Float[Tensor, "m d"] | None = None
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Return distance and index of the nearest other sample; the first of equally near ones.

    Args:
        x: the samples.
        others: the samples to search; None: the rest of `x`.
    """
    # The faster computation by a matrix product loses small distances to rounding.
    far = torch.cdist(
        x, x if others is None else others, compute_mode="donot_use_mm_for_euclid_dist"
    )
    if others is None:
        far.fill_diagonal_(torch.inf)
    return far.min(1)


def own_kind_share(
    x: Float[Tensor, "n d"],
    kind: Int[Tensor, " n"],
    others: tuple[Float[Tensor, "m d"], Int[Tensor, " m"]] | None = None,
) -> float:
    """Return the share of samples whose nearest other sample is of their kind.

    With real and made-up samples as the kinds, in equal numbers, this is the accuracy of a
    two-sample test: one half where they are alike, 1 where they are apart.

    Args:
        x: the samples.
        kind: the kind of each.
        others: the samples to search, and their kinds; None: the rest of `x`.

    Source: Lopez-Paz, Oquab, "Revisiting classifier two-sample tests", ICLR 2017.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [9.0]])
        >>> round(own_kind_share(x, torch.tensor([0, 0, 1])), 3)
        0.667
    """
    y, kinds = others or (None, kind)
    return float((kinds[nearest(x, y)[1]] == kind).double().mean())
