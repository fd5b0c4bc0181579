"""Faults of the user's own code while a run goes on, in one line that names its file and line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from vergence.core.files import saving
from vergence.core.naming import PACKAGE
from vergence.engine.evaluation import MEASURED
from vergence.errors import ConfigError, VergenceError
from vergence.experiment.schema import Experiment
from vergence.experiment.user_code_files import LONGEST_REASON

FILE = "traceback.txt"
FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
FORGOTTEN = "'generator' object"


class Listener:
    """Whoever listens to rounds; a fault of theirs goes to the caller as it is."""

    def __init__(self, on_round: Callable[[Any], object]) -> None:
        self.on_round = on_round
        self.fault: BaseException | None = None

    def __call__(self, report: Any) -> None:
        """Hand on a report."""
        try:
            self.on_round(report)
        except BaseException as fault:
            self.fault = fault
            raise


@contextmanager
def report_user_errors(
    experiment: Experiment, folder: Path, keep: bool, listener: Listener | None = None
) -> Iterator[None]:
    """A block that runs the experiment's code; `keep` says whether the folder outlives the run.

    Raises:
        ConfigError: code of the user's own raised something; names its line, and where the whole
            traceback lies.
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
        said = (
            f"{before[:LONGEST_REASON]} ({last})"
            if last.startswith(MEASURED)
            else last[:LONGEST_REASON]
        )
        hint = "; is a `yield from` missing?" if FORGOTTEN in said else ""
        where = ""
        if keep:
            with saving(folder):
                (folder / FILE).write_text(text, encoding="utf-8")
            where = f"; the traceback is in {folder / FILE}"
        raise ConfigError(f"{place}: {said}{hint}{where}") from error


def _text(error: BaseException) -> str:
    """The traceback; that of a worker process comes as the text of its error."""
    said = str(error)
    if said.startswith("Traceback (most recent call last)"):
        return said
    return "".join(traceback.format_exception(error))


def _place(text: str, own: frozenset[str]) -> str | None:
    """The innermost line of one's own code that a traceback goes through, None if there is none."""
    found = [match.groups() for match in FRAME.finditer(text) if match[1] in own]
    if not found:
        return None
    file, line, name = found[-1]
    return f"{Path(file).name}:{line}, {name}"


def user_code_paths(experiment: Experiment) -> frozenset[str]:
    """Files with the code of an experiment that is not part of this package."""
    found = {str(code.module.__file__) for code in experiment.code.values()}
    for each in (*experiment.methods.values(), experiment.built, experiment.model):
        found |= set(_files(each))
    return frozenset(found)


def _files(thing: Any) -> Iterator[str]:
    """Files that define an object's class, and the functions and records in its fields."""
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
