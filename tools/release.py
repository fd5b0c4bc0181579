"""Build what a release consists of, and try it where nothing else is installed.

    python tools/release.py                                  # with this interpreter
    python tools/release.py --python python3.11 --python python3.13

It writes the wheel and the source archive of the last commit into `build/release`, and with the
locks a list of the packages that they install (SBOM, CycloneDX). For each interpreter it makes an
empty environment twice, installs the wheel into one and the archive into the other, runs the
quickstart with both, and the tests of `SMOKE` with the wheel. `RELEASE.md` says when.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "release"
SMOKE = ("tests/oracles", "tests/metrics")
"""Tests that need the installed package, and no tool or data of the repository."""

TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "beartype", "scikit-learn")


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command away from the checkout, where Python finds installed packages alone."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def built(folder: Path) -> list[Path]:
    """Build the wheel and the source archive of a copy of the files that git knows."""
    source = folder / "source"
    archive = folder / "source.zip"
    run("git", "archive", "--format=zip", "--output", archive, "HEAD", cwd=ROOT)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(source)
    tools = environment(Path(sys.executable), folder / "builder")
    run(tools, "-m", "pip", "install", "--quiet", "build>=1.2", "cyclonedx-bom>=7.3", cwd=folder)
    run(tools, "-m", "build", "--outdir", folder / "dist", source, cwd=folder)
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(folder / "dist", OUT)
    packages = sorted(OUT.iterdir(), reverse=True)
    for name in ("requirements.lock", "requirements-gpu.lock"):
        described = ("--pyproject", source / "pyproject.toml", "--output-reproducible")
        inventory = OUT / f"{name.removesuffix('.lock')}.cdx.json"
        form = (tools, "-m", "cyclonedx_py", "requirements", source / name)
        run(*form, *described, "--output-file", inventory, cwd=folder)
        shutil.copy(source / name, OUT)
    return packages


def environment(python: Path | str, folder: Path) -> Path:
    """Make an empty environment for an interpreter; its own interpreter is returned."""
    if Path(python) == Path(sys.executable):
        venv.create(folder, with_pip=True)
    else:
        run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def tried(package: Path, python: str, folder: Path) -> None:
    """Install a package into an empty environment and use it."""
    inside = environment(python, folder / "environment")
    pip = (inside, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    run(*pip, "torch==2.13.0", cwd=folder)
    run(*pip, package, cwd=folder)
    run(inside, "-m", "vergence", "run", "quickstart", "--out", folder / "quickstart", cwd=folder)
    if package.suffix == ".whl":
        run(*pip, f"{package}[export,hdf5]", *TEST_TOOLS, cwd=folder)
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        run(inside, "-m", "pytest", "-p", "no:cacheprovider", *SMOKE, cwd=folder)


def main() -> int:
    """Build, and try with every interpreter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter; may be repeated")
    interpreters = parser.parse_args().python or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="vergence-release-") as name:
        packages = built(Path(name))
        for python in interpreters:
            for package in packages:
                began, folder = time.monotonic(), Path(name) / "trial"
                folder.mkdir()
                tried(package, python, folder)
                shutil.rmtree(folder)
                print(f"{python}: {package.name} works ({time.monotonic() - began:.0f} s)")
    for package in packages:
        print(f"{package.relative_to(ROOT)}: {package.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
