"""The public names are exactly these, and a run started from Python is a run."""

import subprocess
import sys

import pytest

import vergence


def test_public_names():
    assert sorted(vergence.__all__) == sorted(vergence._HOMES)
    for name in vergence.__all__:
        assert getattr(vergence, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        vergence.nonsense  # noqa: B018


def test_run_from_python(tmp_path):
    from pathlib import Path

    root = Path(__file__).parent.parent
    experiment = vergence.load(root / "experiments" / "toy.toml", ["run.rounds=2", "run.workers=1"])
    vergence.run(experiment, tmp_path / "out")
    assert (tmp_path / "out" / "fedcpf" / "results.json").exists()


def test_help_does_not_import_torch():
    code = (
        "import sys, vergence.app.cli as c\n"
        "sys.argv = ['vergence', '--help']\n"
        "try:\n    c.main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
