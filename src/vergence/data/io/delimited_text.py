"""Delimited text with a header row, read by column name; errors name file, row and column.

All readers of text tables use this module. So encoding, cell separator, decimal sign, comments
above the header, empty cells and damaged bytes are treated alike in all of them.

Used in `data`, `engine` and `video`.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vergence.errors import DataError, meant

MISSING = ("", "-", ".", "nan", "na", "n/a", "null", "none")
"""Cells that mean that there is no number, in small letters; capitals mean the same."""
YES = ("valid", "true", "yes", "ok")
NO = ("invalid", "false", "no", *MISSING)
FORM_LINES = 2000
"""Number of a table's first lines from which its written form is detected."""
# The difference of two such times still fits into 64 bits.
MAX_TIME = 2**62
"""Largest absolute value of a time, in its own unit."""
COMMENTS = ("#", "%", "//", "sep=")
"""Beginnings of comment lines above a header: of SMI (##), iMotions, MATLAB and Excel."""
EXPONENT = re.compile(r"[-+]?\d(?:[.,]?(\d*))[eE]\+?(\d+)")
NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d([eE][-+]?\d+)?\s*")
ROUNDED_EXPONENT, FULL_DIGITS = 11, 10
"""Integers from 1E+11 on have lost digits if no cell with an exponent has `FULL_DIGITS` digits.

A spreadsheet writes large integers in this way.
"""


@dataclass(frozen=True)
class TextForm:
    """Written form of a text table: encoding, cell separator, decimal sign, and lines to skip.

    `skipped` is the number of lines above the header.
    """

    encoding: str = "utf-8-sig"
    delimiter: str = ","
    decimal: str = "."
    skipped: int = 0

    def number(self, cell: str) -> float:
        """Return the number in a cell; NaN if the cell holds one of the words in `MISSING`.

        Raises:
            ValueError: the cell does not hold a number.
        """
        try:
            return float(cell.replace(",", ".") if self.decimal == "," else cell)
        except ValueError:
            if cell.strip().lower() in MISSING:
                return np.nan
            raise


