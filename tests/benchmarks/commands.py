"""The benchmark's command line inside a test."""

from benchmarks.bench.__main__ import main
from tests.cli.commands import Said, called


def benched(*args: object) -> Said:
    """`python -m benchmarks.bench` in this process."""
    return called(main, "benchmarks.bench", *args)
