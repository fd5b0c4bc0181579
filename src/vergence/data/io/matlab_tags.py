"""Validation of a MATLAB file's elements before SciPy reads it, which takes them as they come.

SciPy looks up what an element's numbers are by the type in its tag, in a table whose end it does
not look at: a type that is none becomes a pointer to whatever lies there. And it reads on where a
matrix has fewer elements than it should. So types and numbers of elements are counted first.
Source: "MAT-File Format", MathWorks, chapter 1 (version 5).
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Order = Literal["little", "big"]

NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18})
"""Types of elements that hold numbers or text."""
INT8, UINT32, MATRIX, COMPRESSED = 1, 6, 14, 15
CELL, STRUCT, CHAR, SPARSE, LAST = 1, 2, 4, 5, 15
"""Classes of matrices; what comes after SPARSE are numbers. Objects and functions are not read."""
HEADER, DEEPEST, HDF5 = 128, 30, 2
SIDES, ELEMENTS = 32, 2**20
"""Sides that an array of NumPy may have; elements of a file, those in matrices included."""
LEAST, TIMES = 2**26, 100
"""Bytes that a file's matrices may unpack to together, and beside that so often the file's size."""
ODD = "there is something else where a matrix should be"


@dataclass(frozen=True)
class Element:
    """One element of a file: the type in its tag, and what it holds."""

    kind: int
    body: memoryview


def check_tags(raw: bytes) -> None:
    """Accept a MATLAB file of version 5 to 7.2 in which every matrix has its elements, and no more.

    Those of version 4, which have no tags, and of 7.3, which SciPy refuses, are left to it.

    Raises:
        ValueError: an element is missing, of another type, or does not fit into what it lies in.
    """
    little = raw[126:128] == b"IM"
    order: Order = "little" if little else "big"
    if 0 in raw[:4] or raw[125 if little else 124 : 126 if little else 125] == bytes([HDF5]):
        return
    file = _File(order, LEAST + TIMES * len(raw))
    for found in file.elements(memoryview(raw)[HEADER:], padded=False):
        if found.kind == COMPRESSED:
            file.matrix(file.unpacked(found.body), 1)
        elif found.kind == MATRIX:
            file.matrix(found.body, 1)
        else:
            raise ValueError(ODD)


class _File:
    """A file under way: the bytes that it may still unpack to, the elements it may still have."""

    def __init__(self, order: Order, unpacks: int) -> None:
        self.order: Order = order
        self.unpacks, self.left = unpacks, ELEMENTS

    def unpacked(self, body: memoryview) -> memoryview:
        """Content of the matrix in a compressed element, and nothing beside it."""
        stream = zlib.decompressobj()
        head = stream.decompress(body, 8)
        kind, size = (int.from_bytes(head[i : i + 4], self.order) for i in (0, 4))
        if kind != MATRIX:
            raise ValueError(ODD)
        if size > self.unpacks:
            raise ValueError(
                f"it would unpack to {size:,} bytes more, where {self.unpacks:,} are left of what "
                "a file of its size may hold"
            )
        self.unpacks -= size
        found = stream.decompress(stream.unconsumed_tail, size + 1)
        if len(found) != size:
            raise ValueError(f"a matrix of {size:,} bytes was packed with more or fewer")
        return memoryview(found)

    def elements(self, raw: memoryview, *, padded: bool) -> Iterator[Element]:
        """Yield elements that lie one after the other."""
        at = 0
        while at < len(raw):
            kind, start, end, at = _tag(raw, at, self.order, padded=padded)
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"it has more than {ELEMENTS:,} elements")
            yield Element(kind, raw[start:end])

    def matrix(self, body: memoryview, deep: int) -> None:
        """Accept a matrix, and those that lie in it."""
        if not body:
            return
        if deep > DEEPEST:
            raise ValueError(f"matrices lie in one another {deep} deep")
        rest = self.elements(body, padded=True)
        flags, sides, name = itertools.islice(rest, 3)
        if flags.kind != UINT32 or len(flags.body) != 8 or name.kind != INT8:
            raise ValueError("a matrix does not begin with its flags, its size and its name")
        told = int.from_bytes(flags.body[:4], self.order)
        sort, parts = told & 0xFF, 1 + (told >> 11 & 1)  # a complex one has two
        count = math.prod(_whole(sides, self.order))
        if sort == STRUCT:
            length, names = itertools.islice(rest, 2)
            count *= len(names.body) // max(_whole(length, self.order)[0], 1)
        if sort in (CELL, STRUCT):
            wanted, kinds = count, frozenset({MATRIX})
        elif CHAR <= sort <= LAST:
            wanted, kinds = parts + 2 * (sort == SPARSE), NUMBERS
        else:
            raise ValueError(f"a matrix is of class {sort}, which is not read")
        here = 0
        for here, one in enumerate(rest, 1):
            if here > wanted or one.kind not in kinds:
                raise ValueError(
                    f"a matrix of class {sort} has more elements than its {wanted:,}, or others "
                    "than it should"
                )
            if sort in (CELL, STRUCT):
                self.matrix(one.body, deep + 1)
        if here < wanted:
            raise ValueError(
                f"a matrix of class {sort} has {here:,} elements instead of {wanted:,}"
            )


def _whole(element: Element, order: Order) -> list[int]:
    """Whole numbers of four bytes, none below 0."""
    body = element.body[: 4 * SIDES + 1]
    found = [int.from_bytes(body[i : i + 4], order, signed=True) for i in range(0, len(body), 4)]
    if not found or min(found) < 0 or len(body) % 4:
        raise ValueError("the size of a matrix is none")
    return found


def _tag(raw: memoryview, at: int, order: Order, *, padded: bool) -> tuple[int, int, int, int]:
    """Type, first byte and end of the element at a place, and where the next one is."""
    first = int.from_bytes(raw[at : at + 4], order)
    if first >> 16:  # its size and up to four bytes stand in the tag itself
        kind, start, size, after = first & 0xFFFF, at + 4, first >> 16, at + 8
        if size > 4:
            raise ValueError(f"an element of {size} bytes claims to fit into its tag")
    else:
        size = int.from_bytes(raw[at + 4 : at + 8], order)
        kind, start = first, at + 8
        after = start + size + (-size % 8 if padded else 0)
    if start + size > len(raw):
        raise ValueError(f"an element of {size:,} bytes lies in {len(raw) - at:,}")
    return kind, start, start + size, after
