"""Ids of people: names that stay distinct on a screen, in a table and as files.

Used in most packages.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from vergence.errors import DataError

ClientId = str
# Ids are part of file names, which have at most 255 bytes.
LONGEST = 100
"""Largest number of bytes of an id."""


FORMULA = "=+-@"
"""Signs with which a formula may begin in a spreadsheet, which is where tables are opened."""


def check_ids(ids: Iterable[str], where: str) -> None:
    """Check that ids are printable, usable in file names, and different from each other.

    Args:
        ids: everybody's ids, each as often as it occurs in the data.
        where: the file or data set that contains the ids, for the error message.

    Raises:
        DataError: an id cannot be used on a screen, in a table or in a file name, or two people
            have the same id; the message shows the id, escaped, and what is allowed.
    """
    seen: dict[str, str] = {}
    for person in ids:
        fault = _fault(person)
        if not fault:
            folded = file_name(person.strip())
            if folded in seen:
                twin = seen[folded]
                fault = "is there twice" if twin == person else f"and {twin!a} are one file's name"
            seen[folded] = person
        if fault:
            raise DataError(
                f"{where}: person id {ascii(person)[: 2 * LONGEST]} {fault}: ids must be different "
                "names (capitals and outer spaces aside) of printable characters, without / and "
                f"\\, at most {LONGEST} bytes; rename it"
            )


def _fault(person: object) -> str:
    """Return as text why a single id is not allowed; "" if it is allowed."""
    if not isinstance(person, str):
        return "is no text"
    if not person.strip():
        return "is empty"
    if not person.isprintable():
        return "holds characters that cannot be printed"
    if "/" in person or "\\" in person or person in (".", ".."):
        return "would lead to another folder"
    if person[0] in FORMULA:
        return f"begins with {person[0]}, so that spreadsheets take it for a formula"
    size = len(person.encode())
    return f"has {size} bytes" if size > LONGEST else ""


def file_name(person: str) -> str:
    """Return the form of an id, or of another name, that case-insensitive file systems compare."""
    # Some file systems also take the two Unicode spellings of é (one character, or two) for one.
    if person.isascii():
        return person.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", person).casefold())
