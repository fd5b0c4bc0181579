"""Validated reading of the files of a run's folder, which somebody else may have made.

Only regular files of a bounded size are read, and JSON only where it has the shape that the rest of
the package counts on: everything else is one line that names the file.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from vergence.core.files import parse_json, untorn
from vergence.errors import StateError

JSON_BYTES, TABLE_BYTES = 2**28, 2**31
"""Larger files are none that a run wrote."""
LONGEST_PATH = 1000
"""Characters of a path from one run to another."""
POISONED = "POISONED"
"""Under this, data and provenance say who lied in a run on purpose."""
AGAIN = "restore it from a copy, or run again"
Number = float | None


class OpenRecord(BaseModel):
    """A table of which the keys that are read have to be as said; others may be there."""

    model_config = ConfigDict(strict=True, extra="allow")


class RunSummary(OpenRecord):
    """A metric over people, in results.json."""

    mean: Number
    std: Number
    worst: Number
    ci95: Annotated[list[Number], Field(min_length=2, max_length=2)]


class BytesSent(OpenRecord):
    """Means over the clients asked, in results.json."""

    up: float
    down: float


def name_inside(name: str) -> str:
    """Name of what lies in a folder itself.

    Raises:
        ValueError: it leads elsewhere.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("it must be the name of something in this very folder")
    return name


NameInside = Annotated[str, AfterValidator(name_inside)]


def sibling_run_path(path: str) -> str:
    """Path from a merged run to one that it is made of, below the same folder.

    Raises:
        ValueError: it leads elsewhere.
    """
    up, *down = path.split("/")
    if up != ".." or len(down) < 2 or len(path) > LONGEST_PATH or not path.isprintable():
        raise ValueError("it must lead to a run in a folder beside this one, as ../NAME/LABEL")
    for name in down:
        name_inside(name)
    return path


SiblingRunPath = Annotated[str, AfterValidator(sibling_run_path)]


class ResultsFile(OpenRecord):
    """results.json, as far as it is read; what older runs lack has a default here."""

    method: str
    task: str
    federation: str | dict[str, Any]
    seeds: Annotated[list[int], Field(min_length=1)]
    metrics: dict[str, RunSummary]
    headline: str
    people: list[str]
    fingerprint: dict[str, str]
    bytes: BytesSent
    label: str = ""
    lower_is_better: list[str] = []
    rounds: int = 0
    clients: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0
    harmed_vs_local: Number = None
    personal_fraction: Number = None
    fairness: dict[str, Any] = {}
    privacy: dict[str, Any] = {}
    solver: dict[str, Any] = {}
    input: dict[str, int] | None = None
    folds: dict[str, SiblingRunPath] = {}
    split_folders: dict[str, SiblingRunPath] = {}

    @model_validator(mode="after")
    def measured(self) -> Self:
        """Refuse a headline that was not measured."""
        if self.headline not in self.metrics:
            raise ValueError(f"metrics has no '{self.headline}', the headline")
        return self


class Provenance(OpenRecord):
    """provenance.json, as far as it is read."""

    code: dict[str, Any] = {}
    data: dict[str, Any] = {}
    environment: dict[str, str] = {}
    command: str | list[str] = ""
    deployment: dict[str, Any] = {}


class IndexEntry(OpenRecord):
    """One run in index.json."""

    label: str
    dir: NameInside


class Index(OpenRecord):
    """index.json, as far as it is read."""

    runs: list[IndexEntry]
    priors: NameInside | None = None


class NamedTable(OpenRecord):
    """A task or a method in config.toml."""

    name: str
    label: str = ""


class Rounds(BaseModel):
    """Length of a run, in config.toml."""

    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    split_seeds: list[int] = []
    rounds: int = 20


class Config(OpenRecord):
    """config.toml, as far as it is read by those who only look on."""

    task: NamedTable | None = None
    method: str | NamedTable | None = None
    methods: Annotated[list[str | NamedTable], Field(min_length=1)] | None = None
    run: Rounds = Rounds()
    poison: dict[str, Any] = {}


KINDS: Mapping[str, type[BaseModel]] = {
    "results.json": ResultsFile,
    "provenance.json": Provenance,
    "index.json": Index,
}


def read_bytes(path: Path, most: int = TABLE_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        StateError: there is none, it is a device, a pipe or a folder, or too large.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise StateError(f"{path} is no regular file; {AGAIN}")
        if found.st_size > most:
            raise StateError(f"{path} is too large: {found.st_size:,} bytes, {most:,} at most")
        return path.read_bytes()
    except FileNotFoundError:
        raise StateError(f"{path} is missing; the run is incomplete, run it again") from None
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path} cannot be read ({reason}); {AGAIN}") from None


def read_text(path: Path, most: int = TABLE_BYTES) -> str:
    """Return the text of a regular file, line ends as they are read everywhere.

    Raises:
        StateError: there is no such file, or it is not text.
    """
    try:
        text = read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StateError(f"{path} is damaged: it is not text any more ({error.reason})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return one of a run's JSON tables.

    Raises:
        StateError: there is none, it is no JSON, or not of the kind that its name says.
    """
    text = read_text(path, JSON_BYTES)
    try:
        found = parse_json(text)
    except ValueError as error:
        raise StateError(f"{path} is not valid JSON ({error}); restore it or run again") from None
    return checked(path, found, KINDS.get(path.name, OpenRecord))


def read_config(path: Path) -> dict[str, Any]:
    """Return a run's config.toml for somebody who only looks on: no name in it is followed.

    Raises:
        StateError: there is none, it is no TOML, or no experiment.
    """
    text = read_text(path, JSON_BYTES)
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is damaged: it is no valid TOML ({error}); {AGAIN}") from None
    return checked(path, found, Config)


def checked(path: Path, table: Any, kind: type[BaseModel]) -> dict[str, Any]:
    """A table as it was read, if it is of this kind.

    Raises:
        StateError: says what of it is not.
    """
    try:
        kind.model_validate(table)
    except (ValidationError, RecursionError) as error:
        raise StateError(f"{path} {_first(error)}; {AGAIN}") from None
    return table


def _first(error: ValidationError | RecursionError) -> str:
    """First fault, in a line that can be read."""
    if isinstance(error, RecursionError):
        return "is damaged: it holds tables in tables, far too deep"
    every = error.errors(include_url=False)
    if lacks := [str(e["loc"][-1]) for e in every if e["type"] == "missing"]:
        return f"lacks {', '.join(lacks)}"
    where, shown = ".".join(map(str, every[0]["loc"])), repr(every[0]["input"])
    said = f"{where}: {every[0]['msg']}" if where else "it is not the table that it should be"
    return f"is damaged: {said}; got {shown if len(shown) <= 60 else f'{shown[:60]} ...'}"


def whole_lines(path: Path, start: int = 0) -> tuple[str, int]:
    """Return the whole lines of a text from a byte on, and the byte after them; "", if no file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StateError(f"{path} is no regular file; {AGAIN}")
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    end = untorn(data)
    return data[:end].decode(errors="replace"), start + end
