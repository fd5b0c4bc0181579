"""SHA256SUMS of a finished run directory: one flipped byte in any of its files is found.

The format is that of coreutils: `sha256sum -c SHA256SUMS` checks a directory without vergence.

Used in most packages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from vergence.console import note
from vergence.core.files import saving, write_whole
from vergence.core.naming import list_names
from vergence.engine.storage.run_directory import OPTIONAL, TABLES, read_manifest
from vergence.engine.storage.run_tables import verified_rows
from vergence.errors import StateError
from vergence.results.run_files import nearest_runs, read_bytes

NAME = "SHA256SUMS"
LONGEST, SHOWN = 2**16, 4
"""Largest number of bytes of SHA256SUMS; largest number of files that a notice names."""
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
    "residuals.json",
    *TABLES,
    *OPTIONAL,
    "masks.safetensors",
    "maps.npz",
    "start.safetensors",
    "own_samples.npz",
)
"""Files with a line in SHA256SUMS, if they exist; checkpoint.json has digests of state files."""


def sealed(folder: Path) -> bool:
    """Return whether a run directory has been sealed, that is, has a file SHA256SUMS."""
    return (folder / NAME).is_file()


def seal(folder: Path) -> None:
    """Write SHA256SUMS for the files of a finished run directory; they must not change any more.

    A directory that is already sealed stays unchanged.

    Raises:
        StateError: a table differs from the checkpoint.
    """
    if sealed(folder):
        return
    # A sum would vouch for a table that was changed during the run.
    check_tables(folder)
    paths = [folder / name for name in FILES if (folder / name).is_file()]
    lines = [f"{sum_of(path)}  {path.name}\n" for path in paths]
    with saving(folder):
        write_whole(folder / NAME, "".join(lines).encode())


def unseal(folder: Path) -> None:
    """Check a run directory and remove its SHA256SUMS, so that its files may change.

    Nothing is done without a SHA256SUMS.

    Raises:
        StateError: a file differs from SHA256SUMS.
    """
    if sealed(folder):
        check(folder)
        (folder / NAME).unlink()


def check(folder: Path) -> None:
    """Compare each file of a run directory with SHA256SUMS, and its tables with its checkpoint.

    Raises:
        StateError: a file is missing or differs, or there is no SHA256SUMS.
    """
    if not sealed(folder):
        # A damaged table is the better message, and it comes before the one on missing sums.
        for place in (folder, *sorted(folder.glob("*/"))):
            check_tables(place)
        advice = "; name a folder that vergence run wrote, or finish it with vergence resume"
        raise StateError(
            f"{folder} holds no finished run (no {NAME}){nearest_runs(folder) or advice}"
        )
    for name in changed(folder):
        if name == NAME:
            raise StateError(f"{folder / NAME} is damaged; run it again")
        raise StateError(
            f"{folder / name} is damaged: its SHA-256 is not that of {NAME}; run it again"
        )
    # Whoever changes a table can write new sums, but the checkpoint has a digest of its rows.
    check_tables(folder)


def changed(folder: Path) -> Iterator[str]:
    """Yield the names of files that are missing or differ from SHA256SUMS.

    If SHA256SUMS itself is damaged, only its own name is yielded.
    """
    lines = read_bytes(folder / NAME, LONGEST).decode(errors="replace").splitlines()
    sums = {name: sha for sha, _, name in (line.partition("  ") for line in lines)}
    # Only names of `FILES`, in their order: a forged file could name paths outside of the folder.
    if not sums or list(sums) != [name for name in FILES if name in sums]:
        yield NAME
        return
    for name, sha in sums.items():
        path = folder / name
        if not path.is_file() or sum_of(path) != sha:
            yield name


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file of any size, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def notice(folders: Iterable[Path]) -> None:
    """Print on stderr which files of sealed directories have changed, if any."""
    paths = [str(f / name) for f in dict.fromkeys(folders) if sealed(f) for name in changed(f)]
    if paths:
        note(
            f"{list_names(paths, SHOWN)}: changed after the run was sealed, and shown as it "
            "is now; `vergence verify` refuses this folder"
        )


def check_tables(folder: Path) -> None:
    """Compare the CSV tables of a run directory with their digests in its checkpoint, if any.

    Raises:
        StateError: a table is missing or shorter, or has other rows.
    """
    if (folder / "state" / "checkpoint.json").is_file():
        verified_rows(folder, read_manifest(folder))
