"""Safe readers of CIFAR's published files: binary records, and pickles with nothing but arrays.

Used by `data.images.cifar10` and `data.images.cifar100`.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vergence.data.images.partition import PartitionPart
from vergence.data.io.checks import need_file
from vergence.errors import DataError, first_line

SHAPE = (3, 32, 32)
PIXELS = 3072
OPCODES = frozenset(
    [
        "PROTO",
        "FRAME",
        "MARK",
        "STOP",
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "SHORT_BINSTRING",
        "BINSTRING",
        "SHORT_BINBYTES",
        "BINBYTES",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "EMPTY_LIST",
        "APPEND",
        "APPENDS",
        "EMPTY_TUPLE",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
        "EMPTY_DICT",
        "SETITEM",
        "SETITEMS",
        "BINPUT",
        "LONG_BINPUT",
        "MEMOIZE",
        "BINGET",
        "LONG_BINGET",
        "GLOBAL",
        "STACK_GLOBAL",
        "REDUCE",
        "BUILD",
    ]
)
"""Pickle opcodes for lists, dicts, text, whole numbers and arrays; other opcodes are refused."""
# Two arrays are pickled with twelve tuples. Hashing a hundred thousand nested ones would overrun
# the stack.
TUPLES = 40
"""Most tuples that a pickle may have."""
ORDERS = {"u1": ("|",), "i8": ("<", ">")}
"""NumPy's type code of numbers -> the byte orders that are allowed for them."""


@dataclass(frozen=True)
class Labels:
    """Where a CIFAR file stores the class of an image.

    A binary record begins with `head` bytes of labels; byte number `byte` is the class. In a
    pickle, the labels are the value of `key`.
    """

    byte: int
    head: int
    key: str


class _Kind:
    """Stand-in for a NumPy dtype in a pickle: bytes (u1) or whole numbers of eight bytes (i8)."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, ""

    def __setstate__(self, state: object) -> None:
        # What follows the order are fields, sizes and flags, of which a number has none.
        if type(state) is not tuple or state[2:] != (None, None, None, -1, -1, 0) or state[0] != 3:
            raise pickle.UnpicklingError("a type of numbers has fields or flags")
        order = _decode_text(state[1])
        if order not in ORDERS[self.code]:
            raise pickle.UnpicklingError(f"{self.code} has no order of bytes {order[:20]!a}")
        self.order = order


class _Array:
    """Stand-in for a NumPy array in a pickle; its bytes must fit its shape and its type exactly."""

    __slots__ = ("values",)

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, fortran, raw = state
        right = version == 1 and type(shape) is tuple and type(kind) is _Kind and kind.order
        right = right and type(fortran) in (bool, int) and type(raw) is bytes
        if not right or not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError("an array is not a shape, a type of numbers and bytes")
        values = np.frombuffer(raw, kind.order.replace("|", "") + kind.code)
        self.values = values.reshape(shape, order="F" if fortran else "C")


class _Name:
    """Stand-in for a class or function that a pickle names; no attribute of it can be set."""

    __slots__ = ()


class _Kinds(_Name):
    """Stand-in for numpy.dtype; a call makes a `_Kind`."""

    __slots__ = ()

    def __call__(self, code: object, align: object, copy: object) -> _Kind:
        if _decode_text(code) not in ORDERS or (align, copy) != (0, 1):
            raise pickle.UnpicklingError(
                f"it holds numbers of type {_decode_text(code)[:20]!a}, not u1 or i8"
            )
        return _Kind(_decode_text(code))


class _Arrays(_Name):
    """Stand-in for numpy's _reconstruct; a call makes an `_Array`."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        if kind is not NDARRAY or shape != (0,) or _decode_text(code) != "b":
            raise pickle.UnpicklingError("an array is not made as numpy makes one")
        return _Array()


NDARRAY = _Name()
KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Arrays(),
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): _Kinds(),
}
"""Names in a published pickle -> the stand-ins that are used for them."""


