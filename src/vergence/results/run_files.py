"""Validated reading of the files of a run's folder, which may come from somebody else.

Only regular files of a bounded size are read, and JSON is checked for the shape that the package
relies on. Anything else is an error of one line that names the file.

Used in most packages.
"""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    model_validator,
)

from vergence.core.files import complete_length, parse_json
from vergence.errors import StateError

# A forged file could otherwise fill the memory; no run writes files of these sizes.
JSON_BYTES, TABLE_BYTES = 2**28, 2**31
"""Largest sizes in bytes of a JSON file, and of a table."""
SHOWN, LONGEST_PATH = 5, 1000
"""Largest number of run directories that an error message names, and of characters of a path from
one run to another."""
POISONED = "POISONED"
"""Key under which data and provenance name a run's malicious clients."""
AGAIN = "restore it from a copy, or run again"
FEDSELECT = ("fedselect", "vergence.methods.fedselect:FedSelect")
"""Names of the method whose default rule was another in older runs."""
Number = float | None


class OpenRecord(BaseModel):
    """A record of which only the fields named here are checked; other keys are allowed."""

    # Pydantic would convert "1" to 1, and readers would still see the text.
    model_config = ConfigDict(strict=True, extra="allow")


class RunSummary(OpenRecord):
    """A metric's summary over people, as results.json has it."""

    mean: Number
    std: Number
    worst: Number
    ci95: Annotated[list[Number], Field(min_length=2, max_length=2)]


class BytesSent(OpenRecord):
    """Mean bytes per client and round, as results.json has them."""

    up: float
    down: float


def name_inside(name: str) -> str:
    """Check that a name is that of something directly in the folder, and return the name.

    Raises:
        ValueError: the name leads to another folder.
    """
    # An index from somebody else must not lead to other files of the reader.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("it must be the name of something in this very folder")
    return name


NameInside = Annotated[str, AfterValidator(name_inside)]


def sibling_run_path(path: str) -> str:
    """Check a relative path from a merged run to one of its parts, and return the path.

    The path must begin with "../" and lead to a run in a folder beside the merged run.

    Raises:
        ValueError: the path leads elsewhere.
    """
    up, *down = path.split("/")
    if up != ".." or len(down) < 2 or len(path) > LONGEST_PATH or not path.isprintable():
        raise ValueError("it must lead to a run in a folder beside this one, as ../NAME/LABEL")
    for name in down:
        name_inside(name)
    return path


SiblingRunPath = Annotated[str, AfterValidator(sibling_run_path)]


class ResultsFile(OpenRecord):
    """Keys of results.json that are read; keys that older runs lack have a default."""

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
    bounds: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = {}
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
        """Refuse a file whose headline metric is not among its metrics."""
        if self.headline not in self.metrics:
            raise ValueError(f"metrics has no '{self.headline}', the headline")
        return self


class Provenance(OpenRecord):
    """Keys of provenance.json that are read."""

    code: dict[str, Any] = {}
    data: dict[str, Any] = {}
    environment: dict[str, str] = {}
    command: str | list[str] = ""
    deployment: dict[str, Any] = {}


class IndexEntry(OpenRecord):
    """One run, as index.json lists it."""

    label: str
    dir: NameInside


class Index(OpenRecord):
    """Keys of index.json that are read."""

    runs: list[IndexEntry]
    priors: NameInside | None = None


class NamedTable(OpenRecord):
    """Name and label of a task or a method, as config.toml has them."""

    name: str
    label: str = ""


class Rounds(BaseModel):
    """Seeds and number of rounds of a run, as config.toml has them."""

    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    split_seeds: list[int] = []
    rounds: int = 20


class Config(OpenRecord):
    """Keys of config.toml that are read without building the experiment."""

    task: NamedTable | None = None
    method: str | NamedTable | None = None
    methods: Annotated[list[str | NamedTable], Field(min_length=1)] | None = None
    run: Rounds = Rounds()
    poison: dict[str, Any] = {}


class ResidualsOfSeed(OpenRecord):
    """Variances of people's residuals under one seed's shared model, as residuals.json has them."""

    people: int
    variances: Annotated[
        list[
            Annotated[
                list[Annotated[float, Field(ge=0, le=100)]], Field(min_length=6, max_length=6)
            ]
        ],
        Field(min_length=2, max_length=2),
    ]


class Residuals(RootModel[dict[str, ResidualsOfSeed]]):
    """residuals.json, by seed."""


KINDS: Mapping[str, type[BaseModel]] = {
    "residuals.json": Residuals,
    "results.json": ResultsFile,
    "provenance.json": Provenance,
    "index.json": Index,
}


def nearest_runs(folder: Path) -> str:
    """Return the end of an error message on a folder that is no run: runs above or beside it.

    It is "" if there are none, or if the folder is a run that has not finished.
    """
    above = folder.parent
    if (folder / "config.toml").is_file():
        return ""
    if (above / "results.json").is_file():
        return f"; {above} is a run directory: name it"
    runs = [str(path.parent) for path in sorted(above.glob("*/results.json"))[:SHOWN]]
    return f"; name a run directory, such as {', '.join(runs)}" if runs else ""


