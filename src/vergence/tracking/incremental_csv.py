"""Reading of CSV tables that somebody may still be writing: only whole lines count."""

from __future__ import annotations

import csv
import io
import stat
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from vergence.errors import StateError


def whole_lines(path: Path, start: int = 0) -> tuple[str, int]:
    """Return the whole lines of a text from a byte on, and the byte after them; "", if no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StateError(f"{path} is no regular file; restore it from a copy, or run again")
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    end = data.rfind(b"\n") + 1
    return data[:end].decode(errors="replace"), start + end


def parsed(text: str) -> Iterator[list[str]]:
    """Yield the rows of CSV text."""
    return csv.reader(io.StringIO(text, newline="\n"))


def column_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield so many columns of a table's whole rows; nothing where there is no table yet.

    Raises:
        StateError: a column is missing, or a row is torn.
    """
    rows = parsed(whole_lines(path)[0])
    head = next(rows, None)
    if head is None:
        return
    if missing := [name for name in names if name not in head]:
        raise StateError(f"{path} lacks the columns {', '.join(missing)}; run it again")
    pick = itemgetter(*(head.index(name) for name in names))
    number = 1
    try:
        for number, row in enumerate(rows, 2):
            if len(row) != len(head):
                raise StateError(
                    f"{path} line {number}: {len(row)} of {len(head)} columns; the file is damaged"
                )
            yield pick(row)
    except csv.Error as error:
        raise StateError(f"{path} line {number + 1}: {error}; the file is damaged") from None
