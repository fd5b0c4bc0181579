"""Writer of the tables in hand-written pages of docs/results, from CSV files.

    python -m tools.results_tables          # writes them
    python -m tools.results_tables --check  # exit code 1 where a table is not that of its CSV file

A page names a file of docs/results/tables between two markers; what stands between them is written:

    <!-- table: tables/robust_liars.csv -->
    <!-- end of table -->

Columns whose cells mostly begin with a number are aligned to the right, but for the first, which
names the rows. With `best=max` or `best=min` after the file's name the best number of each such
column is bold. Cells are Markdown, and are printed as they are in the file.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
BEGIN, END = "<!-- table:", "<!-- end of table -->"
BLOCK = re.compile(
    rf"^{BEGIN} (\S+?\.csv)(?: best=(max|min))? -->\n(?:(?!{BEGIN}).)*?^{END}$", re.M | re.S
)
NUMBER = re.compile(r"[(<x ]*([+\-\u2212]?[\d,]*\.?\d+(?:e[+-]?\d+)?)")
"""A number that a cell begins with; before it may stand a bracket, "<" or "x"."""
RUN = "python -m tools.results_tables"


class TableError(ValueError):
    """A CSV file or a marker that no table can be made of."""


def read(path: Path) -> list[list[str]]:
    """The rows of a CSV file, names of columns first.

    Raises:
        TableError: the file is missing or has no rows, a column has no name or that of another, or
            a row has more or fewer cells than there are columns.
    """
    if not path.is_file():
        raise TableError(f"{path}: no such file; a marker names a CSV file below docs/results")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2:
        raise TableError(f"{path}: {len(rows)} lines; need names of columns and a row")
    head = rows[0]
    if "" in head or len(set(head)) < len(head):
        raise TableError(f"{path}: columns {head}; give each a name of its own")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise TableError(f"{path}: row {number} has {len(row)} cells, allowed is {len(head)}")
        if any("\n" in cell for cell in row):
            raise TableError(f"{path}: row {number} has a cell of several lines; write it in one")
    return rows


def markdown(rows: Sequence[Sequence[str]], best: str | None = None) -> str:
    """A table in Markdown; `best` is "max", "min", or None for no bold cells."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    right = [at > 0 and _numeric([row[at] for row in body]) for at in range(len(head))]
    for at in (at for at, numbers in enumerate(right) if best and numbers):
        found = {n: m for n, row in enumerate(body) if (m := NUMBER.match(row[at]))}
        values = {n: _value(match[1]) for n, match in found.items()}
        wanted = max(values.values()) if best == "max" else min(values.values())
        for n in (n for n, value in values.items() if value == wanted):
            said, (begin, end) = body[n][at], found[n].span(1)
            body[n][at] = f"{said[:begin]}**{said[begin:end]}**{said[end:]}"
    rule = "|".join("---:" if numbers else "---" for numbers in right)
    return "\n".join([_line(head), f"|{rule}|", *map(_line, body)])


def page(text: str, folder: Path = RESULTS) -> str:
    """The text of a page with its tables as their CSV files have them.

    Raises:
        TableError: a block is not well formed, or its file is not.
    """
    made = BLOCK.sub(lambda found: _block(found, folder), text)
    count = len(BLOCK.findall(text))
    if not text.count(BEGIN) == text.count(END) == count:
        raise TableError(
            f"{text.count(BEGIN)} tables begin, {text.count(END)} end, {count} are well formed; "
            f"write `{BEGIN} tables/FILE.csv -->` or `{BEGIN} tables/FILE.csv best=max -->` (or "
            f"min), and `{END}`, each on a line of its own"
        )
    return made


def faults(folder: Path = RESULTS) -> Iterator[str]:
    """Each table that is not that of its CSV file, and each file that no page shows: what to do."""
    shown = set()
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        try:
            page(text, folder)
        except TableError as error:
            yield f"{path.name}: {error}"
            continue
        for found in BLOCK.finditer(text):
            shown.add((folder / found[1]).resolve())
            if found[0] != _block(found, folder):
                yield (
                    f"{path.name}: the table differs from {found[1]}; write the numbers into the "
                    f"CSV file, not into the page, and run {RUN}"
                )
    for left in sorted({each.resolve() for each in folder.glob("tables/*.csv")} - shown):
        yield f"tables/{left.name}: no page shows it; name it in a marker or remove the file"


def _block(found: re.Match[str], folder: Path) -> str:
    name, best = found[1], found[2]
    begin = found[0].partition("\n")[0]
    table = markdown(read(folder / name), best)
    return f"{begin}\n\n{table}\n\n[CSV]({name})\n\n{END}"


def _numeric(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return 2 * sum(NUMBER.match(cell) is not None for cell in filled) > len(filled)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("\u2212", "-"))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(folder: Path = RESULTS) -> int:
    """Write the tables, or say which ones are not those of their files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    if not parser.parse_args().check:
        for path in sorted(folder.glob("*.md")):
            text = path.read_text(encoding="utf-8")
            try:
                made = page(text, folder)
            except TableError:
                continue  # said below
            if made != text:
                path.write_text(made, encoding="utf-8")
                sys.stdout.write(f"docs/results/{path.name}\n")
    found = list(faults(folder))
    sys.stderr.write("".join(f"docs/results/{fault}\n" for fault in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
