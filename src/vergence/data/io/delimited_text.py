"""Delimited text with a header row, read by column name; every fault names file, row and column."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.errors import DataError


@dataclass(frozen=True)
class DelimitedTable:
    """Columns of text; `first_row` is the line number of the first data row in the file."""

    path: Path
    columns: dict[str, list[str]]
    first_row: int = 2

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def text(self, name: str) -> list[str]:
        """Return a column as it stands in the file."""
        return self.columns[name]

    def floats(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64; an empty cell becomes NaN.

        Raises:
            DataError: a cell is not a number.
        """
        return np.array(self._convert(name, lambda c: float(c) if c else np.nan), np.float64)

    def integers(self, name: str, empty: int | None = None) -> NDArray[np.int64]:
        """Return a column as int64, exact to the last digit; an empty cell becomes `empty`.

        Raises:
            DataError: a cell is not an integer, or is empty where `empty` is None.
        """

        def convert(cell: str) -> int:
            return empty if empty is not None and not cell else int(cell)

        return np.array(self._convert(name, convert), np.int64)

    def _convert(self, name: str, kind: Callable[[str], Any]) -> list[Any]:
        out = []
        for i, cell in enumerate(self.columns[name]):
            try:
                out.append(kind(cell))
            except ValueError:
                raise DataError(
                    f"{self.path}: row {self.first_row + i}: '{name}' is '{cell}', not a number; "
                    "export the file again"
                ) from None
        return out


def text_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a text file; `what` says what it should be.

    Raises:
        DataError: it is missing or not text.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise DataError(f"{what} {path} is missing or not text ({fault}); copy it again") from None


def read_table(path: Path, required: Sequence[str], kind: str) -> DelimitedTable:
    """Read a comma-separated file whose first line names the columns.

    Raises:
        DataError: the file is missing, empty or not text, a row is short, or a required column is
            absent (another version of the format): the missing columns are named.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it should be the {kind}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a text table ({error}); expected the {kind}") from None
    if not rows:
        raise DataError(f"{path} is empty; expected the {kind}")
    header = [name.strip() for name in rows[0]]
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path} is not the {kind} this version reads: missing columns {', '.join(missing)}; "
            f"found {', '.join(header)[:200]}; rename the columns that hold these, or export it "
            "again"
        )
    body = [row for row in rows[1:] if row]
    for i, row in enumerate(body):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {i + 2} has {len(row)} cells instead of {len(header)}; the file is "
                "truncated or damaged, export it again"
            )
    columns = dict(zip(header, map(list, zip(*body, strict=True)), strict=True)) if body else {}
    return DelimitedTable(path, columns or {name: [] for name in header})
