"""Split learning in three roles, each in its own process: clients, main server and aggregator.

The main server trains copies of the server's part of the network. It sees smashed data (activations
at the cut), and never sees the clients' layers. The aggregator runs the rounds and averages the
clients' layers, and sees no smashed data. It relays encrypted requests and answers between main
server and clients, and attaches to the requests the layers that only the aggregator has. The
exchange about one group of clients in one round is a session.

Used by `deployment.main_server_node` and `deployment.server_run`.

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
from vergence.core.serialization import UNREADABLE, described, pack, printable, unpack
from vergence.core.tags import tagged
from vergence.deployment.protocol import WORDS, default_limit, framed, is_file_of, unframed
from vergence.deployment.remote_clients import ClientLost, RemoteClients
from vergence.engine.client_runner import ClientRunner
from vergence.engine.exchange import SERVE
from vergence.engine.records import ClientResult, ClientTask, TaskBatch
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import PartialRun, StateError
from vergence.privacy.reply_checks import fault
from vergence.wire.encoding import decode, encode
from vergence.wire.size import bytes_of_arrays

TRIES = 5
"""Largest number of attempts at a session: a restarted main server has lost its sessions."""
MOST = 1 << 50
"""Largest number of bytes, steps or samples that the main server may report about a client."""
Close = Callable[[str, bytes], bytes]
"""Function that encrypts a request for a client: (client, request) -> encrypted request."""
Open = Callable[[str, bytes, bytes], bytes]
"""Function that decrypts an answer: (client, encrypted answer, encrypted request) -> answer."""


class SplitServerTransport(Protocol):
    """Connection from the aggregator, which runs the rounds, to the main server and the clients.

    Several threads use it at once.
    """

    def ask_main_server(self, data: bytes) -> bytes:
        """Send a request to the main server; return the answer, or raise `ClientLost`."""
        ...

    def relay(self, client: str, closed: bytes, attachment: bytes) -> bytes:
        """Send a client an encrypted request with attached trees; return its encrypted answer.

        Raises:
            ClientLost: no answer came.
        """
        ...


@tagged("Service")
@dataclass(frozen=True)
class SessionRequest:
    """Request to the main server: train one copy of its model with a group of clients.

    Attributes:
        session: name of the session, different for each attempt.
        clients: the clients of the group.
        files: for each client, the name of the state file from which it starts; None: no state.
        stamp: text that names the round's work; it becomes part of state files' names.
        round: number of the round.
        progress: fraction of the run's rounds that are finished.
        seconds: longest time in seconds of the training with one client.
        templates: the copy's initial parameters.
    """

    session: str
    clients: tuple[str, ...]
    files: tuple[str | None, ...]
    stamp: str
    round: int
    progress: float
    seconds: float
    templates: Mapping[str, Params] = field(default_factory=dict)


class SessionHandler(RemoteClients):
    """The main server's access to remote clients.

    The main server sends requests without the clients' layers; the aggregator attaches the layers.
    """

    def __init__(self, runner: ClientRunner, line: Any) -> None:
        super().__init__(runner, line)
        worker = runner.worker
        self.shapes = worker.method.offer(worker.method.server(worker.task), "")
        self.here = threading.local()

    def without_attachments(self, client: str, message: Message) -> tuple[Message, tuple[str, ...]]:
        """Return a message without the clients' layers, and the names of the removed trees."""
        layers = tuple(n for n, tree in message.trees.items() if self.shapes.get(n) is tree)
        self.here.attachments = layers
        trees = {n: tree for n, tree in message.trees.items() if n not in layers}
        return replace(message, trees=trees), layers


