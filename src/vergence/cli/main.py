"""Entry point of the `vergence` command: errors in one line, and exit codes.

Used by `__main__`.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper

from vergence.cli.commands import help_page
from vergence.errors import PartialRun, VergenceError, is_out_of_memory, printable


def main() -> None:
    """Run the command line: errors are one line on stderr, exit codes as documented.

    0 ok, 2 usage or config, 3 data, 5 partial run.
    """
    # A code page of Windows lacks some letters: they print as "?", and nothing crashes.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # The page of help needs the standard library alone: it appears at once, without the parser.
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        sys.stdout.write(help_page())
        return
    import atexit
    import gc
    import warnings
    from functools import cache

    # Loaded modules are a million objects that live to the end. The collector must not search them
    # again and again while they load, nor at exit, which takes as long as importing PyTorch.
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)
    from cyclopts import CycloptsError

    from vergence.cli.app import app
    from vergence.cli.suggestions import error_line

    # Warnings inside libraries are hidden: whoever uses this program cannot mend them.
    for kind in (DeprecationWarning, RuntimeWarning):
        warnings.filterwarnings("ignore", category=kind, module=r"(?!vergence)")
    # Whoever types a command mends an experiment file, not the line of ours that warns: a former
    # name is one plain line, and once, however many records are made of the file.
    usual, plain = warnings.showwarning, cache(lambda text: sys.stderr.write(f"vergence: {text}\n"))
    warnings.showwarning = lambda text, kind, *place: (
        plain(str(text)) if kind is FutureWarning else usual(text, kind, *place)
    )
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(error_line(error, app), 2)
    except VergenceError as error:
        _fail(str(error), error.exit_code)
    except (MemoryError, RuntimeError) as error:
        # torch says "out of memory" by a RuntimeError; every other one is a fault of ours, and its
        # traceback is wanted.
        if not is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0] or "no more to be had"
        _fail(
            f"out of memory ({reason}); take less at once: fewer people, smaller batches, a "
            "smaller network, fewer workers",
            2,
        )
    except KeyboardInterrupt:
        _fail("interrupted", PartialRun.exit_code)


def _fail(text: str, code: int) -> None:
    """Print an error as one line on stderr, and exit with its code."""
    from rich.console import Console

    # Messages quote names of files and people, which could hold control codes of a terminal.
    text = f"vergence: {printable(text)}"
    Console(stderr=True).print(text, soft_wrap=True, highlight=False, markup=False)
    sys.exit(code)
