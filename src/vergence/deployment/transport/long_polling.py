"""Long polling after admission control: a node that asks for messages learns of one at once.

Flower itself answers at once that there is no message, so that a node must ask often or wait long.
This module holds back the answer "no message" until there is a message for the node. The node then
asks again by a new request, which is admitted or refused as every request. A message is never the
answer to the request that waited, as the node's key may have been revoked meanwhile.

Used by `deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import base64
from typing import Any

from vergence.deployment.transport.admission import SHOWN
from vergence.deployment.transport.wakeups import REST, Wakeups

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
"""Paths by which a node asks for messages, and announces an answer."""
PART = "/v1/fleet/push-object"
"""Path by which a node sends one part of an answer that it has announced."""
HOLD = 10.0
"""Seconds for which the answer 'no message' is held back; a node waits 30 seconds for answers."""
AGAIN = "x-vergence-again"
"""Header that tells a node to ask again without a pause."""
KEY = SHOWN[0]
"""Header with the public key of the node that asks."""
SMALL = 64 << 10
"""Largest number of bytes of a request from which the node's number is read."""


class LongPollMiddleware:
    """ASGI middleware that holds back the answer 'no message', and passes on all other answers.

    Only an answer to a request with a genuine signature is held back, so that nobody without a key
    for this server can keep connections open. If a node asks again while its request waits, the
    older request is answered: a node has at most one waiting request.

    Attributes:
        wakeups: notices between processes. This process gets a notice if there is a message for a
            node. The run's process gets one if a node's answer has arrived.
        missing_parts: public key -> the node's number and the number of parts of its announced
            answer that have not arrived. The entry is removed when the node asks for its next
            message.
    """

    def __init__(self, app: Any, wakeups: Wakeups) -> None:
        self.app, self.wakeups = app, wakeups
        self.notices = wakeups.listen("link")
        self.waiting: dict[int, asyncio.Future[bool]] = {}
        self.noticed: dict[int, int] = {}
        self.count = 0
        self.missing_parts: dict[bytes, tuple[int, int]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to Flower, and pass the answer back, at once or later."""
        if scope["type"] == "lifespan":
            self.listen()
        if scope["type"] != "http" or scope["path"] not in (PULL, PUSH, PART):
            await self.app(scope, receive, send)
            return
        sent, answer, since = bytearray(), [], self.count

        async def receive_and_copy() -> Any:
            message = await receive()
            if len(sent) <= SMALL:
                sent.extend(message.get("body", b""))
            return message

        async def hold_back(message: Any) -> None:
            answer.append(message)

        await self.app(scope, receive if scope["path"] == PART else receive_and_copy, hold_back)
        # Anything but 200 is no answer to a genuine node: held back, it would let anybody keep
        # connections open and pose as another node that waits.
        if answer and answer[0].get("status") == 200:
            body = b"".join(message.get("body", b"") for message in answer)
            # Decoded, because base64 has several spellings of the same key: under two spellings a
            # node would have two entries.
            key = base64.b64decode(dict(scope["headers"]).get(KEY, b""), validate=True)
            if scope["path"] == PART:
                self.count_part(key)
            elif 0 < len(sent) <= SMALL:
                node = node_in(scope["path"], bytes(sent))
                if scope["path"] == PUSH:
                    self.expect_parts(key, node, body)
                else:
                    self.missing_parts.pop(key, None)
                    if not body and await self.wait_for_message(node, since):  # no message
                        answer[0]["headers"] = [*answer[0]["headers"], (AGAIN.encode(), b"1")]
        for message in answer:
            await send(message)

    def expect_parts(self, key: bytes, node: int, answer: bytes) -> None:
        """Record how many parts of an announced answer will come.

        Args:
            key: the node's public key.
            node: the node's number.
            answer: Flower's response to the announcement, which lists the parts.
        """
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        self.missing_parts[key] = (
            node,
            len(PushMessagesResponse.FromString(answer).objects_to_push) + 1,
        )
        self.count_part(key)

    def count_part(self, key: bytes) -> None:
        """Count one arrived part of an answer; notify the run if the answer is complete."""
        node, missing = self.missing_parts.pop(key, (0, 0))
        if missing > 1:
            self.missing_parts[key] = (node, missing - 1)
        elif missing:
            self.wakeups.tell("run", node)

    def listen(self) -> None:
        """Start to read wake-up notices as they arrive."""
        asyncio.get_running_loop().add_reader(self.notices.socket, self.read_notices)

    def read_notices(self) -> None:
        """Read the notices that arrived; answer the waiting nodes for which there is a message."""
        nodes, lost = self.notices.receive()
        # Every user of this machine can send datagrams without a proof: a flood of them must not
        # keep the event loop from the nodes' requests.
        if not nodes:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.notices.socket)
            loop.call_later(REST, self.listen)
        for node in {*nodes, *self.waiting} if lost else nodes:
            self.count += 1
            self.noticed[node] = self.count
            self.end_wait(node, True)

    def end_wait(self, node: int, has_message: bool) -> None:
        """Answer a node's waiting request, if there is one; `has_message` is the answer."""
        future = self.waiting.pop(node, None)
        if future is not None and not future.done():
            future.set_result(has_message)

    async def wait_for_message(self, node: int, since: int) -> bool:
        """Wait for a notice that a node has a message; return whether it came in `HOLD` seconds.

        Args:
            node: the node's number.
            since: number of notices for all nodes that had come before Flower looked for a message.
        """
        # A message may have come after Flower looked and before this line: waiting for its notice
        # would then take the whole time.
        if self.noticed.get(node, 0) > since:
            return True
        self.end_wait(node, False)
        waiting = self.waiting[node] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(HOLD):
                return await waiting
        except TimeoutError:
            return False
        finally:
            if self.waiting.get(node) is waiting:
                del self.waiting[node]


def node_in(path: str, request: bytes) -> int:
    """Return the number of the node that sent a request to `path`."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest

    kind = PullMessagesRequest if path == PULL else PushMessagesRequest
    return kind.FromString(request).node.node_id


class PathMiddleware:
    """Middleware that handles only requests whose path begins with `path`; others bypass it.

    Each of Flower's middlewares costs a quarter of a millisecond per request, even for requests in
    which it checks nothing.
    """

    def __init__(self, app: Any, kind: Any, path: str, **options: Any) -> None:
        self.app, self.path, self.own = app, path, kind(app, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the middleware, or directly to the application."""
        past = scope["type"] == "http" and not scope["path"].startswith(self.path)
        await (self.app if past else self.own)(scope, receive, send)
