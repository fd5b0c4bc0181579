"""Folders of a deployment: settings, a log of events, and the process that runs in a folder.

This module imports torch only when `facts` is called, so that a process that only watches others
uses little memory.

Used in `cli`, `deployment`, `monitoring` and `unlearning`.
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
from typing import Any, ClassVar

import tomli_w
from pydantic import TypeAdapter, ValidationError

from vergence.core.files import open_for_append, open_in_place, refuse_links
from vergence.core.options import T
from vergence.errors import ConfigError, StateError
from vergence.system.file_locks import lock_owner, try_process_lock
from vergence.system.processes import ask_to_end

STRICT = {"extra": "forbid"}
"""Configuration of pydantic: unknown settings are errors."""
SETTINGS, EXPERIMENT, EVENTS = "deploy.toml", "experiment.toml", "events.log"
RECORDS = "events.jsonl"
"""Name of the file of events for programs: one JSON object per line."""
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
"""Level of each event; events that are not listed have level `info`."""
NODE = "node"
"""File of a node's private key."""
MAIN = "main"
"""Name of the main server as a node, and of its folder."""
EVERYBODY = "all"
"""Word that stands for all people in a lab's data."""
SECRET = "log/secret"
"""File of the secret by which the processes of one folder recognise each other's messages."""
FOLDER, INSECURE = "VERGENCE_DEPLOY", "VERGENCE_DEPLOY_INSECURE"
"""Names of environment variables: a process's folder, and a mark that nothing is encrypted."""


@dataclass(frozen=True)
class ServerSide:
    """Settings in a server's folder.

    Attributes:
        clients: names of the clients.
        address: HOST:PORT at which clients reach the server.
        run: name of this deployment, the same in all its folders.
        listen: address on which the server listens. "": 127.0.0.1 if the host in `address` is that
            or localhost, otherwise all addresses.
        quorum: number of clients that must be connected before the run begins; 0: all.
        answer_s: seconds to wait for an answer.
        absent_s: seconds to wait for a client that is not connected.
        talk_s: longest time in seconds of a client's training with the server in one round of
            split learning.
        main: whether there is also a main server, which trains the server's part in split learning.
        accepted: name -> SHA-256 of the Python files that may run on this machine.
        answer_bytes: largest size in bytes of a node's answer; 0: no limit.
        joins: for each client that was added later, the first round in which it takes part.
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
    answer_bytes: int = 0
    joins: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientSide:
    """Settings in the folder of a client, a main server or an aggregator.

    Privacy budgets and secure sums are recorded per run. A folder is bound to one run: otherwise a
    malicious server could reset every budget by announcing a new run.

    Attributes:
        client: name of this node.
        address: HOST:PORT of the server.
        run: name of the one deployment that this folder takes part in.
        person: the person's name in the client's data.
        data: folder of the client's data; None: the folder in the experiment.
        serves: whether the folder belongs to a main server, which has no data.
        adds: whether the folder belongs to an aggregator, which has no data.
        main: whether the deployment has a main server. If so, the client sends smashed data
            (activations at the cut of the network) only to it.
        answers_in_all: largest number of generated samples for which the client's teacher network
            returns outputs in this deployment; 0: no limit.
        answers_a_minute: the same limit for one minute; 0: no limit.
        people: only for a lab (a client with several people): the people's names in the lab's data,
            in the order of the experiment's `silos`. ("all",): everybody in the data. (): the data
            use the names in `silos`.
        accepted: name -> SHA-256 of the Python files that may run on this machine.
        unconfirmed: whether the folder was made by `vergence deploy add`, and its operator has not
            yet compared the keys of the others (`vergence deploy admit`).
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
    unconfirmed: bool = False

    @property
    def stays(self) -> bool:
        """True for a main server or aggregator: its process stays alive and keeps its state."""
        return self.serves or self.adds


def settings(folder: Path, kind: type[T]) -> T:
    """Read the settings of a folder; `kind` is their class.

    Raises:
        StateError: the folder belongs to another kind of node.
        ConfigError: a setting is malformed; the message names it.
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


def clients_to_wait_for(folder: Path, side: ServerSide) -> int:
    """Return the number of clients for which a run waits; clients with a revoked key do not count.

    Raises:
        StateError: every client's key is revoked.
    """
    there = sum((folder / "keys" / f"{client}.pub").is_file() for client in side.clients)
    if not there:
        raise StateError(f"every client's key is revoked in {folder}: `vergence deploy init` anew")
    return min(side.quorum or there, there)


def facts(table: dict[str, Any], own_code: str = "none") -> dict[str, str]:
    """Return the facts that must be equal on server and node, by name.

    The facts are digests of config, package code and own code, and torch's version.

    Args:
        table: the experiment. The folder of the data (`root`) and the section `presence` may differ
            between machines and are left out of the digest.
        own_code: combined digest of the Python files that the deployment brings.
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
    """Record an event: one line for the operator, and one JSON object for programs.

    Args:
        folder: the folder of the deployment.
        line: the text.
        event: the kind of event, such as `warning`.
        **about: what the event is about, such as client, round or seed.
    """
    # The text may hold another machine's words: control characters could steer the operator's
    # terminal, and line breaks could forge further events.
    words = " ".join(line.split())
    now, text = datetime.now().astimezone(), "".join(c if c.isprintable() else "?" for c in words)
    record = {
        "time": now.isoformat(timespec="milliseconds"),
        "level": LEVELS.get(event, "info"),
        "event": event,
        **about,
        "text": text,
    }
    lines = {EVENTS: f"{now:%Y-%m-%d %H:%M:%S} {text}", RECORDS: json.dumps(record)}
    for name, text_line in lines.items():
        # A full disk costs the line, not the run.
        with suppress(OSError), open_for_append(folder / name) as file:
            file.write(f"{text_line}\n".encode())


class LogTail:
    """Reads the lines that were added to a folder's log since the last reading."""

    def __init__(self, folder: Path, name: str = EVENTS) -> None:
        self.path, self.skip = folder / name, 20 if name == EVENTS else 0
        self.offset = self.path.stat().st_size if self.path.exists() else 0

    def lines(self) -> list[str]:
        """Return the new lines; lines of events come without their time."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            # A program that rotates logs has emptied the file: what came since is all new.
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset = 0
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [line[self.skip :] for line in whole.decode(errors="replace").splitlines()]


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder in the block; the lock's file contains this process's id.

    Raises:
        StateError: another process holds the lock, or the folder contains links.
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
    """Return the id of the process that runs a folder; None if there is none."""
    path = folder / ".lock"
    owner = lock_owner(path)
    # The system knows the lock's owner; the number in the file could be anybody's, and `stop` would
    # end that process.
    if owner != 0:
        return owner
    with path.open("rb") as file:
        file.seek(1)
        number = file.read(20)
    return int(number) if number.isdigit() and int(number) > 1 else None


def refuse_running(folder: Path) -> None:
    """Refuse a folder that another process runs.

    Raises:
        StateError: another process runs the folder; the message names the process.
    """
    if (number := runner(folder)) is not None:
        raise StateError(
            f"{folder} is running already (process {number}): `vergence deploy stop {folder}` first"
        )


def stop(folder: Path, seconds: float = 20.0) -> bool:
    """End the process that runs a folder; return whether there was one.

    Raises:
        StateError: the process does not end, belongs to another user, or the folder is not one of a
            deployment.
    """
    if not (folder / SETTINGS).is_file():
        raise StateError(
            f"{folder} is no deployment's folder (no {SETTINGS}): give DIR/server or "
            "DIR/clients/NAME"
        )
    try:
        if (number := runner(folder)) is None:
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
