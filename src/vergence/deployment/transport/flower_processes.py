"""The processes of a deployment over Flower.

There are three kinds. The link (Flower's SuperLink) runs next to the server. A node (Flower's
SuperNode) runs next to each client. A task process runs next to the link and next to each node: it
has libraries and data in memory, and forks for every task of its link or node. On systems that
cannot fork, a new interpreter runs each task, as in Flower itself.

Used by `deployment.diagnostics`, `deployment.launcher` and `deployment.server_run`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, Literal

from vergence.deployment.transport.flower import POLL, RARELY, bundle
from vergence.deployment.transport.flower_parts import replace_part
from vergence.deployment.transport.wakeups import Wakeups
from vergence.system.local_sockets import LOCAL
from vergence.system.processes import can_fork, end_with, fork, reap_forks

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "INFO",
}
"""Environment variables of every process that imports Flower; FLWR_HOME is set in addition."""
# Environment variables with the key to the link's control interface, and the folder of nodes' keys.
# The key is in no argument, which every user of the machine can list.
KEY, KEYS = "VERGENCE_LINK_KEY", "VERGENCE_LINK_KEYS"
LIMIT = "VERGENCE_LINK_LIMIT"
"""Environment variable with the largest number of bytes of a node's answer; 0: no limit."""
PATHS = {"Control": "/v1/control/", "Runtime": "/v1/runtime/", "NodeAuth": "/v1/fleet/"}
"""Path of each of Flower's interfaces, by the first part of the name of its middleware."""
BRIEFLY = 0.01
"""Shortest pause in seconds between two polls for the result of another process."""
# Seconds between two heartbeats: after two missing ones the link takes a node for gone.
BEAT = 15
SECRET_FILE = "--superexec-auth-secret-file"
"""Argument of Flower's programs that names the file of the secret shared in a folder."""
STANDS_BY = b"stands by"
"""Line that a process prints when it has its libraries and data and waits for its task."""
REFUSED = "refused: "
"""Beginning of a line in a node's log: admission control refused a request; the reason follows."""


def link(arguments: list[str]) -> None:
    """Run the link (Flower's SuperLink) with admission control, until the process ends.

    `arguments` are those of Flower's program.
    """
    from starlette.middleware import Middleware

    from vergence.deployment.transport import tls
    from vergence.deployment.transport.admission import WINDOW, AdmissionMiddleware, Refusals
    from vergence.deployment.transport.long_polling import LongPollMiddleware

    # Taken out of the environment, which processes that the link starts would inherit.
    key, keys = os.environ.pop(KEY), os.environ.pop(KEYS, None)
    refusals = Refusals(partial(print, flush=True))
    gate = Middleware(
        AdmissionMiddleware, key=key, refusals=refusals, keys=Path(keys) if keys else None
    )
    options = {"wakeups": wakeups_of(arguments), "limit": int(os.environ.pop(LIMIT, "0"))}
    polls = [Middleware(LongPollMiddleware, **options)] if LOCAL else []
    replace_part("flwr.superlink.extensions", "get_middleware", lambda: (gate, *polls))
    others = replace_part(
        "flwr.superlink.main", "_get_middleware", lambda: [*map(on_its_path, others())]
    )
    # Admission control checks clocks itself, and tells a client whose clock is wrong.
    replace_part("flwr.superlink.routers.fleet.node_auth", "SYSTEM_TIME_TOLERANCE", WINDOW)
    program = "flwr.superlink.cli.flower_superlink"
    replace_part(program, "uvicorn", SimpleNamespace(run=partial(tls.run, refusals)))
    superlink: Any = importlib.import_module(program)
    sys.argv = ["flower-superlink", *arguments]
    superlink.flower_superlink()


def on_its_path(middleware: Any) -> Any:
    """Return one of Flower's middlewares, limited to requests to its own interface."""
    from starlette.middleware import Middleware

    from vergence.deployment.transport.long_polling import PathMiddleware

    for name, path in PATHS.items():
        if middleware.cls.__name__.startswith(name):
            return Middleware(PathMiddleware, kind=middleware.cls, path=path, **middleware.kwargs)
    return middleware


