"""Registry of connected clients: nodes proven by their keys, with the same code and config.

A node says who it is when it is first greeted, and signs every answer together with the request it
answers; so a node cannot speak for another client, and an old answer fits no new request.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from vergence.core.files import parse_json
from vergence.core.serialization import plain
from vergence.deployment.protocol import framed, miscounted, unframed
from vergence.deployment.remote_clients import ClientLost
from vergence.errors import PartialRun

SAME = ("config", "vergence code", "own code", "torch")
"""What a client must have as the server has it, or its bits differ."""
MENDS = {
    "config": " (experiment.toml of the server's folder)",
    "own code": " (the files below `code` of the server's folder)",
}
"""Where what all ends must have is to be copied from."""
GREETING = 60.0
"""Seconds a node has to say who it is."""
ENOUGH = "it answered enough: "
"""How a client begins a refusal by a limit that asking again does not change."""
ANEW = "start it anew with the server's version, or revoke its key"
"""What is to be done about a client whose greeting no version of this package sends."""
LONGEST = 1e9
"""No answer takes more seconds."""
LATER = "ask again in "
"""How a client begins a refusal that passes; so many seconds follow."""


class ClientLink(Protocol):
    """Carries bytes to a node and back; `deployment/transport/flower.py` has one."""

    def nodes(self) -> dict[int, str]:
        """Connected nodes: a node's number, and since when."""
        ...

    def send(
        self, node: int, data: bytes, seconds: float, there: Callable[[], bool] = ...
    ) -> bytes:
        """Return its answer, or raise `ClientLost` or `ClientGone`."""
        ...


class ClientGone(Exception):
    """A node went before it answered."""


class Announcement(Protocol):
    """Listener to events: takes a text for the operator, an event's kind, and whom it is about."""

    def __call__(self, line: str, event: str, **about: Any) -> None:
        """Write it down."""
        ...


@dataclass(frozen=True)
class ClientConnection:
    """A client that is there: its node, since when, and what it said of itself."""

    node: int
    since: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Timeouts:
    """Seconds of waiting: for an answer, and for a client that is not connected."""

    answer: float = 600.0
    absent: float = 60.0


