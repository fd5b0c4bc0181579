"""Flower carries the errands: the only file that imports it, and only where a process needs it.

A deployment's processes: the link (Flower's SuperLink) beside the server, a node (its SuperNode)
beside each client, and at every end a labour, which has the libraries and the data in memory and
forks for every task that its link or node has. Flower's own way starts an interpreter for each.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, Literal

from vergence.engines.remote import Lost

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "INFO",
}
"""What every process that imports Flower is started with, beside its own FLWR_HOME."""
ACTION = "turn"
POLL = 0.2
"""Seconds between two looks for an answer, a task or a message."""
LOOK = 0.5
"""Seconds between two looks whether a node is still there."""
BUNDLE = b"""
[project]
name = "vergence"
version = "1"
description = "Names the two ends of a deployment; both have the code already."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "vergence"

[tool.flwr.app.components]
serverapp = "vergence.app.ends:server"
clientapp = "vergence.app.ends:client"
"""
"""All that Flower hands from server to clients by way of code."""


class Gone(Exception):
    """The node went before it answered."""


def bundle() -> bytes:
    """Return the app bundle; the same bytes wherever the same Flower builds it."""
    from flwr.cli.build import build_fab_from_files

    return build_fab_from_files({"pyproject.toml": BUNDLE})[0]


def server_app(main: Callable[[GridLine], None]) -> Any:
    """Return a ServerApp that does its work over a line."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def _(grid: Any, context: Any) -> None:
        line = GridLine(grid)
        try:
            main(line)
        finally:
            line.close()

    return app


def client_app(answer: Callable[[bytes], bytes]) -> Any:
    """Return a ClientApp with one action, which answers bytes with bytes."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train(ACTION)
    def _(message: Any, context: Any) -> Any:
        return Message(packed(answer(unpacked(message))), reply_to=message)

    return app


def packed(data: bytes) -> Any:
    """Return bytes as the array of a record: Flower sends large arrays in parts."""
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({"body": ArrayRecord({"": Array("uint8", (len(data),), "bytes", data)})})


def unpacked(message: Any) -> bytes:
    """Return the bytes in a message."""
    return message.content["body"][""].data


class GridLine:
    """Sends bytes to nodes and brings answers back, for many threads over one grid."""

    def __init__(self, grid: Any, poll: float = POLL) -> None:
        self.grid, self.poll = grid, poll
        self.lock, self.over = threading.Lock(), threading.Event()
        self.waiting: dict[str, Future[Any]] = {}
        threading.Thread(target=self._collect, daemon=True).start()

    def nodes(self) -> dict[int, str]:
        """Return who is connected: a node's number, and since when."""
        numbers = set(self.grid.get_node_ids())
        return {n.node_id: n.last_activated_at for n in self.grid.get_nodes()
                if n.node_id in numbers}  # fmt: skip

    def send(
        self, node: int, data: bytes, seconds: float, there: Callable[[], bool] = lambda: True
    ) -> bytes:
        """Return a node's answer.

        Raises:
            Lost: it said that it failed, or said nothing in time.
            Gone: it is no longer `there`, or came back as another.
        """
        from flwr.app import Message

        future: Future[Any] = Future()
        message = Message(packed(data), node, f"train.{ACTION}", ttl=max(seconds, 1.0))
        with self.lock:
            number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                raise Gone
            self.waiting[number] = future
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                with suppress(Late):
                    return self._body(future.result(min(left, LOOK)))
                if not there():
                    raise Gone
        finally:
            self.waiting.pop(number, None)
        raise Lost(f"no answer in {seconds:g} s")

    def _body(self, reply: Any) -> bytes:
        from flwr.common.constant import ErrorCode

        if not reply.has_error():
            try:
                return unpacked(reply)
            except (KeyError, AttributeError, TypeError):
                raise Lost("its answer holds no bytes") from None
        if reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            raise Gone
        raise Lost(f"Flower's error {reply.error.code}: {str(reply.error.reason)[:120]}")

    def _collect(self) -> None:
        """Hand out what has arrived; a link that does not answer is asked again."""
        while not self.over.wait(self.poll):
            with suppress(Exception):
                for reply in self.grid.pull_messages(list(self.waiting) or []):
                    future = self.waiting.pop(reply.metadata.reply_to_message_id, None)
                    if future is not None:
                        future.set_result(reply)

    def close(self) -> None:
        """Stop collecting."""
        self.over.set()


