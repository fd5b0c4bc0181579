"""What crosses the boundary of a client: messages down, sealed replies up, and their size.

At the boundary a reply becomes `(weight * update, weight)` per tree. Entries of weight 0 are
erased there, before any transport or aggregation can see them, and are not sent: a masked tree
travels as its shared entries alone, with the mask only in rounds in which it changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from vergence.core.mask import Mask
from vergence.core.params import Layout, Params
from vergence.core.state import HEADER, read_header

Fact = bool | int | float | str | None
Weight = float | Mask | Params


@dataclass(frozen=True)
class Message:
    """Server to client: what to do (`verb`), named parameter sets, and plain facts."""

    verb: str
    trees: Mapping[str, Params] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    round: int = 0

    def __getitem__(self, tree: str) -> Params:
        return self.trees[tree]


@dataclass(frozen=True)
class Reply:
    """Client to server: updates (local minus received), how much they count, and metrics."""

    trees: Mapping[str, Params]
    weight: float | Mask | Params | Mapping[str, float | Mask | Params] = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def weight_of(self, tree: str) -> Weight:
        """Return the weight of one tree."""
        return self.weight[tree] if isinstance(self.weight, dict) else self.weight  # type: ignore


def reply(
    weight: float | Mask | Params | Mapping[str, float | Mask | Params] = 1.0,
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
    """`total` = weight * update, zero where the weight is zero; `weight` as declared."""

    total: Params
    weight: float | Mask | Params


@dataclass(frozen=True)
class Sealed:
    """A reply as it leaves the client."""

    round: int
    trees: Mapping[str, SealedTree]
    metrics: Mapping[str, float]


def seal(answer: Reply, round: int) -> Sealed:
    """Weigh every tree and erase the entries of weight 0."""
    trees = {}
    for name, update in answer.trees.items():
        weight = answer.weight_of(name)
        if isinstance(weight, Mask):
            total = weight.keep(update)
        elif isinstance(weight, Params):
            total = Mask(weight.flat != 0, weight.layout).keep(update) * weight
        else:
            weight = float(weight)
            total = update if weight == 1 else update * weight
            if not weight:  # erased, whatever it was
                total = Params.zeros(update.layout, update.flat.dtype)
        trees[name] = SealedTree(total, weight)
    return Sealed(round, trees, answer.metrics)


@dataclass(frozen=True)
class Aggregate:
    """All that a server learns of an aggregate request: weighted sums over the cohort."""

    totals: Mapping[str, Params]
    weights: Mapping[str, float | Params]
    count: int
    metrics: Mapping[str, float]

    def mean(self, tree: str) -> Params:
        """Return the weighted mean of a tree, zero where nobody contributed.

        Raises:
            KeyError: nobody sent this tree, although somebody replied.
        """
        total, weight = self.totals[tree], self.weights[tree]
        if not isinstance(weight, Params):
            return total / weight if weight else total
        filled = torch.where(weight.flat == 0, torch.ones_like(weight.flat), weight.flat)
        return total.like(total.flat / filled)

    def contributors(self, tree: str) -> Params | float:
        """Return the sum of weights of a tree (per entry where weights are per entry)."""
        return self.weights[tree]


class Sum:
    """Sealed replies added up in place: a tree's total and weights, in the order of `add`.

    `new(n, dtype)` makes a buffer: ordinary memory, or memory that processes share.
    """

    def __init__(self, new: Callable[[int, torch.dtype], Tensor] | None = None) -> None:
        self.new = new or (lambda n, dtype: torch.empty(n, dtype=dtype))
        self.totals: dict[str, Params] = {}
        self.weights: dict[str, float | Params] = {}
        self.count = 0

    def add(self, sealed: Sealed) -> None:
        """Add one reply."""
        self.count += 1
        for name, tree in sealed.trees.items():
            weight = tree.weight
            if isinstance(weight, Mask):
                weight = tree.total.like(weight.bits.to(tree.total.flat.dtype))
            self._add(name, tree.total, weight)

    def merge(self, other: Sum) -> None:
        """Add what another sum holds."""
        self.count += other.count
        for name, total in other.totals.items():
            self._add(name, total, other.weights[name])

    def _add(self, name: str, total: Params, weight: float | Params) -> None:
        if name not in self.totals:
            self.totals[name] = self._copy(total)
            self.weights[name] = self._copy(weight) if isinstance(weight, Params) else weight
            return
        self.totals[name].flat.add_(total.flat)
        mine = self.weights[name]
        if isinstance(mine, Params):
            mine.flat.add_(weight.flat if isinstance(weight, Params) else weight)
        elif isinstance(weight, Params):
            self.weights[name] = self._copy(weight)
            self.weights[name].flat.add_(mine)  # type: ignore[union-attr]
        else:
            self.weights[name] = mine + weight

    def _copy(self, params: Params) -> Params:
        return params.like(self.new(params.layout.n, params.flat.dtype).copy_(params.flat))

    def aggregate(
        self, layouts: Mapping[str, Params], metrics: Mapping[str, Sequence[float]]
    ) -> Aggregate:
        """Return what a server learns; `layouts` shapes the trees if nobody replied."""
        totals, weights = dict(self.totals), dict(self.weights)
        for name, params in layouts.items():
            if name not in totals:
                totals[name], weights[name] = params * 0.0, 0.0
        means = {name: float(np.mean(values)) for name, values in metrics.items()}
        return Aggregate(totals, weights, self.count, means)


def add_up(replies: Iterable[Sealed], layouts: Mapping[str, Params]) -> Aggregate:
    """Sum sealed replies in the order given."""
    whole, metrics = Sum(), {}
    for sealed in replies:
        whole.add(sealed)
        for name, value in sealed.metrics.items():
            metrics.setdefault(name, []).append(value)
    return whole.aggregate(layouts, metrics)


def packed_mask(mask: Mask, known: Mask | None) -> dict[str, Tensor]:
    """Return what must be sent so that the receiver, who knows `known`, knows `mask`.

    Nothing if it did not change; else the entries that left the known mask as a list of bit-packed
    indices, or the whole mask as a bitmap, whichever is shorter.
    """
    known = known if known is not None else Mask.full(mask.layout)
    if mask == known:
        return {}
    bitmap = mask.packed()
    gone = (known & ~mask).bits.nonzero().squeeze(1).numpy()
    if not (mask & ~known).count and _index_bytes(len(gone), mask.layout.n) < len(bitmap):
        return {"index": torch.from_numpy(_pack_indices(gone, mask.layout.n))}
    return {"bitmap": bitmap}


def unpacked_mask(sent: Mapping[str, Tensor], known: Mask) -> Mask:
    """Undo `packed_mask`."""
    if "bitmap" in sent:
        return Mask.unpacked(sent["bitmap"], known.layout)
    if "index" not in sent:
        return known
    bits = known.bits.clone()
    bits[torch.from_numpy(_unpack_indices(sent["index"].numpy(), known.layout.n))] = False
    return Mask(bits, known.layout)


def _index_width(n: int) -> int:
    return max(math.ceil(math.log2(n)), 1) if n else 1


def _index_bytes(k: int, n: int) -> int:
    return math.ceil(k * _index_width(n) / 8)


def _pack_indices(indices: np.ndarray, n: int) -> np.ndarray:
    # The last byte is filled with the last index again, so that reading it twice does no harm.
    width = _index_width(n)
    filled = np.append(indices, np.repeat(indices[-1:], -(-8 // width)))
    bits = (filled[:, None] >> np.arange(width - 1, -1, -1)) & 1
    packed = np.packbits(bits.astype(np.uint8).ravel())
    return packed[: _index_bytes(len(indices), n)]


def _unpack_indices(packed: np.ndarray, n: int) -> np.ndarray:
    width = _index_width(n)
    bits = np.unpackbits(packed)
    bits = bits[: len(bits) // width * width].reshape(-1, width).astype(np.int64)
    return bits @ (1 << np.arange(width - 1, -1, -1))


def support(tree: SealedTree) -> tuple[Mask, float | None]:
    """Return which entries count, and their weight if it is the same for all of them."""
    if isinstance(tree.weight, Mask):
        return tree.weight, 1.0
    assert isinstance(tree.weight, Params)
    mask = Mask(tree.weight.flat != 0, tree.weight.layout)
    levels = tree.weight.flat[mask.bits].unique()
    if len(levels) > 1:
        return mask, None
    return mask, float(levels[0]) if len(levels) else 0.0


def support_mask(tree: SealedTree) -> Mask | None:
    """Return the mask a receiver learns from this tree; None where all entries count alike."""
    return None if isinstance(tree.weight, float) else support(tree)[0]


def payload(sealed: Sealed, known: Mapping[str, Mask]) -> dict[str, dict[str, Tensor]]:
    """Return the arrays that travel up, per tree; their sizes are the bytes counted.

    `known` holds, per tree, the entries the receiver knows to count for this client.
    """
    out: dict[str, dict[str, Tensor]] = {}
    for name, tree in sealed.trees.items():
        if isinstance(tree.weight, float):
            out[name] = {"values": tree.total.flat} if tree.weight else {}
            continue
        mask, level = support(tree)
        before = known.get(name)
        if before is not None and before.layout != mask.layout:
            before = None
        out[name] = {"values": tree.total.flat[mask.bits], **packed_mask(mask, before)}
        if level is None and isinstance(tree.weight, Params):
            out[name]["weight"] = tree.weight.flat[mask.bits]
    return out


def encode(sealed: Sealed, known: Mapping[str, Mask]) -> bytes:
    """Return a sealed reply as bytes: the arrays of `payload` and a JSON header."""
    arrays, trees = {}, {}
    for name, sent in payload(sealed, known).items():
        arrays |= {f"{name}.{part}": array for part, array in sent.items()}
        tree = sealed.trees[name]
        kind = type(tree.weight).__name__
        level = tree.weight if isinstance(tree.weight, float) else support(tree)[1]
        layout = [tree.total.layout.names, tree.total.layout.shapes]
        dtype = str(tree.total.flat.dtype).removeprefix("torch.")
        trees[name] = {"kind": kind, "level": level, "layout": layout, "dtype": dtype}
    head = {"round": sealed.round, "metrics": dict(sealed.metrics), "trees": trees}
    return save(arrays, {HEADER: json.dumps(head, separators=(",", ":"))})


def decode(data: bytes, known: Mapping[str, Mask]) -> Sealed:
    """Undo `encode`."""
    arrays, head = load(data), read_header(data)
    trees = {}
    for name, about in head["trees"].items():
        names, shapes = about["layout"]
        layout = Layout(tuple(names), tuple(tuple(s) for s in shapes))
        sent = {k.rpartition(".")[2]: a for k, a in arrays.items() if k.rpartition(".")[0] == name}
        flat = torch.zeros(layout.n, dtype=getattr(torch, about["dtype"]))
        if about["kind"] == "float":
            trees[name] = SealedTree(Params(sent.get("values", flat), layout), about["level"])
            continue
        before = known.get(name)
        if before is None or before.layout != layout:
            before = Mask.full(layout)
        mask = unpacked_mask(sent, before)
        flat[mask.bits] = sent["values"]
        weight: float | Mask | Params = mask
        if about["kind"] == "Params":
            each = torch.zeros_like(flat)
            each[mask.bits] = sent["weight"] if "weight" in sent else about["level"]
            weight = Params(each, layout)
        trees[name] = SealedTree(Params(flat, layout), weight)
    return Sealed(head["round"], trees, head["metrics"])


def travelled(tree: SealedTree, known: Mask | None) -> int:
    """Return the bytes of a tree on the wire, as `payload` would lay it out, without doing it.

    A tree that fits nothing known counts all its values.
    """
    total, weight = tree.total.flat, tree.weight
    if not isinstance(weight, Mask | Params):
        return total.numel() * total.element_size() if weight else 0
    if weight.layout != tree.total.layout:
        return total.numel() * total.element_size()
    mask, level = support(tree)
    known = known if known is not None and known.layout == mask.layout else None
    arrays = 1 if level is not None else 2
    return arrays * mask.count * total.element_size() + mask_bytes(mask, known)


def mask_bytes(mask: Mask, known: Mask | None) -> int:
    """Return the bytes of `packed_mask`."""
    known = known if known is not None else Mask.full(mask.layout)
    if mask == known:
        return 0
    bitmap = math.ceil(mask.layout.n / 8)
    if (mask & ~known).count:
        return bitmap
    return min(bitmap, _index_bytes(known.count - mask.count, mask.layout.n))


def size(arrays: Mapping[str, Tensor]) -> int:
    """Return the bytes of some arrays."""
    return sum(a.numel() * a.element_size() for a in arrays.values())
