"""Write `requirements.lock`: every package of an installation, with the hashes of its files.

    python -m tools.lock

The versions are those of `constraints.txt`. The files serve all systems and Pythons from 3.11, and
the extras in `EXTRAS`. What PyTorch's build for GPUs needs besides is in `requirements-gpu.lock`.
`RELEASE.md` says when they are written again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, GPU_LOCK = ROOT / "requirements.lock", ROOT / "requirements-gpu.lock"
EXTRAS = ("deploy", "dp", "export", "hdf5", "statistics")
INDEX = "https://download.pytorch.org/whl/cpu"
HEAD = f"""\
# Every package of `vergence[{",".join(EXTRAS)}]`, with the SHA-256 of
# its files for all systems. Written by `python -m tools.lock`. To install exactly these files:
#     pip install --require-hashes -r requirements.lock --extra-index-url {INDEX}
#     pip install --no-deps vergence-VERSION-py3-none-any.whl
"""
GPU_HEAD = f"""\
# What `{LOCK.name}` needs besides with PyTorch's build for GPUs, the one of PyPI for Linux:
#     pip install --require-hashes -r {GPU_LOCK.name}
-r {LOCK.name}
"""
GPU = re.compile(r"(nvidia|cuda)-|triton==")
"""Beginnings of the packages that only PyTorch's build for GPUs needs."""
CPU_BUILDS = {"torch": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"}
"""Package -> hash of its build for CPUs (torch 2.13.0+cpu, Python 3.11, Linux x86_64), which
PyTorch's own index has; the hashes beside it are those of PyPI's files."""


def resolved() -> list[str]:
    """Return the requirements that uv resolves, each with its hashes."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    options = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header")
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *extras, *options]
    command += ["-c", "constraints.txt", "--no-emit-index-url", "--no-annotate"]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return re.split(r"^(?=\w)", made, flags=re.M)[1:]


def main() -> int:
    """Resolve, add the hashes of builds for CPUs, and write both files."""
    shared, gpu = [], []
    for text in resolved():
        digest = CPU_BUILDS.get(text.partition("==")[0])
        line = f"\\\n    --hash=sha256:{digest} \\\n"
        text = text if digest is None else text.replace("\\\n", line, 1)
        (gpu if GPU.match(text) else shared).append(text)
    for path, head, texts in ((LOCK, HEAD, shared), (GPU_LOCK, GPU_HEAD, gpu)):
        path.write_text(head + "".join(texts), encoding="utf-8", newline="\n")
        print(f"{path.name}: {len(texts)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
