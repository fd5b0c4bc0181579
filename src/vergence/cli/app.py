"""The parser of arguments; a command's module is imported when the command is called."""

from __future__ import annotations

from cyclopts import App

from vergence.cli.commands import ABOUT, DAILY, GROUPS

app = App(
    name="vergence",
    help=ABOUT,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
for each in (*DAILY, *GROUPS):
    app.command(each.place, name=each.name)