class SplitSession:
    """A running session: the main server's training with one group of clients in one round.

    The main server reaches clients through the aggregator, the process that runs the rounds. The
    session holds its last message to the aggregator, and the queue of clients' answers.
    Messages are numbered from 1. The session runs in its own thread. The aggregator's requests
    arrive in other threads: each brings the last answer and fetches the next message.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.last_number, self.last_message, self.last_answered = 0, b"", 0
        self.answers: Queue[bytes | ClientLost] = Queue()

    def send(self, note: Mapping[str, Any], body: bytes = b"") -> None:
        """Set the next message for the aggregator, which fetches it."""
        with self.changed:
            self.last_number += 1
            self.last_message = framed({**note, "number": self.last_number}, body)
            self.changed.notify_all()

    def receive(self, number: int, answer: bytes | ClientLost) -> None:
        """Accept the answer to message `number`; a second answer to a message is ignored."""
        with self.changed:
            # The aggregator resends what it got no reply to: taken twice, an answer would be read
            # as the answer to the next message, perhaps another client's.
            if number == self.last_number == self.last_answered + 1:
                self.last_answered = number
                self.answers.put(answer)

    def message_after(self, number: int) -> bytes:
        """Wait for the message that follows message `number`, and return it."""
        with self.changed:
            self.changed.wait_for(lambda: self.last_number > number)
            return self.last_message

    def ask(self, client: str, closed: bytes, attachments: Sequence[str]) -> bytes:
        """Ask the aggregator to relay an encrypted request to a client, and return the answer.

        `attachments` names the trees that the aggregator adds to the request.

        Raises:
            ClientLost: no answer came, or the session is over.
        """
        self.send({"ask": client, "attachments": attachments}, closed)
        answer = self.answers.get()
        if isinstance(answer, ClientLost):
            raise answer
        return answer


class MainServer:
    """The main server of split learning, which trains copies of the server's part of the network.

    A session is its training with one group of clients in one round. It sends requests to clients
    through the aggregator, the process that runs the rounds.
    """

    def __init__(
        self, runner: ClientRunner, close: Close | None = None, open_: Open | None = None
    ) -> None:
        self.remote, self.limit = SessionHandler(runner, self), default_limit(runner)
        self.close, self.open = close or unencrypted, open_ or unencrypted
        self.sessions: dict[str, SplitSession] = {}
        self.session_of: dict[str, SplitSession] = {}
        self.lock, self.here = threading.Lock(), threading.local()

    def answer(self, data: bytes) -> bytes:
        """Begin or continue a session, and return the session's next message to the aggregator.

        The same request sent again gets the same answer.

        Raises:
            StateError: the request is malformed or too large.
        """
        if len(data) > self.limit:
            raise StateError(f"a request of {len(data):,} bytes, where {self.limit:,} are allowed")
        try:
            note, body = unframed(data)
            if note["kind"] == "serve":
                return self._begin(unpack(body, SessionRequest, limit=self.limit)).message_after(0)
            talk, number = self.sessions.get(str(note["session"])), int(note["number"])
            if talk is None:
                return framed({"forgotten": True})
            talk.receive(number, ClientLost(printable(note["lost"])) if note["lost"] else body)
            return talk.message_after(number) if number <= talk.last_number else talk.last_message
        except UNREADABLE as error:
            raise StateError(f"this is no request to a main server ({described(error)})") from error

    def _begin(self, asked: SessionRequest) -> SplitSession:
        """Return the session of a request; begin it if it is new.

        Older sessions with the same clients end.
        """
        with self.lock:
            if asked.session in self.sessions:
                return self.sessions[asked.session]
            talk = self.sessions[asked.session] = SplitSession()
            for client in asked.clients:
                if (before := self.session_of.get(client)) is not None:
                    before.answers.put(ClientLost("the aggregator began anew"))
                self.session_of[client] = talk
            under_way = list(self.session_of.values())
            self.sessions = {name: t for name, t in self.sessions.items() if t in under_way}
        threading.Thread(target=self._run_session, args=(asked, talk), daemon=True).start()
        return talk

    def ask(self, client: str, request: bytes) -> bytes:
        """Send a request to a client, encrypted for this client, and return the decrypted answer.

        The request belongs to the session of the current thread.

        Raises:
            ClientLost: no answer came, or the session is over.
        """
        # A session that was replaced must not go on: its requests would name states of the next
        # session's turns, and could have clients delete them.
        if self.session_of.get(client) is not self.here.session:
            raise ClientLost("the aggregator began anew")
        closed = self.close(client, request)
        return self.open(
            client, self.here.session.ask(client, closed, self.remote.here.attachments), closed
        )

    def end(self) -> None:
        """End all sessions; the node calls this when another run starts."""
        with self.lock:
            for talk in self.sessions.values():
                talk.answers.put(ClientLost("another run began"))

    def _run_session(self, asked: SessionRequest, talk: SplitSession) -> None:
        """Run a session to its end; the session's last message holds the results or an error."""
        self.here.session = talk
        try:
            message = Message(SERVE, self.remote.shapes, round=asked.round)
            pairs = zip(asked.clients, asked.files, strict=True)
            tasks = [ClientTask(client, message, file) for client, file in pairs]
            batch = TaskBatch(
                "serve", tasks, [len(tasks)], stamp=asked.stamp, progress=asked.progress
            )
            self.remote.session_seconds = float(asked.seconds)
            results, server_copy = ServerSession(self.remote.sessions, batch, tasks).hold(
                asked.templates
            )
            drops = [file for client in asked.clients for file in self.remote.take_drops(client)]
            note = {"done": [vars(result) for result in results], "drops": drops}
            talk.send(note, b"" if server_copy is None else encode(server_copy, {}))
        except Exception as error:
            # Raised in a thread, it would be seen by nobody, and the aggregator would wait.
            talk.send({"failed": described(error)})


def unencrypted(_client: str, data: bytes, _asked: bytes = b"") -> bytes:
    """Return the bytes unchanged; used in place of encryption if all roles are one process."""
    return data


