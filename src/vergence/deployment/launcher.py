"""`vergence deploy`: folders of a server and its clients, and the processes that run in them.

Used by `cli.deploy` and `deployment.folder_setup`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from rich.console import Console

from vergence.core.files import open_for_append, write_whole
from vergence.core.naming import plural
from vergence.deployment import folders
from vergence.deployment.diagnostics import (
    AGAIN,
    FINAL,
    LOOPBACK,
    check_certificate,
    check_port,
    free_port,
    host_and_port,
    line_of,
    listen_address,
    reason_of,
    wait_for_server,
)
from vergence.deployment.folders import (
    FOLDER,
    INSECURE,
    SECRET,
    ClientSide,
    ServerSide,
)
from vergence.deployment.own_code import accept
from vergence.deployment.transport.flower_parts import check_flower
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.privacy.folder_marks import VARIABLE, FolderMark, RolledBack
from vergence.system.local_sockets import LOCAL
from vergence.system.processes import end_group, interrupted_by_end, start_group, uninterrupted

if TYPE_CHECKING:
    from vergence.deployment.transport.flower_processes import FlowerControl

PROCESSES = "vergence.deployment.transport.flower_processes"
APPS = "vergence.deployment.server_run"
# Seconds within which Flower's server process must be up; its imports are slow on a busy machine.
STARTS = 90.0


class ProcessGroup:
    """The processes that one command starts; they end when the command ends."""

    def __init__(self, folder: Path, insecure: bool) -> None:
        from vergence.deployment.transport.flower_processes import ENVIRONMENT

        self.folder, self.children, self.begins = folder, {}, {}
        (folder / "log").mkdir(exist_ok=True)
        direct = (getproxies().get("no"), *LOOPBACK)
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            # Programs of this machine speak with each other, and never through a proxy. Both
            # spellings are read.
            **dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, direct))),
            FOLDER: str(folder.resolve()),
            "FLWR_HOME": str((folder / "flower").resolve()),
            # Sums over several threads come in another order: results must not depend on cores.
            "OMP_NUM_THREADS": "1",
        }
        # A variable of the user's shell must not switch encryption off: only the option may.
        self.environment.pop(INSECURE, None)
        if insecure:
            self.environment[INSECURE] = "1"
        self.secret = folder / SECRET

    def start(
        self, name: str, module: str, *arguments: Any, extra: Mapping[str, str] | None = None
    ) -> None:
        """Start a Python module as a process `name`; its output goes to log/NAME.log.

        `extra` are additional environment variables.
        """
        role, *rest = map(str, arguments)
        with open_for_append(self.folder / "log" / f"{name}.log") as log:
            self.begins[name] = log.tell()
            self.children[name] = start_group(
                # -P: a file of the working directory, such as torch.py, is not imported as a
                # library.
                [sys.executable, "-P", "-m", module, role, str(os.getpid()), *rest],
                log,
                {**self.environment, **(extra or {})},
            )

    def ended(self, name: str) -> bool:
        """Return whether the process of this name has ended."""
        return self.children[name].poll() is not None

    def last(self, name: str) -> str:
        """Return the last lines that a process printed."""
        log = (self.folder / "log" / f"{name}.log").read_bytes()[self.begins[name] :]
        return log[-4000:].decode(errors="replace")

    def close(self) -> None:
        """End all processes, and the processes that they started."""
        # First politely, so that clients finish their files; after five seconds by force.
        for child in self.children.values():
            end_group(child)
        end = time.monotonic() + 5
        for child in self.children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(end - time.monotonic(), 0.1))
        for child in self.children.values():
            end_group(child, at_once=True)
            child.wait()
        self.secret.unlink(missing_ok=True)


@contextmanager
def process_group(folder: Path, insecure: bool) -> Iterator[ProcessGroup]:
    """Yield a group for a folder's processes; all of them end when the block ends or fails.

    `serve` and `join` call this.
    """
    with folders.running(folder), interrupted_by_end():
        group = ProcessGroup(folder, insecure)
        # The secret proves to Flower's local interface that a process is of this folder: without
        # it any program on the machine could take its tasks.
        write_whole(group.secret, secrets.token_bytes(32), secret=True)
        try:
            yield group
        finally:
            # A second Ctrl-C would leave some processes behind.
            with uninterrupted():
                group.close()


def serve(
    folder: Path, out: Console, insecure: bool = False, accept_code: Sequence[str] = ()
) -> None:
    """Run the server in a folder until the experiment ends.

    With `insecure`, nothing is encrypted. `accept_code` holds the SHA-256 of Python files that the
    operator accepts.

    Raises:
        UntrustedCode: the deployment brings Python code that this operator has not accepted.
        StateError: the folder is not a server's, is running, or is finished.
        PartialRun: the run stopped before its end; finished rounds are kept.
    """
    check_flower()
    # Code and port are checked before any process is started, and before clients are told.
    side = accept(folder, folders.settings(folder, ServerSide), accept_code)
    _, port = host_and_port(side.address)
    folders.refuse_running(folder)
    host = listen_address(side.address, side.listen)
    check_port(host, port)
    root = None if insecure else folder / "ca.crt"
    if not insecure:
        check_certificate(folder)
    tail, refused = folders.LogTail(folder), folders.LogTail(folder, "log/link.log")
    with process_group(folder, insecure) as group:
        if insecure:
            folders.tell(
                folder, "INSECURE: nothing is encrypted, and any node may connect", "insecure"
            )
        control = start_link(group, host, port, root, side.answer_bytes)
        admitted = {
            public: control.admit(public.stem, public.read_bytes())
            for public in ([] if insecure else sorted((folder / "keys").glob("*.pub")))
        }
        group.start("run", APPS, "server", f"127.0.0.1:{port}", group.secret, root or "")
        run = control.start()
        folders.tell(
            folder,
            f"serving {side.address}, listening on {host}, "
            f"{plural(len(side.clients), 'client')} expected",
            "serving",
        )
        while True:
            tell_refusals(folder, refused)
            show(tail, out)
            check_processes(group)
            # Every second: a revoked key must not wait for the end of a round.
            state, detail = state_of_run(folder, control, admitted, run)
            if state == "finished":
                show(tail, out)
                if "completed" not in detail.lower():
                    raise PartialRun(
                        f"the run stopped ({detail[:200]}); {folder / 'log'} says "
                        "more; `vergence deploy serve` goes on"
                    )
                return
            time.sleep(1.0)


def state_of_run(
    folder: Path, control: FlowerControl, admitted: dict[Path, int], run: int
) -> tuple[str, str]:
    """Have revoked keys refused; return the run's state and its details, both "" if not known."""
    from vergence.deployment.transport.flower_processes import LinkBusy

    # A thousand clients that connect keep the link busy: it is asked again. The run, which asks it,
    # too, tells the operator.
    with suppress(LinkBusy):
        expel_revoked(folder, control, admitted)
        return control.state(run)
    return "", ""


