"""Long polling after admission control: a node that asks for messages learns of one at once.

Flower itself answers at once that there is no message, so that a node must ask often or wait long.
This module holds back the answer "no message" until there is a message for the node. The node then
asks again by a new request, which is admitted or refused as every request. A message is never the
answer to the request that waited, as the node's key may have been revoked meanwhile.

A node that asks again, and for which no notice came meanwhile, waits here without a question to
Flower, which needs ten times as long for it: a thousand nodes that only wait would keep it busy.

Used by `deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from vergence.deployment.transport.admission import REASON, SHOWN, refuse
from vergence.deployment.transport.wakeups import REST, Wakeups

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-messages"
"""Paths by which a node asks for messages, and announces an answer."""
PART = "/v1/fleet/push-object"
"""Path by which a node sends one part of an answer that it has announced."""
WANTED = "/v1/fleet/pull-object"
"""Path by which a node asks for one part of a message."""
FETCHED = "/v1/runtime/confirm-message-received"
"""Path by which the run says that it has fetched all parts of an answer."""
# Every answer that is on its way is in this process's memory, some of it several times. Fewer would
# not keep the link busy; with all of a round at once, its memory would grow with the cohort.
PASSING = 8
"""Number of nodes that send an answer at the same time; others wait for their turn.

As many other nodes receive a part of a message at the same time.
"""
TURN = 5.0
"""Seconds after which an answer that is still on its way makes room for another one."""
HOLD = 10.0
"""Seconds for which the answer 'no message' is held back; a node waits 30 seconds for answers."""
ANEW = 60.0
"""Seconds after which Flower is asked anew for a node's messages, even without a notice of one."""
AGAIN = "x-vergence-again"
"""Header that tells a node to ask again without a pause."""
KEY, TIME, SIGNATURE = SHOWN
"""Headers with the public key of the node that asks, the time, and the signature of the time."""
TOO_LARGE = [(REASON.encode(), b"its answer is too large"), (b"content-length", b"0")]
"""Headers of the response to a part of an answer that is too large."""
LATER = [(REASON.encode(), b"others send their answers now"), (b"content-length", b"0")]
"""Headers of the response to an announced answer whose turn has not come."""
PIECE = 1 << 18
"""Number of bytes of a part that are written to a connection at once."""
SMALL = 64 << 10
"""Largest number of bytes of a request from which the node's number is read."""