def node(arguments: list[str]) -> None:
    """Run a node (Flower's SuperNode) until the process ends.

    The node accepts only this package's code, and is told at once when there is a message.
    `arguments` are those of Flower's program.
    """
    from vergence.deployment.transport.admission import REASON
    from vergence.deployment.transport.long_polling import AGAIN

    internal, fleet = "flwr.supernode.start_client_internal", "flwr.supernode.fleet_http_connection"
    connection: Any = importlib.import_module(fleet)
    polls = NodePolls(wakeups_of(arguments))

    @contextmanager
    def trusting_nobody(*args: Any, **options: Any) -> Iterator[Any]:
        with connect(*args, **options) as (number, receive, send, run, fab, *moves, confirm):
            asked, confirmed = partial(polls.message, receive), partial(polls.confirm, confirm)
            sent = partial(send_in_turn, send)
            yield (number, asked, sent, run, partial(own_code, fab), *moves, confirmed)

    class Heard(connection.NodeAuthHttpInterceptor):
        def intercept(self, context: Any, call_next: Any) -> Any:
            response = super().intercept(context, call_next)
            if reason := response.headers.get(REASON):
                print(f"{REFUSED}{reason}", flush=True)
            if AGAIN in response.headers:
                polls.again.set()
            return response

    replace_part(fleet, "NodeAuthHttpInterceptor", Heard)
    for module in (fleet, "flwr.supercore.heartbeat"):
        replace_part(module, "HEARTBEAT_DEFAULT_INTERVAL", BEAT)
    connect = replace_part(internal, "http_request_response", trusting_nobody)
    replace_part(internal, "time", SimpleNamespace(**{**vars(time), "sleep": polls.pause.sleep}))
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    # A thread of Flower's would keep the process alive when its server is gone.
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def own_code(fab: Any, *asked: Any) -> Any:
    """Fetch a run's code from the server by Flower's function `fab`, and return it.

    Raises:
        RuntimeError: the code is not this package's bundle.
    """
    got = fab(*asked)
    # Flower would run whatever the server sends: a malicious one could read a client's data.
    if got.content != bundle():
        raise RuntimeError("the server sent code of its own: refused")
    return got


def send_in_turn(send: Any, *answer: Any) -> Any:
    """Announce an answer by Flower's function `send`, again and again until it may be sent."""
    import httpx

    while True:
        try:
            return send(*answer)
        # The link says so while many other clients send theirs (`long_polling.py`). Flower itself
        # gives up after a few tries, and the answer would be lost.
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise


class NodePolls:
    """A node's polls: for a message at the server, and for the answer of the node's task.

    Attributes:
        again: event that is set when a response of the server says that there is a message.
        pause: pause between two polls for the answer of a task.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self.wakeups, self.again, self.pause = wakeups, threading.Event(), GrowingPause()

    def message(self, receive: Any) -> Any:
        """Wait for the next message and return it; `receive` is Flower's own function for it."""
        # `again` is obeyed after every second request: a server that always says it cannot keep
        # the client busy without a pause.
        at_once = False
        while True:
            begun = time.monotonic()
            self.again.clear()
            if (got := receive()) is not None:
                return got
            at_once = self.again.is_set() and not at_once
            if not at_once:
                time.sleep(max(0.0, begun + POLL - time.monotonic()))

    def confirm(self, confirm: Any, *asked: Any) -> None:
        """Confirm a complete message by Flower's function `confirm`, and wake the task process."""
        confirm(*asked)
        self.wakeups.tell("client")
        self.pause.begin()


