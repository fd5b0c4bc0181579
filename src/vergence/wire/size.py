"""Bytes of a reply on the wire, counted without encoding it.

Used in `deployment`, `engine` and `reports`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.messages import SealedTree, support
from vergence.core.params import Params
from vergence.wire.codecs import index_bytes


def bytes_of_tree(tree: SealedTree, known: Mask | None) -> int:
    """Return the bytes of a tree on the wire, as in `payload`, without encoding it.

    All values are counted where the weights have another layout than the tree.
    """
    total, weight = tree.total.flat, tree.weight
    each = total.element_size()
    if not isinstance(weight, Mask | Params):
        return values_bytes(tree, total.numel()) if weight else 0
    if weight.layout != tree.total.layout:
        return total.numel() * each
    mask, level = support(tree)
    known = known if known is not None and known.layout == mask.layout else None
    weights = 0 if level is not None else mask.count * each
    return values_bytes(tree, mask.count) + weights + mask_bytes(mask, known)


def values_bytes(tree: SealedTree, count: int) -> int:
    """Return the bytes of a tree's values, as its codec sends them; `bytes_of_tree` calls this."""
    return (
        bytes_of_arrays(tree.coded)
        if tree.coded is not None
        else count * tree.total.flat.element_size()
    )


def mask_bytes(mask: Mask, known: Mask | None) -> int:
    """Return the bytes of `packed_mask`; `bytes_of_tree` calls this."""
    known = known if known is not None else Mask.full(mask.layout)
    if mask == known:
        return 0
    bitmap = math.ceil(mask.layout.n / 8)
    if known.count < mask.layout.n and (mask & ~known).count:
        return bitmap
    return min(bitmap, index_bytes(known.count - mask.count, mask.layout.n))


def bytes_of_arrays(arrays: Mapping[str, Tensor]) -> int:
    """Return the bytes of some arrays."""
    return sum(a.numel() * a.element_size() for a in arrays.values())
