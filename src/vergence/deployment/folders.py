"""Folders of a deployment: settings, a log of events, and the process running there.

Nothing here imports torch until `facts` is asked for: who only watches over processes is small.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import tomli_w
from pydantic import TypeAdapter, ValidationError

from vergence.core.files import growing, open_in_place, refuse_links
from vergence.errors import ConfigError, StateError
from vergence.system.file_locks import lock_owner, try_process_lock
from vergence.system.processes import ask_to_end

T = TypeVar("T")
STRICT = {"extra": "forbid"}
"""Unknown settings are errors."""
SETTINGS, EXPERIMENT, EVENTS = "deploy.toml", "experiment.toml", "events.log"
RECORDS = "events.jsonl"
"""What happened, a JSON object per line: time, level, event, text, and what it is about."""
LEVELS = {
    **dict.fromkeys(("error", "stopped"), "error"),
    **dict.fromkeys(
        (
            "warning",
            "insecure",
            "link",
            "greeting",
            "refused",
            "lost",
            "revoked",
            "unreachable",
            "retry",
            "verdict",
            "unmeasured",
        ),
        "warning",
    ),
}
"""How grave an event is; what is not here is information."""
NODE = "node"
"""The file of an end's private node key."""
MAIN = "main"
"""The main server's name among clients, and its folder's."""
EVERYBODY = "all"
"""Stands for all people whose data a lab has."""
SECRET = "log/secret"
"""What the processes of one folder know each other by, in a file of their own."""
FOLDER, INSECURE = "VERGENCE_DEPLOY", "VERGENCE_DEPLOY_INSECURE"
"""Environment variables by which a deployment's processes learn where they are, and how."""


@dataclass(frozen=True)
class ServerSide:
    """Settings in a server's folder.

    `listen` is where it listens; empty: on its own machine alone if that is its address, else
    everywhere. `quorum` 0 means all clients. `answer_s` is how long an answer is waited for,
    `absent_s` a client that is not connected, `talk_s` the end of a client's part of a round of
    split learning. `run` names this deployment in all folders. With `main` there is a main server
    beside this one. `accepted` is Python code that may run here, by name, with its SHA-256.
    """

    __pydantic_config__: ClassVar = STRICT
    clients: tuple[str, ...]
    address: str
    run: str
    listen: str = ""
    quorum: int = 0
    answer_s: float = 600.0
    absent_s: float = 60.0
    talk_s: float = 3600.0
    main: bool = False
    accepted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientSide:
    """Settings in a client's folder: whose data it has (`person`), and where (`data`).

    Of a lab `people` are those in its data, in the order in which `silos` names them; none: they
    have those names there, too.

    It takes part in one `run` alone: books of what was given away and spent are a run's, and a
    server that named another would have every budget, and every sum, afresh. A main server's
    folder is as a client's without data; it `serves`. So is an aggregator's, which `adds`. A
    client with `main` beside its server shows data to the main server alone. A teacher answers
    questions about so many made-up samples in all, and in a minute; 0: about any number.
    `accepted` is Python code that may run here, by name, with its SHA-256.
    """

    __pydantic_config__: ClassVar = STRICT
    client: str
    address: str
    run: str
    person: str = ""
    data: str | None = None
    serves: bool = False
    adds: bool = False
    main: bool = False
    answers_in_all: int = 0
    answers_a_minute: int = 0
    people: tuple[str, ...] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        """True if this node's work lies in memory, in a process that stays."""
        return self.serves or self.adds