# Messages pass through dozens of the link's threads. Each would keep freed memory of its own for
# the next one: with 30 clients of 7 MB, several hundred MB. Systems without glibc ignore these.
SMALL_HEAP = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 18)}


def start_link(
    group: ProcessGroup, host: str, port: int, root: Path | None, answer_bytes: int = 0
) -> FlowerControl:
    """Start Flower's server process (SuperLink); return its control as soon as it answers.

    `answer_bytes` is the largest size of a node's answer; 0: no limit.

    If `root`, the certificate of the authority, is None, nothing is encrypted, and nodes do not
    prove their keys.
    """
    from vergence.deployment.transport.flower_processes import (
        KEY,
        KEYS,
        LIMIT,
        SECRET_FILE,
        FlowerControl,
    )

    folder, key, tls = group.folder, secrets.token_urlsafe(32), ("--insecure",)
    extra = {KEY: key, LIMIT: str(answer_bytes), **SMALL_HEAP}
    if root is not None:
        extra[KEYS] = str((folder / "keys").resolve())
        tls = (
            "--ssl-certfile",
            folder / "server.pem",
            "--ssl-keyfile",
            folder / "server.key",
            "--ssl-ca-certfile",
            root,
            "--enable-supernode-auth",
        )
    group.start(
        "link",
        PROCESSES,
        "link",
        "--host",
        host,
        "--port",
        port,
        "--isolation",
        "process",
        SECRET_FILE,
        group.secret,
        *tls,
        extra=extra,
    )
    control = FlowerControl(f"127.0.0.1:{port}", root, key)
    wait_for(control.answers, group, "link")
    return control


def expel_revoked(folder: Path, control: FlowerControl, admitted: dict[Path, int]) -> None:
    """Make Flower refuse the keys whose files `revoke` has moved away.

    `admitted` maps the files of admitted keys to their nodes' numbers; refused keys are removed.
    `serve` calls this.
    """
    for public in [path for path in admitted if not path.exists()]:
        control.expel(admitted[public])
        del admitted[public]
        folders.tell(folder, f"'{public.stem}' is revoked", "revoked", client=public.stem)