class LongPollMiddleware:
    """ASGI middleware that holds back the answer 'no message', and passes on all other answers.

    The announcement of an answer is held back until it is the node's turn to send its parts; after
    `HOLD` seconds the node is told to announce it again.

    Only an answer to a request with a genuine signature is held back, so that nobody without a key
    for this server can keep connections open. If a node asks again while its request waits, the
    older request is answered: a node has at most one waiting request.

    Attributes:
        wakeups: notices between processes. This process gets a notice if there is a message for a
            node. The run's process gets one if a node's answer has arrived.
        idle: public key of a node for which Flower had no message -> the node's number, the number
            of notices when Flower was asked, and the time at which it is asked anew.
        noticed: number of a node -> the number of all notices when its last one came.
        lost: number of all notices when some, for whatever nodes, were lost last.
        missing_parts: public key -> the node's number and the number of parts of its announced
            answer that have not arrived. The entry is removed when the node asks for its next
            message.
        turns: one for each node that may send an answer now.
        receiving: one for each node that may receive a part of a message now.
        passing: public key of a node that sends an answer now -> name of the answer, and the timer
            that ends the node's turn.
        limit: largest number of bytes of a node's answer to one message; 0: no limit.
        received: public key -> bytes of parts that the node has sent since its last message.
    """

    def __init__(self, app: Any, wakeups: Wakeups, limit: int = 0) -> None:
        self.app, self.wakeups, self.limit = app, wakeups, limit
        self.received: dict[bytes, int] = {}
        self.notices = wakeups.listen("link")
        self.waiting: dict[int, asyncio.Future[bool]] = {}
        self.noticed: dict[int, int] = {}
        self.count = self.lost = 0
        self.idle: dict[bytes, tuple[int, int, float]] = {}
        self.missing_parts: dict[bytes, tuple[int, int]] = {}
        self.turns, self.receiving = asyncio.Semaphore(PASSING), asyncio.Semaphore(PASSING)
        self.passing: dict[bytes, tuple[str, asyncio.TimerHandle]] = {}

    def _end_announcement(self, key: bytes, sent: bytes, turn: Any, answer: list[Any]) -> None:
        """Record the turn of an announced answer, or give it back where Flower refused it."""
        accepted = bool(answer) and answer[0].get("status") == 200
        if accepted:
            # Of an answer with very many parts the name is not read: its turn ends by itself.
            self.record_turn(key, announced_in(sent) if len(sent) <= SMALL else "", turn)
        else:
            self.give_back(turn, self.turns)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to Flower, and pass the answer back, at once or later."""
        if scope["type"] == "lifespan":
            self.listen()
        if scope["type"] == "http" and scope["path"] == WANTED:
            await self.hand_out(scope, receive, send)
            return
        if scope["type"] != "http" or scope["path"] not in (PULL, PUSH, PART, FETCHED):
            await self.app(scope, receive, send)
            return
        sent, answer, since = bytearray(), [], self.count
        headers = dict(scope["headers"])
        # Decoded, because base64 has several spellings of the same key: under two spellings a node
        # would have two entries.
        key = base64.b64decode(headers.get(KEY, b""), validate=True)
        if scope["path"] == PULL and self.has_none(key, headers):
            await self.hold_again(key, receive, send)
            return
        size = int(headers.get(b"content-length", b"0")) if scope["path"] == PART else 0
        # Flower keeps all parts of an answer in memory, and only the run sees how large it is.
        if 0 < self.limit < self.received.get(key, 0) + size:
            await refuse(send, 413, TOO_LARGE)
            return

        async def receive_and_copy() -> Any:
            message = await receive()
            if len(sent) <= SMALL:
                sent.extend(message.get("body", b""))
            return message

        async def hold_back(message: Any) -> None:
            answer.append(message)

        # Before Flower sees an announcement, as it does not expect the same one twice. Whoever
        # forges one waits like all others, and loses the turn when Flower has refused it.
        turn = await self.wait_for_turn(self.turns) if scope["path"] == PUSH else None
        if scope["path"] == PUSH and turn is None:
            await refuse(send, 503, LATER)
            return
        try:
            await self.app(scope, receive if scope["path"] == PART else receive_and_copy, hold_back)
        finally:
            if turn is not None:
                self._end_announcement(key, bytes(sent), turn, answer)
        # Anything but 200 is no answer to a genuine node: held back, it would let anybody keep
        # connections open and pose as another node that waits.
        if answer and answer[0].get("status") == 200 and scope["path"] == FETCHED:
            self.end_turn(message_in(bytes(sent)))
        elif answer and answer[0].get("status") == 200:
            body = b"".join(message.get("body", b"") for message in answer)
            if scope["path"] == PART:
                self.count_part(key, size)
            elif 0 < len(sent) <= SMALL:
                node = node_in(scope["path"], bytes(sent))
                if scope["path"] == PUSH:
                    self.expect_parts(key, node, body)
                elif self.finds_none(key, body) and await self.hold_first(key, node, since):
                    answer[0]["headers"] = [*answer[0]["headers"], (AGAIN.encode(), b"1")]
        for message in answer:
            await send(message)

    def finds_none(self, key: bytes, message: bytes) -> bool:
        """Note that a node has asked for its next message; return whether there is none."""
        self.missing_parts.pop(key, None)
        if message:
            self.received.pop(key, None)
        return not message

    async def hold_first(self, key: bytes, node: int, since: int) -> bool:
        """Note that Flower has no message for a node, and wait for one as `wait_for_message`."""
        self.idle[key] = node, since, asyncio.get_running_loop().time() + ANEW
        return await self.wait_for_message(node, since)

    def has_none(self, key: bytes, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request is genuine, and Flower surely has no message for its node."""
        node, since, due = self.idle.get(key, (0, 0, 0.0))
        if asyncio.get_running_loop().time() < due and not self.is_noticed(node, since):
            return is_genuine(key, headers)
        self.idle.pop(key, None)
        return False

    async def hold_again(self, key: bytes, receive: Any, send: Any) -> None:
        """Answer 'no message' to a node for which there was none, as soon as there is one."""
        # The node's number in this request is not read: it is the one that Flower found genuine.
        # Looked up before the body comes: another request of the node may remove the entry then.
        node, since, _ = self.idle[key]
        while (await receive()).get("more_body", False):
            pass
        again = [(AGAIN.encode(), b"1")] if await self.wait_for_message(node, since) else []
        await refuse(send, 200, [*again, (b"content-length", b"0")])

    async def hand_out(self, scope: Any, receive: Any, send: Any) -> None:
        """Let Flower answer a node's request for a part, when it is the node's turn.

        A part is in memory several times until its node has it, and all nodes of a round want the
        same ones at once. After `HOLD` seconds the answer is that the part is not there yet.
        """
        from flwr.proto.message_pb2 import PullObjectResponse

        turn = await self.wait_for_turn(self.receiving)
        if turn is None:
            later = PullObjectResponse(object_found=True).SerializeToString()
            await refuse(send, 200, [(b"content-length", b"%d" % len(later))], later)
            return

        async def in_pieces(message: Any) -> None:
            body = message.get("body", b"")
            # The server waits before it writes the next piece to a connection that is full.
            for at in range(0, len(body), PIECE):
                await send({**message, "body": body[at : at + PIECE], "more_body": True})
            await send({**message, "body": b""} if body else message)

        try:
            await self.app(scope, receive, in_pieces)
        finally:
            self.give_back(turn, self.receiving)

    async def wait_for_turn(self, turns: asyncio.Semaphore) -> asyncio.TimerHandle | None:
        """Wait for a turn; return the timer that ends it, or None if none came in `HOLD` seconds.

        The turn begins before the request has been read.
        """
        try:
            async with asyncio.timeout(HOLD):
                await turns.acquire()
        except TimeoutError:
            return None
        # A client on a slow line, or one that never sends the rest of its announcement or a part,
        # must not keep others waiting.
        return asyncio.get_running_loop().call_later(TURN, turns.release)

    def give_back(self, turn: asyncio.TimerHandle, turns: asyncio.Semaphore) -> None:
        """End a turn, unless its timer has ended it."""
        if turn.when() > asyncio.get_running_loop().time():
            turn.cancel()
            turns.release()

    def record_turn(self, key: bytes, name: str, turn: asyncio.TimerHandle) -> None:
        """Record that the node with this public key has a turn, for its answer with this name."""
        # Else a node could take all turns by announcing one answer again and again.
        if key in self.passing:
            self.give_back(self.passing[key][1], self.turns)
        self.passing[key] = name, turn

    def end_turn(self, name: str) -> None:
        """Let the next node send its answer, if the answer with this name was still passing."""
        for key in [key for key, (passing, _) in self.passing.items() if passing == name]:
            self.give_back(self.passing.pop(key)[1], self.turns)

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

    def count_part(self, key: bytes, size: int = 0) -> None:
        """Count an arrived part and its bytes; notify the run if the answer is complete.

        Only for what Flower accepted: anybody may send parts with this key and a wrong signature.
        """
        self.received[key] = self.received.get(key, 0) + size
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
        # A lost notice may have been for any node, also for one that Flower answers just now.
        if lost:
            self.lost = self.count = self.count + 1
        for node in {*nodes, *self.waiting} if lost else nodes:
            self.count += 1
            self.noticed[node] = self.count
            self.end_wait(node, True)

    def is_noticed(self, node: int, since: int) -> bool:
        """Return whether a node's notice came, or may have been lost, after the first `since`."""
        return max(self.noticed.get(node, 0), self.lost) > since

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
        if self.is_noticed(node, since):
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


def is_genuine(key: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request has a genuine signature of its time by the node with this key.

    Admission control has checked the time, and that no request comes twice, except with
    `--insecure`, where whoever records a request may send it again.
    """
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        signature = base64.b64decode(headers[SIGNATURE], validate=True)
        return verify_signature(bytes_to_public_key(key), headers[TIME], signature)
    except (KeyError, ValueError):
        return False


def announced_in(request: bytes) -> str:
    """Return the name of the answer that a request to `PUSH` announces."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    announced = PushMessagesRequest.FromString(request).messages_list
    return next((message.metadata.message_id for message in announced), "")


def message_in(request: bytes) -> str:
    """Return the name of the answer that a request to `FETCHED` confirms."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    return ConfirmMessageReceivedRequest.FromString(request).message_object_id


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
