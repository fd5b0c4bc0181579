"""The Makefile takes PyTorch's build for CPUs where there is no GPU and the index of it answers."""

import shutil
import subprocess

import pytest

from tests.conftest import ROOT

INDEX = "--index-url https://download.pytorch.org/whl/cpu"
PYTHON = """#!/bin/sh
case "$2" in *urlopen*) exit {answers};; esac
"""
PIP = """#!/bin/sh
echo "$*" >> words
case "$*" in *index-url*) exit {installs};; esac
"""
NO_GPU = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("programs", "tried"),
    [
        pytest.param({"answers": 0, "installs": 0}, [True], marks=NO_GPU),
        pytest.param({"answers": 0, "installs": 1}, [True, False], marks=NO_GPU),
        ({"answers": 1, "installs": 0}, [False]),
        ({"answers": 0, "installs": 0, "gpu": True}, [False]),
    ],
)
def test_the_index_is_used_where_it_helps_and_never_stops_an_installation(
    programs, tried, tmp_path, monkeypatch
):
    """Programs that write down their words stand in place of Python and pip."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    texts = {"python": PYTHON.format(**programs), "pip": PIP.format(**programs)}
    if "gpu" in programs:
        texts["nvidia-smi"] = "#!/bin/sh\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    command = ["make", ".venv/demo", f"PYTHON={tmp_path}/python", "BIN=."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "words").read_text().splitlines()
    assert [INDEX in line for line in asked if "torch==" in line] == tried
