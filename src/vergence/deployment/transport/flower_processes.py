"""The processes of a deployment that is carried by Flower.

The link (Flower's SuperLink) beside the server; a node (its SuperNode) beside each client; and at
each of them a labour, which has the libraries and the data in memory and forks for every task that
its link or node has. Flower's own way is a new interpreter for each task.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, Literal

from vergence.deployment.transport.flower import POLL, bundle
from vergence.deployment.transport.flower_parts import replace_part

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "INFO",
}
"""What every process that imports Flower is started with, beside its own FLWR_HOME."""
KEY, KEYS = "VERGENCE_LINK_KEY", "VERGENCE_LINK_KEYS"
"""Environment variables that hand the link the key to its gate (arguments can be read by all), and
where the keys of nodes lie."""
BEAT = 15
"""Seconds between two signs of life: after two of them without, the link takes a node for gone."""
REFUSED = "refused: "
"""How a node's log says that the gate did not let it in; the reason follows."""


def link(arguments: list[str]) -> None:
    """Run the link (Flower's SuperLink), with admission control before it."""
    from starlette.middleware import Middleware

    from vergence.deployment.transport import tls
    from vergence.deployment.transport.admission import WINDOW, AdmissionMiddleware, Refusals

    key, keys = os.environ.pop(KEY), os.environ.pop(KEYS, None)
    refusals = Refusals(partial(print, flush=True))
    gate = Middleware(
        AdmissionMiddleware, key=key, refusals=refusals, keys=Path(keys) if keys else None
    )
    replace_part("flwr.superlink.extensions", "get_middleware", lambda: (gate,))
    # Clocks that go ahead are the gate's business.
    replace_part("flwr.superlink.routers.fleet.node_auth", "SYSTEM_TIME_TOLERANCE", WINDOW)
    program = "flwr.superlink.cli.flower_superlink"
    replace_part(program, "uvicorn", SimpleNamespace(run=partial(tls.run, refusals)))
    superlink: Any = importlib.import_module(program)
    sys.argv = ["flower-superlink", *arguments]
    superlink.flower_superlink()


def node(arguments: list[str]) -> None:
    """Run a node, which takes no code but this package's and looks for messages often."""
    from vergence.deployment.transport.admission import REASON

    internal, fleet = "flwr.supernode.start_client_internal", "flwr.supernode.fleet_http_connection"
    connection: Any = importlib.import_module(fleet)
    ours = hashlib.sha256(bundle()).hexdigest()

    @contextmanager
    def trusting_nobody(*args: Any, **options: Any) -> Iterator[Any]:
        with connect(*args, **options) as (number, receive, send, run, fab, *rest):

            def checked(*asked: Any) -> Any:
                got = fab(*asked)
                if hashlib.sha256(got.content).hexdigest() != ours:
                    raise RuntimeError("the server sent code of its own: refused")
                return got

            yield (number, receive, send, run, checked, *rest)

    class Heard(connection.NodeAuthHttpInterceptor):
        def intercept(self, context: Any, call_next: Any) -> Any:
            response = super().intercept(context, call_next)
            if reason := response.headers.get(REASON):
                print(f"{REFUSED}{reason}", flush=True)
            return response

    replace_part(fleet, "NodeAuthHttpInterceptor", Heard)
    for module in (fleet, "flwr.supercore.heartbeat"):
        replace_part(module, "HEARTBEAT_DEFAULT_INTERVAL", BEAT)
    connect = replace_part(internal, "http_request_response", trusting_nobody)
    brief = SimpleNamespace(**{**vars(time), "sleep": lambda s: time.sleep(min(s, POLL))})
    replace_part(internal, "time", brief)
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    finally:  # a thread of its own would keep it alive when its server is gone
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def labour(
    kind: Literal["server", "client"], address: str, secret: Path, root: Path | None
) -> None:
    """Carry out the tasks of a link or a node, each in a fork of this process."""
    import httpx
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
    common = {
        "runtime_api_address": address,
        "insecure": root is None,
        "certificates": certificate,
        "parent_pid": None,
        "runtime_dependency_install": False,
    }
    signed = SuperExecAuthHttpInterceptor(
        master_secret=secret.read_bytes(),
        protected_methods={"/flwr.proto.Runtime/AcquireTask"},
    )
    client = RuntimeHttpClient.from_server_address(
        address,
        root is None,
        certificate,
        [RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    mine = os.getpid()
    task = TaskType.SERVER_APP if kind == "server" else TaskType.CLIENT_APP
    while True:
        time.sleep(POLL)
        try:
            got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[task]))
        except httpx.HTTPError:  # its node starts anew
            continue
        if got.token and os.fork() == 0:
            end_with(mine)
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


class FlowerControl:
    """Control of the link on this machine: the keys let in, the start of the run, its state."""

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
        """Let a key in; return its node's number."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return self.client.RegisterNode(RegisterNodeRequest(public_key=public, name=name)).node_id

    def expel(self, number: int) -> None:
        """Let a key in no more."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self.client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    def answers(self) -> bool:
        """True if the link is up."""
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
        """State of a run (pending, starting, running, finished), and its details."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found.status, f"{found.sub_status} {found.details}".strip()


def begin(parent: int) -> None:
    """Begin a process that ends when its parent does, killed or not, and waits for nothing long.

    Flower asks for a part that has not arrived yet after 1, 2, 4, ... seconds again.
    """
    replace_part("flwr.supercore.constant", "PULL_INITIAL_BACKOFF", POLL / 2)
    replace_part("flwr.supercore.constant", "PULL_BACKOFF_CAP", 5 * POLL)
    end_with(parent)


def end_with(parent: int) -> None:
    """End this process when its parent has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    begin(int(sys.argv[2]))
    if sys.argv[1] == "link":
        link(sys.argv[3:])
    else:
        node(sys.argv[3:])
