"""How a benchmark ends: its numbers in a file, its table and a closing line on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vergence.results.write import write_json


def report(file: Path, numbers: Any, table: str, closing: str) -> None:
    """Write the numbers, print the table in Markdown, and the closing line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, numbers)
    print(f"{table}\n\n{closing}; numbers: {file}")
