"""Where commands print: as wide as the terminal, 160 columns into a file or a pipe."""

import sys

from rich.console import Console

out = Console(width=None if sys.stdout.isatty() else 160)
