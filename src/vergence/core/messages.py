"""Messages from server to client, and sealed replies back: all that leaves or enters a client.

At the boundary a reply becomes `(weight * update, weight)` per tree. Entries of weight 0 are
erased there, before any transport or aggregation can see them, and are not sent: a masked tree
travels as its shared entries alone, with the mask only in rounds in which it changed.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.params import Layout, Params
from vergence.core.tags import tagged

Fact = bool | int | float | str | None
Weight = float | Mask | Params


@tagged("Message")
@dataclass(frozen=True)
class Message:
    """Message to a client: the handler to call (`verb`), trees of parameters, and plain facts."""

    verb: str
    trees: Mapping[str, Params] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    round: int = 0

    def __getitem__(self, tree: str) -> Params:
        return self.trees[tree]


@dataclass(frozen=True)
class Reply:
    """Answer of a client: updates (local minus received), their weights, and metrics."""

    trees: Mapping[str, Params]
    weight: float | Mask | Params | Mapping[str, float | Mask | Params] = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight_of(self, tree: str) -> Weight:
        """Return the weight of one tree."""
        return self.weight[tree] if isinstance(self.weight, dict) else self.weight  # type: ignore


def reply(
    weight: Weight | Mapping[str, Weight] = 1.0,
    metrics: Mapping[str, float] | None = None,
    **trees: Params,
) -> Reply:
    """Build a reply: `reply(model=update, weight=fitted.examples, metrics=fitted.metrics)`.

    The weight is one number for all entries, a mask (1 where true, 0 elsewhere), one number per
    entry, or a mapping from tree to any of these.
    """
    return Reply(trees, weight, dict(metrics or {}))


@dataclass(frozen=True)
class SealedTree:
    """One tree of a sealed reply: `total` = weight * update, zero where the weight is zero.

    With a lossy codec, `coded` holds the arrays that travel and `how` the codec's options
    (`wire.codecs.Compression`); `total` is then computed from the decoded values.
    """

    total: Params
    weight: float | Mask | Params
    coded: Mapping[str, Tensor] | None = None
    how: Any = None


@dataclass(frozen=True)
class SealedReply:
    """A reply in the form in which it leaves the client."""

    round: int
    trees: Mapping[str, SealedTree]
    metrics: Mapping[str, float]


def seal(answer: Reply, round: int) -> SealedReply:
    """Weigh every tree and erase the entries of weight 0."""
    trees = {}
    for name, update in answer.trees.items():
        weight = answer.weight_of(name)
        if isinstance(weight, Mask):
            total = weight.keep(update)
        elif isinstance(weight, Params):
            total = weighted_entries(weight, weight.layout).keep(update) * weight
        else:
            weight = float(weight)
            total = update if weight == 1 else update * weight
            # Not `update * 0`, which keeps NaN: an update of weight 0 must not leave the client.
            if not weight:
                total = Params.zeros(update.layout, update.flat.dtype)
        trees[name] = SealedTree(total, weight)
    return SealedReply(round, trees, answer.metrics)


def weighted_entries(weight: Weight, layout: Layout) -> Mask:
    """Return the entries whose weight is not zero."""
    if isinstance(weight, Mask):
        return weight
    if isinstance(weight, Params):
        return Mask(torch.from_numpy(weight.flat.numpy() != 0), layout)
    return Mask.full(layout) if weight else Mask.none(layout)


def support(tree: SealedTree) -> tuple[Mask, float | None]:
    """Return the mask of entries with a weight, and the weight if all entries have the same."""
    if isinstance(tree.weight, Mask):
        return tree.weight, 1.0
    assert isinstance(tree.weight, Params)
    mask, weights = weighted_entries(tree.weight, tree.weight.layout), tree.weight.flat.numpy()
    level = weights[mask.bits.numpy().argmax()] if mask.count else 0.0
    alike = np.count_nonzero(weights == level) == mask.count or not mask.count
    return mask, float(level) if alike else None


def support_mask(tree: SealedTree) -> Mask | None:
    """Return the mask that a receiver learns from this tree; None if it has one weight for all."""
    return None if isinstance(tree.weight, float) else support(tree)[0]
