"""Packages as `pip install` leaves them: a wheel, built from a copy and installed elsewhere."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

NO_SOURCE = ("__pycache__", "*.egg-info")


def installed_wheel(folder: Path, *left_out: str) -> Path:
    """Folder that holds the installed package alone; libraries are those of the tests."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(*NO_SOURCE, *left_out)
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return _installed(source, folder)


def installed_papers(folder: Path) -> Path:
    """Folder that holds the installed papers alone."""
    ignored = shutil.ignore_patterns(*NO_SOURCE, "results")
    shutil.copytree(ROOT / "papers", folder / "source", ignore=ignored)
    return _installed(folder / "source", folder)


def _installed(source: Path, folder: Path) -> Path:
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *options, "-w", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    return site
