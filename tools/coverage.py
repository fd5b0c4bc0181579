"""Count of the rows of `docs/reference/coverage.csv`, with a check of what each gives as evidence.

    python tools/coverage.py            # the counts; exit code 1 where a row is wrong
    python tools/coverage.py --list     # and every row that is not done

A row is `id,priority,verdict,evidence`. Pieces of evidence are separated by semicolons: a command
(`vergence ...` or `python -m ...`), or a file of the repository, with `::name` for a test or a
function in it and `#heading` for a section of a page. A row that is `decided against` names the
section that says why. An `open` row ends in a piece `missing: ...`, in words.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import io
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from cyclopts import CycloptsError

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from vergence.cli.app import app  # noqa: E402
from vergence.errors import ConfigError  # noqa: E402
from vergence_papers.catalog import ELSEWHERE, MEASURED  # noqa: E402
from vergence_papers.command import tables  # noqa: E402

TABLE = ROOT / "docs" / "reference" / "coverage.csv"
COLUMNS = ["id", "priority", "verdict", "evidence"]
DONE, AGAINST, OPEN = VERDICTS = ("done", "decided against", "open")
PRIORITIES = ("P0", "P1", "P2")
MISSING = "missing:"
FILES = ("benchmarks/", "docs/", "experiments/", "papers/", "src/", "tests/", "tools/")


class Row(NamedTuple):
    """One row of the table."""

    id: str
    priority: str
    verdict: str
    evidence: str

    @property
    def pieces(self) -> list[str]:
        """Pieces of evidence."""
        return [piece.strip() for piece in self.evidence.split(";") if piece.strip()]


def read(path: Path) -> list[Row]:
    """Rows of a table.

    Raises:
        ValueError: it has other columns.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        if table.fieldnames != COLUMNS:
            raise ValueError(f"{path} has the columns {table.fieldnames}; they must be {COLUMNS}")
        return [Row(*(row[name] or "" for name in COLUMNS)) for row in table]


def faults(rows: list[Row]) -> Iterator[str]:
    """What is wrong in the rows, one line each."""
    for group, numbers in sorted(_numbered(rows).items()):
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{group}: its rows are not numbered from 1 without gaps, each once, in order"
    for row in rows:
        for fault in _row_faults(row):
            yield f"{row.id}: {fault}"


def _numbered(rows: list[Row]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        number = re.fullmatch(r"([A-Z])(\d\d)", row.id)
        group, at = (number[1], int(number[2])) if number else (f"'{row.id}'", 0)
        found.setdefault(group, []).append(at)
    return found


def _row_faults(row: Row) -> Iterator[str]:
    if row.priority not in PRIORITIES:
        yield f"its priority is '{row.priority}'; it is one of {', '.join(PRIORITIES)}"
    if row.verdict not in VERDICTS:
        yield f"its verdict is '{row.verdict}'; it is one of {', '.join(VERDICTS)}"
    said = [piece for piece in row.pieces if piece.startswith(MISSING)]
    shown = [piece for piece in row.pieces if not piece.startswith(MISSING)]
    if (row.verdict == OPEN) != (len(said) == 1 and row.pieces[-1] == said[0]):
        yield f"an open row, and no other, ends in what is '{MISSING} ...'"
    if row.verdict != OPEN and not shown:
        yield "it gives no evidence"
    if row.verdict == AGAINST and not any(
        p.startswith("docs/explanation/decisions/") for p in shown
    ):
        yield "it was decided against, and names no section of docs/explanation/decisions"
    for piece in shown:
        fault = command_fault(piece) if " " in piece else file_fault(piece)
        if fault:
            yield f"'{piece}': {fault}"


def file_fault(piece: str) -> str:
    """Reason why a file, a test in it or a section of it is no evidence; "" if it is."""
    path, _, name = piece.partition("::")
    path, _, anchor = path.partition("#")
    place = ROOT / path
    if not path.startswith(FILES) or not place.is_file():
        return "no such file in the repository"
    text = place.read_text(encoding="utf-8") if name or anchor else ""
    if name:
        tree = ast.walk(ast.parse(text))
        kinds = (ast.FunctionDef, ast.ClassDef)
        if not any(isinstance(node, kinds) and node.name == name for node in tree):
            return f"nothing in it is called {name}"
    if anchor and anchor not in anchors(text):
        return f"it has no section #{anchor}"
    return ""


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def command_fault(piece: str) -> str:
    """Reason why a command is no evidence: something that it names is not there; "" if all is."""
    program, *words = shlex.split(piece)
    for word in words:
        if word.startswith(FILES) and not (ROOT / word).exists():
            return f"there is no {word}"
    if program == "python" and words[:1] == ["-m"]:
        return "" if find_spec(words[1]) else f"there is no module {words[1]}"
    if program == "python":
        return "" if (ROOT / words[0]).is_file() else f"there is no {words[0]}"
    if program != "vergence":
        return "it is neither a command of this software nor a file"
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return " ".join(str(error).split())
    return _table_fault(words[1:]) if words[0] == "reproduce" else ""


def _table_fault(words: list[str]) -> str:
    named = [word for word in words if "/" in word and word not in {**MEASURED, **ELSEWHERE}]
    try:
        tables(named) if named else []
    except ConfigError as error:
        return str(error)
    return ""


def counts(rows: list[Row]) -> str:
    """The number of rows by priority and verdict."""
    found = Counter((row.priority, row.verdict) for row in rows)
    lines = [f"{'':<4}" + "".join(f"{verdict:>17}" for verdict in (*VERDICTS, "all"))]
    for priority in PRIORITIES:
        cells = [found[priority, verdict] for verdict in VERDICTS]
        lines.append(f"{priority:<4}" + "".join(f"{n:>17}" for n in (*cells, sum(cells))))
    cells = [sum(found[priority, verdict] for priority in PRIORITIES) for verdict in VERDICTS]
    lines.append(f"{'all':<4}" + "".join(f"{n:>17}" for n in (*cells, sum(cells))))
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Print counts and faults; return the exit code."""
    parser = argparse.ArgumentParser(description="Count the rows of coverage.csv.")
    parser.add_argument("--list", action="store_true", help="print the rows that are not done")
    parser.add_argument("--table", type=Path, default=TABLE)
    given = parser.parse_args(words)
    rows = read(given.table)
    print(counts(rows))
    if given.list:
        for row in (row for row in rows if row.verdict != DONE):
            print(f"{row.id} {row.priority} {row.verdict}: {row.pieces[-1]}")
    wrong = list(faults(rows))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
