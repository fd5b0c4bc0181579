"""The package as `pip install` leaves it: a wheel, built from a copy and installed elsewhere."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def installed_wheel(folder: Path, *left_out: str) -> Path:
    """Folder that holds the installed package alone; libraries are those of the tests."""
    source, site = folder / "source", folder / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", *left_out)
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "-w", folder, source], check=True)
    (wheel,) = folder.glob("vergence-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site
