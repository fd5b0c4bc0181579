"""What crosses the boundary of a client: messages down, sealed replies up, and their size.

At the boundary a reply becomes `(weight * update, weight)` per tree. Entries of weight 0 are
erased there, before any transport or aggregation can see them, and are not sent: a masked tree
travels as its shared entries alone, with the mask only in rounds in which it changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vergence.core.codec import PARTS, Compression, index_bytes, pack_indices, unpack_indices
from vergence.core.mask import Mask
from vergence.core.params import Layout, Params
from vergence.core.state import HEAD, HEADER, KINDS, is_finite, opened, read_layout, read_mask

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
    weight: Weight | Mapping[str, Weight] = 1.0, metrics: Mapping[str, float] | None = None,
    **trees: Params,
) -> Reply:  # fmt: skip
    """Build a reply: `reply(model=update, weight=fitted.examples, metrics=fitted.metrics)`.

    The weight is one number for all entries, a mask (1 where true, 0 elsewhere), one number per
    entry, or a mapping from tree to any of these.
    """
    return Reply(trees, weight, dict(metrics or {}))


@dataclass(frozen=True)
class SealedTree:
    """`total` = weight * update, zero where the weight is zero; `weight` as declared.

    `coded` holds the arrays that stand for the update's values where a lossy codec `how` is used:
    `total` is then what a receiver makes of them.
    """

    total: Params
    weight: float | Mask | Params
    coded: Mapping[str, Tensor] | None = None
    how: Compression = Compression()


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
            total = counted(weight, weight.layout).keep(update) * weight
        else:
            weight = float(weight)
            total = update if weight == 1 else update * weight
            if not weight:  # erased, whatever it was
                total = Params.zeros(update.layout, update.flat.dtype)
        trees[name] = SealedTree(total, weight)
    return Sealed(round, trees, answer.metrics)


def seal_coded(
    answer: Reply, round: int, how: Compression, owed: Mapping[str, Params]
) -> tuple[Sealed, Mapping[str, Params]]:
    """Seal a reply whose values travel by a codec; return also what is still owed, per tree.

    An update that holds NaN or infinity is sealed as it is, for the guards to refuse.
    """
    if how.lossless:
        return seal(answer, round), owed
    trees, coded, left = {}, {}, dict(owed)
    for name, update in answer.trees.items():
        mask = counted(answer.weight_of(name), update.layout)
        values = mask.take(update)
        before = mask.take(owed[name]) if name in owed else None
        if not is_finite(values if before is None else values + before):
            return seal(answer, round), owed
        coded[name], decoded, rest = how.compress(values, before)
        trees[name] = mask.put(decoded)
        if rest is not None:
            left[name] = mask.put(rest)
    plain = seal(replace(answer, trees=trees), round)
    sent = {n: replace(t, coded=coded[n], how=how) for n, t in plain.trees.items()}
    return replace(plain, trees=sent), left


def counted(weight: Weight, layout: Layout) -> Mask:
    """Return the entries whose weight is not zero."""
    if isinstance(weight, Mask):
        return weight
    if isinstance(weight, Params):
        return Mask(torch.from_numpy(weight.flat.numpy() != 0), layout)
    return Mask.full(layout) if weight else Mask.none(layout)


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
        nobody = torch.from_numpy(weight.flat.numpy() == 0).to(weight.flat.dtype)
        return total.like(total.flat / nobody.add_(weight.flat))

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
            if isinstance(weight, Mask):  # as numbers: ten times faster to add than truth values
                weight = Params(weight.bits.view(torch.uint8), weight.layout)
            self._add(name, tree.total, weight)

    def merge(self, other: Sum) -> None:
        """Add what another sum holds."""
        self.count += other.count
        for name, total in other.totals.items():
            self._add(name, total, other.weights[name])

    def _add(self, name: str, total: Params, weight: float | Params) -> None:
        if name not in self.totals:
            self.totals[name] = self._copy(total, total)
            self.weights[name] = self._copy(weight, total) if isinstance(weight, Params) else weight
            return
        self.totals[name].flat.add_(total.flat)
        mine = self.weights[name]
        if isinstance(mine, Params):
            mine.flat.add_(weight.flat if isinstance(weight, Params) else weight)
        elif isinstance(weight, Params):
            self.weights[name] = whole = self._copy(weight, total)
            whole.flat.add_(mine)
        else:
            self.weights[name] = mine + weight

    def _copy(self, params: Params, like: Params) -> Params:
        buffer = self.new(params.layout.n, like.flat.dtype)
        return params.like(buffer.copy_(params.flat))

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
    gone = np.flatnonzero((known & ~mask).bits.numpy())
    if not (mask & ~known).count and index_bytes(len(gone), mask.layout.n) < len(bitmap):
        return {"index": torch.from_numpy(pack_indices(gone, mask.layout.n))}
    return {"bitmap": bitmap}


def unpacked_mask(sent: Mapping[str, Tensor], known: Mask) -> Mask:
    """Undo `packed_mask`."""
    if "bitmap" in sent:
        return read_mask(sent["bitmap"], known.layout)
    if "index" not in sent:
        return known
    bits, n = known.bits.clone(), known.layout.n
    if sent["index"].nbytes >= -(-n // 8):
        raise ValueError("a list of entries that is longer than a bitmap")
    bits.numpy()[unpack_indices(sent["index"].numpy(), n)] = False
    return Mask(bits, known.layout)


def support(tree: SealedTree) -> tuple[Mask, float | None]:
    """Return which entries count, and their weight if it is the same for all of them."""
    if isinstance(tree.weight, Mask):
        return tree.weight, 1.0
    assert isinstance(tree.weight, Params)
    mask, weights = counted(tree.weight, tree.weight.layout), tree.weight.flat.numpy()
    level = weights[mask.bits.numpy().argmax()] if mask.count else 0.0
    alike = np.count_nonzero(weights == level) == mask.count or not mask.count
    return mask, float(level) if alike else None


def support_mask(tree: SealedTree) -> Mask | None:
    """Return the mask a receiver learns from this tree; None where all entries count alike."""
    return None if isinstance(tree.weight, float) else support(tree)[0]


def payload(sealed: Sealed, known: Mapping[str, Mask]) -> dict[str, dict[str, Tensor]]:
    """Return, per tree, the arrays that travel up to one who knows these masks: what is counted."""
    out: dict[str, dict[str, Tensor]] = {}
    for name, tree in sealed.trees.items():
        if isinstance(tree.weight, float):
            out[name] = _values(tree, Mask.full(tree.total.layout)) if tree.weight else {}
            continue
        mask, level = support(tree)
        before = known[name] if name in known and known[name].layout == mask.layout else None
        out[name] = {**_values(tree, mask), **packed_mask(mask, before)}
        if level is None and isinstance(tree.weight, Params):
            out[name]["weight"] = mask.take(tree.weight)
    return out


def _values(tree: SealedTree, mask: Mask) -> dict[str, Tensor]:
    return dict(tree.coded) if tree.coded is not None else {"values": mask.take(tree.total)}


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
        if tree.coded is not None:
            trees[name]["codec"] = asdict(tree.how)
    head = {"round": sealed.round, "metrics": dict(sealed.metrics), "trees": trees}
    return save(arrays, {HEADER: json.dumps(head, separators=(",", ":"))})


def decode(data: bytes, known: Mapping[str, Mask], room: float = math.inf) -> Sealed:
    """Undo `encode`.

    What trees from elsewhere claim beside the values that came may fill `room` bytes, or 256 KiB.

    Raises:
        ValueError: they claim more. Bytes that are something else raise any of `state.UNREADABLE`.
    """
    arrays, head = opened(data, room)
    sent: dict[str, dict[str, Tensor]] = {}
    for path, array in arrays.items():
        sent.setdefault(path.rpartition(".")[0], {})[path.rpartition(".")[2]] = array
    left, trees = max(room, 4 * HEAD), {}
    for name, about in head["trees"].items():
        layout = read_layout(*about["layout"])
        whole = about["kind"] == "float" and about["level"] and "codec" not in about
        left -= 0 if whole else layout.n * KINDS[about["dtype"]].itemsize
        if left < 0:
            raise ValueError(f"'{name}' claims {layout.n:,} entries, more than may come")
        trees[name] = _tree(sent.get(name, {}), about, layout, known.get(name))
    return Sealed(head["round"], trees, head["metrics"])


def _tree(
    sent: Mapping[str, Tensor], about: Mapping, layout: Layout, before: Mask | None
) -> SealedTree:
    kind, level, dtype = about["kind"], about["level"], KINDS[about["dtype"]]
    exact = ("weight",) if "codec" in about else ("weight", "values")
    alien = any(sent[part].dtype != dtype for part in exact if part in sent)
    if kind not in ("float", "Mask", "Params") or isinstance(level, str) or alien:
        raise ValueError(f"a weight of kind {kind} that is {level}, or arrays that are not {dtype}")
    if kind == "float" and not level:
        return SealedTree(Params.zeros(layout, dtype), 0.0)
    if kind == "float" and "codec" not in about:
        return SealedTree(Params(sent["values"], layout), float(level))
    known = before if before is not None and before.layout == layout else Mask.full(layout)
    mask = Mask.full(layout) if kind == "float" else unpacked_mask(sent, known)
    weight = float(level) if kind == "float" else mask
    if kind == "Params":
        weight = mask.put(sent.get("weight", torch.full((mask.count,), level or 0.0, dtype=dtype)))
    if "codec" not in about:
        return SealedTree(mask.put(sent["values"]), weight)
    how = Compression(**about["codec"])
    coded = {part: array for part, array in sent.items() if part in PARTS}
    update = mask.put(how.coder.decode(coded, mask.count, dtype))
    return replace(seal(Reply({"": update}, weight), 0).trees[""], coded=coded, how=how)


def travelled(tree: SealedTree, known: Mask | None) -> int:
    """Return the bytes of a tree on the wire, as `payload` would lay it out, without doing it.

    A tree that fits nothing known counts all its values.
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
    """Return the bytes of a tree's values, as its codec sends them."""
    return size(tree.coded) if tree.coded is not None else count * tree.total.flat.element_size()


def mask_bytes(mask: Mask, known: Mask | None) -> int:
    """Return the bytes of `packed_mask`."""
    known = known if known is not None else Mask.full(mask.layout)
    if mask == known:
        return 0
    bitmap = math.ceil(mask.layout.n / 8)
    if (mask & ~known).count:
        return bitmap
    return min(bitmap, index_bytes(known.count - mask.count, mask.layout.n))


def size(arrays: Mapping[str, Tensor]) -> int:
    """Return the bytes of some arrays."""
    return sum(a.numel() * a.element_size() for a in arrays.values())
