"""Text tables, printed three ways: on a console of any width, in Markdown, in CSV.

Used in most packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.core.files import csv_of

Record = Mapping[str, Any]
"""One CSV line: column -> value at full precision; None and NaN are empty."""


@dataclass(frozen=True)
class TextTable:
    """A table of printed cells under a heading.

    The first `keys` columns name the line. If a console is too narrow, the table is printed in
    parts, and these columns are repeated in each part. `dim` has the numbers of the lines that are
    printed faintly, `notes` the sentences below the table, and `records` the rows of a CSV file
    with the same content.
    """

    heading: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    keys: int = 1
    dim: frozenset[int] = frozenset()
    notes: Sequence[str] = ()
    records: Sequence[Record] = ()

    def show(self, console: Console) -> None:
        """Print the table, in as few parts as the console's width allows."""
        console.print()
        console.print(Text(self.heading, style="bold"), soft_wrap=True)
        # A table is measured on a wide console, as a narrow one would cut its cells.
        free = console.options.update(width=1000)
        rest = list(range(self.keys, len(self.heads)))
        while rest:
            take = len(rest)
            while take > 1:
                wide = console.measure(self._grid(rest[:take]), options=free).maximum
                if wide <= console.width:
                    break
                take -= 1
            console.print(self._grid(rest[:take]))
            rest = rest[take:]
        for note in self.notes:
            console.print(Text(note))

    def _grid(self, columns: Sequence[int]) -> Table:
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        shown = [*range(self.keys), *columns]
        for i in shown:
            grid.add_column(
                self.heads[i], justify="left" if i < self.keys else "right", no_wrap=True
            )
        for number, line in enumerate(self.lines):
            style = "dim" if number in self.dim else ""
            grid.add_row(*(Text(line[i], style=style) for i in shown))
        return grid

    def markdown(self) -> str:
        """Return heading, table and notes in Markdown."""
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"## {self.heading}\n\n{markdown_table(self.heads, self.lines, self.keys)}{notes}"

    def csv(self) -> str:
        """Return the records as CSV, with numbers at full precision."""
        return csv_text(self.records)


def markdown_table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], keys: int = 1, rule: str = "---:"
) -> str:
    """Return a table in Markdown; `rule` aligns all columns except the first `keys` ones."""
    rules = ["---"] * keys + [rule] * (len(heads) - keys)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rules, *lines))


def csv_text(records: Sequence[Record]) -> str:
    """Return records as CSV, with numbers at full precision."""
    heads = list(dict.fromkeys(key for record in records for key in record))
    return csv_of([heads, *([_full(record.get(key)) for key in heads] for record in records)])


def _full(value: Any) -> str:
    if value is None or value != value:
        return ""
    return repr(value) if isinstance(value, float) else str(value)
