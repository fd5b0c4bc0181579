"""The errors vergence raises on purpose, and the exit code of each.

VergenceError (2)
├── ConfigError (2)      a setting, name or argument that cannot be used
│   ├── UntrustedCode    Python code that would run, and nobody said that it may
│   └── BuiltInPython    a run whose parts are Python objects, where a command would need them
├── StateError (2)       a run directory or checkpoint that does not fit this call
├── DataError (3)        a data file that is missing, truncated, of another version, or unusable
└── PartialRun (5)       some of the work was done and kept, the rest was not
"""

import difflib
from collections.abc import Iterable


class VergenceError(Exception):
    """Something the user can mend; printed as one line, without a traceback."""

    exit_code = 2


class ConfigError(VergenceError):
    """A setting, name or argument that cannot be used."""


class UntrustedCode(ConfigError):
    """Python code that would run, and nobody said that it may."""


class BuiltInPython(ConfigError):
    """A run whose parts are Python objects, which no file names and no command can build."""


class StateError(VergenceError):
    """A run directory or checkpoint that does not fit this call."""


class DataError(VergenceError):
    """A data file that is missing, truncated, of another version, or unusable."""

    exit_code = 3


class PartialRun(VergenceError):
    """Some of the work was done and kept, the rest was not."""

    exit_code = 5


def printable(text: str) -> str:
    """Text on one line, whatever a name in it holds: a newline, or what a terminal acts on."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def is_out_of_memory(fault: BaseException) -> bool:
    """True of a fault of an allocator; torch's raise a RuntimeError."""
    told = ("allocate memory", "out of memory", "alloc_cpu", "Storage size calculation overflowed")
    return isinstance(fault, MemoryError) or (
        isinstance(fault, RuntimeError) and any(words in str(fault) for words in told)
    )


def first_line(fault: BaseException) -> str:
    """Message of a fault, on one line: its first line, else the type of the fault."""
    text = str(fault).strip().splitlines()
    return text[0] if text else type(fault).__name__


def meant(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or nothing where nothing is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` or, with nothing near, the list of what is known."""
    known = sorted(known)
    return meant(name, known) or f"; known: {', '.join(known)}"
