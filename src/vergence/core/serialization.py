"""Serialisation for checkpoints, client stores and the wire: safetensors and JSON, never pickle.

A state is a frozen dataclass whose leaves are Params, Mask, tensors, bytes, numbers, strings,
None, or mappings and tuples of these. Arrays and bytes go into the safetensors body (masks eight
entries to a byte), everything else into one JSON text in its header.

Used in most packages.
"""

from __future__ import annotations

import hashlib
import json
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from vergence.core.files import JsonObject, parse_json
from vergence.core.masks import Mask
from vergence.core.params import Layout, Params, quickly_finite, read_numbers
from vergence.core.tags import field_tags, tag
from vergence.errors import ConfigError, StateError

CPU = torch.device("cpu")
HEADER = "vergence"
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Torch's dtypes, each with its name in safetensors."""
KINDS = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
HEAD = 1 << 16
"""An untrusted header may have this many bytes, plus a sixteenth of the state's memory limit."""
SIZE = 1 << 48
"""Largest number of entries that the shape of an untrusted tensor may state."""
# Parts that share an array get a copy each, such as a model that a hundred clients train. Without a
# limit a small untrusted file could name one array again and again, and fill the memory.
SHARED, TIMES = 1 << 30, 64
"""Memory limit of a state that is read from a file: 1 GiB, plus 64 times the file's size.

The file's own arrays are not counted.
"""
LONGEST = 200
UNREADABLE = (
    SafetensorError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    ConfigError,
)
"""The exceptions that malformed bytes can cause."""


def pack(state: object) -> bytes:
    """Return a state as safetensors bytes; equal states give equal bytes."""
    return Packed(state).bytes()


