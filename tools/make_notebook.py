"""Write a tutorial's notebook, with its outputs, from its text.

    python tools/make_notebook.py tools/tutorials/NAME.md docs/tutorials/NAME.ipynb

The text is Markdown. A block of `python` is a cell, a block of `shell` a cell of `!COMMAND` lines,
a block of `bash` a `%%bash` cell, and `toml file=NAME` a cell that writes a file. A block of
`python check` runs, and is not in the notebook: it asserts what the text around it says.
`{{expression:.1f}}` in the text is replaced by its value at that place. The cells run in a
temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.run_notebook import outputs_of, run_cell

BLOCK = re.compile(r"^```(\S+)[ \t]*(.*?)\n(.*?)^```[ \t]*$\n?", re.MULTILINE | re.DOTALL)
VALUE = re.compile(r"\{\{(~?)(.+?)\}\}")
"""`~` leads a value that is another one in every run."""


@dataclass(frozen=True)
class Part:
    """A piece of a tutorial: `kind` is "markdown", "code", or "check", which readers do not see."""

    kind: str
    text: str


def parts(text: str) -> Iterator[Part]:
    """A tutorial's pieces in their order."""
    end = 0
    for block in BLOCK.finditer(text):
        if prose := text[end : block.start()].strip():
            yield Part("markdown", prose)
        end = block.end()
        language, label, body = block[1], block[2], block[3].rstrip("\n")
        if language == "shell":
            body = re.sub(r"^(?!#)(?=.)", "!", body, flags=re.MULTILINE)
        elif language == "bash":
            body = f"%%bash\n{body}"
        elif language == "toml":
            body = f"%%writefile {label.removeprefix('file=')}\n{body}"
        yield Part("check" if label == "check" else "code", body)
    if prose := text[end:].strip():
        yield Part("markdown", prose)


def cell(kind: str, text: str, number: int) -> dict[str, Any]:
    """A notebook's cell."""
    lines = text.splitlines(keepends=True)
    made = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A notebook of these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def executed(text: str) -> dict[str, Any]:
    """The notebook of a tutorial, its cells run here."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[dict[str, Any]] = []
    count = 0
    for part in parts(text):
        if part.kind == "markdown":
            told = VALUE.sub(lambda found: eval(f'f"""{{{found[2]}}}"""', names), part.text)
            cells.append(cell("markdown", told, len(cells)))
            continue
        try:
            value, printed = run_cell(part.text, names)
        except Exception as wrong:
            wrong.add_note(f"in this cell:\n{part.text}")
            raise
        if part.kind == "code":
            count += 1
            made = cell("code", part.text, len(cells))
            outputs = outputs_of(value, printed, count)
            cells.append(made | {"execution_count": count, "outputs": outputs})
    return notebook(cells)


def main() -> None:
    """Write a notebook."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("notebook", type=Path)
    asked = parser.parse_args()
    text, target = asked.text.read_text(encoding="utf-8"), asked.notebook.resolve()
    os.environ["MPLBACKEND"] = "agg"
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = executed(text)
        os.chdir(target.parent)
    written = json.dumps(made, indent=1, ensure_ascii=False)
    target.write_text(f"{written}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