def request(kind: str, note: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Bytes of a request to a node; no two are the same."""
    return framed({"kind": kind, "nonce": secrets.token_hex(16), **note}, body)


@dataclass(frozen=True)
class AnswerExchange:
    """One request that was answered: bytes down and up, and seconds until the answer was here.

    `own` are the seconds that the client says it worked on it; the rest is transport.
    """

    client: str
    kind: str
    bytes_down: int
    bytes_up: int
    seconds: float
    own: float


def facts_in(body: bytes) -> Mapping[str, Any] | None:
    """Facts in a greeting; None if it holds nothing that could be read."""
    try:
        facts = parse_json(body)
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def changed_data(had: int, facts: Mapping[str, Any]) -> str:
    """Reason not to ask a client that has other data than when the run began; empty if it has not.

    Where `had` is 0 it was not there then.
    """
    if had in (0, facts.get("train", had)):
        return ""
    return (
        f"it has {facts['train']} training samples, and had {had} when the run began: restore its "
        "data, or start a new deployment"
    )


def shown(said: object) -> str:
    """Value received from elsewhere, as text short enough for a line."""
    return "missing" if said is None else plain(repr(said))[:40]


def reply(
    asked: bytes,
    client: str,
    sign: Callable[[bytes], str],
    body: bytes = b"",
    error: str = "",
    own: float = 0.0,
) -> bytes:
    """Return a signed answer to a request, which took so many seconds here."""
    inner = framed({"client": client, "error": error, "own": round(own, 6)}, body)
    return framed({"sign": sign(hashlib.sha256(asked).digest() + inner)}, inner)


@dataclass
class ClientRegistry:
    """Greets nodes, keeps who is there, and asks clients by name.

    Attributes:
        wire: to the nodes.
        clients: the names that are expected, in the federation's order.
        mine: what is compared with what a client says of itself (`SAME`).
        genuine: tells whether a signature is a client's: (client, data, signature).
        tell: writes down what happens.
        log: takes every exchange, for whoever looks where the time goes.
        also: who must be there beside clients: the main server, if there is one.
        revoked: tells whose key was taken away: nobody waits for them.
        lost: why a client's last answer did not come, by client.
        samples: how many training samples each had when the run began, 0 where that is not known.
        registered: the name under which the link knows a node ("": none, which is refused); None:
            nobody looks at it.
        informs: whether nodes are told that they are welcome, refused, or done.
    """

    wire: ClientLink
    clients: Sequence[str]
    mine: Mapping[str, str]
    genuine: Callable[[str, bytes, str], bool]
    tell: Announcement
    timeouts: Timeouts = Timeouts()
    also: Sequence[str] = ()
    log: Callable[[AnswerExchange], None] = lambda _: None
    revoked: Callable[[str], bool] = lambda _: False
    connections: dict[str, ClientConnection] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    registered: Callable[[int], str | None] = lambda _: None
    informs: bool = True
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def expected(self) -> tuple[str, ...]:
        """The names that may say who they are."""
        return (*self.clients, *self.also)

    def open(self) -> None:
        """Begin to look who is there."""
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self.over.set()

    def _watch(self) -> None:
        greeted: dict[int, str] = {}
        with ThreadPoolExecutor(8) as pool:
            while not self.over.wait(1.0):
                try:
                    nodes = self.wire.nodes()
                except Exception as error:  # a link that is busy is asked again
                    self.tell(f"the link does not answer ({type(error).__name__})", "link")
                    continue
                if self._leave(nodes):  # who was refused because of one of them is greeted again
                    greeted = {
                        connection.node: connection.since
                        for connection in self.connections.values()
                    }
                for node, since in nodes.items():
                    if greeted.get(node) != since:
                        greeted[node] = since
                        pool.submit(self._greet, node, since, greeted)
                greeted = {node: since for node, since in greeted.items() if node in nodes}

    def _leave(self, nodes: Mapping[int, str]) -> bool:
        """Take note of who is gone; return whether somebody is."""
        with self.changed:
            left = [
                c
                for c, connection in self.connections.items()
                if nodes.get(connection.node) != connection.since
            ]
            for client in left:
                del self.connections[client]
                self.tell(f"'{client}' is gone", "gone", client=client)
        return bool(left)

    def _greet(self, node: int, since: str, greeted: dict[int, str]) -> None:
        asked = request("hello", {})
        try:
            answer = self.wire.send(node, asked, GREETING)
        except Exception as error:
            greeted.pop(node, None)  # asked again
            why = str(error) or "it went before it answered"
            self.tell(f"node {node} did not say who it is ({why})", "greeting")
            return
        try:
            client, error, body, _ = self.proven(asked, *unframed(answer))
            facts = facts_in(body)
            reason = error or self.unfit(client, facts, node)
        except Exception as error:  # not asked again before it connects anew, or somebody leaves
            self.tell(
                f"node {node} is not who it says ({type(error).__name__}: {error})", "greeting"
            )
            return
        with self.changed:
            if not reason:
                self.connections[client] = ClientConnection(node, since, facts or {})
                self.changed.notify_all()
        event, line = ("refused", f"refused: {reason}") if reason else ("here", "is here")
        self.tell(f"'{client}' {line}", event, client=client)
        if not self.informs:
            return
        try:
            self.wire.send(node, request("refused" if reason else "welcome", {"text": reason}), 10)
        except Exception:  # it is told as far as it listens
            return

    def proven(
        self, asked: bytes, outer: Mapping[str, Any], inner: bytes
    ) -> tuple[str, str, bytes, float]:
        """Client that answered a request, its error, the body, and the seconds it took there.

        Raises:
            ClientLost: its signature is not genuine, or what it signed cannot be so.
        """
        note, body = unframed(inner)
        client = str(note["client"])
        if client not in self.expected:
            raise ClientLost(f"'{client[:40]}' is not expected, only {', '.join(self.expected)}")
        if not self.genuine(client, hashlib.sha256(asked).digest() + inner, str(outer["sign"])):
            raise ClientLost(f"the signature is not that of '{client}', or its key is revoked")
        error, own = note.get("error"), note.get("own")
        if not isinstance(error, str):
            raise ClientLost(
                f"malformed answer of '{client}': its error is {shown(error)}, no text"
            )
        if isinstance(own, bool) or not isinstance(own, int | float) or not 0 <= own <= LONGEST:
            raise ClientLost(
                f"malformed answer of '{client}': it took {shown(own)} s, no time from 0 to "
                f"{LONGEST:g}"
            )
        return client, error[:200], body, float(own)

    def unfit(self, client: str, facts: Mapping[str, Any] | None, node: int) -> str:
        """Reason why a client cannot take part; empty if it can."""
        if facts is None:
            return f"its greeting is no table of facts: {ANEW}"
        for what in SAME:
            if not isinstance(said := facts.get(what), str):
                return f"its {what} is {shown(said)}, where a text is wanted: {ANEW}"
            if said != self.mine[what]:
                mend = MENDS.get(what, "")
                return (
                    f"its {what} is {plain(said)[:12]}, the server's "
                    f"{self.mine[what][:12]}: use the same on both{mend}"
                )
        if wrong := miscounted(facts.get("train")):
            return f"it says that it has {wrong}: {ANEW}"
        name = self.registered(node)
        if name == "":
            return f"its node's key has no name: register it with `--name {plain(client)}`"
        if name not in (None, client):
            return f"its node is registered as {shown(name)}: use one name for both"
        connection = self.connections.get(client)
        if connection is not None and connection.node != node:
            return "another node is connected under this name: stop one of them"
        return ""

    def gather(self, quorum: int, seconds: float | None = None) -> dict[str, Mapping[str, Any]]:
        """Wait for so many clients and all the others; return what clients said of themselves.

        Raises:
            PartialRun: they did not come in time.
        """
        end, said = None if seconds is None else time.monotonic() + seconds, None
        with self.changed:
            while True:
                here = [client for client in self.clients if client in self.connections]
                if len(here) >= quorum and all(name in self.connections for name in self.also):
                    return {client: self.connections[client].facts for client in here}
                away = [name for name in self.expected if name not in self.connections]
                missing = ", ".join(name for name in away if not self.revoked(name))
                line = f"{len(here)} of {quorum} clients are here; missing: {missing}"
                if line != said:
                    self.tell(said := line, "waiting")
                if end is not None and time.monotonic() > end:
                    raise PartialRun(f"{line}; start them with `vergence deploy join`")
                self.changed.wait(1.0)

    def ask(
        self, client: str, note: Mapping[str, Any], body: bytes, kind: str = "request"
    ) -> bytes:
        """Return a client's answer; one that comes back in time is asked again.

        Raises:
            ClientLost: there is none, or it is not the client's.
        """
        self.lost.pop(client, None)
        try:
            return self._ask(client, note, body, kind)
        except ClientLost as lost:
            self.lost[client] = str(lost)
            self.tell(f"'{client}' is lost: {lost}", "lost", client=client)
            raise

    def _ask(self, client: str, note: Mapping[str, Any], body: bytes, kind: str) -> bytes:
        if self.revoked(client):
            raise ClientLost("its key is revoked")
        end = time.monotonic() + self.timeouts.answer
        while (left := end - time.monotonic()) > 0:
            connection = self._connection(client, min(left, self.timeouts.absent))
            if changed := changed_data(self.samples.get(client, 0), connection.facts):
                raise ClientLost(changed)
            asked, begun = request(kind, note, body), time.monotonic()
            try:
                answer = self.wire.send(
                    connection.node,
                    asked,
                    left,
                    lambda connection=connection: self.connections.get(client) is connection,
                )
            except ClientGone:
                self.over.wait(1.0)
                continue
            try:
                who, error, answered, own = self.proven(asked, *unframed(answer))
            except (ValueError, KeyError, TypeError) as fault:
                raise ClientLost(f"malformed answer ({type(fault).__name__})") from None
            if who != client:
                raise ClientLost(f"'{who}' answered in its place")
            if error:
                self._later(client, error, end - time.monotonic())
                continue
            took = time.monotonic() - begun
            self.log(AnswerExchange(client, kind, len(asked), len(answer), took, own))
            return answered
        raise ClientLost(f"no answer in {self.timeouts.answer:g} s")

    def _later(self, client: str, error: str, left: float) -> None:
        """Wait as long as a client says, if it says so and that much time is left.

        Raises:
            ClientLost: it is not asked again.
        """
        said = re.match(rf"{LATER}(\d{{1,4}}) s: ", error, re.ASCII)
        wait = max(1.0, float(said[1])) if said else math.inf
        if wait >= left:
            raise ClientLost(error)
        self.tell(f"'{client}' answers later: {error}", "later", client=client)
        if self.over.wait(wait):
            raise ClientLost(error)

    def farewell(self) -> None:
        """Tell those who are there that all is done, as far as they listen."""
        if not self.informs:
            return
        with ThreadPoolExecutor(len(self.connections) or 1) as pool:
            for connection in self.connections.values():
                pool.submit(self.wire.send, connection.node, request("bye", {}), 10.0)

    def _connection(self, client: str, seconds: float) -> ClientConnection:
        with self.changed:
            if not self.changed.wait_for(lambda: client in self.connections, seconds):
                raise ClientLost("not connected")
            return self.connections[client]


@dataclass(frozen=True)
class RequestQueue:
    """Transport for one method's seed: its requests say which run they belong to."""

    registry: ClientRegistry
    note: Mapping[str, Any]

    def ask(self, client: str, request: bytes) -> bytes:
        """Return the answer, or raise `ClientLost`."""
        return self.registry.ask(client, self.note, request)

    def main(self, data: bytes) -> bytes:
        """Return the main server's answer, or raise `ClientLost`."""
        return self.registry.ask(self.registry.also[0], self.note, data, "main")

    def relay(self, client: str, closed: bytes, beside: bytes) -> bytes:
        """Return a client's answer to the main server, closed as it is, or raise `ClientLost`."""
        note = {**self.note, "beside": len(beside)}
        return self.registry.ask(client, note, beside + closed, "closed")
