"""The papers installed without a clone: every folder is there, and the command finds them."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.installed import installed_papers
from vergence_papers import command


@pytest.mark.slow
def test_an_installed_package_has_every_paper(tmp_path):
    site = installed_papers(tmp_path)
    paths = os.pathsep.join([str(site), str(ROOT / "src")])
    called = [
        ["-c", "import vergence_papers; print(vergence_papers.HOME)"],
        ["-m", "vergence", "reproduce", "--list"],
    ]
    home, listing = (
        subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for words in called
    )
    assert home.strip() == str(site / "vergence_papers")
    ids = {line.split()[0] for line in listing.splitlines() if line and line[0] != " "}
    assert {*command.TABLES, *command.UNTRAINED} <= ids
