"""Layers on secret shares: weights and inputs are secret, which weights are zero is not.

The reference for what private inference computes, and for how many products it takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.mpc.beaver_triples import AuthenticatedShare, TripleTable
from tests.benchmarks.mpc.fixed_point import Field


def relu(table: TripleTable, x: AuthenticatedShare) -> AuthenticatedShare:
    """Return the larger of x and 0."""
    return x - table.multiply(x, table.negative(x), "comparison")


def max_pool(table: TripleTable, x: AuthenticatedShare, size: int = 2) -> AuthenticatedShare:
    """Return the largest entries of windows of `size` x `size` of maps `[..., H, W]`.

    What is left over at the edges is dropped, as `torch.nn.functional.max_pool2d` does.
    """
    rows, columns = (n // size * size for n in x.shape[-2:])
    found: AuthenticatedShare | None = None
    for i in range(size):
        for j in range(size):
            new = x.each(lambda p, i=i, j=j: p[..., i:rows:size, j:columns:size])
            found = new if found is None else found + relu(table, new - found)
    assert found is not None
    return found


def affine(
    table: TripleTable,
    x: AuthenticatedShare,
    weight: AuthenticatedShare,
    bias: AuthenticatedShare,
    keep: NDArray[np.bool_],
    fraction: int,
) -> AuthenticatedShare:
    """Return x W^T + b with secret x `[..., inputs]`, W `[outputs, inputs]` and b `[outputs]`.

    All know `keep` `[outputs, inputs]`: for weights that went there is no product, and no triple.
    The bias has the fraction of a product; the sum is truncated once.
    """
    rows, columns = np.nonzero(keep)
    kept = weight.each(lambda p: np.broadcast_to(p[rows, columns], (*x.shape[:-1], len(rows))))
    products = table.multiply(x.each(lambda p: p[..., columns]), kept)
    sums = products.each(
        lambda p: np.stack([p[..., rows == row].sum(-1) for row in range(len(keep))], -1)
    )
    wide = bias.each(lambda p: np.broadcast_to(p, sums.shape))
    return table.truncate(sums + wide, fraction)


def patches(x: AuthenticatedShare, kernel: int) -> AuthenticatedShare:
    """Patches that each filter of a convolution sees: `[B, C, H, W]` as `[B, H', W', C k k]`."""

    def cut(party: Field) -> Field:
        seen = np.lib.stride_tricks.sliding_window_view(party, (kernel, kernel), (2, 3))
        return seen.transpose(0, 2, 3, 1, 4, 5).reshape(*seen.shape[:1], *seen.shape[2:4], -1)

    return x.each(cut)