class Packed:
    """A state in two parts: arrays by their path in the state, and a JSON text for the rest."""

    def __init__(self, state: object) -> None:
        writer, self.state = _Writer(), state
        tree = writer.write(state, "s")
        layouts = [[x.names, x.shapes] for x in writer.layouts]
        self.arrays = writer.arrays
        self.header = json.dumps({"tree": tree, "layouts": layouts}, separators=(",", ":"))

    def chunks(self) -> list[memoryview]:
        """Return the state's safetensors bytes as a list of pieces, without copying an array."""
        # The library's `save` copies every array twice: 2.5 ms for the state of a FedCPF client.
        sizes = {n: getattr(array, "itemsize", 1) for n, array in self.arrays.items()}
        # Widest numbers first, as safetensors itself sorts: every array is aligned to its width.
        names = sorted(self.arrays, key=lambda name: (-sizes[name], name))
        about: dict[str, object] = {"__metadata__": {HEADER: self.header}}
        parts, at = [], 0
        for name in names:
            dtype, shape, part = _body(self.arrays[name])
            end = at + part.nbytes
            about[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
            parts.append(part)
            at = end
        head = json.dumps(about, separators=(",", ":")).encode()
        # Spaces after the JSON text keep the arrays behind it aligned to eight bytes.
        head += b" " * (-len(head) % 8)
        return [memoryview(len(head).to_bytes(8, "little") + head), *parts]

    def bytes(self) -> bytes:
        """Return the state as safetensors bytes."""
        return b"".join(self.chunks())

    @property
    def finite(self) -> bool:
        """True if no array holds NaN or infinity."""
        return is_finite(*(x for x in self.arrays.values() if isinstance(x, Tensor)))


def unpack(data: bytes, *records: type, limit: float = math.inf, device: torch.device = CPU) -> Any:
    """Undo `pack`: return the state. `records` are the dataclasses that the state may contain.

    An untrusted state may use `limit` bytes of memory, not counting its arrays. Its parameters,
    masks and tensors lie on `device`.

    Raises:
        StateError: the bytes are damaged, hold a type not in `records`, or exceed the limit.
    """
    try:
        arrays, header = open_arrays(data, limit)
        return _read(arrays, header, records, limit, device)
    except UNREADABLE as error:
        raise StateError(f"this is not a readable vergence state ({printable(error)})") from None


def unpack_file(path: Path, *records: type, device: torch.device = CPU) -> Any:
    """Undo `pack` for a file, whose arrays are mapped into memory instead of read.

    On another `device` they are copies.

    Raises:
        StateError: the file is missing or damaged, holds a type not in `records`, or would use more
            memory than `memory_allowance` of its size.
    """
    try:
        with safe_open(path, "pt") as file:
            # The library's file is no mapping: it has `keys`, but cannot be iterated.
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = parse_json(file.metadata()[HEADER])
        return _read(arrays, header, records, memory_allowance(path.stat().st_size), device)
    except (OSError, *UNREADABLE) as error:
        raise StateError(f"{path} is not a readable vergence state ({printable(error)})") from None


def memory_allowance(size: int) -> int:
    """Return how many bytes of memory a state from a file of `size` bytes may use.

    The file's own arrays are not counted.
    """
    return SHARED + TIMES * size


def _read(
    arrays: dict[str, Tensor],
    header: JsonObject,
    records: Sequence[type],
    limit: float,
    device: torch.device,
) -> object:
    layouts = [read_layout(*layout) for layout in header["layouts"]]
    arrays = {name: array.to(device) for name, array in arrays.items()}
    return _StateReader(arrays, layouts, known_records(*records), limit).read(header["tree"])


def open_arrays(data: bytes, limit: float = math.inf) -> tuple[dict[str, Tensor], JsonObject]:
    """Return the arrays of safetensors bytes, and the parsed JSON text of their header.

    Raises:
        ValueError: the header is too long for the limit. Bytes that are otherwise unreadable may
            raise any error of `UNREADABLE`.
    """
    # Before the library parses it: an adversary's long header would cost memory and time.
    if int.from_bytes(data[:8], "little") > HEAD + limit / 16:
        raise ValueError("its header is too long")
    return load(data), read_header(data)


def read_layout(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Layout:
    """Return the layout with these names and shapes, from an untrusted header.

    Raises:
        ValueError: a name occurs twice, or names and shapes are not valid.
    """
    layout = Layout(tuple(names), tuple(tuple(shape) for shape in shapes))
    sizes = [size for shape in layout.shapes for size in shape]
    # `type` and not `isinstance`: True is an int. A size of 0 must not hide a huge one beside it.
    fits = len(set(layout.names)) == len(layout.names) == len(layout.shapes)
    if not (
        fits
        and all(isinstance(name, str) for name in layout.names)
        and all(type(size) is int and size >= 0 for size in sizes)
        and all(math.prod(max(x, 1) for x in shape) <= SIZE for shape in layout.shapes)
    ):
        raise ValueError("a layout that no parameters have")
    return layout


def read_mask(packed: Tensor, layout: Layout) -> Mask:
    """Return the mask whose bits are packed eight to a byte.

    Raises:
        ValueError: the number of bits does not fit the layout.
    """
    if packed.dtype != torch.uint8 or packed.shape != (-(-layout.n // 8),):
        raise ValueError(f"{tuple(packed.shape)} are not the bits of {layout.n:,} entries")
    return Mask.unpacked(packed, layout)


def printable(untrusted: object) -> str:
    """Shorten untrusted text to one printable line for messages and tables."""
    # Control characters of another machine's text could rewrite the lines of a terminal.
    text = str(untrusted)[:LONGEST]
    return "".join(c if c.isprintable() else " " for c in text)


def described(error: Exception) -> str:
    """Return class and text of an error that may quote untrusted bytes, as one printable line."""
    return printable(f"{type(error).__name__}: {error}")


def read_header(data: bytes) -> JsonObject:
    """Return the parsed JSON text in the header of safetensors bytes."""
    size = int.from_bytes(data[:8], "little")
    return parse_json(parse_json(data[8 : 8 + size])["__metadata__"][HEADER])


def digest(*chunks: bytes | memoryview) -> str:
    """Return the SHA-256 of the joined chunks, as hexadecimal text."""
    return _hexdigest(hashlib.sha256(), chunks)


def quick_digest(*chunks: bytes | memoryview) -> str:
    """Return the 128-bit XXH3 of the joined chunks, as hexadecimal text.

    This hash detects damage, but an adversary can forge it.
    """
    return _hexdigest(xxhash.xxh3_128(), chunks)


def _hexdigest(whole: Any, chunks: Sequence[bytes | memoryview]) -> str:
    for chunk in chunks:
        whole.update(chunk)
    return whole.hexdigest()


def array_bytes(data: bytes) -> dict[str, int]:
    """Return the size in bytes of each array in a packed state, by its path in the state.

    `vergence explain` prints them.
    """
    return {name: t.numel() * t.element_size() for name, t in load(data).items()}


@lru_cache
def known_records(*records: type) -> dict[str, type]:
    """Return dataclasses by their names in packed states.

    The mapping holds `records`, and all dataclasses that occur in the types of their fields.
    """
    records_by_tag: dict[str, type] = {}
    todo: list[object] = list(records)
    while todo:
        hint = todo.pop()
        todo += typing.get_args(hint)
        if is_dataclass(hint) and isinstance(hint, type) and tag(hint) not in records_by_tag:
            records_by_tag[tag(hint)] = hint
            todo += typing.get_type_hints(hint).values()
    return records_by_tag


class _Writer:
    def __init__(self) -> None:
        # A mask is packed only when its bytes are asked for: a state may stay in memory.
        self.arrays: dict[str, Tensor | Mask | bytes] = {}
        self.layouts: list[Layout] = []

    def layout(self, layout: Layout) -> int:
        if layout not in self.layouts:
            self.layouts.append(layout)
        return self.layouts.index(layout)

    def array(self, value: Tensor, path: str) -> str:
        """Store an array, unless an equal array is stored already; return the stored path."""
        equal = (n for n, t in self.arrays.items() if isinstance(t, Tensor) and _equal(t, value))
        earlier = next(equal, None)
        if earlier is None:
            self.arrays[path] = value.contiguous()
        return earlier or path

    def write(self, value: object, path: str) -> object:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case bytes():
                self.arrays[path] = value
                return {"bytes": path}
            case Params():
                at = self.array(value.flat, path)
                return {"params": at, "layout": self.layout(value.layout)}
            case Mask():
                self.arrays[path] = value
                return {"mask": path, "layout": self.layout(value.layout)}
            case Tensor():
                return {"tensor": self.array(value, path)}
            case tuple() | list():
                return {"list": [self.write(v, f"{path}.{i}") for i, v in enumerate(value)]}
            case Mapping():
                return {"map": {k: self.write(v, f"{path}.{k}") for k, v in value.items()}}
        if is_dataclass(value) and not isinstance(value, type):
            kind = type(value)
            parts = {
                label: self.write(getattr(value, name), f"{path}.{label}")
                for name, label in field_tags(kind)
            }
            return {"record": tag(kind), "fields": parts}
        raise StateError(f"a state cannot hold a {type(value).__name__} (at {path})")


def _body(array: Tensor | Mask | bytes) -> tuple[str, list[int], memoryview]:
    """Return an array's type name in safetensors, its shape, and its bytes; only masks are new."""
    if isinstance(array, bytes):
        return "U8", [len(array)], memoryview(array)
    array = array.packed() if isinstance(array, Mask) else array
    part = array.cpu().reshape(-1).view(torch.uint8).numpy().data
    return DTYPES[array.dtype], list(array.shape), part


def _equal(a: Tensor, b: Tensor) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))


class _StateReader:
    def __init__(
        self,
        arrays: dict[str, Tensor],
        layouts: list[Layout],
        records: dict[str, type],
        allowance: float,
    ) -> None:
        self.arrays, self.layouts, self.records, self.allowance = (
            arrays,
            layouts,
            records,
            allowance,
        )
        self.returned_paths: set[str] = set()

    def fill(self, size: int) -> None:
        """Count `size` bytes of memory that the state uses in addition to its arrays.

        Raises:
            ValueError: the state uses more than its limit.
        """
        self.allowance -= size
        if self.allowance < 0:
            raise ValueError("it holds more than it may")

    def array(self, path: str) -> Tensor:
        """Return the array at a path: the array itself the first time, later a copy.

        Several parts of a state may name one array, and each part may be changed.
        """
        array = self.arrays[path]
        if path in self.returned_paths:
            self.fill(array.nbytes)
            return array.clone()
        self.returned_paths.add(path)
        return array

    def read(self, node: object) -> object:
        if not isinstance(node, dict):
            return node
        if "bytes" in node:
            array = self.arrays[node["bytes"]]
            if array.dtype != torch.uint8:
                raise ValueError(f"bytes that are {array.dtype}")
            self.fill(array.nbytes)
            return array.cpu().numpy().tobytes()
        if "params" in node:
            return Params(self.array(node["params"]), self.layouts[node["layout"]])
        if "mask" in node:
            # Unpacked bits take eight times the bytes of the array that the limit knows.
            mask = read_mask(self.arrays[node["mask"]], self.layouts[node["layout"]])
            self.fill(mask.bits.nbytes)
            return mask
        if "tensor" in node:
            return self.array(node["tensor"])
        if "list" in node:
            return tuple(self.read(v) for v in node["list"])
        if "map" in node:
            return {k: self.read(v) for k, v in node["map"].items()}
        if node["record"] not in self.records:
            raise StateError(f"unknown record '{printable(node['record'])}' in a state")
        kind = self.records[node["record"]]
        names = {label: name for name, label in field_tags(kind)}
        written: JsonObject = node["fields"]
        return kind(**{names.get(k, k): self.read(v) for k, v in written.items()})


def equal_states(a: object, b: object) -> bool:
    """True if two states are equal bit for bit."""
    return pack(a) == pack(b)


def is_finite(*arrays: Tensor) -> bool:
    """True if no entry of these arrays is NaN or infinite."""
    some = (a for a in arrays if a.is_floating_point() and a.numel() and not quickly_finite(a))
    # The extremes are NaN if any entry is, and need no mask as large as the array.
    extremes = [extreme for array in some for extreme in torch.aminmax(array)]
    return all(map(math.isfinite, read_numbers(extremes)))
