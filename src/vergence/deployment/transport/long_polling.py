"""Long polling behind admission: a node that asks for messages is answered when there is one.

Flower answers at once that there is none, so that a node asks often or waits long. Here that answer
is kept back until a message for the node is there. Then the node asks again, by a request of its
own, which is admitted or refused like any other: a message never goes out as the answer to a
request that has waited.
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
"""Where a node asks for messages, and where it announces an answer."""
PART = "/v1/fleet/push-object"
"""Where a node brings a part of the answer that it announced."""
HOLD = 10.0
"""Seconds that the answer 'none' is kept back: a node's program waits 30, an idle line longer."""
AGAIN = "x-vergence-again"
"""The header that tells a node to ask again without a pause."""
KEY = SHOWN[0]
"""The header that says whose request it is."""
SMALL = 64 << 10
"""Bytes of a request that is looked into: nodes name themselves in it."""


class LongPollMiddleware:
    """Keeps back the answer 'no message', one for each node, and passes on all others.

    A node's answer 'none' is Flower's own, to a request whose signature Flower has found genuine:
    whoever holds no key of this server's keeps nobody waiting. A node that asks again while it is
    kept waiting is answered in the older request: it holds one connection, and no thread.

    Attributes:
        wakeups: hears from the run for which node there is a message, and tells it from which node
            an answer is there.
        owed: nodes that announced an answer, by their public key (not by how a header spells it),
            and how many of its parts are not here; nothing is kept of a node that asks for more.
    """

    def __init__(self, app: Any, wakeups: Wakeups) -> None:
        self.app, self.wakeups = app, wakeups
        self.notices = wakeups.listen("link")
        self.waiting: dict[int, asyncio.Future[bool]] = {}
        self.noticed: dict[int, int] = {}
        self.count = 0
        self.owed: dict[bytes, tuple[int, int]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let it be answered."""
        if scope["type"] == "lifespan":
            self.listen()
        if scope["type"] != "http" or scope["path"] not in (PULL, PUSH, PART):
            await self.app(scope, receive, send)
            return
        sent, answer, since = bytearray(), [], self.count

        async def copied() -> Any:
            message = await receive()
            if len(sent) <= SMALL:
                sent.extend(message.get("body", b""))
            return message

        async def kept(message: Any) -> None:
            answer.append(message)

        await self.app(scope, receive if scope["path"] == PART else copied, kept)
        if answer and answer[0].get("status") == 200:
            body = b"".join(message.get("body", b"") for message in answer)
            key = base64.b64decode(dict(scope["headers"]).get(KEY, b""), validate=True)
            if scope["path"] == PART:
                self.count_part(key)
            elif 0 < len(sent) <= SMALL:
                node = node_in(scope["path"], bytes(sent))
                if scope["path"] == PUSH:
                    self.expect_parts(key, node, body)
                else:
                    self.owed.pop(key, None)
                    if not body and await self.noticed_soon(node, since):  # no message
                        answer[0]["headers"] = [*answer[0]["headers"], (AGAIN.encode(), b"1")]
        for message in answer:
            await send(message)

    def expect_parts(self, key: bytes, node: int, answer: bytes) -> None:
        """Note how many parts of an answer are to come."""
        from flwr.proto.fleet_pb2 import PushMessagesResponse

        self.owed[key] = (node, len(PushMessagesResponse.FromString(answer).objects_to_push) + 1)
        self.count_part(key)

    def count_part(self, key: bytes) -> None:
        """Tell the run when an answer is whole."""
        node, left = self.owed.pop(key, (0, 0))
        if left > 1:
            self.owed[key] = (node, left - 1)
        elif left:
            self.wakeups.tell("run", node)

    def listen(self) -> None:
        """Hear notices from now on, as they come."""
        asyncio.get_running_loop().add_reader(self.notices.socket, self.notice)

    def notice(self) -> None:
        """Answer those for whom there is a message."""
        nodes, lost = self.notices.heard()
        if not nodes:  # a flood without a proof must not keep the loop from its requests
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.notices.socket)
            loop.call_later(REST, self.listen)
        for node in {*nodes, *self.waiting} if lost else nodes:
            self.count += 1
            self.noticed[node] = self.count
            self.end(node, True)

    def end(self, node: int, found: bool) -> None:
        """End a node's waiting, if it waits."""
        future = self.waiting.pop(node, None)
        if future is not None and not future.done():
            future.set_result(found)

    async def noticed_soon(self, node: int, since: int) -> bool:
        """True once there is a message for a node, False if there is none for `HOLD` seconds.

        `since` is how many notices there were before Flower looked.
        """
        if self.noticed.get(node, 0) > since:
            return True
        self.end(node, False)
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
    """Node that a request names."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest

    kind = PullMessagesRequest if path == PULL else PushMessagesRequest
    return kind.FromString(request).node.node_id


class PathMiddleware:
    """Middleware that is passed by whatever it has no say in: requests to other paths than its own.

    Each of Flower's looks at every request, and most at nothing of it, for a quarter of a
    millisecond.
    """

    def __init__(self, app: Any, kind: Any, path: str, **options: Any) -> None:
        self.app, self.path, self.own = app, path, kind(app, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request through it, or past it."""
        past = scope["type"] == "http" and not scope["path"].startswith(self.path)
        await (self.app if past else self.own)(scope, receive, send)
