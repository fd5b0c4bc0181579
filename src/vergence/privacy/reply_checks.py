"""Checks on every reply before it is counted; a bad one is quarantined with a named reason.

Used in `deployment` and `engine`.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vergence.core.masks import Mask, equal_to
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.method import Exposure, Method
from vergence.core.params import Params, quickly_finite, read_numbers

HEAVIEST = 1e9
"""The largest weight a reply may claim: a billion examples."""
LARGEST = sys.float_info.max
"""The largest metric; whole numbers, which JSON has of any length, may be larger."""


def fault(
    sealed: SealedReply, round: int, offered: Mapping[str, Params], exposed: Exposure
) -> str | None:
    """Return why a reply must not be counted; None if it may.

    A reply must answer this round and hold exactly the trees and metrics that the method declares.
    Trees must have the layout and dtype of those that were sent, and tensors of raw data have at
    least one dimension. Values, metrics and values divided by their weights must be finite. A
    weight is in [0, 1e9]; weights per entry must fit the tree's layout.

    Args:
        sealed: the reply.
        round: number of the current round.
        offered: trees with the layout and dtype that trees of the reply must have, by name.
        exposed: the trees, metrics and weights that the method declares for this kind of request.
    """
    if sealed.round != round:
        return f"round: answers round {sealed.round}, now is {round}"
    if set(sealed.trees) != set(exposed.trees):
        return f"names: sent {sorted(sealed.trees)}, expected {sorted(exposed.trees)}"
    for name, tree in sealed.trees.items():
        total, weight = tree.total, tree.weight
        if name in offered:
            # A tree of another layout would end the aggregation for everybody, or be added to
            # other entries than the method means.
            wanted = offered[name]
            if total.layout.names != wanted.layout.names:
                return f"names: the tensors of '{name}' are not those that were sent"
            if total.layout != wanted.layout:
                return f"shape: the tensors of '{name}' have other shapes than those sent"
            if total.flat.dtype != wanted.flat.dtype:
                return f"dtype: '{name}' is {total.flat.dtype}, sent {wanted.flat.dtype}"
        if exposed.raw and () in total.layout.shapes:
            return f"shape: '{name}' holds data without rows"
        if isinstance(weight, Mask | Params) and weight.layout != total.layout:
            return f"shape: '{name}' has weights for other entries than it holds"
        values, weights, quotients, declared = _limits(tree, exposed)
        # One NaN from one client would make the whole model NaN.
        if not all(map(math.isfinite, values)):
            return f"finite: '{name}' holds NaN or infinity"
        # The mean is weighted: without a limit one malicious client could outweigh all others.
        if not 0 <= weights[0] <= weights[1] <= HEAVIEST:
            return f"weight: '{name}' claims a weight outside [0, {HEAVIEST:g}]"
        # Robust rules divide values by weights.
        if not all(map(math.isfinite, quotients)):
            return f"finite: '{name}' over its weight is infinite"
        if not declared:
            return f"weight: '{name}' is weighed by more than the declared {exposed.weight}"
    for name, value in sealed.metrics.items():
        # A metric that the method does not declare could carry data past every protection.
        if name not in exposed.metrics:
            return f"names: metric '{name}' is not declared"
        if not isinstance(value, int | float) or not abs(value) <= LARGEST:
            return f"finite: metric '{name}' is {value}"
    return None


class _Limits(NamedTuple):
    """Smallest and largest numbers of a tree; both are NaN if any is NaN.

    Attributes:
        values: of the entries; zeros if the entries are finite and nothing else is asked.
        weights: of the weights.
        quotients: of entries divided by their weights; entries of weight 0 are not divided.
        declared: whether the weight has the type that the method declares, or reveals less: a
            number reveals less than a mask, and a mask less than weights per entry.
    """

    values: Sequence[float]
    weights: Sequence[float]
    quotients: Sequence[float]
    declared: bool


def _limits(tree: SealedTree, exposed: Exposure) -> _Limits:
    """Return the limits of a tree; from a GPU they are read all at once."""
    total, weight = tree.total.flat, tree.weight
    # A weight of 1 or more enlarges no value.
    small = not isinstance(weight, Mask | Params) and 0 < weight < 1
    values = (0.0, 0.0) if not small and quickly_finite(total) else _extremes(total)
    weights, quotients, declared = (0.0, 1.0), (), exposed.weight != "number"
    if isinstance(weight, Params):
        weights, by = _extremes(weight.flat), torch.where(weight.flat > 0, weight.flat, 1)
        quotients = _extremes((total.float() if total.element_size() < 4 else total) / by)
        # Weights that differ reveal more than a mask.
        if exposed.weight == "mask":
            alike = equal_to(weight.flat, 0.0) | equal_to(weight.flat, weights[1])
            declared = 1 - _extremes((~alike).view(torch.uint8))[1]
    elif not isinstance(weight, Mask):
        weights, declared = (float(weight), float(weight)), True
        if small:
            quotients = [value / weight for value in values]
    *numbers, last = read_numbers([*values, *weights, *quotients, declared])
    return _Limits(numbers[:2], numbers[2:4], numbers[4:], bool(last))


def _extremes(flat: Tensor) -> Sequence[Tensor | float]:
    """Return the smallest and the largest entry, zeros if there are none; halves become float32."""
    if not flat.numel():
        return 0.0, 0.0
    return [end.float() if end.element_size() < 4 else end for end in torch.aminmax(flat)]


def zeros_for(
    sealed: SealedReply, sent: Mapping[str, Params], exposed: Exposure
) -> SealedReply | None:
    """Return a reply of zeros in place of a refused one; None if the shape of a tree is unknown.

    The zeros hide from the server that a client's reply was refused.

    Args:
        sealed: the refused reply.
        sent: trees with the shapes that the reply must have, by name.
        exposed: the trees that the method declares.
    """
    like = {**{name: tree.total for name, tree in sealed.trees.items()}, **sent}
    if not set(exposed.trees) <= set(like):
        return None
    trees = {name: like[name].like(torch.zeros_like(like[name].flat)) for name in exposed.trees}
    return SealedReply(sealed.round, {name: SealedTree(t, 1.0) for name, t in trees.items()}, {})


def reply_trees(
    method: Method, verb: str, sent: Mapping[str, Params], server: Callable[[], object]
) -> dict[str, Params]:
    """Return trees with the shapes that a reply must have, by name, as far as they are known.

    A tree comes from `sent`, or else from those of which the method knows the layouts.

    Args:
        method: the method of the run.
        verb: the kind of request, such as `train`.
        sent: trees of the message to the client.
        server: returns the server's state; called only if `sent` does not suffice.
    """
    names = method.exposure[verb].trees
    if set(names) - set(sent):
        sent = {**method.known_trees(server()), **sent}
    return {name: sent[name] for name in names if name in sent}
