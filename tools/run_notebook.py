"""Execute a notebook's cells in one fresh process, without Jupyter.

    python tools/run_notebook.py NOTEBOOK [--write]

The last expression of a cell is its output, as in Jupyter, unless a semicolon ends it. Figures of
pyplot that a cell leaves open are its outputs too, `!COMMAND` is a line for the shell, and a cell
may begin with `%%bash` or `%%writefile FILE`. With --write the outputs are stored in the notebook;
else a cell that fails ends the process with its traceback.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

COLOURS = 64
DPI = 64
"""Of pictures, as few colours: a notebook stays below 150 KB."""


def run_cell(text: str, names: dict[str, Any]) -> tuple[Any, str]:
    """What the last expression of a cell gives, and what the cell prints."""
    parsed = ast.parse(_without_magic(text))
    last = parsed.body.pop() if parsed.body and isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        names["_shell"] = shell
        exec(compile(parsed, "<cell>", "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            code = compile(ast.Expression(last.value), "<cell>", "eval", dont_inherit=True)
            value = eval(code, names)
    if text.rstrip().endswith(";"):
        value = None
    return value, printed.getvalue()


def _without_magic(text: str) -> str:
    """A cell as plain Python."""
    first, _, rest = text.partition("\n")
    if first.startswith("%%writefile "):
        name = first.split()[1]
        return (
            f"from pathlib import Path as _Path\n_Path({name!r}).write_text({rest!r}, 'utf-8')\n"
            f"print('Writing {name}')"
        )
    if first == "%%bash":
        return f"_shell({rest!r})"
    return re.sub(r"^!(.+)$", lambda line: f"_shell({line[1]!r})", text, flags=re.MULTILINE)


def shell(command: str) -> None:
    """Run a command with this Python's programs on the path, and print what it says.

    Raises:
        RuntimeError: it failed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env=os.environ | {"PATH": path, "COLUMNS": "110"},
        check=False,
    )
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stdout}")


def outputs_of(value: Any, printed: str, count: int) -> list[dict[str, Any]]:
    """A cell's outputs as notebooks store them, without the paths of this machine."""
    found: list[dict[str, Any]] = []
    if printed:
        lines = anywhere(printed).splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        found.append(
            {
                "data": dict(sorted(_shown(value).items())),
                "execution_count": count,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    for png in _open_figures():
        data = {"image/png": png}
        found.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return found


def _shown(value: Any) -> dict[str, Any]:
    png = value._repr_png_() if hasattr(value, "_repr_png_") else None
    if png is not None:
        return {"image/png": _text(png), "text/plain": [anywhere(repr(value))]}
    shown = {"text/plain": anywhere(repr(value)).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = anywhere(value._repr_html_()).splitlines(keepends=True)
    return shown


def _open_figures() -> list[str]:
    """PNGs of the figures that are open, which are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    found = []
    for number in pyplot.get_fignums() if pyplot else ():
        held = io.BytesIO()
        pyplot.figure(number).savefig(held, format="png", dpi=DPI, bbox_inches="tight")
        pyplot.close(number)
        found.append(_text(held.getvalue()))
    return found


def _text(png: bytes) -> str:
    """A picture as notebooks store it, in so few colours that photographs stay small."""
    held = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(held, "PNG", optimize=True)
    return base64.b64encode(held.getvalue()).decode("ascii") + "\n"


def anywhere(text: str) -> str:
    """A text without the working directory, and without names of temporary folders."""
    scratch = re.escape(tempfile.gettempdir()) + r"/vergence-\w+"
    return re.sub(scratch, "a temporary folder", text.replace(f"{Path.cwd()}/", ""))


def main() -> None:
    """Run a notebook."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    os.environ["MPLBACKEND"] = "agg"
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
