"""Errors while the user's Python files are loaded, reported in one line with file and line.

Used by `experiment.registry` and `experiment.user_code_errors`.
"""

from __future__ import annotations

import importlib
import traceback
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from vergence.core.options import NamedOptions
from vergence.errors import ConfigError

LONGEST_REASON = 300
"""Largest number of characters of a user's error that a message repeats."""


@contextmanager
def running(name: str, file: str) -> Iterator[None]:
    """Turn errors of a file's code in the `with` block into one-line errors.

    Args:
        name: name of the file or module in the experiment, for messages.
        file: path of the file.

    Raises:
        ConfigError: the code raised an exception, or ended the program; the message names the file,
            line and reason.
    """
    try:
        yield
    # A script that ends with `sys.exit()` would end the command without a word.
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, SystemExit):
            what = f"it ends the program ({what}) as soon as it is read; take that out"
        raise ConfigError(
            f"{name}{_line(error, file)}: {what[:LONGEST_REASON]}{_import_hint(error, file)}"
        ) from error


def _import_hint(error: BaseException, file: str) -> str:
    """Return a hint for a message if the user's file imports a module that was not found, else "".

    Modules next to the file are never imported.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return ""
    # Only the file itself is shown, accepted and recorded: a module next to it could be anything.
    home = Path(file).parent
    if any((home / f"{error.name.partition('.')[0]}{end}").exists() for end in (".py", "")):
        return (
            ": it lies beside the file, and only the file itself is recorded and accepted: put "
            "what you need of it into the file, or install it as a package"
        )
    return ": install its package in the environment of vergence"


def _line(error: BaseException, file: str) -> str:
    """Return `, line N` for the line of the file in which an error arose; "" if it is unknown."""
    if isinstance(error, SyntaxError) and error.filename == file and error.lineno:
        return f", line {error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return f", line {lines[-1]}" if lines else ""


def one_class_error(module: types.ModuleType, base: type, classes: Sequence[str]) -> str:
    """Return the error message for a file that does not define exactly one subclass of `base`.

    Args:
        module: the file's module.
        base: base class, such as `Method`.
        classes: names of the subclasses of `base` that the file defines.
    """
    kind = base.__name__
    needs = f"{module.__file__} must define exactly one {kind}"
    if classes:
        return (
            f"{needs}, and defines {', '.join(classes)}: keep one in it, begin the names of the "
            f"others with _, or say which: {module.__file__}:{classes[0]}"
        )
    takes, over = import_and_name(base)
    plain = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, nn.Module)
        and value.__module__ == module.__name__
    ]
    if kind == "Model" and plain:
        return (
            f"{needs}, and has the plain module {plain[0]}: wrap it, by {takes}, "
            f"`class Own{plain[0]}({over}):` and in it `def build(self): return {plain[0]}()`"
        )
    return f"{needs}, and has none: write {takes} and a `class Own({over}):` with its methods"


def import_and_name(base: type) -> tuple[str, str]:
    """Return the import that a subclass of `base` needs, and the name that it gives to `base`."""
    kind = base.__name__
    if getattr(importlib.import_module("vergence"), kind, None) is base:
        return "`import vergence as vg`", f"vg.{kind}"
    return f"`from {base.__module__} import {kind}`", kind


def wrong_kind_text(thing: object, base: type) -> str:
    """Return the error message for an object that is not a subclass of `base`."""
    takes, over = import_and_name(base)
    wanted = f"and a {base.__name__} is wanted here, {over}, by {takes}"
    if not isinstance(thing, type):
        return f"is a {type(thing).__name__}, {wanted}: name a class"
    if base.__name__ == "Model" and issubclass(thing, nn.Module):
        return (
            f"is a plain torch.nn.Module, {wanted}: wrap it, `class Own{thing.__name__}({over}):` "
            f"and in it `def build(self): return {thing.__name__}()`"
        )
    bases = [kind for kind in reversed(thing.__mro__) if kind.__module__.startswith("vergence.")]
    bases = [kind for kind in bases if kind is not NamedOptions]
    kinds = [*bases, *thing.__mro__[1:-1], object]
    return f"is a class over {kinds[0].__name__}, {wanted}"