def tell_refusals(folder: Path, tail: folders.LogTail) -> None:
    """Tell the operator which connections Flower's server process has refused."""
    # Refusals are in a log that nobody reads, and a client with a wrong clock or key waits for
    # help.
    for line in tail.lines():
        if line.startswith("refused "):
            folders.tell(folder, line, "refused")


def check_processes(group: ProcessGroup) -> None:
    """Check that all processes of a server are running.

    Raises:
        PartialRun: a process ended; the message says which, and why.
    """
    for name in group.children:
        if group.ended(name):
            raise PartialRun(
                f"the {name} process ended: {line_of(group.last(name))}; "
                "`vergence deploy serve` goes on"
            )


def check_can_join(folder: Path, side: ClientSide) -> None:
    """Refuse a folder that nobody has compared with another client's, or that needs Linux.

    Refuse one with keys for secure sums, too, in which this node's own key is a false one.

    Raises:
        StateError: it is one of these.
    """
    from vergence.deployment.keys import refuse_false_key, trusted_keys

    if side.unconfirmed:
        raise StateError(
            f"{folder} came from the server's machine, which could name keys of its own in it: "
            f"`vergence deploy admit {folder}` prints what to compare with another client"
        )
    if trusted_keys(folder):
        refuse_false_key(folder, side)
    if side.stays and not LOCAL:
        raise StateError(
            f"{folder} keeps work in memory between its tasks, which come over local sockets that "
            "Linux alone has: join it on Linux (clients may be on any system)"
        )


def join(
    folder: Path,
    out: Console,
    insecure: bool = False,
    data: str | None = None,
    person: str | None = None,
    people: str | None = None,
    accept_code: Sequence[str] = (),
    restored: bool = False,
) -> None:
    """Run the client in a folder until the server ends the experiment.

    `data` (the folder of the data), `person` and `people` (names in the data) replace the folder's
    settings; None: unchanged. With `insecure`, nothing is encrypted. `accept_code` holds the
    SHA-256 of Python files that the operator accepts. With `restored`, a folder that was put back
    from a copy answers rounds after the last known one.

    Raises:
        UntrustedCode: the deployment brings Python code that this operator has not accepted.
        RolledBack: the folder was put back from a copy.
        StateError: the folder is not a client's, is running, or cannot run on this system; or the
            server is not the expected one.
        DataError: the data are missing, or do not contain the person.
    """
    check_flower()
    side = accept(folder, client_settings(folder, data, person, people), accept_code)
    check_can_join(folder, side)
    port, tail = free_port(), folders.LogTail(folder)
    with process_group(folder, insecure) as group:
        check_mark(folder, side, restored)
        group.start("turns", APPS, "client", f"127.0.0.1:{port}", group.secret, "")
        if side.stays:
            group.start("resident", APPS, "resident", "", group.secret, "")
        said = ""
        while True:
            said = wait_for_server(
                side.address,
                None if insecure else folder / "ca.crt",
                said,
                folder,
                lambda: show(tail, out),
            )
            start_node(group, side, port, insecure)
            if served_to_end(group, tail, out):
                # The acknowledgement is still under way: without it the server would wait.
                time.sleep(AGAIN)
                return
            reason = reason_of(group.last("node"))
            if reason.endswith(FINAL):
                raise StateError(reason)
            # The same reason is told once: a client may wait for its server over a night.
            if reason != said:
                folders.tell(folder, f"{reason}; trying again", "retry")
                said = reason
            show(tail, out)
            time.sleep(AGAIN)


def check_mark(folder: Path, side: ClientSide, restored: bool) -> None:
    """Compare a folder with its mark on this machine; with `restored`, let an older one go on.

    `join` calls this.

    Raises:
        RolledBack: the folder was put back from a copy, and must not go on.
        ConfigError: the mark would lie in the folder, and be copied with it.
    """
    mark = FolderMark(folder, side.run, side.client)
    if mark.path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{VARIABLE} names {mark.path.parent}: name a folder outside of {folder}")
    try:
        mark.check(begins=False)
    except RolledBack:
        if not restored:
            raise
        mark.accept()
        folders.tell(folder, "this folder was put back: only later rounds are answered", "warning")


