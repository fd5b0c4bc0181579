"""The parser of command-line arguments, which imports a command's module when it is called.

Used in `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from vergence.cli.commands import ABOUT, DAILY, GROUPS
from vergence.core.files import check_folder_place
from vergence.errors import ConfigError

Flag = Annotated[bool, Parameter(negative="")]
"""An option that its name alone sets; there is no `--no-NAME`."""


def _check_folder(_: object, path: Path | None) -> None:
    """Refuse a folder to write in whose name a file has, before the command computes anything."""
    if path is not None:
        check_folder_place(path)


def _check_place(_: object, path: Path | None) -> None:
    """Refuse a file or folder to write whose own folder cannot be made."""
    _check_folder(_, path and path.parent)


def _check_file(_: object, path: Path | None) -> None:
    """Refuse a file to write whose name a folder has, or whose folder cannot be made."""
    if path is not None and path.is_dir():
        raise ConfigError(f"{path} is a folder, and --out is for a file: add a name to it")
    _check_place(_, path)


OutFolder = Annotated[Path, Parameter(name="--out", validator=_check_folder)]
OutFile = Annotated[Path, Parameter(name="--out", validator=_check_file)]
OutPlace = Annotated[Path, Parameter(name="--out", validator=_check_place)]
"""An option for a file or a folder, as the input is one."""
app = App(
    name="vergence",
    help=ABOUT,
    version_flags=["--version"],
    # `main` answers Ctrl-C itself, with one line and the exit code of a partial run.
    suppress_keyboard_interrupt=False,
)
for command in (*DAILY, *GROUPS):
    # The text "module:function" is resolved on the call: importing all commands imports torch.
    app.command(command.import_path, name=command.name)
