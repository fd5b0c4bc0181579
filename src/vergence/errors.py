"""The errors vergence raises on purpose, and the exit code of each.

VergenceError (2)
├── ConfigError (2)      a setting, name or argument that cannot be used
│   ├── UntrustedCode    Python code that would run, and nobody said that it may
│   └── BuiltInPython    a run whose parts are Python objects, where a command would need them
├── StateError (2)       a run directory or checkpoint that does not fit this call
├── DataError (3)        a data file that is missing, truncated, of another version, or unusable
└── PartialRun (5)       some of the work was done and kept, the rest was not

Used in most packages.
"""

import difflib
from collections.abc import Iterable
from typing import Self

CODES = {
    "error": "something else that the user can mend",
    "setting": "a setting, name or argument that cannot be used",
    "untrusted-code": "Python code that would run without permission",
    "python-objects": "a run whose parts are Python objects, where a command would need names",
    "run-folder": "a run directory or checkpoint that does not fit this call",
    "partial-run": "some of the work was done and is there, the rest is not",
    "data": "something else about data that cannot be used",
    "file-missing": "a file or folder of data that is not where it should be",
    "file-unreadable": "a file that is cut off, damaged, or of another kind than it should be",
    "file-layout": "a file of another version: it lacks columns or arrays, or has other shapes",
    "bad-value": "a value that cannot be: no number, not finite, out of range, or out of order",
    "unequal-lengths": "parts that belong together and differ in length",
    "outside-video": "a time at which the video has no frame",
}
"""Codes of errors, which outlast the wording of their messages."""


class VergenceError(Exception):
    """Something the user can mend; printed as one line, without a traceback.

    Args:
        message: one line: what was asked, the value, what is allowed, and what to do.
        code: what is wrong, one of `CODES`, where it is more than the class says.
    """

    exit_code = 2
    code = "error"

    def __init__(self, *message: object, code: str = "") -> None:
        super().__init__(*message)
        if code:
            self.code = code

    def reworded(self, message: str) -> Self:
        """Return an error of this class and code with another message."""
        # Without the code, which a user's own class may not take as an argument.
        other = type(self)(message)
        other.code = self.code
        return other


class ConfigError(VergenceError):
    """A setting, name or argument that cannot be used."""

    code = "setting"


class UntrustedCode(ConfigError):
    """Python code that would run, and nobody said that it may."""

    code = "untrusted-code"


class BuiltInPython(ConfigError):
    """A run whose parts are Python objects, which no file names and no command can build."""

    code = "python-objects"


class StateError(VergenceError):
    """A run directory or checkpoint that does not fit this call."""

    code = "run-folder"


class DataError(VergenceError):
    """A data file that is missing, truncated, of another version, or unusable."""

    exit_code = 3
    code = "data"


class PartialRun(VergenceError):
    """Some of the work was done and kept, the rest was not."""

    exit_code = 5
    code = "partial-run"


def printable(text: str) -> str:
    """Return text as one line, with newlines and control characters of a terminal escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def is_out_of_memory(fault: BaseException) -> bool:
    """Return whether an exception says that memory is exhausted; torch raises RuntimeError."""
    phrases = (
        "allocate memory",
        "out of memory",
        "alloc_cpu",
        "Storage size calculation overflowed",
    )
    return isinstance(fault, MemoryError) or (
        isinstance(fault, RuntimeError) and any(words in str(fault) for words in phrases)
    )


def first_line(fault: BaseException) -> str:
    """Return the first line of an exception's message, else its type."""
    text = str(fault).strip().splitlines()
    return text[0] if text else type(fault).__name__


def meant(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)``, or "" if no known name is near.

    Capitals do not count, nor whether words are joined by `-`, `_` or a space.
    """
    folded = {_folded(each): each for each in sorted(known)}
    close = difflib.get_close_matches(_folded(name), folded, n=1)
    return f" (did you mean '{folded[close[0]]}'?)" if close else ""


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` or, with nothing near, the list of what is known."""
    known = sorted(known)
    return meant(name, known) or f"; known: {', '.join(known)}"
