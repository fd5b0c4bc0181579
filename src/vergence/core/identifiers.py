"""Ids of people: names that stay distinct on a screen, in a table and as files."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

from vergence.errors import DataError

ClientId = str
LONGEST = 100
"""Bytes of an id, which is part of file names."""


def check_ids(ids: Iterable[Any], where: str) -> None:
    """Accept the ids of different people.

    Args:
        ids: of everybody, each as often as it stands in the data.
        where: the file or data set that names them, for an error.

    Raises:
        DataError: an id cannot be printed, lead a row of a table or be part of a file's name, or
            is that of two people; names it, escaped, and what is allowed.
    """
    seen: dict[str, str] = {}
    for person in ids:
        fault = _fault(person)
        if not fault:
            folded = _folded(person)
            if folded in seen:
                twin = seen[folded]
                fault = "is there twice" if twin == person else f"and {twin!a} are one file's name"
            seen[folded] = person
        if fault:
            raise DataError(
                f"{where}: person id {ascii(person)[: 2 * LONGEST]} {fault}: ids must be different "
                "names (capitals aside) of printable characters, without / and \\, at most "
                f"{LONGEST} bytes; rename it"
            )


def _fault(person: Any) -> str:
    """Fault of an id by itself; "" where there is none."""
    if not isinstance(person, str):
        return "is no text"
    if not person.strip():
        return "is empty"
    if not person.isprintable():
        return "holds characters that cannot be printed"
    if "/" in person or "\\" in person or person in (".", ".."):
        return "would lead to another folder"
    size = len(person.encode())
    return f"has {size} bytes" if size > LONGEST else ""


def _folded(person: str) -> str:
    """An id as file systems compare names that leave capitals, or the way of writing é, aside."""
    if person.isascii():
        return person.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", person).casefold())
