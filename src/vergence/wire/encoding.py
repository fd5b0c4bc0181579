"""Sealed replies as bytes and back: only shared entries, masks as bitmaps or index lists.

Used by `deployment.client_node`, `deployment.main_server`, `deployment.remote_clients` and
`engine.channel`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vergence.core.masks import Mask
from vergence.core.messages import Reply, SealedReply, SealedTree, seal, support
from vergence.core.params import Layout, Params
from vergence.core.serialization import HEAD, HEADER, KINDS, open_arrays, read_layout, read_mask
from vergence.wire.codecs import PARTS, Compression, index_bytes, pack_indices, unpack_indices


def packed_mask(mask: Mask, known: Mask | None) -> dict[str, Tensor]:
    """Return the tensors from which a receiver that knows `known` can compute `mask`.

    They are empty if the mask did not change, else a list of bit-packed indices of entries that
    are no longer in the mask, or the whole mask as a bitmap, whichever is shorter.
    """
    known = known if known is not None else Mask.full(mask.layout)
    if mask == known:
        return {}
    bitmap = mask.packed()
    # A list can only name entries that leave the mask; a new entry needs the bitmap.
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
    # `packed_mask` never makes such a list, and an adversary's would cost memory to unpack.
    if sent["index"].nbytes >= -(-n // 8):
        raise ValueError("a list of entries that is longer than a bitmap")
    bits.numpy()[unpack_indices(sent["index"].numpy(), n)] = False
    return Mask(bits, known.layout)


def payload(sealed: SealedReply, known: Mapping[str, Mask]) -> dict[str, dict[str, Tensor]]:
    """Return the arrays of each tree that travel to a receiver that knows these masks."""
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


def encode(sealed: SealedReply, known: Mapping[str, Mask]) -> bytes:
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


def decode(data: bytes, known: Mapping[str, Mask], room: float = math.inf) -> SealedReply:
    """Undo `encode`.

    Trees may take `room` bytes of memory (at least 256 KiB) besides the values in `data`.

    Raises:
        ValueError: they would take more. Malformed bytes raise any of `UNREADABLE`.
    """
    arrays, head = open_arrays(data, room)
    sent: dict[str, dict[str, Tensor]] = {}
    for path, array in arrays.items():
        sent.setdefault(path.rpartition(".")[0], {})[path.rpartition(".")[2]] = array
    room_left, trees = max(room, 4 * HEAD), {}
    for name, about in head["trees"].items():
        layout = read_layout(*about["layout"])
        whole = about["kind"] == "float" and about["level"] and "codec" not in about
        # A masked tree of few bytes may claim any number of entries, and fill the memory.
        room_left -= 0 if whole else layout.n * KINDS[about["dtype"]].itemsize
        if room_left < 0:
            raise ValueError(f"'{name}' claims {layout.n:,} entries, more than may come")
        trees[name] = _tree(sent.get(name, {}), about, layout, known.get(name))
    return SealedReply(head["round"], trees, head["metrics"])


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
