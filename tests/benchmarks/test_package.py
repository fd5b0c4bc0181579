"""Benchmarks are no part of the package: it needs none of them, and each can be started."""

import ast
import subprocess
import sys
from pathlib import Path
from runpy import run_module

import pytest

import benchmarks
from tests.cli.commands import called
from tests.conftest import ROOT

HOME = ROOT / "benchmarks"
WITHOUT_HELP = {
    "__init__",
    "make_channel_statistics",
    "make_frozen_weights",
    "make_osie_sample",
    "split",
    "stock_flower",
}
SCRIPTS = sorted({path.stem for path in HOME.glob("*.py")} - WITHOUT_HELP)


def test_benchmarks_are_those_of_this_checkout():
    """Other distributions install a package of this name."""
    assert Path(benchmarks.__file__).parent == HOME


@pytest.mark.slow
def test_the_package_needs_no_benchmark():
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "benchmarks" in text else ():
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            assert all(name.partition(".")[0] != "benchmarks" for name in named), path


@pytest.mark.slow
def test_it_is_started_from_anywhere_else_by_its_checkout(tmp_path):
    """The processes that it starts find it, too: see `study.importable`."""
    from benchmarks.bench.study import importable

    command = [sys.executable, "-m", "benchmarks.bench", "gaze16"]
    done = subprocess.run(
        command, cwd=tmp_path, env=importable(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "no workload 'gaze16' (did you mean 'gaze15'?)" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_takes(name, monkeypatch):
    """In this process: most of a start is the import of what another script has imported."""
    module = f"benchmarks.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    said = called(lambda: run_module(module, run_name="__main__", alter_sys=True), module, "--help")
    assert said.code == 0, said.err
    assert said.out.startswith("usage:"), said.out
