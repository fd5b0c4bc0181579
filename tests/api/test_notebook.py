"""The first notebook: few lines, and it runs where only the wheel is installed."""

import ast
import json
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.installed import installed_wheel

NOTEBOOK = ROOT / "examples" / "first_federation.ipynb"
LINES = 12
INSTALLED = """
import runpy, sys
sys.path.insert(0, {site!r})
import vergence
assert vergence.__file__.startswith({site!r}), vergence.__file__
sys.argv = ["run_notebook.py", {notebook!r}]
runpy.run_path({runner!r}, run_name="__main__")
"""


def cells():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def test_it_takes_twelve_lines_and_one_package():
    lines = [line for cell in cells() for line in cell.splitlines() if line.strip()]
    assert len(lines) <= LINES
    named = [
        node
        for cell in cells()
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    imported = {
        alias.name for node in named if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module for node in named if isinstance(node, ast.ImportFrom)}
    assert imported == {"numpy", "torch", "vergence"}
    whole = "\n".join(cells())
    for wanted in ("FedPer()", "run.scores", "run.model(", "vg.compare(", "FedAvg()"):
        assert wanted in whole


def test_its_outputs_are_stored_for_readers():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    shown = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert [sorted(data) for data in shown] == [
        ["text/html", "text/plain"],
        ["text/plain"],
        ["text/html", "text/plain"],
    ]
    assert "FedPer" in "".join(shown[2]["text/html"])


@pytest.mark.slow
def test_it_runs_from_an_installed_wheel_outside_the_checkout(tmp_path):
    """The wheel is built from a copy, installed into a folder, and run in isolated mode there."""
    site, away = installed_wheel(tmp_path, "samples"), tmp_path / "away"
    assert (site / "vergence" / "py.typed").is_file()
    away.mkdir()
    for path in (NOTEBOOK, ROOT / "tools" / "run_notebook.py"):
        shutil.copy(path, away)
    code = INSTALLED.format(site=str(site), notebook=NOTEBOOK.name, runner="run_notebook.py")
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=away, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "test_loss" in done.stdout
    assert "Linear(in_features=4, out_features=9" in done.stdout
    assert "Paired differences in test loss, person by person" in done.stdout
