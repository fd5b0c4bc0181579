"""Digest of this package's source code.

Used by `deployment.folders`, `deployment.server_run`, `engine.workers.ray_transfer` and
`experiment.provenance`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_digest() -> str:
    """Return the SHA-256 over the source files of this package."""
    # Once per process: files that change while it runs are not the code that runs.
    package = Path(__file__).parent.parent
    whole = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        whole.update(f"{path.relative_to(package)}\0".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()