class SessionRelay:
    """Relays messages between main server and clients in split learning.

    The aggregator, the process that runs the rounds, uses it. The messages are encrypted, and the
    aggregator cannot read them.

    Args:
        transport: carries bytes to the main server and to the clients.
        clock: returns the time in seconds, by which a session that takes too long is ended.
    """

    def __init__(
        self, transport: SplitServerTransport, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.transport, self.clock = transport, clock

    def serve(
        self, remote: RemoteClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Let the main server train a copy of its model with the clients of `tasks`.

        Returns:
            A result for each client, and the update of the main server's copy; None in place of
            the update if the training does not count.

        Raises:
            PartialRun: the main server does not answer, or its answer is impossible.
        """
        try:
            for _ in range(TRIES):
                note, body = self._relay_session(remote.session_seconds, batch, tasks)
                if "forgotten" not in note:
                    return self._checked_session(remote, batch, tasks, note, body)
        except ClientLost as lost:
            raise PartialRun(f"the main server is lost: {lost}") from None
        except UNREADABLE as error:
            raise PartialRun(
                f"the main server answers what cannot be ({described(error)})"
            ) from error
        raise PartialRun(f"the main server forgot {TRIES} times whom it served")

    def _relay_session(
        self, seconds: float, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[Mapping[str, Any], bytes]:
        """Relay a session's messages; return header and body of the main server's last message.

        `seconds` is the longest time of the training with one client.

        Raises:
            ClientLost: the main server does not answer, or the session takes longer than training
                with all clients one after the other may take.
        """
        # Without an end, a main server that asks for ever would hold up the run for ever.
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
        note, body = unframed(
            self.transport.ask_main_server(framed({"kind": "serve"}, pack(asked)))
        )
        while "ask" in note:
            if self.clock() > end:
                raise ClientLost(f"a talk with {plural(len(tasks), 'client')} had no end in time")
            client, lost, answer = note["ask"], "", b""
            beside = {name: offered[client][name] for name in note["attachments"]}
            try:
                answer = self.transport.relay(client, body, pack(beside) if beside else b"")
            except ClientLost as why:
                lost = str(why) or "no answer"
            answer_note = {
                "kind": "client answer",
                "session": talk,
                "number": note["number"],
                "lost": lost,
            }
            note, body = unframed(self.transport.ask_main_server(framed(answer_note, answer)))
        return note, body

    def _checked_session(
        self,
        remote: RemoteClients,
        batch: TaskBatch,
        tasks: Sequence[ClientTask],
        note: Mapping[str, Any],
        body: bytes,
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Return a result for each client and the update of the main server's copy.

        `note` and `body` are header and body of the session's last message; every field is checked.

        Raises:
            ValueError: a field is impossible; the message says which.
        """
        if "failed" in note:
            raise ValueError(str(note["failed"]))
        seed = remote.runner.store.seed
        results = [
            checked_client(done, task, seed) for done, task in zip(note["done"], tasks, strict=True)
        ]
        for file in note["drops"]:
            # The aggregator passes these names on to clients, who delete the files: a malicious
            # main server must not name states of clients that it did not serve.
            if not any(is_file_of(str(file), seed, task.client) for task in tasks):
                raise ValueError("it names a state of somebody else")
            remote.drop_later(file)
        if not body:
            return results, None
        # The same guard as for a client's reply: the main server is another machine, and its copy
        # enters the aggregate.
        server_copy = decode(
            body, {}, sum(bytes_of_arrays({"": tree.flat}) for tree in batch.templates.values())
        )
        metrics = tuple(server_copy.metrics)[:WORDS]
        exposed = Exposure("aggregate", tuple(batch.templates), metrics=metrics)
        reason = fault(server_copy, tasks[0].message.round, batch.templates, exposed)
        if reason is not None:
            raise ValueError(reason)
        return results, server_copy


def checked_client(note: Mapping[str, Any], task: ClientTask, seed: int) -> ClientResult:
    """Return the result that the main server reports for a client; every field is checked.

    `SessionRelay` calls this.

    Raises:
        ValueError: a field is missing or impossible; the message says which.
    """
    status, filed = printable(note["status"]), note["filed"]
    if note["client"] != task.client or not (
        status == "ok" or status.startswith(("lost", "quarantined: "))
    ):
        raise ValueError("it tells of a client in another way")
    if filed is not None:
        filed = StateRef(str(filed[0]), str(filed[1]), None)
        if not is_file_of(filed.file, seed, task.client):
            raise ValueError("a state lies under another name")
    up, down = ({str(n): int(b) for n, b in note[way].items()} for way in ("up", "down"))
    metrics = {str(name): float(value) for name, value in note["metrics"].items()}
    examples, steps = float(note["examples"]), int(note["steps"])
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
