"""Registry of connected clients: nodes that proved their keys and have the same code and config.

A node names its client in its first answer. It signs every answer together with the request. A
node can therefore not answer for another client, and an old answer cannot be sent again.

Used by `deployment.flower_app`, `deployment.joined_node`, `deployment.server_run`,
`deployment.teacher_quota` and `deployment.transport.flower`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from vergence.core.files import parse_json
from vergence.core.naming import list_names
from vergence.core.options import T
from vergence.core.serialization import printable
from vergence.deployment.protocol import SharedBytes, framed, sample_count_fault, unframed
from vergence.deployment.remote_clients import ClientLost
from vergence.errors import PartialRun

SAME = ("config", "vergence code", "own code", "torch")
"""Facts that must be equal on client and server; otherwise results differ in their bits."""
MENDS = {
    "config": " (experiment.toml of the server's folder)",
    "own code": " (the files below `code` of the server's folder)",
}
"""Where a file that differs can be copied from, for the message to the operator."""
NAMED, SELDOM = 20, 10.0
"""Largest number of missing clients that a line names; seconds between two lines on more."""
LOOK = 0.1
"""Seconds between two looks whether an absent client has connected."""
GREETED = 16
"""Number of nodes that are greeted at the same time."""
REPEATED = 8
"""Number of nodes that are greeted once more at the same time, beside those of `GREETED`."""
GREETING = 60.0
"""Seconds within which a new node must answer the server's greeting."""
ENOUGH = "it answered enough: "
"""First words of a client's final refusal: a limit that the client's owner set is reached."""
ANEW = "start it anew with the server's version, or revoke its key"
"""Advice in the error about a client whose greeting is malformed."""
LONGEST = 1e9
"""Largest number of seconds that a client may report to have worked on an answer."""
LATER = "ask again in "
"""First words of a client's temporary refusal; the number of seconds to wait follows."""


class ClientLink(Protocol):
    """Connection that carries bytes to nodes and back, such as `GridTransport` over Flower."""

    def nodes(self) -> dict[int, str]:
        """Return the connected nodes: each node's number, and the time at which it connected."""
        ...

    async def send(
        self,
        node: int,
        data: bytes,
        seconds: float,
        there: Callable[[], bool] = ...,
        shared: bytes = ...,
    ) -> bytes:
        """Send `data` and `shared` to a node, and return the node's answer.

        `seconds` is the longest time to wait; `there` returns whether the node is still connected.
        Messages to several nodes may have the same object as `shared`.

        Raises:
            ClientLost: no answer came in time, or the node reported an error.
            ClientGone: the node disconnected.
        """
        ...


class ClientGone(Exception):
    """Raised when a node disconnected before it answered."""


class Announcement(Protocol):
    """A function that records events for the operator."""

    def __call__(self, line: str, event: str, **about: Any) -> None:
        """Record one event: a line of text, the kind of event, and what it is about."""
        ...


@dataclass(frozen=True)
class ClientConnection:
    """A connected client: its node's number, the time of connecting, and the facts it sent.

    The facts are digests of its code and config, and its number of training samples.
    """

    node: int
    since: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for a client's answer, and for a client that is not connected."""

    answer: float = 600.0
    absent: float = 60.0


def request(
    kind: str, note: Mapping[str, Any], body: bytes = b"", shared: SharedBytes | None = None
) -> bytes:
    """Return the bytes of a request to a node, without `shared`: a JSON header and a body.

    The header holds `kind`, the entries of `note`, the number of shared bytes that follow the body,
    and a random number that makes every request different.
    """
    # The nonce binds the signed answer to this request: without it, an answer to an equal request
    # of an earlier round could be replayed.
    about = {"kind": kind, "nonce": secrets.token_hex(16), **note}
    return framed(about if shared is None else {**about, "shared": len(shared.data)}, body)


def request_digest(first: bytes, shared: bytes) -> bytes:
    """Return the digest of a request that is signed with its answer.

    Args:
        first: the request without the bytes that it shares with requests to other clients; its
            header says how many these are.
        shared: SHA-256 of the shared bytes; b"" if there are none.
    """
    # A digest of a digest is as hard to forge as one of all bytes. Two requests with one digest
    # have the same header, so the same number of shared bytes, and then the same digest of these.
    return hashlib.sha256(first + shared).digest()