def client_settings(
    folder: Path, data: str | None, person: str | None, people: str | None = None
) -> ClientSide:
    """Return the settings of a client's folder, after writing new values to the folder.

    New values are the folder of the data and the names of people in the data; None: unchanged.
    `join` calls this.
    """
    side = folders.settings(folder, ClientSide)
    if (data, person, people) != (None, None, None):
        lies = str(Path(data).expanduser().resolve()) if data is not None else side.data
        inside = tuple(each.strip() for each in people.split(",")) if people else side.people
        side = replace(side, data=lies, person=person or side.person, people=inside)
        folders.write_settings(folder, side)
    return side


def start_node(group: ProcessGroup, side: ClientSide, port: int, insecure: bool) -> None:
    """Start a client's Flower process (SuperNode); `join` calls this."""
    from vergence.deployment.transport.flower_processes import SECRET_FILE

    root, key = group.folder / "ca.crt", group.folder / "node"
    tls = ("--root-certificates", root, "--auth-supernode-private-key", key)
    group.start(
        "node",
        PROCESSES,
        "node",
        "--superlink",
        side.address,
        "--port",
        port,
        "--isolation",
        "process",
        "--max-retries",
        "3",
        SECRET_FILE,
        group.secret,
        *(("--insecure",) if insecure else tls),
    )


def served_to_end(group: ProcessGroup, tail: folders.LogTail, out: Console) -> bool:
    """Wait, and print events, until the server ends the experiment or the node's process ends.

    Return True if the server ended the experiment, False if the node's process ended. `join` calls
    this.

    Raises:
        StateError: a process that does the client's work ended.
    """
    while not group.ended("node"):
        if "finished" in show(tail, out):
            return True
        for name in [n for n in ("turns", "resident") if n in group.children]:
            if group.ended(name):
                raise StateError(line_of(group.last(name)).removeprefix("vergence: "))
        time.sleep(0.5)
    return False


def renew(folder: Path) -> None:
    """Make a new authority and a new certificate for the server in a folder.

    Raises:
        StateError: the folder is not a server's, or its server is running.
    """
    from vergence.core.files import saving
    from vergence.deployment.keys import make_certificates

    side = folders.settings(folder, ServerSide)
    folders.refuse_running(folder)
    host, _ = host_and_port(side.address)
    with saving(folder):
        make_certificates(folder, host)
    folders.tell(folder, "a new certificate; clients need the new ca.crt", "renewed")


def revoke(folder: Path, client: str) -> None:
    """Revoke a client's key in a server's folder; a running server then refuses the client.

    Raises:
        StateError: the folder has no key of this client.
    """
    # Refuses a folder that is no server's, where moving a key would change nothing.
    folders.settings(folder, ServerSide)
    key = folder / "keys" / f"{client}.pub"
    if not key.is_file():
        known = ", ".join(sorted(p.stem for p in (folder / "keys").glob("*.pub")))
        raise StateError(f"no key of '{client}' in {folder / 'keys'}; there are: {known}")
    # Moved and not deleted: the operator can see whom, and can undo a mistake.
    (folder / "revoked").mkdir(exist_ok=True)
    key.replace(folder / "revoked" / key.name)


def status(folder: Path, out: Console, lines: int = 10) -> None:
    """Print the state of a folder: whether it is running, and its last events."""
    kind = ServerSide if (folder / "server.pem").is_file() else ClientSide
    folders.settings(folder, kind)
    number = folders.runner(folder)
    out.print(
        f"{folder}: " + (f"running (process {number})" if number else "not running"),
        soft_wrap=True,
        highlight=False,
    )
    events = folder / folders.EVENTS
    for line in events.read_text(encoding="utf-8").splitlines()[-lines:] if events.exists() else []:
        out.print(line, soft_wrap=True, highlight=False, markup=False)


def show(tail: folders.LogTail, out: Console) -> list[str]:
    """Print the new lines of a folder's events, and return them."""
    lines = tail.lines()
    for line in lines:
        out.print(line, soft_wrap=True, highlight=False, markup=False)
    return lines


def wait_for(ready: Callable[[], bool], group: ProcessGroup, name: str) -> None:
    """Wait until `ready` returns True for the process of this name.

    Raises:
        PartialRun: the process ended, or took too long.
    """
    end = time.monotonic() + STARTS
    while not ready():
        if group.ended(name) or time.monotonic() > end:
            raise PartialRun(f"the {name} process did not start: {line_of(group.last(name))}")
        time.sleep(0.3)
