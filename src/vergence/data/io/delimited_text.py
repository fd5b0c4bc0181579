"""Delimited text with a header row, read by column name; every fault names file, row and column."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.errors import DataError

MISSING = ("", "-", ".", "nan", "na", "n/a", "null", "none")
"""What trackers write where there is no number, in whatever capitals."""
LOOKED_AT = 2000
"""Rows that tell the decimal sign of a table."""


@dataclass(frozen=True)
class TextForm:
    """Written form of a table: encoding, the sign between cells, and the decimal sign."""

    encoding: str = "utf-8-sig"
    delimiter: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class DelimitedTable:
    """Columns of text; `first_row` is the line number of the first data row in the file.

    `lines` are the line numbers of all rows, where they do not follow one another. Cells in
    `missing` (in small letters) are no numbers and no faults.
    """

    path: Path
    columns: dict[str, list[str]]
    first_row: int = 2
    lines: Sequence[int] = ()
    form: TextForm = TextForm()
    missing: Collection[str] = field(default=("",))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def text(self, name: str) -> list[str]:
        """Return a column as it stands in the file."""
        return self.columns[name]

    def floats(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64; an empty cell, or one of `missing`, becomes NaN.

        Raises:
            DataError: a cell is not a number.
        """

        def convert(cell: str) -> float:
            try:
                return float(cell.replace(",", ".") if self.form.decimal == "," else cell)
            except ValueError:
                if cell.strip().lower() in self.missing:
                    return np.nan
                raise

        return np.array(self._convert(name, convert), np.float64)

    def line(self, row: int) -> int:
        """Number of the line in the file on which a row of the table stands."""
        return self.lines[row] if self.lines else self.first_row + row

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
                    f"{self.path}: row {self.line(i)}: '{name}' is '{cell}', not a number; "
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


def text_form(path: Path, kind: str) -> TextForm:
    """Form of a table: by its byte order mark or its bytes, its header, and its first numbers.

    UTF-8, UTF-16 with or without a mark, else Windows' Latin-1; tabs, semicolons or commas between
    cells; a decimal comma where numbers have commas and none has a point.

    Raises:
        DataError: the file is missing, or holds what is no text.
    """
    try:
        encoding = _encoding(path)
        with path.open(newline="", encoding=encoding) as file:
            header = next((line for line in file if line.strip()), "")
            delimiter = max("\t;,", key=header.count)
            cells = [
                c for row in islice(csv.reader(file, delimiter=delimiter), LOOKED_AT) for c in row
            ]
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it should be the {kind}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a text table ({error}); expected the {kind}") from None
    commas = any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)
    points = any(re.fullmatch(r"-?\d*\.\d+", cell) for cell in cells)
    return TextForm(encoding, delimiter, "," if commas and not points else ".")


def _encoding(path: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        head = file.read(1 << 16)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\0" in head:
            odd, even = head[1::2].count(0), head[::2].count(0)
            if max(odd, even) * 4 < len(head) // 2:
                raise OSError("it holds bytes that no text has")
            return "utf-16-le" if odd > even else "utf-16-be"
        file.seek(0)
        try:
            while chunk := file.read(1 << 20):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8-sig"


def read_table(
    path: Path,
    required: Sequence[str],
    kind: str,
    form: TextForm = TextForm(),
    keep: Callable[[list[str]], Collection[str]] | None = None,
    missing: Collection[str] = ("",),
    most: int | None = None,
) -> DelimitedTable:
    """Read a table whose first line names the columns.

    Args:
        path: the file.
        required: columns that must be there.
        kind: what the file should be.
        form: how it is written down; default: UTF-8, commas between cells.
        keep: the columns that are kept, out of those in the header; default: all.
        missing: cells, in small letters, that stand for no number.
        most: rows that are read; default: all.

    Raises:
        DataError: the file is missing, empty or not text, a row is short, or a required column is
            absent (another version of the format): the missing columns are named.
    """
    columns: dict[str, list[str]] = {}
    lines: list[int] = []
    try:
        with path.open(newline="", encoding=form.encoding) as file:
            reader = csv.reader(file, delimiter=form.delimiter)
            header = [name.strip() for name in next((row for row in reader if row), [])]
            _check_header(path, header, required, kind)
            first_row = reader.line_num + 1
            kept = header if keep is None else keep(header)
            places = {name: header.index(name) for name in dict.fromkeys(kept) if name}
            columns = {name: [] for name in places}
            for row in islice(reader, most):
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(
                        f"{path}: row {reader.line_num} has {len(row)} cells instead of "
                        f"{len(header)}; the file is truncated or damaged, export it again"
                    )
                lines.append(reader.line_num)
                for name, place in places.items():
                    columns[name].append(row[place])
    except FileNotFoundError:
        raise DataError(f"{path} is missing; it should be the {kind}") from None
    except (UnicodeError, csv.Error) as error:
        raise DataError(f"{path} is not a text table ({error}); expected the {kind}") from None
    follow = lines == list(range(first_row, first_row + len(lines)))
    return DelimitedTable(path, columns, first_row, () if follow else lines, form, missing)


def _check_header(path: Path, header: list[str], required: Sequence[str], kind: str) -> None:
    if not header:
        raise DataError(f"{path} is empty; expected the {kind}")
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path} is not the {kind} this version reads: missing columns {', '.join(missing)}; "
            f"found {', '.join(header)[:200]}; rename the columns that hold these, or export it "
            "again"
        )