@dataclass(frozen=True)
class AnswerExchange:
    """Size and time of one request and its answer.

    Attributes:
        client: the client that answered.
        kind: kind of the request.
        bytes_down: size of the request in bytes.
        bytes_up: size of the answer in bytes.
        seconds: time from sending the request to receiving the answer.
        own: seconds of work on the answer, as the client reports; the rest is transport.
    """

    client: str
    kind: str
    bytes_down: int
    bytes_up: int
    seconds: float
    own: float


def facts_in(body: bytes) -> Mapping[str, Any] | None:
    """Return the facts in a node's answer to the greeting; None if it is no JSON object.

    `ClientRegistry` calls this.
    """
    try:
        facts = parse_json(body)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def changed_data(had: int, facts: Mapping[str, Any]) -> str:
    """Return why a client can no longer take part if its data changed; "" if they did not.

    Args:
        had: number of the client's training samples when the run began; 0: the client was not
            connected then.
        facts: facts that the client sent when it connected now.
    """
    if had in (0, facts.get("train", had)):
        return ""
    return (
        f"it has {facts['train']} training samples, and had {had} when the run began: restore its "
        "data, or start a new deployment"
    )


def excerpt(value: object) -> str:
    """Return a value that another machine sent, as printable text of at most 40 characters.

    `ClientRegistry` shows it in error messages.
    """
    return "missing" if value is None else printable(repr(value))[:40]


def reply(
    asked: bytes,
    client: str,
    sign: Callable[[bytes], str],
    body: bytes = b"",
    error: str = "",
    own: float = 0.0,
) -> bytes:
    """Return the bytes of a node's signed answer to a request.

    Args:
        asked: the request, which the signature covers.
        client: name of the node's client.
        sign: function that signs with the node's key.
        body: content of the answer.
        error: text of an error; "" if there was none.
        own: seconds that the node worked on the answer.
    """
    inner = framed({"client": client, "error": error, "own": round(own, 6)}, body)
    # A request with another number, or without a header, is no honest server's.
    with suppress(ValueError):
        shared = unframed(asked)[0].get("shared", 0)
        if type(shared) is int and 0 < shared <= len(asked):
            digest = hashlib.sha256(memoryview(asked)[-shared:]).digest()
            return framed({"sign": sign(request_digest(asked[:-shared], digest) + inner)}, inner)
    return framed({"sign": sign(request_digest(asked, b"") + inner)}, inner)


