"""Split learning in three roles, each in a process of its own: clients, main server, aggregator.

The main server holds the copies that serve clients, and sees smashed data, never the clients'
layers. The aggregator has the rounds and averages layers, and sees no smashed data: it carries
requests and answers between the other two, closed for it, and adds the layers that only it has.

Source: Thapa et al., "SplitFed: When federated learning meets split learning", AAAI 2022, section
3.1 (main server and fed server).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Queue
from typing import Any, Protocol

from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure
from vergence.core.naming import plural
from vergence.core.params import Params
from vergence.core.serialization import UNREADABLE, pack, plain, unpack
from vergence.core.tags import tagged
from vergence.deployment.protocol import WORDS, framed, is_file_of, most, unframed
from vergence.deployment.remote_clients import ClientLost, RemoteClients
from vergence.engine.client_runner import ClientRunner
from vergence.engine.exchange import SERVE
from vergence.engine.records import ClientResult, ClientTask, TaskBatch
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import PartialRun, StateError
from vergence.privacy.reply_checks import fault
from vergence.wire.encoding import decode, encode
from vergence.wire.size import size

TRIES = 5
"""How often a talk is begun anew when the main server has forgotten it, as after its death."""
MOST = 1 << 50
"""Bytes, steps and examples that a client may be told to have had."""
Close = Callable[[str, bytes], bytes]
"""Closes a request for a client: (client, request) -> what travels."""
Open = Callable[[str, bytes, bytes], bytes]
"""Opens an answer: (client, what came, what travelled to the client) -> answer."""


class SplitServerTransport(Protocol):
    """Carries bytes from the aggregator; several threads use it at once."""

    def main(self, data: bytes) -> bytes:
        """Return the main server's answer, or raise `ClientLost`."""
        ...

    def relay(self, client: str, closed: bytes, beside: bytes) -> bytes:
        """Hand a client a closed request and the trees beside it; return its closed answer.

        Raises:
            ClientLost: there is none.
        """
        ...


@tagged("Service")
@dataclass(frozen=True)
class SessionRequest:
    """Request to the main server: to serve these clients by a copy of `held`.

    `talk` is new for every attempt; `files` are the clients' states that count; `seconds` is how
    long a client may be served.
    """

    talk: str
    clients: tuple[str, ...]
    files: tuple[str | None, ...]
    stamp: str
    round: int
    progress: float
    seconds: float
    held: Mapping[str, Params] = field(default_factory=dict)


class SessionHandler(RemoteClients):
    """Sends requests without the trees that a method offers: only the aggregator has those."""

    def __init__(self, runner: ClientRunner, line: Any) -> None:
        super().__init__(runner, line)
        worker = runner.worker
        self.shapes = worker.method.offer(worker.method.server(worker.task), "")
        self.here = threading.local()

    def sent(self, client: str, message: Message) -> tuple[Message, tuple[str, ...]]:
        """Return a message without what is offered, and the names of what is left out."""
        out = tuple(n for n, tree in message.trees.items() if self.shapes.get(n) is tree)
        kept = {n: tree for n, tree in message.trees.items() if n not in out}
        self.here.beside = out
        return replace(message, trees=kept), out


