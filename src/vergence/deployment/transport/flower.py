"""Transport of requests by Flower: its apps, and bytes sent over its grid of nodes.

This file and `flower_processes.py` are the only ones that import Flower, inside the functions that
need it.

Used by `deployment.flower_app`, `deployment.server_run` and
`deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vergence.deployment.transport.wakeups import Wakeups, WakeupSocket

ACTION = "turn"
POLL = 0.2
"""Seconds between two polls for an answer, a task or a message."""
# Seconds between two polls where a notice says when to poll: only a lost notice needs them.
RARELY = 1.0
# Longest message sent as one value, in bytes, of which Flower makes three objects. Of an
# array it makes five, but sends them in parts of 5 MiB.
SHORT = 1 << 20
LOOK = 0.5
"""Seconds between two checks whether a node is still connected."""
UNAVAILABLE = 5
"""Flower's number for the error that a node is not connected."""
BUNDLE = b"""
[project]
name = "vergence"
version = "1"
description = "Names the two ends of a deployment; both have the code already."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "vergence"

[tool.flwr.app.components]
serverapp = "vergence.deployment.server_run:server"
clientapp = "vergence.deployment.server_run:client"
"""
"""The only content that Flower sends as code from server to clients: the names of two functions.

The clients have these functions already.
"""


def bundle() -> bytes:
    """Return the bytes of the Flower app; the same version of Flower builds the same bytes."""
    # Clients compare them with their own: a server that sends other code is refused.
    from flwr.cli.build import build_fab_from_files

    return build_fab_from_files({"pyproject.toml": BUNDLE})[0]


def server_app(main: Callable[[GridTransport, Any], None], wakeups: Wakeups | None = None) -> Any:
    """Return a Flower ServerApp that calls `main` with a `GridTransport` and Flower's context."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def _(grid: Any, context: Any) -> None:
        line = GridTransport(grid, wakeups=wakeups)
        try:
            main(line, context)
        finally:
            line.close()

    return app


def client_app(answer: Callable[[bytes, Any], bytes]) -> Any:
    """Return a Flower ClientApp that answers each message with the bytes that `answer` returns.

    `answer` gets the message's bytes and Flower's context.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train(ACTION)
    def _(message: Any, context: Any) -> Any:
        return Message(packed(answer(unpacked(message), context)), reply_to=message)

    return app