@dataclass
class ClientRegistry:
    """Accepts nodes that connect, knows which clients are connected, and sends them requests.

    Attributes:
        wire: carries bytes to the nodes.
        clients: names of the expected clients, in the federation's order.
        mine: the server's own facts (digests of code and config); a client's must equal them.
        is_genuine: called with (client, data, signature); returns whether the signature is genuine.
        tell: records events for the operator.
        log: called with size and time of every exchange.
        servers: names of other nodes that must be connected: the main server and the aggregators.
        revoked: returns whether a client's key was revoked; the run does not wait for this client.
        lost: for each client whose last answer did not come, the reason.
        samples: number of training samples of each client when the run began; 0: unknown.
        registered: returns the name under which Flower knows a node. A node with the name "" is
            refused; None: names are not compared.
        greeted: time of connecting of each node that was greeted, or is being greeted.
        refused: nodes that were refused, and are greeted again when another node has left.
        silent: nodes that did not answer a greeting. Their next greetings have turns of their own.
        informs: whether nodes are told that they are admitted or refused, and that the run ended.
    """

    wire: ClientLink
    clients: Sequence[str]
    mine: Mapping[str, str]
    is_genuine: Callable[[str, bytes, str], bool]
    tell: Announcement
    timeouts: Timeouts = Timeouts()
    servers: Sequence[str] = ()
    log: Callable[[AnswerExchange], None] = lambda _: None
    revoked: Callable[[str], bool] = lambda _: False
    connections: dict[str, ClientConnection] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    registered: Callable[[int], str | None] = lambda _: None
    informs: bool = True
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)
    greeted: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    greetings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(GREETED))
    repeats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(REPEATED))

    @property
    def expected(self) -> tuple[str, ...]:
        """All names that nodes may have: clients, main server and aggregators."""
        return (*self.clients, *self.servers)

    def open(self) -> None:
        """Start a thread that watches for nodes that connect."""
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Stop watching for nodes that connect."""
        self.over.set()

    def _watch(self) -> None:
        while not self.over.wait(1.0):
            try:
                nodes = self.wire.nodes()
            except Exception as error:
                # A link that is busy must not end the watch: it is asked again a second later.
                self.tell(
                    f"the link does not answer ({type(error).__name__}): many clients keep it "
                    "busy, or it hangs; if this goes on, end `vergence deploy serve` and start it "
                    "again, which continues the run",
                    "link",
                )
                continue
            # Always this table, from which greetings that fail remove their entries meanwhile.
            for node in [*(set(self.greeted) - set(nodes)), *self._remove_gone(nodes)]:
                self.greeted.pop(node, None)
            for node, since in nodes.items():
                if self.greeted.get(node) != since:
                    self.greeted[node] = since
                    in_background(self._greet(node, since))

    def _remove_gone(self, nodes: Mapping[int, str]) -> set[int]:
        """Remove clients whose nodes disconnected; if there were any, return the refused nodes."""
        with self.changed:
            gone = [
                c
                for c, connection in self.connections.items()
                if nodes.get(connection.node) != connection.since
            ]
            for client in gone:
                del self.connections[client]
                self.tell(f"'{client}' is gone", "gone", client=client)
            # A node refused because another one had its name is greeted again once it left.
            again, self.refused = (self.refused, set[int]()) if gone else (set[int](), self.refused)
        return again

    async def _greet(self, node: int, since: str) -> None:
        # A thousand nodes may connect at once: the time of each begins when its turn comes. Nodes
        # that never answer must not take the turns of those that connect.
        async with self.repeats if node in self.silent else self.greetings:
            # One that connected again meanwhile waits for the turn of its newer greeting.
            if self.greeted.get(node) == since:
                await self._ask_who_it_is(node, since)

    async def _ask_who_it_is(self, node: int, since: str) -> None:
        def there() -> bool:
            return self.greeted.get(node) == since

        asked = request("hello", {})
        try:
            answer = await self.wire.send(node, asked, GREETING, there)
        except Exception as error:
            self.silent.add(node)
            if there():
                self.greeted.pop(node, None)  # so that it is greeted again
            why = str(error) or "it went before it answered"
            self.tell(f"node {node} did not say who it is ({why})", "greeting")
            return
        self.silent.discard(node)
        try:
            client, error, body, _ = self.verified(request_digest(asked, b""), *unframed(answer))
            facts = facts_in(body)
            reason = error or self.refusal_of(client, facts, node)
        except Exception as error:
            # Not greeted again before it reconnects: a malicious node would fill the log otherwise.
            self.tell(
                f"node {node} is not who it says ({type(error).__name__}: {error})", "greeting"
            )
            return
        with self.changed:
            if reason:
                self.refused.add(node)
            else:
                self.refused.discard(node)
                self.connections[client] = ClientConnection(node, since, facts or {})
                self.changed.notify_all()
        event, line = ("refused", f"refused: {reason}") if reason else ("here", "is here")
        self.tell(f"'{client}' {line}", event, client=client)
        if self.informs:
            # The message is a courtesy: a node that does not take it changes nothing.
            with suppress(Exception):
                kind = "refused" if reason else "welcome"
                await self.wire.send(node, request(kind, {"text": reason}), 10, there)

    def verified(
        self, asked: bytes, outer: Mapping[str, Any], inner: bytes
    ) -> tuple[str, str, bytes, float]:
        """Verify an answer's signature and fields.

        Args:
            asked: digest of the request, which the signature covers.
            outer: the answer's JSON header, with the signature.
            inner: the signed part of the answer.

        Returns:
            The client's name, its error text, the body, and the seconds that the client reports to
            have worked on the answer.

        Raises:
            ClientLost: the signature is not genuine, or a signed field is malformed.
        """
        note, body = unframed(inner)
        client = str(note["client"])
        if client not in self.expected:
            raise ClientLost(
                f"'{client[:40]}' is not expected, only {list_names(self.expected, NAMED)}"
            )
        # Signed together with the request: without the signature any node could answer for a
        # client, and without the request an old answer could be sent again.
        if not self.is_genuine(client, asked + inner, str(outer["sign"])):
            raise ClientLost(f"the signature is not that of '{client}', or its key is revoked")
        # A genuine client can be malicious: these fields go into lines and tables.
        error, own = note.get("error"), note.get("own")
        if not isinstance(error, str):
            raise ClientLost(
                f"malformed answer of '{client}': its error is {excerpt(error)}, no text"
            )
        if isinstance(own, bool) or not isinstance(own, int | float) or not 0 <= own <= LONGEST:
            raise ClientLost(
                f"malformed answer of '{client}': it took {excerpt(own)} s, no time from 0 to "
                f"{LONGEST:g}"
            )
        return client, error[:200], body, float(own)

    def refusal_of(self, client: str, facts: Mapping[str, Any] | None, node: int) -> str:
        """Return why a client cannot take part; "" if it can.

        `facts` are those that the client sent when it connected; `node` is its node's number.
        """
        if facts is None:
            return f"its greeting is no table of facts: {ANEW}"
        for what in SAME:
            if not isinstance(fact := facts.get(what), str):
                return f"its {what} is {excerpt(fact)}, where a text is wanted: {ANEW}"
            if fact != self.mine[what]:
                mend = MENDS.get(what, "")
                return (
                    f"its {what} is {printable(fact)[:12]}, the server's "
                    f"{self.mine[what][:12]}: use the same on both{mend}"
                )
        if wrong := sample_count_fault(facts.get("train")):
            return f"it says that it has {wrong}: {ANEW}"
        # Where Flower's operator names the nodes' keys, a node must not greet as another client.
        name = self.registered(node)
        if name == "":
            return f"its node's key has no name: register it with `--name {printable(client)}`"
        if name not in (None, client):
            return f"its node is registered as {excerpt(name)}: use one name for both"
        connection = self.connections.get(client)
        if connection is not None and connection.node != node:
            return "another node is connected under this name: stop one of them"
        return ""

    def gather(self, quorum: int, seconds: float | None = None) -> dict[str, Mapping[str, Any]]:
        """Wait until enough clients and all nodes in `servers` are connected.

        Return the facts that each connected client sent, by the client's name.

        Args:
            quorum: number of clients to wait for.
            seconds: longest time to wait; None: no limit.

        Raises:
            PartialRun: the clients and servers did not connect in time.
        """
        end, last_line = None if seconds is None else time.monotonic() + seconds, None
        due = 0.0  # Until then no line is printed while many clients are missing.
        with self.changed:
            while True:
                here = [client for client in self.clients if client in self.connections]
                if len(here) >= quorum and all(name in self.connections for name in self.servers):
                    return {client: self.connections[client].facts for client in here}
                away = [name for name in self.expected if name not in self.connections]
                missing = list_names([name for name in away if not self.revoked(name)], NAMED)
                line = f"{len(here)} of {quorum} clients are here; missing: {missing}"
                # A thousand clients that connect would have a line each, beside "is here".
                if line != last_line and (len(away) <= NAMED or time.monotonic() > due):
                    self.tell(last_line := line, "waiting")
                    due = time.monotonic() + SELDOM
                if end is not None and time.monotonic() > end:
                    raise PartialRun(f"{line}; start them with `vergence deploy join`")
                self.changed.wait(1.0)

    def ask(
        self, client: str, note: Mapping[str, Any], body: bytes, kind: str = "request"
    ) -> bytes:
        """Send a request to a client, wait, and return the body of its answer.

        A client that reconnects in time gets the request again.

        Raises:
            ClientLost: no answer came in time, or the answer is not genuine.
        """
        return self.start(client, note, body, kind).result()

    def start(
        self,
        client: str,
        note: Mapping[str, Any],
        body: bytes,
        kind: str = "request",
        shared: SharedBytes | None = None,
    ) -> Future[bytes]:
        """Send a request to a client; return the future of the body of its answer.

        No thread waits for the answer. `shared` are the last bytes of the request, which requests
        to other clients have in common.
        """
        return in_background(
            self._noting_loss(client, self._answer(client, note, body, kind, shared))
        )

    async def _noting_loss(self, client: str, answer: Coroutine[Any, Any, bytes]) -> bytes:
        """Return a client's answer; if the client is lost, note why and tell the operator."""
        self.lost.pop(client, None)
        try:
            return await answer
        except ClientLost as lost:
            self.lost[client] = str(lost)
            self.tell(f"'{client}' is lost: {lost}", "lost", client=client)
            raise

    async def _answer(
        self,
        client: str,
        note: Mapping[str, Any],
        body: bytes,
        kind: str,
        shared: SharedBytes | None,
    ) -> bytes:
        if self.revoked(client):
            raise ClientLost("its key is revoked")
        more, digest = (b"", b"") if shared is None else (shared.data, shared.digest)
        end = time.monotonic() + self.timeouts.answer
        while (left := end - time.monotonic()) > 0:
            connection = await self._connection(client, min(left, self.timeouts.absent))
            if changed := changed_data(self.samples.get(client, 0), connection.facts):
                raise ClientLost(changed)
            asked, begun = request(kind, note, body, shared), time.monotonic()
            try:
                answer = await self.wire.send(
                    connection.node,
                    asked,
                    left,
                    lambda connection=connection: self.connections.get(client) is connection,
                    more,
                )
            except ClientGone:
                await asyncio.sleep(1.0)
                continue
            try:
                who, error, answer_body, own = self.verified(
                    request_digest(asked, digest), *unframed(answer)
                )
            except (ValueError, KeyError, TypeError) as fault:
                raise ClientLost(f"malformed answer ({type(fault).__name__})") from None
            # Each signature is genuine, but a malicious client must not answer in another's place.
            if who != client:
                raise ClientLost(f"'{who}' answered in its place")
            if error:
                await self._wait_if_asked(client, error, end - time.monotonic())
                continue
            took, down = time.monotonic() - begun, len(asked) + len(more)
            self.log(AnswerExchange(client, kind, down, len(answer), took, own))
            return answer_body
        raise ClientLost(f"no answer in {self.timeouts.answer:g} s")

    async def _wait_if_asked(self, client: str, error: str, seconds: float) -> None:
        """Wait for the time that a client's error text names (see `LATER`).

        `seconds` is the time that is left for the request.

        Raises:
            ClientLost: the error names no waiting time, or a time longer than `seconds`.
        """
        later = re.match(rf"{LATER}(\d{{1,4}}) s: ", error, re.ASCII)
        wait = max(1.0, float(later[1])) if later else math.inf
        if wait >= seconds:
            raise ClientLost(error)
        self.tell(f"'{client}' answers later: {error}", "later", client=client)
        await asyncio.sleep(wait)

    def farewell(self) -> None:
        """Tell connected nodes that the run is finished; failed deliveries are ignored."""
        if not self.informs:
            return
        # Each ends after 10 seconds, whatever its client does.
        wait(
            in_background(self.wire.send(connection.node, request("bye", {}), 10.0))
            for connection in list(self.connections.values())
        )

    async def _connection(self, client: str, seconds: float) -> ClientConnection:
        end = time.monotonic() + seconds
        while (connection := self.connections.get(client)) is None:
            if time.monotonic() >= end:
                raise ClientLost("not connected")
            await asyncio.sleep(LOOK)
        return connection


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Start the event loop of this process, in a thread of its own, and return it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def in_background(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine in this process's event loop; return its future."""
    return asyncio.run_coroutine_threadsafe(work, event_loop())


@dataclass(frozen=True)
class RequestQueue:
    """Sends requests for one run, and adds the run's name, method and seed to each request."""

    registry: ClientRegistry
    note: Mapping[str, Any]

    def ask(self, client: str, request: bytes) -> bytes:
        """Send a request to a client; return the answer, or raise `ClientLost`."""
        return self.registry.ask(client, self.note, request)

    def start(
        self, client: str, request: bytes, shared: SharedBytes | None = None
    ) -> Future[bytes]:
        """Send a request to a client; return the future of the answer, or of `ClientLost`."""
        return self.registry.start(client, self.note, request, shared=shared)

    def ask_main_server(self, data: bytes) -> bytes:
        """Send a request to the main server; return the answer, or raise `ClientLost`."""
        return self.registry.ask(self.registry.servers[0], self.note, data, "main")

    def relay(self, client: str, closed: bytes, attachment: bytes) -> bytes:
        """Send the main server's encrypted request to a client; return the encrypted answer.

        `attachment` holds packed trees that the aggregator adds to the request.

        Raises:
            ClientLost: no answer came.
        """
        note = {**self.note, "attachment": len(attachment)}
        return self.registry.ask(client, note, attachment + closed, "closed")
