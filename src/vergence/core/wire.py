"""What crosses the boundary of a client: messages down, sealed replies up, and their size.

At the boundary a reply becomes `(weight * update, weight)` per tree. Entries of weight 0 are
erased there, before any transport or aggregation can see them, and are not sent: a masked tree
travels as its shared entries alone, with the mask only in rounds in which it changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
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
        if isinstance(weight, int | float):
            weight = float(weight)
            flat = update.flat * weight if weight else torch.zeros_like(update.flat)
        elif isinstance(weight, Mask):
            flat = torch.where(weight.bits, update.flat, torch.zeros_like(update.flat))
        else:
            erased = torch.where(weight.flat == 0, torch.zeros_like(update.flat), update.flat)
            flat = erased * weight.flat
        trees[name] = SealedTree(update.like(flat), weight)
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


def add_up(replies: Iterable[Sealed], layouts: Mapping[str, Params]) -> Aggregate:
    """Sum sealed replies in the order given; `layouts` shapes the trees if nobody replies."""
    totals: dict[str, Params] = {}
    weights: dict[str, float | Params] = {}
    metrics: dict[str, list[float]] = {}
    count = 0
    for sealed in replies:
        count += 1
        for name, tree in sealed.trees.items():
            weight = tree.weight
            if isinstance(weight, Mask):
                weight = tree.total.like(weight.bits.to(tree.total.flat.dtype))
            if name in totals:
                totals[name] = totals[name] + tree.total
                weights[name] = _sum(weights[name], weight)
            else:
                totals[name], weights[name] = tree.total, weight
        for name, value in sealed.metrics.items():
            metrics.setdefault(name, []).append(value)
    for name, params in layouts.items():
        if name not in totals:
            totals[name], weights[name] = params * 0.0, 0.0
    means = {name: float(np.mean(values)) for name, values in metrics.items()}
    return Aggregate(totals, weights, count, means)


def _sum(a: float | Params, b: float | Params) -> float | Params:
    if isinstance(a, Params):
        return a + b
    return b + a if isinstance(b, Params) else a + b


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


def size(arrays: Mapping[str, Tensor]) -> int:
    """Return the bytes of some arrays."""
    return sum(a.numel() * a.element_size() for a in arrays.values())
