"""Console output of commands: terminal width, or 160 columns into a file or pipe; stderr notes.

Used in `adaptation`, `api`, `cli`, `core`, `deployment`, `engine`, `experiment`, `tasks` and
`training`.
"""

import sys

from rich.console import Console

out = Console(width=None if sys.stdout.isatty() else 160)


def note(text: str) -> None:
    """Print one line on stderr that is no error."""
    console = Console(stderr=True)
    console.print(f"vergence: {text}", soft_wrap=True, highlight=False, markup=False)