class SplitSession:
    """One session under way, in a thread of its own: its last message, and what it waits for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.number, self.said, self.fed = 0, b"", 0
        self.heard: Queue[bytes | ClientLost] = Queue()

    def say(self, note: Mapping[str, Any], body: bytes = b"") -> None:
        """Say something to the aggregator; the first is number 1."""
        with self.changed:
            self.number += 1
            self.said = framed({**note, "number": self.number}, body)
            self.changed.notify_all()

    def hear(self, number: int, answer: bytes | ClientLost) -> None:
        """Take the answer to what was said as `number`; the same again is not heard."""
        with self.changed:
            if number == self.number == self.fed + 1:
                self.fed = number
                self.heard.put(answer)

    def after(self, number: int) -> bytes:
        """Message said after `number`."""
        with self.changed:
            self.changed.wait_for(lambda: self.number > number)
            return self.said

    def ask(self, client: str, closed: bytes, beside: Sequence[str]) -> bytes:
        """Send a request to a client, with what goes beside it; wait for its answer.

        Raises:
            ClientLost: it gave none, or the talk is over.
        """
        self.say({"ask": client, "beside": beside}, closed)
        answer = self.heard.get()
        if isinstance(answer, ClientLost):
            raise answer
        return answer


class MainServer:
    """The main server: holds sessions, and asks clients by way of the aggregator."""

    def __init__(
        self, runner: ClientRunner, close: Close | None = None, open_: Open | None = None
    ) -> None:
        self.remote, self.limit = SessionHandler(runner, self), most(runner)
        self.close, self.open = close or unclosed, open_ or unclosed
        self.talks: dict[str, SplitSession] = {}
        self.busy: dict[str, SplitSession] = {}
        self.lock, self.here = threading.Lock(), threading.local()

    def answer(self, data: bytes) -> bytes:
        """Begin or go on with a session; the same request again gets the same answer.

        Raises:
            StateError: it asks for nothing that can be done.
        """
        if len(data) > self.limit:
            raise StateError(f"a request of {len(data):,} bytes, where {self.limit:,} are allowed")
        try:
            note, body = unframed(data)
            if note["kind"] == "serve":
                return self._begun(unpack(body, SessionRequest, limit=self.limit)).after(0)
            talk, number = self.talks.get(str(note["talk"])), int(note["number"])
            if talk is None:
                return framed({"forgotten": True})
            talk.hear(number, ClientLost(plain(note["lost"])) if note["lost"] else body)
            return talk.after(number) if number <= talk.number else talk.said
        except UNREADABLE as error:
            said = plain(f"{type(error).__name__}: {error}")
            raise StateError(f"this is no request to a main server ({said})") from error

    def _begun(self, asked: SessionRequest) -> SplitSession:
        """Return a session, new unless it is under way; an earlier one of its clients is over."""
        with self.lock:
            if asked.talk in self.talks:
                return self.talks[asked.talk]
            talk = self.talks[asked.talk] = SplitSession()
            for client in asked.clients:
                before = self.busy.get(client)
                if before is not None:
                    before.heard.put(ClientLost("the aggregator began anew"))
                self.busy[client] = talk
            under_way = list(self.busy.values())
            self.talks = {name: t for name, t in self.talks.items() if t in under_way}
        threading.Thread(target=self._hold, args=(asked, talk), daemon=True).start()
        return talk

    def ask(self, client: str, request: bytes) -> bytes:
        """Ask a client by way of the session in whose thread this is, closed for everybody else."""
        if self.busy.get(client) is not self.here.talk:  # nor may it name files of the next talk
            raise ClientLost("the aggregator began anew")
        closed = self.close(client, request)
        return self.open(
            client, self.here.talk.ask(client, closed, self.remote.here.beside), closed
        )

    def end(self) -> None:
        """End all sessions: nobody goes on with them."""
        with self.lock:
            for talk in self.talks.values():
                talk.heard.put(ClientLost("another run began"))

    def _hold(self, asked: SessionRequest, talk: SplitSession) -> None:
        """Hold a session to its end; its result is its last message."""
        self.here.talk = talk
        try:
            message = Message(SERVE, self.remote.shapes, round=asked.round)
            pairs = zip(asked.clients, asked.files, strict=True)
            tasks = [ClientTask(client, message, file) for client, file in pairs]
            batch = TaskBatch(
                "serve", tasks, [len(tasks)], stamp=asked.stamp, progress=asked.progress
            )
            self.remote.talk = float(asked.seconds)
            results, became = ServerSession(self.remote.sessions, batch, tasks).hold(asked.held)
            left = [file for client in asked.clients for file in self.remote.dropped(client)]
            note = {"done": [vars(result) for result in results], "left": left}
            talk.say(note, b"" if became is None else encode(became, {}))
        except Exception as error:  # of a thread: it would be seen by nobody
            talk.say({"failed": plain(f"{type(error).__name__}: {error}")})


def unclosed(_client: str, data: bytes, _asked: bytes = b"") -> bytes:
    """Close or open nothing."""
    return data


class SessionRelay:
    """The aggregator's side: lets the main server serve, and relays what it may not read.

    `clock` tells seconds: a main server that goes on asking for ever is given up.
    """

    def __init__(
        self, transport: SplitServerTransport, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.transport, self.clock = transport, clock

    def hold(
        self, remote: RemoteClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Return a result for each client, and what became of a copy, if it counts.

        Raises:
            PartialRun: the main server is not there, or answers what cannot be.
        """
        try:
            for _ in range(TRIES):
                note, body = self._talk(remote.talk, batch, tasks)
                if "forgotten" not in note:
                    return self._settled(remote, batch, tasks, note, body)
        except ClientLost as lost:
            raise PartialRun(f"the main server is lost: {lost}") from None
        except UNREADABLE as error:
            why = plain(f"{type(error).__name__}: {error}")
            raise PartialRun(f"the main server answers what cannot be ({why})") from error
        raise PartialRun(f"the main server forgot {TRIES} times whom it served")

    def _talk(
        self, seconds: float, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[Mapping[str, Any], bytes]:
        """Hold a session until the main server asks no more clients; return what it says then.

        Raises:
            ClientLost: it goes on for longer than serving all clients, one by one, may take.
        """
        end = self.clock() + seconds * (1 + len(tasks))
        offered = {task.client: task.message.trees for task in tasks}
        talk, files = secrets.token_hex(8), tuple(task.file for task in tasks)
        asked = SessionRequest(
            talk,
            tuple(offered),
            files,
            batch.stamp,
            tasks[0].message.round,
            batch.progress,
            seconds,
            batch.templates,
        )
        note, body = unframed(self.transport.main(framed({"kind": "serve"}, pack(asked))))
        while "ask" in note:
            if self.clock() > end:
                raise ClientLost(f"a talk with {plural(len(tasks), 'client')} had no end in time")
            client, lost, answer = note["ask"], "", b""
            beside = {name: offered[client][name] for name in note["beside"]}
            try:
                answer = self.transport.relay(client, body, pack(beside) if beside else b"")
            except ClientLost as why:
                lost = str(why) or "no answer"
            heard = {"kind": "heard", "talk": talk, "number": note["number"], "lost": lost}
            note, body = unframed(self.transport.main(framed(heard, answer)))
        return note, body

    def _settled(
        self,
        remote: RemoteClients,
        batch: TaskBatch,
        tasks: Sequence[ClientTask],
        note: Mapping[str, Any],
        body: bytes,
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Result of a session, if it can be one.

        Raises:
            ValueError: it cannot.
        """
        if "failed" in note:
            raise ValueError(str(note["failed"]))
        seed = remote.runner.store.seed
        results = [served(told, task, seed) for told, task in zip(note["done"], tasks, strict=True)]
        for file in note["left"]:
            if not any(is_file_of(str(file), seed, task.client) for task in tasks):
                raise ValueError("it names a state of somebody else")
            remote.leave(file)
        if not body:
            return results, None
        became = decode(body, {}, sum(size({"": tree.flat}) for tree in batch.templates.values()))
        metrics = tuple(became.metrics)[:WORDS]
        exposed = Exposure("aggregate", tuple(batch.templates), metrics=metrics)
        reason = fault(became, tasks[0].message.round, batch.templates, exposed)
        if reason is not None:
            raise ValueError(reason)
        return results, became


def served(told: Mapping[str, Any], task: ClientTask, seed: int) -> ClientResult:
    """Return the result that the main server wrote for a client.

    Raises:
        ValueError: a field is not what it must be.
    """
    status, filed = plain(told["status"]), told["filed"]
    if told["client"] != task.client or not (
        status == "ok" or status.startswith(("lost", "quarantined: "))
    ):
        raise ValueError("it tells of a client in another way")
    if filed is not None:
        filed = StateRef(str(filed[0]), str(filed[1]), None)
        if not is_file_of(filed.file, seed, task.client):
            raise ValueError("a state lies under another name")
    up, down = ({str(n): int(b) for n, b in told[way].items()} for way in ("up", "down"))
    metrics = {str(name): float(value) for name, value in told["metrics"].items()}
    examples, steps = float(told["examples"]), int(told["steps"])
    counts = (examples, steps, *up.values(), *down.values())
    if not all(0 <= count <= MOST for count in counts) or len(metrics) > WORDS:
        raise ValueError("its counts are no numbers")
    return ClientResult(
        task.client,
        status,
        up=up,
        down=down,
        examples=examples,
        steps=steps,
        metrics=metrics,
        filed=filed,
    )
