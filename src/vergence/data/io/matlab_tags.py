"""Elements of a MATLAB file, looked at before SciPy reads it, which takes them as they come.

SciPy looks up what an element's numbers are by the type in its tag, in a table whose end it does
not look at: a type that is none becomes a pointer to whatever lies there. And it reads on where a
matrix has fewer elements than it should. So types and numbers of elements are counted first.
Source: "MAT-File Format", MathWorks, chapter 1 (version 5).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Literal

Order = Literal["little", "big"]

NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18})
"""Types of elements that hold numbers or text."""
INT8, UINT32, MATRIX, COMPRESSED = 1, 6, 14, 15
CELL, STRUCT, CHAR, SPARSE, LAST = 1, 2, 4, 5, 15
"""Classes of matrices; what comes after SPARSE are numbers. Objects and functions are not read."""
HEADER, DEEPEST, HDF5 = 128, 30, 2


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
    for found in _elements(memoryview(raw)[HEADER:], order, padded=False):
        inside = [found]
        if found.kind == COMPRESSED:
            inside = _elements(memoryview(zlib.decompress(found.body)), order, padded=False)
        if [one.kind for one in inside] != [MATRIX]:
            raise ValueError("there is something else where a matrix should be")
        _matrix(inside[0].body, order, 1)


def _matrix(body: memoryview, order: Order, deep: int) -> None:
    if not body:
        return
    if deep > DEEPEST:
        raise ValueError(f"matrices lie in one another {deep} deep")
    flags, sides, name, *rest = _elements(body, order, padded=True)
    if flags.kind != UINT32 or len(flags.body) != 8 or name.kind != INT8:
        raise ValueError("a matrix does not begin with its flags, its size and its name")
    told = int.from_bytes(flags.body[:4], order)
    sort, parts = told & 0xFF, 1 + (told >> 11 & 1)  # a complex one has two
    count = math.prod(_whole(sides, order))
    if sort == STRUCT:
        length, names, *rest = rest
        count *= len(names.body) // max(_whole(length, order)[0], 1)
    if sort in (CELL, STRUCT):
        wanted, kinds = count, frozenset({MATRIX})
    elif CHAR <= sort <= LAST:
        wanted, kinds = parts + 2 * (sort == SPARSE), NUMBERS
    else:
        raise ValueError(f"a matrix is of class {sort}, which is not read")
    if len(rest) != wanted or any(one.kind not in kinds for one in rest):
        raise ValueError(
            f"a matrix of class {sort} has {len(rest)} elements instead of {wanted}, "
            "or others than it should"
        )
    for one in rest if sort in (CELL, STRUCT) else ():
        _matrix(one.body, order, deep + 1)


def _whole(element: Element, order: Order) -> list[int]:
    """Whole numbers of four bytes, none below 0."""
    body = element.body
    found = [int.from_bytes(body[i : i + 4], order, signed=True) for i in range(0, len(body), 4)]
    if not found or min(found) < 0 or len(body) % 4:
        raise ValueError("the size of a matrix is none")
    return found


def _elements(raw: memoryview, order: Order, *, padded: bool) -> list[Element]:
    """Elements that lie one after the other."""
    at, found = 0, []
    while at < len(raw):
        kind, start, end, at = _tag(raw, at, order, padded=padded)
        found.append(Element(kind, raw[start:end]))
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