class GrowingPause:
    """Pause between two polls of a local task: a tenth of the time waited so far.

    The end of a short task is therefore noticed at once, and a long task is polled five times per
    second.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Set the time waited so far to 0, so that the next pauses are short."""
        self.since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for the pause, but at most `seconds`."""
        pause = max(BRIEFLY, (time.monotonic() - self.since) / 10)
        time.sleep(min(seconds, pause, POLL))


def wakeups_of(arguments: list[str]) -> Wakeups:
    """Return the wake-up notices of a folder, from the secret file that `arguments` name."""
    return Wakeups(Path(arguments[arguments.index(SECRET_FILE) + 1]).read_bytes())


def run_tasks(
    kind: Literal["server", "client"], address: str, secret: Path, root: Path | None
) -> None:
    """Run tasks of the link (SuperLink) or a node (SuperNode) without end, each in a process.

    Args:
        kind: `server`: tasks of the link; `client`: tasks of a node.
        address: address of the link or node on this machine.
        secret: file of the secret that the processes of the folder share.
        root: file of the authority's certificate; None: without TLS.
    """
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(),
        protected_methods={"/flwr.proto.Runtime/AcquireTask"},
    )
    client = RuntimeHttpClient.from_server_address(
        address,
        root is None,
        root.read_bytes() if root else None,
        [RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    tasks = (ForkedTasks if can_fork() else SpawnedTasks)(kind, address, root)
    notices = Wakeups(secret.read_bytes()).listen(kind) if LOCAL else None
    wanted = TaskType.SERVER_APP if kind == "server" else TaskType.CLIENT_APP
    pause = POLL
    while True:
        tasks.prepare()
        notices.wait(pause) if notices else time.sleep(POLL)
        try:
            got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[wanted]))
        # The node is restarting; it will answer again.
        except httpx.HTTPError:
            continue
        pause = RARELY if got.token else pause
        if got.token:
            tasks.start(got.token)


@dataclass
class Tasks:
    """What all tasks of a process share: the end they are for, and the address that they call.

    `root` is the file of the authority that signed the server's certificate; None: without TLS.
    """

    kind: Literal["server", "client"]
    address: str
    root: Path | None


@dataclass
class ForkedTasks(Tasks):
    """Runs each task in a fork of this process, which has libraries and data in memory."""

    def __post_init__(self) -> None:
        # Imported once here, and not in every fork.
        import_flower_runtime()
        self.mine = os.getpid()

    def start(self, token: str) -> None:
        """Start a task; `token` is Flower's name for the task."""
        fork(partial(self._work, token))

    def _work(self, token: str) -> None:
        end_with(self.mine)
        task(self.kind, self.address, self.root, token)

    def prepare(self) -> None:
        """Collect the exit status of forked processes that have ended."""
        reap_forks()


@dataclass
class SpawnedTasks(Tasks):
    """Runs each task in its own interpreter; the next interpreter is always started in advance.

    An interpreter has libraries and data before its task comes, because Flower withdraws a task
    that does not respond for some seconds.
    """

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        about = (f"task-{self.kind}", str(os.getpid()), self.address, "", str(self.root or ""))
        command = [sys.executable, "-P", "-m", "vergence.deployment.server_run", *about]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, token: str) -> None:
        """Start a task; `token` is Flower's name for the task."""
        assert self.next.stdin is not None
        # By a pipe: arguments would show the token to every user of the machine. The process may
        # have died; Flower then offers the task again.
        with suppress(OSError), self.next.stdin as pipe:
            pipe.write(token.encode())
        self.running.append(self.next)
        self.next = self._begin()

    def prepare(self) -> None:
        """Wait until the next interpreter is ready, and forget interpreters that have ended.

        Raises:
            RuntimeError: the next interpreter ended before it had a task.
        """
        self.running = [process for process in self.running if process.poll() is None]
        assert self.next.stdout is not None
        if not self.next.stdout.closed:
            if self.next.stdout.readline().strip() != STANDS_BY:
                raise RuntimeError("a process that was to carry out a task ended before it began")
            self.next.stdout.close()


def stand_by() -> str:
    """Report that this process is ready, wait for the token of its task, and return the token.

    The process's standard output goes to the log from then on.
    """
    sys.stdout.buffer.write(STANDS_BY + b"\n")
    sys.stdout.flush()
    os.dup2(2, 1)
    return sys.stdin.read()


