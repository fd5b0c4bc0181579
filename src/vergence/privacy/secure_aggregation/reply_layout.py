"""Layout of a reply as a vector of 64-bit words, and of a sum of these vectors as an aggregate.

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.core.aggregation import Aggregate
from vergence.core.masks import Mask
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.tags import literal_text
from vergence.privacy.secure_aggregation.packing import (
    BITS,
    Packing,
    RangeFault,
    Words,
    paired,
    unpaired,
)


@dataclass(frozen=True)
class ValueLimits:
    """The largest numbers that a reply may hold; a reply with a larger number is refused.

    Args:
        people: largest number of replies in a sum.
        total: the largest absolute value of weight * update, for an entry.
        weight: the largest weight.
        metric: the largest absolute value of a metric.
        bits: bits of an entry: 64, or 32 if entries have no weights of their own.
    """

    people: int
    total: float = 8.0
    weight: float = 1.0
    metric: float = 1e6
    bits: int = BITS


@dataclass(frozen=True)
class ReplyLayout:
    """Layout of a reply as a vector of 64-bit words, whose sums are sums of replies.

    The vector begins with the entries of the trees, in the order of `exposed`. With masks or
    weights per entry, an entry's word also holds its weight. Otherwise one word for each tree's
    weight follows. Last comes one word for each metric, which also counts the clients that sent the
    metric.

    Attributes:
        exposed: the trees, weights and metrics of a reply.
        like: trees with the shapes of a reply's trees, by name.
        ranges: the largest numbers in a reply.
    """

    exposed: Exposure
    like: Mapping[str, Params]
    ranges: ValueLimits

    @property
    def counted(self) -> bool:
        """True if entries have their own weights."""
        return self.exposed.weight != "number"

    @property
    def halved(self) -> bool:
        """True if a word holds two entries."""
        return self.ranges.bits < BITS

    @cached_property
    def trees(self) -> Mapping[str, Packing]:
        """Encoding of each tree's entries as words, by the tree's name."""
        ranges = self.ranges
        heaviest = math.ceil(ranges.weight) if self.counted else 1
        how = ranges.total, ranges.people, self.counted, heaviest
        return {name: Packing(*how, name, ranges.bits) for name in self.exposed.trees}

    @cached_property
    def weight(self) -> Packing:
        """Encoding of a tree's weight as a word, if the weight is a single number."""
        return Packing(self.ranges.weight, self.ranges.people, name="weight")

    @cached_property
    def metrics(self) -> Mapping[str, Packing]:
        """Encoding of each metric as a word, by the metric's name."""
        return {
            name: Packing(self.ranges.metric, self.ranges.people, True, name=name)
            for name in self.exposed.metrics
        }

    @cached_property
    def slices(self) -> Mapping[str, slice]:
        """Position of each tree's entries in the vector of words, by the tree's name."""
        slices, start = dict[str, slice](), 0
        for name in self.exposed.trees:
            entries = self.like[name].layout.n
            slices[name] = slice(
                start, start := start + (-(-entries // 2) if self.halved else entries)
            )
        return slices

    @property
    def entries(self) -> int:
        """Number of words that hold entries of trees; they are the first words of a reply."""
        return sum(part.stop - part.start for part in self.slices.values())

    @property
    def words(self) -> int:
        """Number of words of a reply."""
        return self.entries + (0 if self.counted else len(self.trees)) + len(self.metrics)

    @property
    def digest(self) -> bytes:
        """Return a 32-byte digest; layouts that read words differently have different digests."""
        layouts = [(name, self.like[name].layout, self.trees[name]) for name in self.exposed.trees]
        whole = literal_text((self.exposed, layouts, self.weight, dict(self.metrics)))
        return hashlib.sha256(whole.encode()).digest()

    def row(self, sealed: SealedReply) -> Words:
        """Return a reply as a vector of words, uint64 `[words]`.

        Raises:
            RangeFault: a number is too large, or a weight has the wrong type. Nothing is clipped.
        """
        words, weights = np.empty(self.words, np.uint64), list[float]()
        for name, packing in self.trees.items():
            tree = sealed.trees[name]
            values = tree.total.flat.numpy()
            if self.counted:
                packing.encode(values, _weights(tree), out=words[self.slices[name]])
                continue
            if not isinstance(tree.weight, float):
                raise RangeFault(f"range: '{name}' is weighed entry by entry, declared is a number")
            if self.halved:
                paired(packing.encode(values), out=words[self.slices[name]])
            else:
                packing.encode(values, out=words[self.slices[name]])
            weights.append(tree.weight)
        at = self.entries
        words[at : at + len(weights)] = self.weight.encode(np.array(weights))
        at += len(weights)
        for name, packing in self.metrics.items():
            present = name in sealed.metrics
            value = np.array([sealed.metrics[name] if present else 0.0])
            words[at : at + 1] = packing.encode(value, int(present))
            at += 1
        return words

    def aggregate(self, words: Words, people: int) -> Aggregate:
        """Return the aggregate from the sum of the words of `people` people.

        If nobody, or too few people, contributed to an entry, its word is 0. The entry's total is
        then 0, and so is its weight if entries have weights. A metric is the mean over those who
        sent it.
        """
        totals, weights = dict[str, Params](), dict[str, float | Params]()
        at = self.entries
        for name, packing in self.trees.items():
            part, like = words[self.slices[name]], self.like[name]
            if self.halved:
                part = unpaired(part, like.layout.n)
            totals[name] = _params(packing.values(part), like)
            if self.counted:
                weights[name] = _params(packing.weights(part), like)
            else:
                weights[name] = float(self.weight.values(words[at : at + 1])[0])
                at += 1
        metrics = {}
        for name, packing in self.metrics.items():
            word = words[at : at + 1]
            if count := int(packing.contributors(word)[0]):
                metrics[name] = float(packing.values(word)[0]) / count
            at += 1
        return Aggregate(totals, weights, people, metrics)


def _weights(tree: SealedTree) -> NDArray[np.generic]:
    weight = tree.weight
    if isinstance(weight, Mask):
        return weight.bits.numpy()
    if isinstance(weight, Params):
        return weight.flat.numpy()
    return np.array(weight)


def _params(values: NDArray[np.number], like: Params) -> Params:
    return like.like(torch.from_numpy(values).to(like.flat.dtype))
