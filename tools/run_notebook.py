"""Execute a notebook's cells in one fresh process, without Jupyter.

    python tools/run_notebook.py NOTEBOOK [--write]

The last expression of a cell is its output, as in Jupyter. With --write the outputs are stored in
the notebook; else a cell that fails ends the process with its traceback.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_cell(text: str, names: dict[str, Any]) -> tuple[Any, str]:
    """What the last expression of a cell gives, and what the cell prints."""
    parsed = ast.parse(text)
    last = parsed.body.pop() if parsed.body and isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return value, printed.getvalue()


def outputs_of(value: Any, printed: str, count: int) -> list[dict[str, Any]]:
    """A cell's outputs as notebooks store them."""
    found: list[dict[str, Any]] = []
    if printed:
        lines = printed.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
        found.append(
            {
                "data": dict(sorted(shown.items())),
                "execution_count": count,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return found


def main() -> None:
    """Run a notebook."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    notebook = json.loads(asked.notebook.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        value, printed = run_cell("".join(cell["source"]), names)
        cell |= {"execution_count": count, "outputs": outputs_of(value, printed, count)}
        sys.stdout.write(f"{printed}{'' if value is None else f'{value!r}'}\n")
    if asked.write:
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        asked.notebook.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
