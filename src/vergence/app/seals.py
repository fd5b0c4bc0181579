"""SHA256SUMS of a finished run directory: one flipped byte in any of its files is found.

The format is that of coreutils: `sha256sum -c SHA256SUMS` checks a directory without vergence.
"""

from __future__ import annotations

from pathlib import Path

from vergence.core.disk import write_whole
from vergence.core.state import digest
from vergence.engines.store import EVENTS, TABLES, saving
from vergence.errors import StateError

NAME = "SHA256SUMS"
FILES = (
    "config.toml", "stamp.json", "provenance.json", "results.json", "index.json", "priors.csv",
    "classes.csv", "groups.csv", "per_class.csv", *TABLES, *EVENTS, "masks.safetensors", "maps.npz",
)  # fmt: skip
"""What is sealed where it is there; state files carry digests of their own in checkpoint.json."""


def sealed(folder: Path) -> bool:
    """Tell whether a directory has been sealed."""
    return (folder / NAME).is_file()


def seal(folder: Path) -> None:
    """Write the sums of a directory that has none; nothing in it may change from now on."""
    if sealed(folder):
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
    if sealed(folder):
        check(folder)
        (folder / NAME).unlink()


def check(folder: Path) -> None:
    """Compare every sealed file with its sum.

    Raises:
        StateError: a file is missing or differs, or the directory was never sealed.
    """
    if not sealed(folder):
        raise StateError(
            f"{folder} holds no finished run (no {NAME}); name a folder that vergence run wrote, "
            "or finish it with vergence resume"
        )
    lines = (folder / NAME).read_bytes().decode(errors="replace").splitlines()
    told = {name: sha for sha, _, name in (line.partition("  ") for line in lines)}
    if not told or list(told) != [name for name in FILES if name in told]:
        raise StateError(f"{folder / NAME} is damaged; run it again")
    for name, sha in told.items():
        path = folder / name
        if not path.is_file() or digest(path.read_bytes()) != sha:
            raise StateError(f"{path} is damaged: its SHA-256 is not that of {NAME}; run it again")