class _CifarReader(pickle.Unpickler):
    """Unpickler for arrays, lists, numbers and text; it refuses names outside `KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        # A pickle can name any function and have it called: only three stand-ins are known.
        if (module, name) not in KNOWN:
            named = ascii(f"{module}.{name}"[:80])[1:-1]
            raise pickle.UnpicklingError(f"it names {named}, which no image needs")
        return KNOWN[module, name]


def _decode_text(text: object) -> str:
    """Return text that a pickle of Python 2 or 3 holds; "" if the value is not text."""
    if isinstance(text, bytes):
        return text.decode("latin-1")
    return text if isinstance(text, str) else ""


def _unpickled(raw: bytes) -> Any:
    """Return the content of a pickle, after checking that all its opcodes are harmless.

    Raises:
        UnpicklingError: the pickle has an opcode that no published file has, or would fill the
            memory.
    """
    # Check every step before any of them runs: a pickle is a program.
    tuples = 0
    for number, (step, argument, _) in enumerate(pickletools.genops(raw)):
        tuples += "TUPLE" in step.name
        if step.name not in OPCODES:
            raise pickle.UnpicklingError(f"its step {step.name} is none that images need")
        if tuples > TUPLES:
            raise pickle.UnpicklingError(f"it has {tuples} tuples, images need fewer")
        # The memo grows to the largest number in it: one step could fill the memory.
        if "BINPUT" in step.name and int(argument or 0) > number:
            raise pickle.UnpicklingError(f"step {number} is kept as number {argument}")
    return _CifarReader(io.BytesIO(raw), encoding="bytes").load()


def part_of(paths: Sequence[Path], labels: Labels, classes: int, where: str) -> PartitionPart:
    """Return the images and labels of these files, binary (`.bin`) or pickled, in the files' order.

    `classes` is the number of classes; `where` says in messages what the folder must hold.

    Raises:
        DataError: a file is missing, truncated or of another kind, or a label is not below
            `classes`.
    """
    read = [
        (binary if path.suffix == ".bin" else pickled)(need_file(path, where), labels, where)
        for path in paths
    ]
    for path, (own, _) in zip(paths, read, strict=True):
        if len(wrong := own[own >= classes]):
            raise DataError(f"{path}: labels must be 0 to {classes - 1}, got {wrong[0]}: {where}")
    pixels = [rows for _, rows in read]
    own = np.concatenate([own for own, _ in read]).astype(np.int64)
    return PartitionPart(own, lambda: torch.from_numpy(np.concatenate(pixels).reshape(-1, *SHAPE)))


def binary(path: Path, labels: Labels, where: str) -> tuple[NDArray, NDArray[np.uint8]]:
    """Return the labels `[n]` and pixels `[n, 3072]` of a file of binary records.

    A record is the bytes of labels, and then all red, all green and all blue pixels.

    Raises:
        DataError: the file does not consist of whole records.
    """
    raw, width = np.frombuffer(path.read_bytes(), np.uint8), labels.head + PIXELS
    if not len(raw) or len(raw) % width:
        raise DataError(
            f"{path} holds {len(raw):,} bytes, which are no whole records of {width:,}: copy it "
            f"anew; {where}"
        )
    records = raw.reshape(-1, width)
    return records[:, labels.byte], records[:, labels.head :]


def pickled(path: Path, labels: Labels, where: str) -> tuple[NDArray, NDArray[np.uint8]]:
    """Return the labels `[n]` and pixels `[n, 3072]` of a pickle as Python 2 wrote it.

    Raises:
        DataError: the file is damaged, or holds something else.
    """
    keys = [b"data", labels.key.encode()]
    try:
        content = _unpickled(path.read_bytes())
        there = [key for key in keys if key in content]
        arrays = [_array_of(content[key]) for key in there]
    # A damaged pickle may raise anything.
    except Exception as fault:
        reason = first_line(fault)
        raise DataError(f"cannot read {path} ({reason}): copy it anew; {where}") from fault
    if there != keys:
        lacking = next(key for key in keys if key not in there)
        raise DataError(f"{path} is of another version, it lacks {lacking}: {where}")
    pixels, own = arrays
    fits = pixels.dtype == np.uint8 and own.dtype.kind in "iu" and own.ndim == 1
    if not fits or pixels.shape != (len(own), PIXELS) or (own < 0).any():
        raise DataError(f"{path} holds no images of {PIXELS} bytes with labels: {where}")
    return own, pixels


def _array_of(value: object) -> NDArray:
    """Return the NumPy array of a stand-in `_Array`, or of a list of whole numbers.

    Raises:
        UnpicklingError: the value is something else.
    """
    if type(value) is _Array:
        return value.values
    if type(value) is not list or any(type(number) is not int for number in value):
        raise pickle.UnpicklingError("its data or labels are no array and no list of numbers")
    return np.array(value, np.int64)
