"""Python files of somebody's own in a deployment: copied into its folders, and run once accepted.

Whoever makes a deployment runs them anyway. Every other end is shown the path and the SHA-256 of
each, accepts these very bytes by an act of its own, and runs them and no others.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vergence.core.files import make_folder, write_whole
from vergence.deployment.folders import EXPERIMENT, ClientSide, ServerSide, write_settings
from vergence.errors import ConfigError, UntrustedCode
from vergence.experiment.code_names import SUFFIX, parse
from vergence.experiment.trust import python_files

if TYPE_CHECKING:
    from vergence.experiment.schema import Experiment

Side = TypeVar("Side", ClientSide, ServerSide)
FOLDER = "code"
"""Where the files lie in every end's folder."""
PLAIN = re.compile(r"[\w.-]+\.py", re.ASCII)
"""Names of files that read alike on every screen and system."""


def refuse_modules(table: Mapping[str, Any]) -> None:
    """Refuse code that is no file of its own, before any of it runs.

    Raises:
        ConfigError: names a module, and says what to do.
    """
    for name in python_files(table):
        if not name.endswith(SUFFIX):
            raise ConfigError(
                f"'{name}' is a module of this machine, and a deployment copies files alone: name "
                "its file (path/to/it.py), or put it into the package that all ends install"
            )


def portable(experiment: Experiment) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Table of an experiment as its ends read it, and the Python files that it names there.

    Raises:
        ConfigError: it names code that is no file, or a file whose name cannot travel.
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
    return _renamed(experiment.table, moved), files


def _renamed(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _renamed(part, moved) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part, moved) for part in value]
    code = parse(value) if isinstance(value, str) else None
    if code is None or code.place not in moved:
        return value
    return f"{moved[code.place]}{value.removeprefix(code.place)}"


def copy(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files into an end's folder."""
    for name, text in files.items():
        make_folder(folder / FOLDER)
        write_whole(folder / name, text)


def digest(text: bytes) -> str:
    """SHA-256 of a file, by which it is accepted."""
    return hashlib.sha256(text).hexdigest()


def brought(folder: Path) -> dict[str, str]:
    """Name and SHA-256 of every Python file that an end's experiment names, found without running.

    Raises:
        ConfigError: the experiment is no TOML, names code that is not in the folder, or something
            else lies beside that code.
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
    """Refuse what lies beside the code that an experiment names, and links in place of it.

    Whoever reads the files that they accept would not see what a link leads to tomorrow, nor which
    of two names that differ in capitals is opened.

    Raises:
        ConfigError: names it, and says what to do.
    """
    home = folder / FOLDER
    if not names and not home.exists():
        return
    links = [path for path in (home, *map(folder.joinpath, names)) if path.is_symlink()]
    if links:
        raise ConfigError(
            f"{links[0]} is a link, and code must lie in {home} itself: copy it there"
        )
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(
            f"{folder / EXPERIMENT} names files that differ only in capitals: "
            f"{', '.join(sorted(names))}; rename one"
        )
    known = {name.rpartition("/")[2] for name in names}
    if others := sorted(path.name for path in home.iterdir() if path.name not in known):
        raise ConfigError(
            f"{home} holds {others[0]!a}, which the experiment does not name; ask whoever sent the "
            "folder, and delete it"
        )


def accept(folder: Path, side: Side, given: Sequence[str]) -> Side:
    """Settings of an end with what its operator accepts by these digests, which they keep.

    Raises:
        UntrustedCode: a file was not accepted, or is another one now; shows path and SHA-256 of
            each.
        ConfigError: a digest is of no file that is here.
    """
    here = brought(folder)
    for sha in given:
        if sha not in here.values():
            raise ConfigError(
                f"--accept-code {sha[:64]}: no file of {folder / FOLDER} has this SHA-256; there "
                f"are: {_shown(folder, here) or 'none'}"
            )
    accepted = {name: sha for name, sha in here.items() if sha in given}
    remember(accepted.values())
    mine = remembered()
    known = {name: sha for name, sha in side.accepted.items() if here.get(name) == sha in mine}
    if {**known, **accepted} != dict(side.accepted):
        side = replace(side, accepted={**known, **accepted})
        write_settings(folder, side)
    if missing := {name: sha for name, sha in here.items() if name not in side.accepted}:
        how = " ".join(f"--accept-code {sha}" for sha in missing.values())
        raise UntrustedCode(
            f"this deployment brings Python code that would run here: {_shown(folder, missing)}; "
            f"read it, ask whoever sent it for the same digest, and start again with {how}"
        )
    return side


def remembered() -> frozenset[str]:
    """Digests that this user has ever accepted.

    A deployment's folder cannot say so by itself: whoever made it may have written anything.
    """
    file = _memory()
    return frozenset(file.read_text(encoding="utf-8").split() if file.is_file() else ())


def remember(digests: Iterable[str]) -> None:
    """Note what this user accepts, outside of any deployment's folder."""
    if new := {*digests} - remembered():
        make_folder(_memory().parent)
        write_whole(_memory(), "".join(f"{sha}\n" for sha in {*remembered(), *new}).encode())


def _memory() -> Path:
    home = os.environ.get("VERGENCE_CACHE") or Path.home() / ".cache" / "vergence"
    return Path(home) / "accepted-code.txt"


def _shown(folder: Path, files: Mapping[str, str]) -> str:
    return ", ".join(f"{folder / name} (SHA-256 {sha})" for name, sha in files.items())


def told(files: Mapping[str, str]) -> str:
    """Digest over the names and digests of an end's code, which it tells the others."""
    if not files:
        return "none"
    lines = "".join(f"{name} {sha}\n" for name, sha in sorted(files.items()))
    return digest(lines.encode())