def packed(data: bytes) -> Any:
    """Return bytes as a record of Flower: as a single value if short, otherwise as an array."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(data) <= SHORT:
        return RecordDict({"body": ConfigRecord({"": data})})
    return RecordDict({"body": ArrayRecord({"": Array("uint8", (len(data),), "bytes", data)})})


def unpacked(message: Any) -> bytes:
    """Return the bytes in a message of Flower.

    Raises:
        KeyError, AttributeError, TypeError: the message has no bytes.
    """
    body = message.content["body"][""]
    data = body if isinstance(body, bytes) else body.data
    if not isinstance(data, bytes):
        raise TypeError("no bytes")
    return data


@dataclass
class AwaitedAnswer:
    """An answer for which a thread waits.

    `node` is the node's number. `reply` gets the answer. `noticed` wakes the thread that fetches
    the answer.
    """

    node: int
    reply: Future[Any] = field(default_factory=Future)
    noticed: threading.Event = field(default_factory=threading.Event)


class GridTransport:
    """Connection to nodes over one Flower grid: sends bytes, returns answers; for many threads.

    With `wakeups`, Flower's SuperLink is told at once which node has a message, and tells this
    process at once about answers. Without `wakeups`, both sides poll every `poll` seconds, as
    Flower's own programs do.
    """

    def __init__(self, grid: Any, poll: float = POLL, wakeups: Wakeups | None = None) -> None:
        self.grid, self.wakeups = grid, wakeups
        self.poll = poll if wakeups is None else RARELY
        self.lock, self.over = threading.Lock(), threading.Event()
        self.waiting: dict[str, AwaitedAnswer] = {}
        self.names: dict[int, str] = {}
        # A notice that came before would be lost: listening begins before the first message.
        if wakeups is not None:
            args = (wakeups.listen("run"),)
            threading.Thread(target=self._listen, args=args, daemon=True).start()

    def nodes(self) -> dict[int, str]:
        """Return the connected nodes: each node's number, and the time at which it connected."""
        # `get_nodes` lists nodes that were connected once; `get_node_ids` only those that are.
        numbers = set(self.grid.get_node_ids())
        nodes = [node for node in self.grid.get_nodes() if node.node_id in numbers]
        self.names = {node.node_id: node.name for node in nodes}
        return {node.node_id: node.last_activated_at for node in nodes}

    def name(self, node: int) -> str:
        """Return the name under which a node's key was registered; "" if none is known."""
        return self.names.get(node, "")

    def send(
        self, node: int, data: bytes, seconds: float, there: Callable[[], bool] = lambda: True
    ) -> bytes:
        """Send bytes to a node, and return the node's answer.

        `seconds` is the longest time to wait; `there` returns whether the node is still connected.

        Raises:
            ClientLost: the node reported an error, or did not answer in time.
            ClientGone: the node disconnected, or connected again as another node.
        """
        from flwr.app import Message

        from vergence.deployment.client_registry import ClientGone
        from vergence.deployment.remote_clients import ClientLost

        awaited = AwaitedAnswer(node)
        message = Message(packed(data), node, f"train.{ACTION}", ttl=max(seconds, 1.0))
        # Under the lock, so that an answer cannot arrive before its message is known.
        with self.lock:
            number = next(iter(self.grid.push_messages([message])), None)
            if number is None:
                raise ClientGone
            self.waiting[number] = awaited
        if self.wakeups is not None:
            self.wakeups.tell("link", node)
        threading.Thread(target=self._collect, args=(number, awaited), daemon=True).start()
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                with suppress(Late):
                    return self._body(awaited.reply.result(min(left, LOOK)))
                if not there():
                    raise ClientGone
        finally:
            self.waiting.pop(number, None)
            awaited.noticed.set()
        raise ClientLost(f"no answer in {seconds:.3g} s")

    def _body(self, reply: Any) -> bytes:
        from vergence.deployment.client_registry import ClientGone
        from vergence.deployment.remote_clients import ClientLost

        if not reply.has_error():
            try:
                return unpacked(reply)
            except (KeyError, AttributeError, TypeError):
                raise ClientLost("its answer holds no bytes") from None
        if reply.error.code == UNAVAILABLE:
            raise ClientGone
        raise ClientLost(f"Flower's error {reply.error.code}: {str(reply.error.reason)[:120]}")

    def _collect(self, number: str, awaited: AwaitedAnswer) -> None:
        """Poll for the answer to message `number`; each message has a thread that runs this."""
        # A thread each: Flower blocks for minutes on an answer whose parts never come.
        while number in self.waiting:
            awaited.noticed.wait(self.poll * (1 + len(self.waiting) // 5))
            awaited.noticed.clear()
            if self.over.is_set():
                return
            # A link that restarts raises all kinds of errors: the next poll tries again.
            with suppress(Exception):
                # A link may hand out answers to other messages too.
                for reply in self.grid.pull_messages([number]):
                    # The lock waits for a message that is just being sent to be known.
                    with self.lock:
                        answered = self.waiting.pop(reply.metadata.reply_to_message_id, None)
                    if answered is not None:
                        answered.reply.set_result(reply)

    def _listen(self, notices: WakeupSocket) -> None:
        """Wake the threads that fetch answers of nodes for which a notice came."""
        with notices:
            while not self.over.is_set():
                nodes, lost = notices.wait(LOOK)
                for awaited in list(self.waiting.values()):
                    if lost or awaited.node in nodes:
                        awaited.noticed.set()

    def close(self) -> None:
        """End the threads that collect answers."""
        self.over.set()
        for awaited in list(self.waiting.values()):
            awaited.noticed.set()
