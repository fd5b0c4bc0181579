"""Validation of a MATLAB file's elements before SciPy reads them, because SciPy does not check.

An element's tag holds the number of its type. SciPy looks this number up in a table without
checking it, so an invalid number becomes a pointer to any memory. SciPy also reads past the end of
a matrix that has too few elements. So this module checks the types and counts of elements. Used by
`data.io.checks` and `data.io.hdf5_files`.

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
"""Type numbers of elements that hold numbers or text."""
INT8, UINT32, MATRIX, COMPRESSED = 1, 6, 14, 15
CELL, STRUCT, CHAR, SPARSE, LAST = 1, 2, 4, 5, 15
"""Class numbers of matrices. Those from SPARSE + 1 to LAST hold numbers; others are not read."""
# SciPy reads nested matrices by recursion: a file that nests thousands would end the process.
HEADER, DEEPEST, HDF5 = 128, 30, 2
"""Bytes of a file's header, most levels of nested matrices, version byte of MATLAB 7.3."""
SIDES, ELEMENTS = 32, 2**20
"""Most dimensions of a NumPy array, and most elements of a file, nested ones included."""
# Rows of zeros and ones are compressed to a hundredth; no other array that is read is.
BASE_BUDGET, BUDGET_PER_BYTE = 2**26, 100
"""Most unpacked bytes of a file's arrays: a constant, plus this many per byte of the file."""
ODD = "there is something else where a matrix should be"


@dataclass(frozen=True)
class Element:
    """One element of a file: the type number in its tag, and its content."""

    kind: int
    body: memoryview


def check_tags(raw: bytes) -> None:
    """Check that every matrix of a MATLAB file (version 5 to 7.2) has the elements that it needs.

    Files of version 4 have no tags, and SciPy refuses files of version 7.3; neither is checked.

    Raises:
        ValueError: an element is missing, has another type, or is larger than its container.
    """
    little = raw[126:128] == b"IM"
    order: Order = "little" if little else "big"
    if 0 in raw[:4] or raw[125 if little else 124 : 126 if little else 125] == bytes([HDF5]):
        return
    file = _File(order, BASE_BUDGET + BUDGET_PER_BYTE * len(raw))
    for element in file.elements(memoryview(raw)[HEADER:], padded=False):
        if element.kind == COMPRESSED:
            file.check_matrix(file.unpack_matrix(element.body), 1)
        elif element.kind == MATRIX:
            file.check_matrix(element.body, 1)
        else:
            raise ValueError(ODD)


class _File:
    """State of one file's check: how many bytes and how many elements it may still have."""

    def __init__(self, order: Order, unpacks: int) -> None:
        self.order: Order = order
        self.byte_budget, self.element_budget = unpacks, ELEMENTS

    def unpack_matrix(self, body: memoryview) -> memoryview:
        """Return the content of the one matrix in a compressed element.

        Raises:
            ValueError: the element is not one matrix, or unpacks to too many bytes.
        """
        stream = zlib.decompressobj()
        head = stream.decompress(body, 8)
        kind, size = (int.from_bytes(head[i : i + 4], self.order) for i in (0, 4))
        if kind != MATRIX:
            raise ValueError(ODD)
        if size > self.byte_budget:
            raise ValueError(
                f"it would unpack to {size:,} bytes more, where {self.byte_budget:,} are left of "
                "what a file of its size may hold"
            )
        self.byte_budget -= size
        # One byte more than announced tells a longer stream without unpacking it.
        content = stream.decompress(stream.unconsumed_tail, size + 1)
        if len(content) != size:
            raise ValueError(f"a matrix of {size:,} bytes was packed with more or fewer")
        return memoryview(content)

    def elements(self, raw: memoryview, *, padded: bool) -> Iterator[Element]:
        """Yield the elements in some bytes; `padded` elements begin at multiples of 8 bytes.

        Raises:
            ValueError: an element is larger than the bytes, or the file has too many elements.
        """
        at = 0
        while at < len(raw):
            kind, start, end, at = _read_tag(raw, at, self.order, padded=padded)
            self.element_budget -= 1
            if self.element_budget < 0:
                raise ValueError(f"it has more than {ELEMENTS:,} elements")
            yield Element(kind, raw[start:end])

    def check_matrix(self, body: memoryview, deep: int) -> None:
        """Check a matrix and the matrices nested in it; `deep` is the level of nesting, from 1.

        Raises:
            ValueError: an element is missing, has another type, or matrices are nested too deep.
        """
        if not body:
            return
        if deep > DEEPEST:
            raise ValueError(f"matrices lie in one another {deep} deep")
        rest = self.elements(body, padded=True)
        flags, sides, name = itertools.islice(rest, 3)
        if flags.kind != UINT32 or len(flags.body) != 8 or name.kind != INT8:
            raise ValueError("a matrix does not begin with its flags, its size and its name")
        word = int.from_bytes(flags.body[:4], self.order)
        # The low byte is the class; bit 11 marks complex numbers, which have two parts.
        sort, parts = word & 0xFF, 1 + (word >> 11 & 1)
        count = math.prod(_unsigned_integers(sides, self.order))
        if sort == STRUCT:
            length, names = itertools.islice(rest, 2)
            count *= len(names.body) // max(_unsigned_integers(length, self.order)[0], 1)
        if sort in (CELL, STRUCT):
            wanted, kinds = count, frozenset({MATRIX})
        elif CHAR <= sort <= LAST:
            wanted, kinds = parts + 2 * (sort == SPARSE), NUMBERS
        else:
            raise ValueError(f"a matrix is of class {sort}, which is not read")
        here = 0
        for here, element in enumerate(rest, 1):
            if here > wanted or element.kind not in kinds:
                raise ValueError(
                    f"a matrix of class {sort} has more elements than its {wanted:,}, or others "
                    "than it should"
                )
            if sort in (CELL, STRUCT):
                self.check_matrix(element.body, deep + 1)
        if here < wanted:
            raise ValueError(
                f"a matrix of class {sort} has {here:,} elements instead of {wanted:,}"
            )


def _unsigned_integers(element: Element, order: Order) -> list[int]:
    """Return the integers in an element of 32-bit integers, all of which must be 0 or more.

    Raises:
        ValueError: an integer is negative, or the element's length is wrong.
    """
    # One byte more than NumPy's dimensions take makes the length below no multiple of four.
    body = element.body[: 4 * SIDES + 1]
    numbers = [int.from_bytes(body[i : i + 4], order, signed=True) for i in range(0, len(body), 4)]
    if not numbers or min(numbers) < 0 or len(body) % 4:
        raise ValueError("the size of a matrix is none")
    return numbers


def _read_tag(raw: memoryview, at: int, order: Order, *, padded: bool) -> tuple[int, int, int, int]:
    """Return an element's type, its content's start and end, and the next element's start.

    `at` is the byte at which the element begins.

    Raises:
        ValueError: the element is larger than the bytes.
    """
    first = int.from_bytes(raw[at : at + 4], order)
    # A small element has its size in the upper half of its tag, and its bytes in the tag too.
    if first >> 16:
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
