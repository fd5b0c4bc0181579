"""The parser of command-line arguments, which imports a command's module when it is called.

Used in `cli`.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from vergence.cli.commands import ABOUT, DAILY, GROUPS

Flag = Annotated[bool, Parameter(negative="")]
"""An option that its name alone sets; there is no `--no-NAME`."""
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
