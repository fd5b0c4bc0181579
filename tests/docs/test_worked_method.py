"""CONTRIBUTING: its first page is short, and its method, pasted as printed, leaves tests green."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.docs.pages import blocks

PAGE = ROOT / "CONTRIBUTING.md"
PLACES = {
    "halfway.py": "src/vergence/methods",
    "test_halfway.py": "tests/oracles",
    "halfway.md": "docs/reference/methods",
}
MADE, RUBBISH = {"runs", "build", "dist"}, shutil.ignore_patterns("__pycache__")
EVERY_METHOD = [
    "tests/oracles/test_halfway.py",
    "tests/conformance/test_methods.py",
    "tests/conformance/test_data_unchanged.py",
    "tests/docs/test_pages.py",
    "tests/docs/test_reference_pages.py",
    "tests/engine/test_bytes.py",
    "tests/experiment/test_record_tables.py",
    "tests/golden/test_packed_records.py",
    "tests/reports/ethics/test_visibility.py",
]
"""Tests that go through all methods, and those that compare pages and stored records with them."""


def test_the_first_page_has_forty_lines():
    first, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## ")
    assert len(first.splitlines()) <= 40


@pytest.mark.slow
def test_the_worked_method_pasted_as_printed_leaves_tests_green(tmp_path):
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in MADE and (path.name == ".ci" or path.name[0] != "."):
            shutil.copytree(path, tmp_path / path.name, ignore=RUBBISH)
        elif path.is_file():
            shutil.copy(path, tmp_path)
    printed = {block.label[7:-1]: block.text for block in blocks(PAGE, None) if block.label}
    for name, folder in PLACES.items():
        assert not (tmp_path / folder / name).exists()
        (tmp_path / folder / name).write_text(printed[name], encoding="utf-8")
    run(tmp_path, "tools.results_tables")
    run(tmp_path, "tools.reference_pages")
    run(tmp_path, "pytest", "tests/golden/test_packed_records.py", VERGENCE_GOLDEN="write")
    run(tmp_path, "pytest", *EVERY_METHOD, "-k", "halfway or golden or docs or visibility")


def run(folder, module, *words, **variables):
    path = os.pathsep.join([str(folder / "src"), str(folder)])
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=os.environ | variables | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
