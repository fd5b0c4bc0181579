"""SHA256SUMS of a finished run directory: one flipped byte in any of its files is found.

The format is that of coreutils: `sha256sum -c SHA256SUMS` checks a directory without vergence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from vergence.console import note
from vergence.core.files import saving, write_whole
from vergence.engine.storage.run_directory import EVENTS, TABLES, read_manifest
from vergence.engine.storage.run_tables import verified_rows
from vergence.errors import StateError
from vergence.results.run_files import read_bytes

NAME = "SHA256SUMS"
LONGEST, SHOWN = 2**16, 4
"""Bytes of sums that a run wrote; files that a notice names."""
FILES = (
    "config.toml",
    "stamp.json",
    "provenance.json",
    "results.json",
    "index.json",
    "priors.csv",
    "classes.csv",
    "groups.csv",
    "per_class.csv",
    "samples.csv",
    "prior_samples.csv",
    *TABLES,
    *EVENTS,
    "masks.safetensors",
    "maps.npz",
    "start.safetensors",
    "own_samples.npz",
)
"""What is sealed where it is there; state files carry digests of their own in checkpoint.json."""


def sealed(folder: Path) -> bool:
    """True if a directory has been sealed."""
    return (folder / NAME).is_file()


def seal(folder: Path) -> None:
    """Write the sums of a directory that has none; nothing in it may change from now on.

    Raises:
        StateError: a table is not what the checkpoint says: a sum would vouch for it.
    """
    if sealed(folder):
        return
    check_tables(folder)
    there = [folder / name for name in FILES if (folder / name).is_file()]
    lines = [f"{sum_of(path)}  {path.name}\n" for path in there]
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
    """Compare every sealed file with its sum, and tables with their checkpoint.

    Raises:
        StateError: a file is missing or differs, or the directory was never sealed.
    """
    if not sealed(folder):
        for place in (folder, *sorted(folder.glob("*/"))):  # what differs is named first
            check_tables(place)
        raise StateError(
            f"{folder} holds no finished run (no {NAME}); name a folder that vergence run wrote, "
            "or finish it with vergence resume"
        )
    for name in changed(folder):
        if name == NAME:
            raise StateError(f"{folder / NAME} is damaged; run it again")
        raise StateError(
            f"{folder / name} is damaged: its SHA-256 is not that of {NAME}; run it again"
        )
    check_tables(folder)


def changed(folder: Path) -> Iterator[str]:
    """Yield the sealed files of a directory that are missing or differ; its sums, if they do."""
    lines = read_bytes(folder / NAME, LONGEST).decode(errors="replace").splitlines()
    told = {name: sha for sha, _, name in (line.partition("  ") for line in lines)}
    if not told or list(told) != [name for name in FILES if name in told]:
        yield NAME
        return
    for name, sha in told.items():
        path = folder / name
        if not path.is_file() or sum_of(path) != sha:
            yield name


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def notice(folders: Iterable[Path]) -> None:
    """Say on stderr, in one line, which sealed files have been changed; nothing where none was."""
    found = [str(f / name) for f in dict.fromkeys(folders) if sealed(f) for name in changed(f)]
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        note(
            f"{', '.join(found[:SHOWN])}{more}: changed after the run was sealed, and shown as it "
            "is now; `vergence verify` refuses this folder"
        )


def check_tables(folder: Path) -> None:
    """Compare the tables of a directory with its checkpoint, where it has one.

    Raises:
        StateError: one is missing, shorter, or not what was written.
    """
    if (folder / "state" / "checkpoint.json").is_file():
        verified_rows(folder, read_manifest(folder))