def import_flower_runtime() -> tuple[Callable[..., None], Callable[..., None]]:
    """Import and return Flower's two functions that run a server's task and a client's task."""
    from flwr.superlink.runtime import run_serverapp
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    return run_serverapp, run_clientapp


def task(kind: Literal["server", "client"], address: str, root: Path | None, token: str) -> None:
    """Run a task in this process; `token` is Flower's name for the task."""
    run_serverapp, run_clientapp = import_flower_runtime()
    common = {
        "token": token,
        "runtime_api_address": address,
        "insecure": root is None,
        "certificates": root.read_bytes() if root else None,
        "parent_pid": None,
        "runtime_dependency_install": False,
    }
    if kind == "server":
        run_serverapp(log_queue=Queue(), **common)
    else:
        run_clientapp(**common)


class LinkBusy(Exception):
    """Raised where the link does not answer in time: it is busy, it starts, or it has ended."""


@contextmanager
def busy_if_silent() -> Iterator[None]:
    """Raise `LinkBusy` in place of the errors of a connection on which no answer comes."""
    import httpx

    try:
        yield
    except (httpx.TransportError, OSError) as error:
        raise LinkBusy(type(error).__name__) from error


class FlowerControl:
    """Gives commands to Flower's SuperLink (the link) on this machine.

    The commands admit or refuse keys of nodes, start a run, and read a run's state.
    """

    def __init__(self, address: str, root: Path | None, key: str) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        def intercept(context: Any, call_next: Any) -> Any:
            context.request.headers["x-vergence-key"] = key
            return call_next(context)

        speaker: Any = SimpleNamespace(intercept=intercept)
        self.client = ControlHttpClient.from_server_address(
            address,
            root is None,
            root.read_bytes() if root else None,
            [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), speaker],
        )

    def admit(self, name: str, public: bytes) -> int:
        """Admit a node's public key; return the node's number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return self.client.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id

    def expel(self, number: int) -> None:
        """Refuse the key of a node from now on, even if it was refused before.

        Raises:
            LinkBusy: the link did not answer in time.
        """
        import httpx
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        try:
            with busy_if_silent():
                self.client.UnregisterNode(UnregisterNodeRequest(node_id=number))
        # A busy link may have done it at an earlier call, to which its answer came too late.
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise

    def answers(self) -> bool:
        """Return whether the link answers."""
        from flwr.proto.control_pb2 import ListNodesRequest

        with suppress(LinkBusy), busy_if_silent():
            self.client.ListNodes(ListNodesRequest())
            return True
        return False

    def start(self) -> int:
        """Start the run; return its number."""
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        data = bundle()
        fab = fab_to_proto(Fab(hashlib.sha256(data).hexdigest(), data, {}))
        return self.client.StartRun(StartRunRequest(fab=fab)).run_id

    def state(self, run: int) -> tuple[str, str]:
        """Return the state of a run (pending, starting, running, finished), and its details.

        Raises:
            LinkBusy: the link did not answer in time.
        """
        from flwr.proto.control_pb2 import ListRunsRequest

        with busy_if_silent():
            now = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return now.status, f"{now.sub_status} {now.details}".strip()


def begin(parent: int) -> None:
    """Make this process end when its parent ends, even if the parent is killed.

    Also shorten the pauses between Flower's repeated requests.
    """
    # Flower asks again for a part that has not arrived after 1, 2, 4, ... seconds, which is long
    # for messages of milliseconds.
    replace_part("flwr.supercore.constant", "PULL_INITIAL_BACKOFF", BRIEFLY)
    replace_part("flwr.supercore.constant", "PULL_BACKOFF_CAP", 5 * POLL)
    end_with(parent)


if __name__ == "__main__":
    begin(int(sys.argv[2]))
    if sys.argv[1] == "link":
        link(sys.argv[3:])
    else:
        node(sys.argv[3:])
