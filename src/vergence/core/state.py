"""One packer for checkpoints, client stores and the wire: safetensors and JSON, never pickle.

A state is a frozen dataclass whose leaves are Params, Mask, tensors, numbers, strings, None, or
mappings and tuples of these. Arrays go into the safetensors body (masks eight entries to a byte),
everything else into one JSON text in its header.
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from vergence.core.mask import Mask
from vergence.core.params import Layout, Params
from vergence.errors import StateError

HEADER = "vergence"


def pack(state: Any) -> bytes:
    """Return a state as bytes; equal states give equal bytes."""
    writer = _Writer()
    tree = writer.write(state, "s")
    layouts = [[x.names, x.shapes] for x in writer.layouts]
    header = json.dumps({"tree": tree, "layouts": layouts}, separators=(",", ":"))
    return save(writer.arrays, {HEADER: header})


def unpack(data: bytes, *records: type) -> Any:
    """Undo `pack`. `records` are the dataclasses the state may be made of.

    Raises:
        StateError: the bytes are damaged or hold a record type that was not named.
    """
    try:
        arrays = load(data)
        header = read_header(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise StateError(f"this is not a readable vergence state ({error})") from None
    layouts = [Layout(tuple(n), tuple(tuple(s) for s in shapes)) for n, shapes in header["layouts"]]
    return _Reader(arrays, layouts, known_records(*records)).read(header["tree"])


def read_header(data: bytes) -> Any:
    """Return the JSON text that travels in the header of safetensors bytes."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"][HEADER])


def digest(data: bytes) -> str:
    """Return the SHA-256 of packed bytes."""
    return hashlib.sha256(data).hexdigest()


def array_bytes(data: bytes) -> dict[str, int]:
    """Return the size in bytes of each array in a packed state, by its path."""
    return {name: t.numel() * t.element_size() for name, t in load(data).items()}


def known_records(*records: type) -> dict[str, type]:
    """Return these dataclasses and all that their fields name, by class name."""
    found: dict[str, type] = {}
    todo: list[Any] = list(records)
    while todo:
        hint = todo.pop()
        todo += typing.get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type) and hint.__name__ not in found:
            found[hint.__name__] = hint
            todo += typing.get_type_hints(hint).values()
    return found


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, Tensor] = {}
        self.layouts: list[Layout] = []

    def layout(self, layout: Layout) -> int:
        if layout not in self.layouts:
            self.layouts.append(layout)
        return self.layouts.index(layout)

    def array(self, value: Tensor, path: str) -> str:
        """Keep an array once, however many parts of the state share it; return its path."""
        kept = (n for n, t in self.arrays.items() if _equal(t, value))
        earlier = next(kept, None)
        if earlier is None:
            self.arrays[path] = value.contiguous()
        return earlier or path

    def write(self, value: Any, path: str) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case Params():
                at = self.array(value.flat, path)
                return {"params": at, "layout": self.layout(value.layout)}
            case Mask():
                self.arrays[path] = value.packed()
                return {"mask": path, "layout": self.layout(value.layout)}
            case Tensor():
                return {"tensor": self.array(value, path)}
            case tuple() | list():
                return {"list": [self.write(v, f"{path}.{i}") for i, v in enumerate(value)]}
            case Mapping():
                return {"map": {k: self.write(v, f"{path}.{k}") for k, v in value.items()}}
        if is_dataclass(value) and not isinstance(value, type):
            parts = {f.name: self.write(getattr(value, f.name), f"{path}.{f.name}")
                     for f in fields(value)}  # fmt: skip
            return {"record": type(value).__name__, "fields": parts}
        raise StateError(f"a state cannot hold a {type(value).__name__} (at {path})")


def _equal(a: Tensor, b: Tensor) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))


class _Reader:
    def __init__(
        self, arrays: dict[str, Tensor], layouts: list[Layout], records: dict[str, type]
    ) -> None:
        self.arrays, self.layouts, self.records = arrays, layouts, records

    def read(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "params" in node:
            return Params(self.arrays[node["params"]], self.layouts[node["layout"]])
        if "mask" in node:
            return Mask.unpacked(self.arrays[node["mask"]], self.layouts[node["layout"]])
        if "tensor" in node:
            return self.arrays[node["tensor"]]
        if "list" in node:
            return tuple(self.read(v) for v in node["list"])
        if "map" in node:
            return {k: self.read(v) for k, v in node["map"].items()}
        if node["record"] not in self.records:
            raise StateError(f"unknown record '{node['record']}' in a state")
        parts = {k: self.read(v) for k, v in node["fields"].items()}
        return self.records[node["record"]](**parts)


def same(a: Any, b: Any) -> bool:
    """Tell whether two states are equal bit for bit."""
    return pack(a) == pack(b)


def finite(state: Any) -> bool:
    """Tell whether no array of a state holds NaN or infinity."""
    writer = _Writer()
    writer.write(state, "s")
    return all(bool(torch.isfinite(a).all()) for a in writer.arrays.values())


def is_finite(params: Params) -> bool:
    """Tell whether no entry is NaN or infinite."""
    return bool(torch.isfinite(params.flat).all())
