"""A deployment's own Python files: copied into its folders, and run only after being accepted.

Whoever makes a deployment runs their own files anyway. The operator of every other machine is shown
the path and the SHA-256 of each file. The operator accepts exactly these bytes by an option of a
command; other files do not run.

Used by `cli.deploy`, `deployment.folder_setup`, `deployment.joined_node`, `deployment.launcher`
and `deployment.server_run`.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vergence.core.files import make_durable_folder, write_whole
from vergence.data.io.generated_cache import cache_folder
from vergence.deployment.folders import EXPERIMENT, ClientSide, ServerSide, write_settings
from vergence.errors import ConfigError, UntrustedCode
from vergence.experiment.code_names import SUFFIX, with_code_places
from vergence.experiment.trust import python_files

if TYPE_CHECKING:
    from vergence.experiment.schema import Experiment

Side = TypeVar("Side", ClientSide, ServerSide)
FOLDER = "code"
"""Subfolder with the Python files in every folder of a deployment."""
PLAIN = re.compile(r"[\w.-]+\.py", re.ASCII)
"""Pattern of the file names that are allowed: they look alike on every screen and system."""


def refuse_modules(table: Mapping[str, Any]) -> None:
    """Refuse an experiment that names Python code by a module instead of a file.

    Raises:
        ConfigError: the experiment names a module; the message names it.
    """
    for name in python_files(table):
        if not name.endswith(SUFFIX):
            raise ConfigError(
                f"'{name}' is a module of this machine, and a deployment copies files alone: name "
                "its file (path/to/it.py), or put it into the package that all ends install"
            )


def portable(experiment: Experiment) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return an experiment's table for other machines, and the content of its Python files by name.

    In the table, the paths of these files are replaced by their places in a deployment's folder.

    Raises:
        ConfigError: the experiment names code that is not a file, or a file whose name has
            characters that are not allowed.
    """
    refuse_modules(experiment.table)
    moved: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for place in python_files(experiment.table):
        if place not in experiment.code:
            raise ConfigError(
                f"'{place}' reads as a Python file, and the experiment runs none of that name; "
                "give the person, lab or label another one, without .py"
            )
        if not PLAIN.fullmatch(Path(place).name):
            raise ConfigError(
                f"'{place}': a deployment copies files whose names are letters (a to z), digits, "
                "_, - and . alone; rename it"
            )
        name = f"{FOLDER}/{Path(place).name}"
        if name.lower() in map(str.lower, files):
            sha = hashlib.sha256(place.encode()).hexdigest()[:8]
            name = f"{FOLDER}/{Path(place).stem}_{sha}{SUFFIX}"
        moved[place], files[name] = name, experiment.code[place].text
    return with_code_places(experiment.table, lambda place: moved.get(place, place)), files


def digest(text: bytes) -> str:
    """Return the SHA-256 of a file's content, by which an operator accepts the file."""
    return hashlib.sha256(text).hexdigest()


def code_digests(folder: Path) -> dict[str, str]:
    """Return name and SHA-256 of every Python file that an experiment names; no file is run.

    `accept` calls this.

    Raises:
        ConfigError: the experiment is not TOML, or names code outside its folder `code`, or another
            file is in that folder.
    """
    try:
        table = tomllib.loads((folder / EXPERIMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / EXPERIMENT} cannot be read: {error}") from None
    refuse_modules(table)
    names = python_files(table)
    for name in names:
        home, _, file = name.rpartition("/")
        if home != FOLDER or not PLAIN.fullmatch(file) or not (folder / name).is_file():
            raise ConfigError(
                f"{folder / EXPERIMENT} names {name!a}, and its code lies in {folder / FOLDER} "
                "alone: `vergence deploy init` puts it there"
            )
    refuse_others(folder, names)
    return {name: digest((folder / name).read_bytes()) for name in names}


def refuse_others(folder: Path, names: Sequence[str]) -> None:
    """Check the Python files that an experiment names, `names`, in the folder of a deployment.

    Raises:
        ConfigError: a file is a symbolic link, two names differ only in capitals, or the subfolder
            `code` has other files; the message names the file.
    """
    home = folder / FOLDER
    if not names and not home.exists():
        return
    # A link can lead to other bytes tomorrow than those whose digest the operator accepted today.
    if links := [path for path in (home, *map(folder.joinpath, names)) if path.is_symlink()]:
        raise ConfigError(
            f"{links[0]} is a link, and code must lie in {home} itself: copy it there"
        )
    # On a disk that ignores capitals one of the two would be opened under both names.
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(
            f"{folder / EXPERIMENT} names files that differ only in capitals: "
            f"{', '.join(sorted(names))}; rename one"
        )
    # Accepted code could import any other file here, which nobody was shown.
    known = {name.rpartition("/")[2] for name in names}
    if others := sorted(path.name for path in home.iterdir() if path.name not in known):
        raise ConfigError(
            f"{home} holds {others[0]!a}, which the experiment does not name; ask whoever sent the "
            "folder, and delete it"
        )


def accept(folder: Path, side: Side, digests: Sequence[str]) -> Side:
    """Add the code that an operator accepts to a folder's settings; save and return the settings.

    Args:
        folder: the folder of the deployment.
        side: the folder's settings so far.
        digests: SHA-256 of the files that the operator accepts now.

    Raises:
        UntrustedCode: a file was never accepted, or was changed since; the message shows path and
            SHA-256 of each.
        ConfigError: a digest does not belong to a file in the folder.
    """
    here = code_digests(folder)
    for sha in digests:
        if sha not in here.values():
            raise ConfigError(
                f"--accept-code {sha[:64]}: no file of {folder / FOLDER} has this SHA-256; there "
                f"are: {_listing(folder, here) or 'none'}"
            )
    accepted = {name: sha for name, sha in here.items() if sha in digests}
    if new := {*accepted.values()} - digests_of_user():
        make_durable_folder(_memory().parent)
        write_whole(_memory(), "".join(f"{sha}\n" for sha in digests_of_user() | new).encode())
    # The folder's own list counts only for digests that this user accepted: whoever made the folder
    # could have written the list as well.
    mine = digests_of_user()
    known = {name: sha for name, sha in side.accepted.items() if here.get(name) == sha in mine}
    if {**known, **accepted} != dict(side.accepted):
        side = replace(side, accepted={**known, **accepted})
        write_settings(folder, side)
    if missing := {name: sha for name, sha in here.items() if name not in side.accepted}:
        how = " ".join(f"--accept-code {sha}" for sha in missing.values())
        raise UntrustedCode(
            f"this deployment brings Python code that would run here: {_listing(folder, missing)}; "
            f"read it, ask whoever sent it for the same digest, and start again with {how}"
        )
    return side


def digests_of_user() -> frozenset[str]:
    """Return the digests of all files that this user ever accepted, in any deployment."""
    file = _memory()
    return frozenset(file.read_text(encoding="utf-8").split() if file.is_file() else ())


def _memory() -> Path:
    return cache_folder() / "accepted-code.txt"


def _listing(folder: Path, files: Mapping[str, str]) -> str:
    return ", ".join(f"{folder / name} (SHA-256 {sha})" for name, sha in files.items())


def combined_digest(files: Mapping[str, str]) -> str:
    """Return one digest of a machine's own code, from the files' names and digests.

    A node sends this digest when the node connects; the server compares it with the server's own.
    """
    if not files:
        return "none"
    lines = "".join(f"{name} {sha}\n" for name, sha in sorted(files.items()))
    return digest(lines.encode())
