"""Errors in the user's own code during a run, reported in one line that names file and line.

Used by `experiment.run` and `experiment.validation`.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from vergence.core.files import saving
from vergence.core.naming import PACKAGE
from vergence.engine.evaluation import MEASURED
from vergence.errors import ConfigError, VergenceError
from vergence.experiment.schema import Experiment
from vergence.experiment.user_code_files import LONGEST_REASON

FILE = "traceback.txt"
FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
# A method that calls a generator without `yield from` gets this in the place of a reply.
FORGOTTEN = "'generator' object"


class Listener:
    """Wrapper of a callback that is called after every round; it remembers the callback's error.

    `report_user_errors` raises this error unchanged.
    """

    def __init__(self, on_round: Callable[[Any], object]) -> None:
        self.on_round = on_round
        self.fault: BaseException | None = None

    def __call__(self, report: Any) -> object:
        """Call the callback with the report of a round, and return its answer."""
        try:
            answer = self.on_round(report)
        except BaseException as fault:
            self.fault = fault
            raise
        if not isinstance(answer, bool | np.bool_ | None):
            warnings.warn(
                f"on_round returned a {type(answer).__name__}, which changes nothing: return True "
                "to end the run, None to go on",
                stacklevel=2,
            )
        return bool(answer) if isinstance(answer, np.bool_) else answer


@contextmanager
def report_user_errors(
    experiment: Experiment, folder: Path, keep: bool, listener: Listener | None = None
) -> Iterator[None]:
    """Turn errors of the user's own code in the `with` block into one-line errors.

    Args:
        experiment: the experiment whose code runs.
        folder: folder to which the traceback is written.
        keep: whether the traceback is written; false for a folder that is deleted after the run.
        listener: the callback that is called after every round; its errors are raised unchanged.

    Raises:
        ConfigError: the user's code raised an exception; the message names the line, and the file
            with the traceback.
    """
    try:
        yield
    except VergenceError:
        raise
    except Exception as error:
        text = _text(error)
        place = _place(text, user_code_paths(experiment))
        if place is None or (listener is not None and listener.fault is error):
            raise
        *_, before, last = text.strip().splitlines()
        reason = (
            f"{before[:LONGEST_REASON]} ({last})"
            if last.startswith(MEASURED)
            else last[:LONGEST_REASON]
        )
        hint = "; is a `yield from` missing?" if FORGOTTEN in reason else ""
        where = ""
        if keep:
            with saving(folder):
                (folder / FILE).write_text(text, encoding="utf-8")
            where = f"; the traceback is in {folder / FILE}"
        raise ConfigError(f"{place}: {reason}{hint}{where}") from error


def _text(error: BaseException) -> str:
    """Return the traceback of an error as text."""
    text = str(error)
    # An error from a worker process has its traceback as its text.
    if text.startswith("Traceback (most recent call last)"):
        return text
    return "".join(traceback.format_exception(error))


def _place(text: str, own: frozenset[str]) -> str | None:
    """Return the innermost line of the user's code in a traceback, as `FILE:LINE, FUNCTION`.

    Return None if the traceback has no line of the user's code. `own` are the files with this code.
    """
    if not (frames := [match.groups() for match in FRAME.finditer(text) if match[1] in own]):
        return None
    file, line, name = frames[-1]
    return f"{Path(file).name}:{line}, {name}"


def user_code_paths(experiment: Experiment) -> frozenset[str]:
    """Return the paths of the Python files with the user's own code for an experiment."""
    paths = {str(code.module.__file__) for code in experiment.code.values()}
    for each in (*experiment.methods.values(), experiment.built, experiment.model):
        paths |= set(_files(each))
    return frozenset(paths)


def _files(thing: Any) -> Iterator[str]:
    """Yield the paths of the files that define an object's class and the values of its fields.

    Files of this package and of torch are left out.
    """
    if isinstance(thing, FunctionType):
        if thing.__module__.partition(".")[0] not in (PACKAGE, "torch"):
            yield thing.__code__.co_filename
    elif isinstance(thing, type):
        for kind in thing.__mro__:
            if kind.__module__.partition(".")[0] not in (PACKAGE, "torch", "builtins", "abc"):
                for value in vars(kind).values():
                    if isinstance(value, FunctionType) and value.__module__ == kind.__module__:
                        yield value.__code__.co_filename
    elif isinstance(thing, tuple | list):
        for each in thing:
            yield from _files(each)
    elif is_dataclass(thing):
        yield from _files(type(thing))
        for each in fields(thing):
            yield from _files(getattr(thing, each.name))
