"""`python -m benchmarks.bench`: errors are one line on stderr, with the exit codes of vergence."""

from __future__ import annotations

import sys

from cyclopts import CycloptsError
from rich.console import Console

from benchmarks.bench.commands import app
from vergence.errors import PartialRun, VergenceError


def main() -> None:
    """Run the command line."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(str(error).splitlines()[0], 2)
    except VergenceError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", PartialRun.exit_code)


def _fail(text: str, code: int) -> None:
    Console(stderr=True).print(f"vergence: {text}", soft_wrap=True, highlight=False, markup=False)
    sys.exit(code)


if __name__ == "__main__":
    main()
