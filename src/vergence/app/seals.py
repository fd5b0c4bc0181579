"""SHA256SUMS of a finished run directory: one flipped byte in any of its files is found.

The format is that of coreutils: `sha256sum -c SHA256SUMS` checks a directory without vergence.
"""

from __future__ import annotations

from pathlib import Path

from vergence.core.state import digest
from vergence.engines.store import TABLES, saving, write_whole
from vergence.errors import StateError

NAME = "SHA256SUMS"
FILES = (
    "config.toml", "provenance.json", "results.json", "index.json", "priors.csv",
    *TABLES, "masks.safetensors", "maps.npz",
)  # fmt: skip
"""What is sealed where it is there; state files carry digests of their own in checkpoint.json."""


def seal(folder: Path) -> None:
    """Write the sums of a directory that has none; nothing in it may change from now on."""
    if (folder / NAME).is_file():
        return
    there = [folder / name for name in FILES if (folder / name).is_file()]
    lines = [f"{digest(path.read_bytes())}  {path.name}\n" for path in there]
    with saving(folder):
        write_whole(folder / NAME, "".join(lines).encode())


def unseal(folder: Path) -> None:
    """Take the sums away, so that a file may change; what changed before is an error.

    Raises:
        StateError: a file differs from its sum.
    """
    if (folder / NAME).is_file():
        check(folder)
        (folder / NAME).unlink()


def check(folder: Path) -> None:
    """Compare every sealed file with its sum.

    Raises:
        StateError: a file is missing or differs, or the directory was never sealed.
    """
    if not (folder / NAME).is_file():
        raise StateError(f"{folder} has no {NAME}: the run is unfinished, `vergence resume` it")
    lines = (folder / NAME).read_bytes().decode(errors="replace").splitlines()
    told = {name: sha for sha, _, name in (line.partition("  ") for line in lines)}
    expected = [name for name in FILES if (folder / name).is_file() or name in told]
    if not lines or list(told) != expected:
        raise StateError(f"{folder / NAME} is damaged, or a file it lists is gone; run it again")
    for name, sha in told.items():
        path = folder / name
        if not path.is_file() or digest(path.read_bytes()) != sha:
            raise StateError(f"{path} is damaged: its SHA-256 is not that of {NAME}; run it again")