def read_bytes(path: Path, most: int = TABLE_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        StateError: the file is missing or too large, cannot be read, or is a device, a pipe or a
            folder.
    """
    try:
        status = path.stat()
        # Reading a pipe or a device could block for ever.
        if not stat.S_ISREG(status.st_mode):
            raise StateError(f"{path} is no regular file; {AGAIN}")
        if status.st_size > most:
            raise StateError(f"{path} is too large: {status.st_size:,} bytes, {most:,} at most")
        return path.read_bytes()
    except FileNotFoundError:
        raise StateError(f"{path} is missing; the run is incomplete, run it again") from None
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StateError(f"{path} cannot be read ({reason}); {AGAIN}") from None


def read_text(path: Path, most: int = TABLE_BYTES) -> str:
    """Return the text of a regular file, in which every line ends with a newline character.

    Line ends of other operating systems are converted.

    Raises:
        StateError: the file is missing or cannot be read, or is not text.
    """
    try:
        text = read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StateError(f"{path} is damaged: it is not text any more ({error.reason})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read one of a run's JSON files, and check its structure.

    Raises:
        StateError: the file is missing, is not JSON, or has another structure than files of this
            name.
    """
    text = read_text(path, JSON_BYTES)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise StateError(f"{path} is not valid JSON ({error}); restore it or run again") from None
    return checked(path, content, KINDS.get(path.name, OpenRecord))


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's config.toml as a table, without building the experiment or running its code.

    Raises:
        StateError: the file is missing, not TOML, or not an experiment.
    """
    text = read_text(path, JSON_BYTES)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is damaged: it is no valid TOML ({error}); {AGAIN}") from None
    return with_former_defaults(checked(path, content, Config))


def with_former_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config with the defaults that an older run was made with.

    Since 0.2.0 a config names its optimiser, learning rate and rounds. Before, a run without them
    had trained by `sgd` at 0.05, for 20 rounds. Its early stopping left the last round's models.
    FedSelect without a rule was what is `restated` now. The data set `face_pictures` could name a
    file that found landmarks (`landmarker`); its patches were cut by these, so that data which are
    read now differ from those of the run.
    """
    federation = config.get("federation")
    if isinstance(federation, dict) and federation.get("name") == "face_pictures":
        options = {key: value for key, value in federation.items() if key != "landmarker"}
        config = {**config, "federation": options}
    for key in ("method", "methods"):
        if key in config:
            config = {**config, key: _with_former_rule(config[key])}
    local, run, ends = (config.get(key, {}) for key in ("local", "run", "early_stopping"))
    if isinstance(ends, dict) and ends:
        ends = {**ends, "restore_best": ends.get("restore_best", False)}
        config = {**config, "early_stopping": ends}
    if not isinstance(local, dict) or not isinstance(run, dict):
        return config
    former: dict[str, Any] = {"lr": 0.05}
    # An optimiser that is a Python function stands with the method.
    if not isinstance(method := config.get("method"), dict) or "optimizer" not in method:
        former["optimizer"] = "sgd"
    # In the order of the file, as its digest is of the text.
    return {**config, "local": local | {k: v for k, v in former.items() if k not in local}} | (
        {} if "rounds" in run else {"run": {**run, "rounds": 20}}
    )


def _with_former_rule(entry: Any) -> Any:
    """Return a method's entry, or a list of them, in which FedSelect has the rule it ran by."""
    if isinstance(entry, list):
        return [_with_former_rule(each) for each in entry]
    if entry in FEDSELECT:
        return {"name": entry, "rule": "restated"}
    if not isinstance(entry, dict):
        return entry
    if "base" in entry:
        entry = {**entry, "base": _with_former_rule(entry["base"])}
    bare = entry.get("name") in FEDSELECT and "rule" not in entry
    return {**entry, "rule": "restated"} if bare else entry


def checked(path: Path, table: Any, kind: type[BaseModel]) -> dict[str, Any]:
    """Return a table unchanged if it has the structure of the record class `kind`.

    Raises:
        StateError: it has another structure; the message names the file and the key.
    """
    try:
        kind.model_validate(table)
    except (ValidationError, RecursionError) as error:
        raise StateError(f"{path} {_first(error)}; {AGAIN}") from None
    return table


def _first(error: ValidationError | RecursionError) -> str:
    """Return the first fault in a validation error, as text of one line."""
    if isinstance(error, RecursionError):
        return "is damaged: it holds tables in tables, far too deep"
    every = error.errors(include_url=False)
    if lacks := [str(e["loc"][-1]) for e in every if e["type"] == "missing"]:
        return f"lacks {', '.join(lacks)}"
    where, shown = ".".join(map(str, every[0]["loc"])), repr(every[0]["input"])
    fault = f"{where}: {every[0]['msg']}" if where else "it is not the table that it should be"
    return f"is damaged: {fault}; got {shown if len(shown) <= 60 else f'{shown[:60]} ...'}"


def whole_lines(path: Path, start: int = 0) -> tuple[str, int]:
    """Return a file's complete lines from byte `start` on, and the byte position after them.

    A missing file has no lines.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StateError(f"{path} is no regular file; {AGAIN}")
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return "", start
    end = complete_length(data)
    return data[:end].decode(errors="replace"), start + end
