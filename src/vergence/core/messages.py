"""Messages from server to client, and sealed replies back: all that leaves or enters a client.

A reply holds trees, which are named sets of parameters. Before a reply leaves the client, it is
sealed: each tree becomes `(weight * update, weight)`, and entries of weight 0 are erased. No
transport or aggregation sees the erased entries. Of a masked tree only the shared entries are
sent, with the mask only in rounds in which the mask changed.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vergence.core.masks import Mask, equal_to
from vergence.core.params import Layout, Params, read_numbers
from vergence.core.tags import tagged

Fact = bool | int | float | str | None
Weight = float | Mask | Params


@tagged("Message")
@dataclass(frozen=True)
class Message:
    """Message to a client.

    `verb` names the method's handler to call, such as `train`. `trees` are named sets of
    parameters; `facts` are plain values.
    """

    verb: str
    trees: Mapping[str, Params] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    round: int = 0

    def __getitem__(self, tree: str) -> Params:
        return self.trees[tree]


@dataclass(frozen=True)
class Reply:
    """Reply of a client: updates (trained minus received parameters), weights and metrics."""

    trees: Mapping[str, Params]
    weight: float | Mask | Params | Mapping[str, float | Mask | Params] = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight_of(self, tree: str) -> Weight:
        """Return the weight of one tree (named set of parameters)."""
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
    """One tree (named set of parameters) of a reply in the form in which it leaves the client.

    Attributes:
        total: weight * update, zero where the weight is zero.
        weight: one number, a mask (1 where true), or one number per entry.
        coded: the arrays that are sent, if a lossy codec compresses the tree; `total` is then
            computed from the decoded values.
        how: the codec's options (`wire.codecs.Compression`).
    """

    total: Params
    weight: float | Mask | Params
    coded: Mapping[str, Tensor] | None = None
    how: Any = None


@dataclass(frozen=True)
class SealedReply:
    """A client's reply in the form in which it is sent: weighted trees, and metrics."""

    round: int
    trees: Mapping[str, SealedTree]
    metrics: Mapping[str, float]


def seal(answer: Reply, round: int) -> SealedReply:
    """Multiply every tree of a reply by its weight, and set entries of weight 0 to zero."""
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
                total = update.like(torch.zeros_like(update.flat))
        trees[name] = SealedTree(total, weight)
    return SealedReply(round, trees, answer.metrics)


def weighted_entries(weight: Weight, layout: Layout) -> Mask:
    """Return a mask of the entries whose weight is not zero."""
    if isinstance(weight, Mask):
        return weight
    if isinstance(weight, Params):
        return Mask(~equal_to(weight.flat, 0.0), layout)
    return Mask.full(layout) if weight else Mask.none(layout)


def support(tree: SealedTree) -> tuple[Mask, float | None]:
    """Return a mask of the entries whose weight is not zero, and their weight.

    The second value is None if the weights differ. `tree.weight` must be a mask or `Params`.
    """
    if isinstance(tree.weight, Mask):
        return tree.weight, 1.0
    assert isinstance(tree.weight, Params)
    mask, weights = weighted_entries(tree.weight, tree.weight.layout), tree.weight.flat
    if not mask.count:
        return mask, 0.0
    first = mask.bits.numpy().argmax() if weights.is_cpu else mask.bits.view(torch.uint8).argmax()
    (level,) = read_numbers([weights[first]])
    alike = Mask(equal_to(weights, level), mask.layout).count == mask.count
    return mask, level if alike else None


def support_mask(tree: SealedTree) -> Mask | None:
    """Return the mask of entries that a receiver learns from this tree.

    The mask is None if one number is the weight of all entries.
    """
    return None if isinstance(tree.weight, float) else support(tree)[0]