def settings(folder: Path, kind: type[T]) -> T:
    """Return the settings of a folder.

    Raises:
        StateError: it is no folder of this kind.
    """
    file = folder / SETTINGS
    what = "server" if kind is ServerSide else "client"
    if not file.is_file():
        raise StateError(
            f"{folder} is no deployment's folder (no {SETTINGS}); `vergence deploy "
            "init` makes DIR/server and DIR/clients/NAME"
        )
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    if ("clients" in table) != (kind is ServerSide):
        raise StateError(
            f"{folder} is not a {what}'s folder; give DIR/"
            + ("server" if what == "server" else "clients/NAME")
        )
    try:
        return TypeAdapter(kind).validate_python(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{file}: {where}: {first['msg']}; got {first['input']!r}") from None


def write_settings(folder: Path, made: Any) -> None:
    """Write the settings of a folder."""
    table = {k: v for k, v in asdict(made).items() if v is not None}
    (folder / SETTINGS).write_text(tomli_w.dumps(table), encoding="utf-8", newline="\n")


def awaited(folder: Path, side: ServerSide) -> int:
    """Number of clients a run waits for before it begins or goes on, without revoked ones.

    Raises:
        StateError: nobody is left.
    """
    there = sum((folder / "keys" / f"{client}.pub").is_file() for client in side.clients)
    if not there:
        raise StateError(f"every client's key is revoked in {folder}: `vergence deploy init` anew")
    return min(side.quorum or there, there)


def facts(table: dict[str, Any], own_code: str = "none") -> dict[str, str]:
    """Facts equal on server and node: digests of config and code, and torch's version.

    `own_code` is the digest of Python files that the deployment brings.

    Where data lie and who is there when are each end's own business.
    """
    from vergence.engine.code_digest import code_digest
    from vergence.experiment import provenance

    shared = {k: v for k, v in table.items() if k != "presence"}
    shared["federation"] = {k: v for k, v in table["federation"].items() if k != "root"}
    return {
        "config": provenance.config_digest(shared),
        "vergence code": code_digest(),
        "own code": own_code,
        "torch": provenance.version("torch"),
    }


def tell(folder: Path, line: str, event: str = "note", **about: Any) -> None:
    """Write one line for the operator, which whoever runs the folder prints, and one for programs.

    `about` says whom or what it concerns: client, round, seed, label.
    """
    words = " ".join(line.split())  # from elsewhere, perhaps: nothing that steers a terminal
    now, text = datetime.now().astimezone(), "".join(c if c.isprintable() else "?" for c in words)
    record = {
        "time": now.isoformat(timespec="milliseconds"),
        "level": LEVELS.get(event, "info"),
        "event": event,
        **about,
        "text": text,
    }
    lines = {EVENTS: f"{now:%Y-%m-%d %H:%M:%S} {text}", RECORDS: json.dumps(record)}
    for name, told in lines.items():
        with suppress(OSError), growing(folder / name) as file:  # a line is not worth a run
            file.write(f"{told}\n".encode())


class LogTail:
    """Reads the lines that were written since the last look: events, or a log in the folder."""

    def __init__(self, folder: Path, name: str = EVENTS) -> None:
        self.path, self.skip = folder / name, 20 if name == EVENTS else 0
        self.at = self.path.stat().st_size if self.path.exists() else 0

    def lines(self) -> list[str]:
        """Return the new lines; events without their time."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self.at += len(whole)
        return [line[self.skip :] for line in whole.decode(errors="replace").splitlines()]


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Keep everybody else out of a folder, and leave word who is in.

    Raises:
        StateError: somebody is, or links in it lead elsewhere.
    """
    refuse_links(folder)
    with os.fdopen(open_in_place(folder / ".lock", os.O_RDWR | os.O_CREAT), "r+b") as file:
        if not try_process_lock(file):
            raise StateError(f"{folder} is running already: `vergence deploy stop {folder}` first")
        file.truncate(0)
        file.write(b" %d" % os.getpid())  # Windows lets nobody else read the first byte
        file.flush()
        yield
        file.truncate(0)


def runner(folder: Path) -> int | None:
    """Return the process that runs a folder, None if none does."""
    path = folder / ".lock"
    owner = lock_owner(path)
    if owner != 0:  # the system says so, whatever somebody wrote into the file
        return owner
    with path.open("rb") as file:
        file.seek(1)
        told = file.read(20)
    return int(told) if told.isdigit() and int(told) > 1 else None


def idle(folder: Path) -> None:
    """Refuse a folder that is running.

    Raises:
        StateError: it is.
    """
    if (number := runner(folder)) is not None:
        raise StateError(
            f"{folder} is running already (process {number}): `vergence deploy stop {folder}` first"
        )


def stop(folder: Path, seconds: float = 20.0) -> bool:
    """End whoever runs a folder; return whether somebody did.

    Raises:
        StateError: it does not end, or is no deployment's folder, or somebody else's.
    """
    if not (folder / SETTINGS).is_file():
        raise StateError(
            f"{folder} is no deployment's folder (no {SETTINGS}): give DIR/server or "
            "DIR/clients/NAME"
        )
    try:
        number = runner(folder)
        if number is None:
            return False
        ask_to_end(number)
    except PermissionError as error:
        raise StateError(
            f"{folder} is run by another user of this machine ({error.strerror}): let them stop it"
        ) from None
    end = time.monotonic() + seconds
    while runner(folder) is not None:
        if time.monotonic() > end:
            raise StateError(f"process {number} does not end: `kill -9 {number}`")
        time.sleep(0.1)
    return True
