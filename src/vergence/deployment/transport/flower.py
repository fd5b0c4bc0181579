"""Transport of requests by Flower: its apps, and bytes sent over its grid of nodes.

This file and `flower_processes.py` are the only ones that import Flower, inside the functions that
need it.

Used by `deployment.flower_app`, `deployment.server_run` and
`deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vergence.deployment.transport.wakeups import Wakeups, WakeupSocket

ACTION = "turn"
POLL = 0.2
"""Seconds between two polls for an answer, a task or a message."""
# Seconds between two polls where a notice says when to poll: only a lost notice needs them.
RARELY = 1.0
# Longest message sent as one value, in bytes, of which Flower makes three objects, each of which
# travels by a request of its own. Of an array it makes five, and more beyond 5 MiB, but sends them
# in parts of 5 MiB: a request may have 16 MiB (`admission.LARGEST_REQUEST`).
SHORT = 8 << 20
# The link offers nodes the messages of a request before it has their parts, which nodes then ask
# for again and again: a hundred of them would keep the link from taking the parts.
TOGETHER = 8
"""Largest number of messages in one request to the link; what they share is sent once."""
FETCHERS = 4
"""Number of threads that fetch answers' parts from the link on this machine."""
LATEST = 20.0
"""Longest pause in seconds between two looks for a part that was announced and has not arrived."""
AT_ONCE = 64
"""Number of parts of an answer that are fetched before other answers have their turn."""
PARTS_LAST = 180.0
"""Seconds for which the link waits for the parts of an announced answer."""
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