@dataclass(frozen=True)
class DelimitedTable:
    """A text table: column name -> cells; `lines` holds each row's line number in the file."""

    path: Path
    columns: dict[str, list[str]]
    lines: Sequence[int]
    form: TextForm = TextForm()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def select(self, rows: Sequence[int]) -> DelimitedTable:
        """Return a table of the rows with the numbers `rows`."""
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[i] for i in rows])

    def text(self, name: str) -> list[str]:
        """Return the cells of a column as text, unchanged."""
        return self.columns[name]

    def floats(self, name: str) -> NDArray[np.float64]:
        """Return a column as float64; a cell with one of the words in `MISSING` becomes NaN.

        Raises:
            DataError: a cell is not a number, or has a sign that may separate thousands.
        """
        self._refuse_thousands(name)
        return np.array(self.convert(name, self.form.number), np.float64)

    def line(self, row: int) -> int:
        """Return the line number in the file of a row, given by its number in the table."""
        return self.lines[row]

    def integers(self, name: str) -> NDArray[np.int64]:
        """Return a column as int64, exact to the last digit.

        Raises:
            DataError: a cell is not an integer.
        """
        self._refuse_rounded(name)
        return np.array(self.convert(name, int), np.int64)

    def ticks(self, name: str) -> NDArray[Any]:
        """Return a column of times: exact int64 if all cells are integers, else float64.

        Raises:
            DataError: a cell holds no time, or a spreadsheet has rounded it.
        """
        self._refuse_rounded(name)
        # Nanoseconds since 1970 have more digits than a float64: int first, float where it fails.
        ticks: NDArray[Any]
        try:
            ticks = np.array([int(cell) for cell in self.text(name)], np.int64)
        except (ValueError, OverflowError):
            ticks = self.floats(name)
        # Not `abs`, which overflows; NaN fails both comparisons.
        bad = ~((ticks >= -MAX_TIME) & (ticks <= MAX_TIME))
        self.refuse(name, bad, "needs a time; remove the row, or export the file again")
        return ticks

    def flags(self, name: str, valid_from: float = 0.5) -> NDArray[np.bool_]:
        """Return a column as bool: true for numbers from `valid_from` up, and for words in `YES`.

        Raises:
            DataError: a cell holds neither a number nor a word in `YES` or `NO`; or a number above
                1, such as a code or a percentage, where `valid_from` is at most 1.
        """

        def convert(cell: str) -> bool:
            word = cell.strip().lower()
            if word in YES + NO:
                return word in YES
            number = self.form.number(word)
            if number > 1 >= valid_from:
                raise ValueError
            return number >= valid_from

        needs = (
            f"needs a number, or one of {', '.join(YES)} or {', '.join(NO[:3])}: from 0 (lost) to "
            "1, or percent with valid_from = 60 or so; codes of which 0 is best are not read"
        )
        return np.array(self.convert(name, convert, needs), bool)

    def convert(self, name: str, kind: Callable[[str], Any], needs: str = "") -> list[Any]:
        """Return the result of the function `kind` for each cell of a column.

        `needs` says in the error message what a cell must be.

        Raises:
            DataError: `kind` raised a ValueError.
        """
        out = []
        for i, cell in enumerate(self.columns[name]):
            try:
                out.append(kind(cell))
            except ValueError:
                signs = re.search(r"\d[.,' \u00a0]\d", cell)
                how = ", with one decimal sign and none between thousands" if signs else ""
                fault = needs or f"not a number; export the file again{how}"
                raise self._fault(name, i, fault) from None
        return out

    def _refuse_rounded(self, name: str) -> None:
        """Check that a column has no numbers such as 1,72E+18, which a spreadsheet has rounded.

        Raises:
            DataError: a cell holds such a number.
        """
        matches = [EXPONENT.fullmatch(cell.strip()) for cell in self.text(name)]
        large = [match is not None and int(match[2]) >= ROUNDED_EXPONENT for match in matches]
        # A program that writes exponents with full precision has some row with all its digits.
        if max((len(m[1]) for m in matches if m), default=FULL_DIGITS) + 1 < FULL_DIGITS:
            self.refuse(
                name,
                large,
                "rounded by a spreadsheet, its last digits are lost: export the file again and do "
                "not save it from a spreadsheet",
            )

    def _refuse_thousands(self, name: str) -> None:
        """Check that the decimal sign of a column cannot be a sign between thousands.

        In a column of 1,250 and 998, for example, the comma may separate thousands.

        Raises:
            DataError: the sign may separate thousands.
        """
        # Read as a decimal sign it would make 1.25 of 1,250 without a fault.
        sign, between = self.form.decimal, self.form.delimiter
        if sign == "." and between != ";":
            return
        cells = [cell.strip() for cell in self.text(name)]
        whole = [cell for cell in cells if re.fullmatch(r"-?\d+", cell)]
        if (whole or between == ",") and all(len(cell.lstrip("-")) < 4 for cell in whole):
            group = re.compile(rf"-?[1-9]\d{{0,2}}\{sign}\d{{3}}")
            grouped = [sign in cell for cell in cells]
            if all(group.fullmatch(c) for c, g in zip(cells, grouped, strict=True) if g):
                fault = f"and '{sign}' may stand between thousands: export the file again without"
                self.refuse(name, grouped, f"{fault} signs between thousands")

    def refuse(self, name: str, bad: Sequence[bool] | NDArray[np.bool_], fault: str) -> None:
        """Check that no cell of a column is bad; `bad` holds a bool for each row.

        Raises:
            DataError: a cell is bad; the message has the first bad cell, and the text `fault`.
        """
        if np.any(bad):
            raise self._fault(name, int(np.argmax(bad)), fault)

    def _fault(self, name: str, row: int, fault: str) -> DataError:
        cell = self.text(name)[row]
        return DataError(
            f"{self.path}: row {self.line(row)}: '{name}' is '{cell}', {fault}", code="bad-value"
        )