class Gate:
    """Stands before the link: from outside, nobody but nodes may speak to it.

    Flower serves nodes, its apps and `flwr run` on one port and lets everybody start code with the
    last of them. Here that takes a key that only `vergence deploy serve` knows.
    """

    def __init__(self, app: Any, key: str) -> None:
        self.app, self.key = app, key.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 404."""
        if scope["type"] != "http" or self.passes(scope):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def passes(self, scope: Mapping[str, Any]) -> bool:
        """Tell whether a request may pass."""
        path, host = scope["path"], (scope.get("client") or ("",))[0]
        if path.startswith("/v1/fleet/"):
            return True
        if host not in ("127.0.0.1", "::1"):
            return False
        shown = dict(scope["headers"]).get(b"x-vergence-key", b"")
        return path.startswith("/v1/runtime/") or secrets.compare_digest(shown, self.key)


def link(arguments: list[str], key: str) -> None:
    """Be the link, with a gate before it."""
    from starlette.middleware import Middleware

    extensions = importlib.import_module("flwr.superlink.extensions")
    extensions.get_middleware = lambda: (Middleware(Gate, key=key),)
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


def node(arguments: list[str]) -> None:
    """Be a node, which takes no code but this package's and looks for messages often."""
    internal = importlib.import_module("flwr.supernode.start_client_internal")
    connect, ours = internal.http_request_response, hashlib.sha256(bundle()).hexdigest()

    @contextmanager
    def trusting_nobody(*args: Any, **options: Any) -> Iterator[Any]:
        with connect(*args, **options) as (number, receive, send, run, fab, *rest):

            def checked(*asked: Any) -> Any:
                got = fab(*asked)
                if hashlib.sha256(got.content).hexdigest() != ours:
                    raise RuntimeError("the server sent code of its own: refused")
                return got

            yield (number, receive, send, run, checked, *rest)

    internal.http_request_response = trusting_nobody
    internal.time = SimpleNamespace(**{**vars(time), "sleep": lambda s: time.sleep(min(s, POLL))})
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def labour(
    kind: Literal["server", "client"], address: str, secret: Path, root: Path | None
) -> None:
    """Carry out the tasks of a link or a node, each in a fork of this process."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import (
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.runtime import run_serverapp
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    certificate = root.read_bytes() if root else None
    common = {"runtime_api_address": address, "insecure": root is None,
              "certificates": certificate, "parent_pid": os.getpid(),
              "runtime_dependency_install": False}  # fmt: skip
    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(),
        protected_methods={"/flwr.proto.Runtime/AcquireTask"},
    )
    client = RuntimeHttpClient.from_server_address(
        address, root is None, certificate,
        [RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        retry_invoker=make_simple_http_retry_invoker(),
    )  # fmt: skip
    task = TaskType.SERVER_APP if kind == "server" else TaskType.CLIENT_APP
    while True:
        got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[task]))
        if got.token and os.fork() == 0:
            try:
                if kind == "server":
                    run_serverapp(log_queue=Queue(), token=got.token, **common)
                else:
                    run_clientapp(token=got.token, **common)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL)


class Control:
    """Speaks to the link on this machine: which keys are let in, start the run, how it stands."""

    def __init__(self, address: str, root: Path | None, key: str) -> None:
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        def intercept(context: Any, call_next: Any) -> Any:
            context.request.headers["x-vergence-key"] = key
            return call_next(context)

        self.client = ControlHttpClient.from_server_address(
            address, root is None, root.read_bytes() if root else None,
            [RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
             SimpleNamespace(intercept=intercept)],
        )  # fmt: skip

    def admit(self, name: str, public: bytes) -> int:
        """Let a key in; return its node's number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return self.client.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id

    def expel(self, number: int) -> None:
        """Let a key in no more."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self.client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    def answers(self) -> bool:
        """Tell whether the link is up."""
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest

        try:
            self.client.ListNodes(ListNodesRequest())
        except (httpx.TransportError, OSError):
            return False
        return True

    def start(self) -> int:
        """Start the run; return its number."""
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        data = bundle()
        fab = fab_to_proto(Fab(hashlib.sha256(data).hexdigest(), data, {}))
        return self.client.StartRun(StartRunRequest(fab=fab)).run_id

    def state(self, run: int) -> tuple[str, str]:
        """Return how a run stands (pending, starting, running, finished), and in detail."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found.status, f"{found.sub_status} {found.details}".strip()