def packed(data: bytes, shared: bytes = b"") -> Any:
    """Return bytes as a record of Flower: as a single value if short, otherwise as an array.

    `shared` are further bytes, the same for several messages: Flower stores equal parts of messages
    once, by their SHA-256, so these bytes are in a record of their own.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(data) + len(shared) <= SHORT >> 3:
        data, shared = data + shared, b""
    return RecordDict(
        {
            name: ConfigRecord({"": part})
            if len(part) <= SHORT
            else ArrayRecord({"": Array("uint8", (len(part),), "bytes", part)})
            for name, part in {"body": data, **({"shared": shared} if shared else {})}.items()
        }
    )


def unpacked(message: Any) -> bytes:
    """Return the bytes in a message of Flower.

    Raises:
        KeyError, AttributeError, TypeError: the message has no bytes.
    """
    records = [message.content[name][""] for name in ("body", "shared") if name in message.content]
    parts = [part if isinstance(part, bytes) else part.data for part in records]
    if not parts or not all(isinstance(part, bytes) for part in parts):
        raise TypeError("no bytes")
    return b"".join(parts)


@dataclass
class AwaitedAnswer:
    """An answer for which the sender of a message waits.

    Attributes:
        node: the node's number.
        until: time up to which an answer that nobody awaits any more is still fetched.
        reply: future of Flower's message with the answer; cancelled if nobody awaits it any more.
        parts: names of the answer's parts, once the node has announced it; the last one names the
            answer.
        contents: the parts that have been fetched, by name.
        due: time of the next look for a part that was announced and has not arrived.
        pause: seconds between this look and the one after it.
        lock: lock of the thread that fetches parts.
    """

    node: int
    until: float
    reply: Future[Any] = field(default_factory=Future)
    parts: Sequence[str] = ()
    contents: dict[str, bytes] = field(default_factory=dict)
    due: float = 0.0
    pause: float = 0.05
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def comes(self) -> bool:
        """Whether the answer has still to be fetched."""
        # The link keeps a late answer in memory until it is fetched.
        late = self.reply.cancelled() and time.monotonic() < self.until
        return late or not self.reply.done()

    def fail(self, error: Exception) -> None:
        """Raise an error where the answer is awaited, if it still is."""
        with suppress(InvalidStateError):
            self.reply.set_exception(error)


class GridTransport:
    """Connection to nodes over one Flower grid: sends bytes, returns answers.

    Messages that are sent at the same time go to Flower's SuperLink together, and their equal parts
    once. No thread waits for an answer: one thread looks which answers nodes have announced,
    and `FETCHERS` threads fetch parts that have arrived. With `wakeups`, the SuperLink is told at
    once which node has a message, and tells this process at once about answers. Without `wakeups`,
    both sides poll every `poll` seconds.
    """

    def __init__(self, grid: Any, poll: float = POLL, wakeups: Wakeups | None = None) -> None:
        self.grid, self.wakeups = grid, wakeups
        self.poll = poll if wakeups is None else RARELY
        self.lock, self.over = threading.Lock(), threading.Event()
        self.pusher, self.fetchers = ThreadPoolExecutor(1), ThreadPoolExecutor(FETCHERS)
        self.outgoing = deque[tuple[AwaitedAnswer, bytes, bytes, float]]()
        self.waiting: dict[str, AwaitedAnswer] = {}
        self.names: dict[int, str] = {}
        # A notice that came before would be lost: listening begins before the first message.
        notices = None if wakeups is None else wakeups.listen("run")
        threading.Thread(target=self._watch, args=(notices,), daemon=True).start()

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

    async def send(
        self,
        node: int,
        data: bytes,
        seconds: float,
        there: Callable[[], bool] = lambda: True,
        shared: bytes = b"",
    ) -> bytes:
        """Send `data` and `shared` to a node, and return the node's answer.

        `seconds` is the longest time to wait; `there` returns whether the node is still connected.

        Raises:
            ClientLost: the node reported an error, or did not answer in time.
            ClientGone: the node disconnected, or connected again as another node.
        """
        from vergence.deployment.client_registry import ClientGone
        from vergence.deployment.remote_clients import ClientLost

        end, lasts = time.monotonic() + seconds, max(seconds, 1.0)
        awaited = AwaitedAnswer(node, time.monotonic() + lasts + PARTS_LAST)
        self.outgoing.append((awaited, data, shared, lasts))
        self.pusher.submit(self._push)
        reply = asyncio.wrap_future(awaited.reply)
        try:
            while (left := end - time.monotonic()) > 0:
                if (await asyncio.wait([reply], timeout=min(left, LOOK)))[0]:
                    return self._body(reply.result())
                if not there():
                    raise ClientGone
        finally:
            awaited.reply.cancel()
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

    def _push(self) -> None:
        """Send messages that wait to be sent, up to `TOGETHER` in one request."""
        from flwr.app import Message

        from vergence.deployment.client_registry import ClientGone

        # Under the lock, so that no look comes between a message and the entry of its number.
        with self.lock:
            batch = [self.outgoing.popleft() for _ in range(min(TOGETHER, len(self.outgoing)))]
            # One record for all messages that share it: its digest is computed once.
            records: dict[int, Any] = {}
            messages = []
            for awaited, data, shared, ttl in batch:
                content = packed(data, shared)
                if "shared" in content:
                    content["shared"] = records.setdefault(id(shared), content["shared"])
                messages.append(Message(content, awaited.node, f"train.{ACTION}", ttl=ttl))
            try:
                numbers = list(self.grid.push_messages(messages)) if messages else []
            except Exception as error:
                for awaited, *_ in batch:
                    awaited.fail(error)
                return
            for number, (awaited, *_) in zip_longest(numbers, batch):
                if number:
                    self.waiting[number] = awaited
                else:
                    awaited.fail(ClientGone())
        if self.wakeups is not None:
            for awaited, *_ in batch:
                self.wakeups.tell("link", awaited.node)

    def _watch(self, notices: WakeupSocket | None) -> None:
        """Look for announced answers, at once after a notice and else every `poll` seconds."""
        due = time.monotonic() + self.poll
        with notices or nullcontext():
            while not self.over.wait(0.0 if notices else self.poll):
                nodes, lost = notices.wait(min(LOOK, self.poll)) if notices else ((), False)
                everything = lost or not notices or time.monotonic() >= due
                if everything:
                    due = time.monotonic() + self.poll
                with self.lock:
                    self.waiting = {n: a for n, a in self.waiting.items() if a.comes}
                    looked = {
                        n: a for n, a in self.waiting.items() if everything or a.node in nodes
                    }
                # A link that restarts raises all kinds of errors: the next look tries again.
                with suppress(Exception):
                    self._look({n: awaited for n, awaited in looked.items() if not awaited.parts})
                for awaited in looked.values():
                    told = lost or awaited.node in nodes
                    if awaited.parts and (told or awaited.due <= time.monotonic()):
                        self.fetchers.submit(self._fetch, awaited)

    def _look(self, looked: Mapping[str, AwaitedAnswer]) -> None:
        """Ask the link which of these answers have been announced, and of what parts they are."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        # The link tells of an announced answer once: asked again, it says that there is none.
        if not looked:
            return
        got = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=looked))
        for about, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            # A link may hand out answers to other messages too.
            awaited = looked.get(about.metadata.reply_to_message_id)
            if awaited is not None:
                # An array whose pieces are equal names one part several times.
                parts = (part.object_id for part in iterate_object_tree(tree))
                awaited.parts = tuple(dict.fromkeys(parts))

    def _fetch(self, awaited: AwaitedAnswer) -> None:
        """Fetch the parts of an announced answer that have arrived; never wait for one."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        from vergence.deployment.remote_clients import ClientLost

        if not awaited.comes or not awaited.lock.acquire(blocking=False):
            return
        link = self.grid._runtime_client
        about = {"node": self.grid.node, "run_id": self.grid.run.run_id}
        try:
            missing = [part for part in awaited.parts if part not in awaited.contents]
            for part in missing[:AT_ONCE]:
                got = link.PullObject(PullObjectRequest(**about, object_id=part))
                # Waiting here for a client whose line is slow, or that never sends this part, would
                # keep a thread from the answers of others.
                if not got.object_available:
                    awaited.pause = min(2 * awaited.pause, LATEST)
                    awaited.due = time.monotonic() + awaited.pause
                    return
                late = awaited.reply.cancelled()
                awaited.contents[part] = b"" if late else got.object_content
            # A client that makes thousands of parts waits behind others for the rest of them.
            if len(missing) > AT_ONCE:
                self.fetchers.submit(self._fetch, awaited)
                return
            number = awaited.parts[-1]
            link.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(**about, message_object_id=number)
            )
            awaited.until = 0.0
        # A link that restarts raises all kinds of errors: the next look tries again.
        except Exception:
            return
        finally:
            awaited.lock.release()
        try:
            answer = inflate_object_from_contents(number, awaited.contents)
        except Exception as error:
            awaited.fail(ClientLost(f"its answer cannot be read ({type(error).__name__})"))
            return
        # The sender may have stopped waiting.
        with suppress(InvalidStateError):
            awaited.reply.set_result(answer)

    def close(self) -> None:
        """End the threads that send messages and fetch answers."""
        self.over.set()
        self.pusher.shutdown(wait=False, cancel_futures=True)
        self.fetchers.shutdown(wait=False, cancel_futures=True)