def text_lines(path: Path, what: str) -> Iterator[str]:
    """Yield the lines of a text file in any encoding, with their line ends.

    Damaged bytes become hexadecimal escapes, because a reader may not need their line. `what` is
    what the file should be, for the message.

    Raises:
        DataError: the file is missing or not text.
    """
    with _open_text(path, what, _detect_encoding(path, what)) as file:
        yield from file


def listed_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a list, without spaces at their ends; a comment becomes an empty line.

    Raises:
        DataError: the list is missing, empty or not text.
    """
    lines: list[str] = []
    # The message below serves a missing, an empty and a binary file alike.
    with suppress(DataError):
        lines = [line.strip() for line in text_lines(path, what)]
    if not any(lines):
        raise DataError(
            f"{what} {path} is missing or not text; copy it again", code="file-unreadable"
        )
    return ["" if line.startswith("#") else line for line in lines]


def delimited_rows(path: Path, kind: str) -> tuple[TextForm, list[list[str]]]:
    """Return the written form of a table without a header row, and the cells of its rows.

    Raises:
        DataError: the file is missing or not a text table.
    """
    form = detect_form(path, kind)
    with _open_text(path, kind, form.encoding) as file:
        rows = [row for _, row in _rows(file, form) if any(row)]
    return form, [row for row in rows if not row[0].startswith(COMMENTS)]


@contextmanager
def _open_text(path: Path, kind: str, encoding: str) -> Iterator[TextIOWrapper]:
    # One damaged byte in a column that nobody reads must not cost the whole recording.
    try:
        with path.open(newline="", encoding=encoding, errors="backslashreplace") as file:
            yield cast("TextIOWrapper", file)
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing; it should be the {kind}", code="file-missing"
        ) from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(
            f"{path} is not a text table ({error}); expected the {kind}", code="file-unreadable"
        ) from None


def _detect_encoding(path: Path, kind: str) -> str:
    """Return the encoding of a text file.

    Files with a UTF-16 byte order mark or with zero bytes are UTF-16, others UTF-8. If more
    characters beyond ASCII are damaged in UTF-8 than whole, the file is cp1252 (Windows' Latin-1).

    Raises:
        DataError: the file is missing, or is not text.
    """
    whole = damaged = 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with _open_text(path, kind, "latin-1") as text:
        file = text.buffer
        head = bytes(file.read(1 << 16))
        marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if marked or b"\0" in head:
            # In UTF-16 every second byte of a Latin letter is zero: which one tells the byte order.
            odd, even = head[1::2].count(0), head[::2].count(0)
            if max(odd, even) < (1 if marked else len(head) // 8):
                raise OSError("it holds bytes that no text has")
            return "utf-16" if marked else "utf-16-le" if odd > even else "utf-16-be"
        while head:
            if not head.isascii():
                decoded = decoder.decode(head)
                bad = decoded.count("\ufffd")
                damaged, whole = damaged + bad, whole + sum(c > "\x7f" for c in decoded) - bad
            head = bytes(file.read(1 << 20))
    return "cp1252" if damaged > whole else "utf-8-sig"


def detect_form(path: Path, kind: str) -> TextForm:
    """Detect the written form of a table from its bytes and its first lines.

    The separator is the tab, semicolon or comma that gives most lines the same number of cells. The
    header is the first line with this number of cells. If that line holds numbers, the header may
    be the comment line just above, if it has this number of cells too. The decimal sign is the
    comma if numbers have commas and none has a point.

    Raises:
        DataError: the file is missing, or is not text.
    """
    encoding = _detect_encoding(path, kind)
    with _open_text(path, kind, encoding) as file:
        lines = list(islice(file, FORM_LINES))
        filled = [i for i, line in enumerate(lines) if line.strip()]
        body = [i for i in filled if not lines[i].lstrip('"').startswith(COMMENTS)] or filled[-1:]
        shapes = []
        for delimiter in "\t;,":
            reader = csv.reader([lines[i] for i in body], delimiter=delimiter)
            rows = [(row, reader.line_num) for row in reader]
            widths = Counter(len(row) for row, _ in rows).items()
            count, width = max(((count, width) for width, count in widths), default=(0, 0))
            shapes.append((count * (width > 1), width, delimiter, rows))
        _, width, delimiter, rows = max(shapes, key=lambda shape: shape[:2])
        first = next((k for k, (row, _) in enumerate(rows) if len(row) == width), 0)
        if rows and any(map(NUMBER.fullmatch, rows[first][0])):
            first = 0
        skipped = body[rows[first - 1][1] if first else 0] if body else 0
        # Some exports comment the header out: it is then the line just above the numbers.
        above = [lines[i] for i in filled if i < skipped][-1:]
        if above and any(map(NUMBER.fullmatch, rows[first][0])):
            named = len(next(csv.reader(above, delimiter=delimiter))) == width
            skipped = lines.index(above[0]) if named else skipped
    cells = [cell for row, _ in rows[first:] for cell in row]
    commas = any(re.fullmatch(r"-?\d+,\d+", cell) for cell in cells)
    points = any(re.fullmatch(r"-?\d*\.\d+", cell) for cell in cells)
    return TextForm(encoding, delimiter, "," if commas and not points else ".", skipped)


def _rows(file: Iterator[str], form: TextForm) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each row from the header on."""
    above = len(list(islice(file, form.skipped)))
    reader = csv.reader(file, delimiter=form.delimiter)
    for row in reader:
        yield above + reader.line_num, row


def read_table(
    path: Path,
    required: Sequence[str],
    kind: str,
    choose_columns: Callable[[list[str]], Collection[str]] | None = None,
    max_rows: int | None = None,
) -> DelimitedTable:
    """Read a table with a header row; its written form is detected (`detect_form`).

    Empty rows, comments, and messages of the tracker between rows are left out.

    Args:
        path: the file.
        required: columns that must be there.
        kind: what the file should be, for error messages.
        choose_columns: function from the header to the columns to read; default: all.
        max_rows: most lines to read below the header; default: all.

    Raises:
        DataError: the file is missing, empty or not text, a row has too few cells, or a required
            column is absent; the message names absent columns.
    """
    form = detect_form(path, kind)
    lines: list[int] = []
    with _open_text(path, kind, form.encoding) as file:
        rows = _rows(file, form)
        header = [name.strip() for name in next((row for _, row in rows if row), [])]
        _check_header(path, header, required, kind)
        names = header if choose_columns is None else choose_columns(header)
        places = {name: header.index(name) for name in dict.fromkeys(names) if name}
        columns: dict[str, list[str]] = {name: [] for name in places}
        for number, row in islice(rows, max_rows):
            if not any(map(str.strip, row)):
                continue
            # Some exports end their rows with empty cells; text beyond the header is damage.
            fits = len(row) >= len(header) and not any(row[len(header) :])
            if row[0].startswith(COMMENTS) and not (fits and row[1:]):
                continue
            if not fits:
                # A row with a message of SMI in place of a sample may have fewer cells.
                if "MSG" in row:
                    continue
                raise DataError(
                    f"{path}: row {number} has {len(row)} cells instead of {len(header)}; the file "
                    "is truncated or damaged, export it again",
                    code="file-unreadable",
                )
            lines.append(number)
            for name, place in places.items():
                columns[name].append(row[place])
    return DelimitedTable(path, columns, lines, form)


def _check_header(path: Path, header: list[str], required: Sequence[str], kind: str) -> None:
    if not header:
        raise DataError(f"{path} is empty; expected the {kind}", code="file-unreadable")
    if missing := [name for name in required if name not in header]:
        raise DataError(
            f"{path} is not the {kind} this version reads: missing columns {', '.join(missing)}"
            f"{meant(missing[0], header)}; found {', '.join(header)[:200]}; rename the columns "
            "that hold these, or export it again",
            code="file-layout",
        )
