"""Sums of clients' replies, and the record of what a server learns from them.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from vergence.core.masks import Mask, equal_to
from vergence.core.messages import SealedReply
from vergence.core.params import Params

# So many ones fit into a byte.
MOST_MASKS = 255


@dataclass(frozen=True)
class Aggregate:
    """All that a server learns from a request to a cohort: sums over the clients' replies.

    Attributes:
        totals: sum over the clients of weight * update, by tree (named set of parameters).
        weights: sum over the clients of the weights, by tree: one number, or one per entry.
        count: number of replies.
        metrics: mean of every metric over the replies that have it.
    """

    totals: Mapping[str, Params]
    weights: Mapping[str, float | Params]
    count: int
    metrics: Mapping[str, float]

    def mean(self, tree: str) -> Params:
        """Return the weighted mean of a tree over the clients; 0 where the weights sum to 0.

        A tree is a named set of parameters.

        Raises:
            KeyError: nobody sent this tree, although somebody replied.
        """
        total, weight = self.totals[tree], self.weights[tree]
        if not isinstance(weight, Params):
            return total / weight if weight else total
        nobody = equal_to(weight.flat, 0.0).to(weight.flat.dtype)
        # Entries that nobody sent have weight 0: with 1 in its place their mean is 0 and not NaN.
        return total.like(total.flat / nobody.add_(weight.flat))

    def contributors(self, tree: str) -> Params | float:
        """Return the sum of clients' weights of a parameter tree: a number, or one per entry.

        IFCA (`methods.clustered.ifca`) reads from it which models were trained in a round.
        """
        return self.weights[tree]


class Sum:
    """Running sum of clients' replies: total and weight of every tree (named set of parameters).

    Replies are added in the order of the calls of `add`. `new(n, dtype)` allocates a vector of `n`
    entries, such as in memory that processes share; without it a sum lies where its first reply
    lies, and the sum of one reply is that reply's own memory. Weights that are masks are counted in
    bytes, up to `MOST_MASKS` replies; `aggregate` gives them the type of the totals.
    """

    def __init__(self, new: Callable[[int, torch.dtype], Tensor] | None = None) -> None:
        self.new = new
        self.totals: dict[str, Params] = {}
        self.weights: dict[str, float | Params] = {}
        self.count = 0
        self._borrowed: set[str] = set()

    def add(self, sealed: SealedReply) -> None:
        """Add one client's reply to the sum."""
        self.count += 1
        for name, tree in sealed.trees.items():
            weight, kind = tree.weight, tree.total.flat.dtype
            # As numbers, which are ten times faster to add than truth values.
            if isinstance(weight, Mask):
                weight = Params(weight.on(tree.total.flat).view(torch.uint8), weight.layout)
            # A client's own bytes are no counts, and their sum would overflow.
            elif _counted(weight):
                weight = self._copy(weight, kind)
            self._add(name, tree.total, weight)

    def merge(self, other: Sum) -> None:
        """Add the totals, weights and count of another sum."""
        self.count += other.count
        for name, total in other.totals.items():
            self._add(name, total, other.weights[name])
            # A reply may lie in the mapped file of a state, which a later turn overwrites.
            self._own(name)

    def _add(self, name: str, total: Params, weight: float | Params) -> None:
        if name not in self.totals:
            self.totals[name], self.weights[name] = total, weight
            self._borrowed.add(name)
            if self.new is not None:
                self._own(name)
            return
        self._own(name)
        self.totals[name].flat.add_(total.flat)
        mine, kind = self.weights[name], total.flat.dtype
        if isinstance(mine, Params):
            # Bytes are added in an eighth of the time that it takes to add them to floats.
            if _counted(mine) and not (_counted(weight) and self.count <= MOST_MASKS):
                mine = self.weights[name] = self._copy(mine, kind)
            mine.flat.add_(weight.flat if isinstance(weight, Params) else weight)
        # Earlier replies had one number for all entries.
        elif isinstance(weight, Params):
            self.weights[name] = whole = self._copy(weight, kind)
            whole.flat.add_(mine)
        else:
            self.weights[name] = mine + weight

    def _own(self, name: str) -> None:
        """Copy the first reply's tree before the sum grows in place: its sender has the memory."""
        if name in self._borrowed:
            self._borrowed.remove(name)
            total, weight = self.totals[name], self.weights[name]
            self.totals[name] = self._copy(total, total.flat.dtype)
            if isinstance(weight, Params):
                kind = torch.uint8 if _counted(weight) else total.flat.dtype
                self.weights[name] = self._copy(weight, kind)

    def _copy(self, params: Params, dtype: torch.dtype) -> Params:
        new = self.new or (lambda n, dtype: params.flat.new_empty(n, dtype=dtype))
        return params.like(new(params.layout.n, dtype).copy_(params.flat))

    def aggregate(
        self, layouts: Mapping[str, Params], metrics: Mapping[str, Sequence[float]]
    ) -> Aggregate:
        """Return the sums; a tree of `layouts` that nobody sent becomes zeros with weight 0.

        A tree is a named set of parameters. `metrics` holds the values of every metric, one
        per reply; the result holds their means.
        """
        for name, total in self.totals.items():
            self._own(name)
            if _counted(weight := self.weights[name]):
                self.weights[name] = self._copy(weight, total.flat.dtype)
        totals, weights = dict(self.totals), dict(self.weights)
        for name, params in layouts.items():
            if name not in totals:
                totals[name], weights[name] = params * 0.0, 0.0
        means = {name: float(np.mean(values)) for name, values in metrics.items()}
        return Aggregate(totals, weights, self.count, means)


def _counted(weight: float | Params) -> TypeGuard[Params]:
    """Return whether a weight counts masks in bytes."""
    return isinstance(weight, Params) and weight.flat.dtype == torch.uint8


def add_up(replies: Iterable[SealedReply], layouts: Mapping[str, Params]) -> Aggregate:
    """Sum clients' replies in the order given; return all that the server learns from them.

    A tree (named set of parameters) of `layouts` that nobody sent becomes zeros with weight 0.
    """
    whole, metrics = Sum(), {}
    for sealed in replies:
        whole.add(sealed)
        for name, value in sealed.metrics.items():
            metrics.setdefault(name, []).append(value)
    return whole.aggregate(layouts, metrics)
