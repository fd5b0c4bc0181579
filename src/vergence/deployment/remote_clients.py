"""Worker pool of remote clients: sends every task as bytes to a client node (`client_node.py`).

A `Transport` carries the bytes; this module does not depend on its kind. A turn is a client's work
on one message.

Used by `cli.deploy`, `deployment.client_registry`, `deployment.main_server`,
`deployment.main_server_node`, `deployment.secure_sum_server`, `deployment.server_run` and
`deployment.transport.flower`.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from vergence.core.aggregation import Sum
from vergence.core.federation import Federation, without_data
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply
from vergence.core.params import Params
from vergence.core.serialization import Packed, pack, printable, quick_digest
from vergence.deployment.answer_order import WaitingAnswers, reading_order
from vergence.deployment.protocol import (
    ClientRequest,
    SharedBytes,
    checked_result,
    default_limit,
    sample_count_fault,
    single_turns,
    split_answer,
    turn_stamps,
    unframed,
)
from vergence.engine.channel import DIRECT
from vergence.engine.client_executor import TurnResult
from vergence.engine.client_runner import ClientRunner, heaviest, masks
from vergence.engine.evaluation import GUESS
from vergence.engine.records import ClientResult, ClientState, ClientTask, GroupResult, TaskBatch
from vergence.engine.secure_sum_attempts import PartyIdentity
from vergence.engine.secure_sums import redact
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.client_states import (
    ClientStateIndex,
    ClientStateStore,
    file_of,
)
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import StateError
from vergence.privacy.reply_checks import fault
from vergence.wire.encoding import decode
from vergence.wire.size import bytes_of_arrays, bytes_of_tree

SESSION_SECONDS = 3600.0
"""Longest time in seconds of a client's training with the server in a round of split learning."""
SUMS = 128 << 20
"""Largest number of bytes of unfinished sums of groups; one group is always summed."""


class ClientLost(Exception):
    """Raised when a client does not answer; the message becomes the client's status in tables."""


class ReplyRelay(Protocol):
    """Access to a main server on another machine, which trains the server's part of a network.

    `SessionRelay` in `main_server.py` implements it.
    """

    def serve(
        self, remote: RemoteClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Let the main server train with the clients of `tasks`.

        Return a result for each client, and the update of the main server's copy; None in place of
        the update if the training does not count.
        """
        ...


class Transport(Protocol):
    """Connection to clients: sends requests, returns answers; several threads use it at once."""

    def ask(self, client: str, request: bytes) -> bytes:
        """Send a request to a client, wait, and return its answer.

        Raises:
            ClientLost: no answer came.
        """
        ...

    def start(
        self, client: str, request: bytes, shared: SharedBytes | None = None
    ) -> Future[bytes]:
        """Send `request` and `shared` to a client; return the future of its answer.

        The future raises `ClientLost` if no answer came.
        """
        ...


@dataclass(frozen=True)
class RemoteStateRef:
    """Reference to a state on a client's machine; `filed` names the file; None: no state yet."""

    filed: StateRef | None


def tell_nobody(_line: str, _event: str, **_about: Any) -> None:
    """Discard a message for the operator."""


CheckedReply = tuple[ClientResult, SealedReply | None]
"""Result of a client's work on one message, and the reply; None if the reply does not count."""


@dataclass(frozen=True)
class SentRequest:
    """A request to a client, and what its answer is checked with.

    Attributes:
        turn: the request as its client gets it.
        messages: the request's messages, with attachments.
        known: masks by tree that the server already has, so that the client may omit them.
        templates: trees whose shapes replies must have, besides the trees of each message.
        key: digest of the request's bytes, which the answer must name.
    """

    turn: ClientRequest
    messages: tuple[Message, ...]
    known: Mapping[str, Mask]
    templates: Mapping[str, Params]
    key: str = ""


class RemoteClients:
    """Worker pool of remote clients: sends requests, checks every answer, sums the replies."""

    def __init__(
        self,
        runner: ClientRunner,
        line: Transport,
        limit: int | None = None,
        relay: ReplyRelay | None = None,
        session_seconds: float = SESSION_SECONDS,
        identity: PartyIdentity | None = None,
        tell: Callable[..., object] = tell_nobody,
    ) -> None:
        # Imported here, since a secure sum is held with remote clients.
        from vergence.deployment.secure_sum_server import SecureSumServer

        self.count = 0
        self.line, self.relay, self.lock, self.tell = line, relay, threading.Lock(), tell
        self.guesses: dict[str, dict[str, float]] = {}
        self.sum_server = (
            None if runner.sums is None else SecureSumServer(self, runner.sums, identity)
        )
        self.limit = default_limit(runner) if limit is None else limit
        self.session_seconds = session_seconds
        self.runner = runner
        self.sessions = RemoteSessions(self)
        self.known_masks: dict[str, dict[str, Mapping[str, Mask]]] = {}
        self.drops: list[str] = []

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Carry out a batch's groups of tasks in parallel; yield number and result of each group.

        Results are yielded in the order of the groups.
        """
        if batch.kind == "serve":
            yield from self._serve(batch)
        elif self.sum_server is not None and batch.kind == "turn":
            results = [result for _, group in self._ask_all(batch) for result in group.results]
            if results:
                yield from self.sum_server.sum_replies(batch, results)
        else:
            yield from self._ask_all(batch)

    def _serve(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Train the server's part of a network with the clients of a batch."""
        # A server's copy that serves a group is one session with all clients of the group. Each has
        # a thread, as the network's steps and the requests to clients alternate.
        parts = (
            [[task] for task in batch.tasks]
            if batch.alone
            else [batch.group(number) for number in range(len(batch.groups))]
        )
        if not parts:
            return
        with ThreadPoolExecutor(len(parts)) as pool:
            sessions = pool.map(partial(self._session, batch), parts)
            for number, length in enumerate(batch.groups):
                group = GroupResult([], Sum())
                while len(group.results) < length:
                    results, server_copy = next(sessions)
                    group.results += results
                    if server_copy is not None:
                        group.sum.add(server_copy)
                yield number, group

    def _session(
        self, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        if self.relay is not None:
            return self.relay.serve(self, batch, tasks)
        return ServerSession(self.sessions, batch, tasks).hold(batch.templates)

    def _ask_all(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Send every client of a batch its request; yield each group of results once it is whole.

        No thread waits for a client, and this thread reads all answers.
        """
        arrived = queue.SimpleQueue[tuple[int, Future[bytes]]]()
        started, waiting = dict[int, Future[bytes]](), WaitingAnswers(self.runner.store.folder)

        def arrivals() -> Iterator[int]:
            while started:
                number, answer = arrived.get()
                del started[number]  # it holds the answer's bytes
                lost = answer.exception()
                if lost is not None and not isinstance(lost, ClientLost):
                    raise lost
                waiting.put(number, answer.result() if lost is None else lost)
                yield number

        try:
            requests = []
            for number, (request, packed) in enumerate(self._requests(batch)):
                requests.append(request)
                started[number] = self.line.start(request.turn.client, *packed)
                started[number].add_done_callback(
                    lambda done, number=number: arrived.put((number, done))
                )
            yield from self._read_in_order(batch, requests, arrivals(), waiting)
        finally:
            for answer in started.values():
                answer.cancel()
            wait(started.values())
            waiting.close()

    def _requests(
        self, batch: TaskBatch
    ) -> Iterator[tuple[SentRequest, tuple[bytes, SharedBytes]]]:
        """Yield each request of a batch, and its bytes: its own, and those of its message's arrays.

        The arrays of a message that several clients get are in memory once.
        """
        common, shared = Counter(id(task.message) for task in batch.tasks), dict[int, SharedBytes]()
        for task in batch.tasks:
            request, chunks = self._request(batch.kind, task, batch)
            arrays = shared.get(id(task.message)) or SharedBytes(b"".join(chunks[1:]))
            if common[id(task.message)] > 1:
                shared[id(task.message)] = arrays
            own = bytes(chunks[0])
            yield replace(request, key=quick_digest(own, arrays.data)), (own, arrays)

    def _read_in_order(
        self,
        batch: TaskBatch,
        requests: Sequence[SentRequest],
        arrivals: Iterable[int],
        waiting: WaitingAnswers,
    ) -> Iterator[tuple[int, GroupResult]]:
        """Check answers and add replies up, in an order that does not depend on when they come."""
        groups, odd, whole = dict[int, GroupResult](), dict[str, str](), 0
        if unsent := self._unsent_trees(batch):
            arrivals = list(arrivals)
            odd = odd_shapes(
                unsent, (self._read(requests[n], waiting[n])[0] for n in sorted(arrivals))
            )
        ahead = max(1, SUMS // max(1, self.runner.worker.solver.vector.nbytes))
        for number, place in reading_order(batch.groups, ahead, arrivals):
            group = groups.setdefault(number, GroupResult([], Sum()))
            result, sealed = self._outcome(batch, requests[place], waiting[place], odd)
            waiting.discard(place)
            group.results.append(result)
            if sealed is not None and batch.reveal == "each":
                group.replies[result.client] = sealed
            elif sealed is not None:
                group.sum.add(sealed)
            while whole in groups and len(groups[whole].results) == batch.groups[whole]:
                yield whole, groups.pop(whole)
                whole += 1

    def _unsent_trees(self, batch: TaskBatch) -> set[str]:
        """Return the names of trees in single replies whose shapes the server does not know."""
        if batch.kind != "turn" or self.sum_server is not None:
            return set()
        verbs = {task.message.verb for task in batch.tasks}
        replied = set().union(*(self.runner.exposed(verb).trees for verb in verbs))
        return replied.difference(batch.templates, *(task.message.trees for task in batch.tasks))

    def _outcome(
        self,
        batch: TaskBatch,
        request: SentRequest,
        answer: bytes | Exception,
        odd: Mapping[str, str],
    ) -> CheckedReply:
        """Return result and reply of an answer; `odd` names a tree by client, see `odd_shapes`."""
        result, sealed = self._read(request, answer)[0]
        if sealed is not None and result.client in odd:
            tree = odd[result.client]
            status = f"quarantined: shape: the tensors of '{tree}' are not as those of others"
            result, sealed = (
                replace(result, status=status, metrics={}, filed=None, share=None),
                None,
            )
        self._drop_failed(request, result)
        if batch.kind == "evaluate":
            if result.status.startswith("quarantined"):
                # No table has a row for it, so that the operator would not learn of it.
                self.tell(
                    f"'{result.client}' is left out of an evaluation, {result.status}",
                    "unmeasured",
                    client=result.client,
                )
            result = self._without_guess(result)
        return result, sealed

    def _without_guess(self, result: ClientResult) -> ClientResult:
        """Return a result without the scores of the client's own constant prediction.

        These scores, of a baseline without learning, are moved into `guesses`.
        """
        measured = {point: dict(scores) for point, scores in result.measured.items()}
        for scores in measured.values():
            for name in [name for name in scores if name.startswith(GUESS)]:
                guesses = self.guesses.setdefault(result.client, {})
                guesses[name.removeprefix(GUESS)] = scores.pop(name)
        return replace(result, measured=measured)

    def ask_turns(
        self,
        kind: str,
        task: ClientTask,
        batch: TaskBatch,
        like: Mapping[str, Params] | None = None,
        then: tuple[Message, ...] = (),
    ) -> list[CheckedReply]:
        """Send a client one or several messages in one exchange; return result and reply of each.

        The list ends after the first reply that does not count.

        Args:
            kind: kind of request: `turn` or `evaluate`.
            task: the client, the first message and the state from which to start.
            batch: the batch of the task.
            like: shapes of those trees in the replies that are not among the trees sent.
            then: further messages.
        """
        request, chunks = self._request(kind, task, batch, like, then)
        packed = b"".join(chunks)
        try:
            answer = self.line.ask(task.client, packed)
        except ClientLost as lost:
            answer = lost
        replies = self._read(replace(request, key=quick_digest(packed)), answer)
        self._drop_failed(request, replies[-1][0])
        return replies

    def _drop_failed(self, request: SentRequest, last: ClientResult) -> None:
        """Have the client delete states of turns that do not count; `last` is the last result."""
        # The client may have written states of these turns all the same: no round starts from
        # them, and without this line they would stay on its disk for ever.
        if request.turn.kind == "turn" and last.status != "ok":
            for stamp in turn_stamps(request.turn.stamp, len(request.turn.then)):
                self.drop_later(file_of(self.runner.store.seed, last.client, stamp))

    def drop_later(self, file: str) -> None:
        """Name this state file in the next request to its client, so that the client deletes it."""
        with self.lock:
            self.drops.append(file)

    def _request(
        self,
        kind: str,
        task: ClientTask,
        batch: TaskBatch,
        like: Mapping[str, Params] | None = None,
        then: tuple[Message, ...] = (),
    ) -> tuple[SentRequest, list[memoryview]]:
        """Return a request without its key, and its bytes in pieces: a header, and its arrays."""
        known = self._known(task)
        message, attachments = self.without_attachments(task.client, task.message)
        request = ClientRequest(
            kind,
            task.client,
            message,
            batch.stamp,
            task.file,
            batch.progress,
            tuple(batch.points),
            tuple(known),
            self.take_drops(task.client),
            attachments,
            then,
        )
        templates = batch.templates if like is None else like
        return SentRequest(request, (task.message, *then), known, templates), Packed(
            request
        ).chunks()

    def _read(self, sent: SentRequest, answer: bytes | Exception) -> list[CheckedReply]:
        """Return result and reply of each message of a request.

        `answer` is a client's answer, or the reason why there is none.
        """
        client, replies = sent.turn.client, list[CheckedReply]()
        if isinstance(answer, Exception):
            reason = f"lost: {answer}" if str(answer) else "lost"
            return [(ClientResult(client, printable(reason)), None)]
        # Checked before anything is parsed: one malicious client could otherwise fill the memory.
        if len(answer) > self.limit:
            fault = f"too large: {len(answer):,} bytes, at most {self.limit:,} may come"
            return [(ClientResult(client, f"quarantined: {fault}"), None)]
        try:
            parts = split_answer(answer, len(sent.turn.then))
            # Not strict: a client stops after the first turn that does not count.
            for turn, message, part in zip(
                single_turns(sent.turn), sent.messages, parts, strict=False
            ):
                templates = {**sent.templates, **message.trees}
                replies.append(self._checked_reply(part, turn, sent.key, sent.known, templates))
                if replies[-1][0].status != "ok":
                    break
        except Exception as error:
            # Every exception is caught: whatever bytes a malicious client sends, they cost its own
            # reply and never the round of the others.
            status = printable(f"quarantined: malformed: {type(error).__name__}: {error}")
            replies.append((ClientResult(client, status), None))
        return replies

    def _checked_reply(
        self,
        data: bytes,
        request: ClientRequest,
        key: str,
        known: Mapping[str, Mask],
        templates: Mapping[str, Params],
    ) -> CheckedReply:
        """Check the answer to one message; return the result, and the reply (None if not valid).

        Args:
            data: the answer.
            request: the request with this message alone.
            key: digest of the whole request, which the answer must name.
            known: masks by tree that the server already has, so that the client may omit them.
            templates: trees whose shapes the reply must have.
        """
        note, body = unframed(data)
        # A stored answer of an earlier round is genuinely the client's: without this check it would
        # count again, computed from an old model.
        if note["to"] != key:
            return (
                ClientResult(request.client, "quarantined: stale: it answers another request"),
                None,
            )
        result = checked_result(note, request, self.runner.store.seed)
        form = self.runner.layout(request.message, templates) if request.kind == "turn" else None
        # A reply to a secure sum comes by the sum's own messages. Metrics or weights in the answer
        # would tell the server of this single person: `redact` removes them.
        if form is not None:
            return redact(result, form), None
        if request.kind == "evaluate" or result.status != "ok":
            return result, None
        sealed = decode(
            body, known, sum(bytes_of_arrays({"": tree.flat}) for tree in templates.values())
        )
        exposed = self.runner.exposed(request.message.verb)
        # Two guards: the form of any reply (names, shapes, finite numbers, weights), then what this
        # method and task ask of it. A malicious client is stopped here, before the aggregate.
        reason = fault(sealed, request.message.round, templates, exposed)
        reason = reason or self.runner.worker.fault(sealed, request.client)
        up = {name: bytes_of_tree(tree, known.get(name)) for name, tree in sealed.trees.items()}
        weights = {name: heaviest(tree) for name, tree in sealed.trees.items()}
        if reason is not None:
            return ClientResult(
                request.client, printable(f"quarantined: {reason}"), up, weights
            ), None
        if result.filed is not None:
            masks_of_client = self.known_masks.setdefault(request.client, {})
            masks_of_client[result.filed.file] = {**known, **masks(sealed)}
        return replace(result, up=up, weight=weights, metrics=dict(sealed.metrics)), sealed

    def without_attachments(self, client: str, message: Message) -> tuple[Message, tuple[str, ...]]:
        """Return the message without attachments, and the names of the trees left out.

        Nothing is left out here. The main server's subclass leaves out the trees that the
        aggregator attaches.
        """
        return message, ()

    def _known(self, task: ClientTask) -> Mapping[str, Mask]:
        """Return the masks by tree that belong to the client's state before the task."""
        return self.known_masks.get(task.client, {}).get(task.file or "", {})

    def take_drops(self, client: str) -> tuple[str, ...]:
        """Return the names of the state files that a client may delete; each is returned once."""
        with self.lock:
            mine = tuple(f for f in self.drops if f.split(".")[2] == client)
            self.drops[:] = [f for f in self.drops if f not in mine]
        for file in mine:
            self.known_masks.get(client, {}).pop(file, None)
        return mine

    def digest(self, client: str, filed: StateRef) -> str:
        """Ask a client for the SHA-256 of its state, and return it; `filed` names the state.

        Raises:
            StateError: no answer came, or a malformed answer.
        """
        asked = pack(ClientRequest("digest", client, Message("digest"), file=filed.file))
        try:
            note, _ = unframed(self.line.ask(client, asked))
            if note["to"] != quick_digest(asked) or not re.fullmatch("[0-9a-f]{64}", note["sha"]):
                raise ValueError("it answers something else")
        except (ClientLost, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"'{client}' did not say what its state is ({printable(error)})"
            ) from None
        return note["sha"]

    def close(self) -> None:
        """Do nothing: answers that arrive later are not read."""


def odd_shapes(names: Collection[str], replies: Iterable[CheckedReply]) -> dict[str, str]:
    """Return the clients with a tree whose shapes differ from those in most replies.

    Args:
        names: trees that the server did not send; the shapes of others are checked one by one.
        replies: result and reply of every client, in the order of the tasks. Only their shapes are
            kept, so that replies need not be in memory together.

    Returns:
        Client -> name of the tree.
    """
    kinds = {
        result.client: {n: (t.total.layout, t.total.flat.dtype) for n, t in sealed.trees.items()}
        for result, sealed in replies
        if sealed is not None
    }
    odd: dict[str, str] = {}
    for name in sorted(names):
        of_clients = {client: kind[name] for client, kind in kinds.items() if name in kind}
        # Trees of two shapes cannot be added: without the vote a single malicious client would end
        # the round with an exception. The majority decides, as the server has no template.
        usual = Counter(of_clients.values()).most_common(1)
        odd |= {c: name for c, kind in of_clients.items() if kind != usual[0][0] and c not in odd}
    return odd


class RemoteStateIndex(ClientStateIndex):
    """Index of the clients' states, which are on the clients' own machines."""

    at_once = 64
    """Number of clients that are asked for a digest at the same time."""

    def __init__(self, store: ClientStateStore, remote: RemoteClients) -> None:
        super().__init__(store)
        self.remote = remote
        # One list: files that the index finds superseded are named in the next request to a client.
        self.spares = remote.drops

    def __getitem__(self, client: str) -> Any:
        raise StateError(f"the state of '{client}' lies with the client, not here")

    def spare(self) -> None:
        """Do nothing: state files are on the clients' machines, and clients delete them."""

    def clear(self) -> None:
        """Do nothing: the next request to each client names the files that it may delete."""

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 of every client's state, as the client reports it."""
        clients = sorted(self.filed)
        with ThreadPoolExecutor(self.at_once) as pool:
            digests = pool.map(self.remote.digest, clients, map(self.filed.__getitem__, clients))
            return dict(zip(clients, digests, strict=True))


def remote_pool(
    line: Transport,
    limit: int | None = None,
    relay: ReplyRelay | None = None,
    session_seconds: float = SESSION_SECONDS,
    identity: PartyIdentity | None = None,
    tell: Callable[..., object] = tell_nobody,
    guesses: dict[str, dict[str, float]] | None = None,
) -> Callable[[ClientRunner], tuple[RemoteClients, RemoteStateIndex]]:
    """Return the function that makes the worker pool and the state index of remote clients.

    Args:
        line: connection that carries the bytes.
        limit: largest number of bytes of an answer; default: the size of a few models.
        relay: access to a main server on another machine; None: the server's part is trained here.
        session_seconds: longest time in seconds of a client's training with the server in a round
            of split learning.
        identity: keys of everybody who takes part in secure sums.
        tell: called with a line, an event and a client if an evaluation does not count.
        guesses: mapping that gets the scores of each client's own constant prediction, by client
            and metric.
    """

    def connect(runner: ClientRunner) -> tuple[RemoteClients, RemoteStateIndex]:
        remote = RemoteClients(runner, line, limit, relay, session_seconds, identity, tell)
        if guesses is not None:
            remote.guesses = guesses
        return remote, RemoteStateIndex(runner.store, remote)

    return connect


def remote_people(name: str, counts: Mapping[str, int]) -> Federation:
    """Return a federation of people whose data are on other machines.

    Args:
        name: name of the data set.
        counts: number of training samples of each client.

    Raises:
        StateError: a number of samples is impossible; the message names the client.
    """
    for client, count in counts.items():
        if wrong := sample_count_fault(count):
            raise StateError(f"'{client}' is said to have {wrong}")
    return without_data(name, counts)


class RemoteSessions:
    """Access of a `ServerSession` (split learning) to remote clients.

    The training steps of the server's part run in this process.
    """

    def __init__(self, remote: RemoteClients) -> None:
        self.remote, self.worker, self.channel = remote, remote.runner.worker, DIRECT
        self.ends: dict[str, float] = {}
        self.lock = threading.Lock()

    def state_of(self, task: ClientTask) -> ClientState:
        """Return a reference to the client's state, and the masks that belong to the state."""
        filed = None if task.file is None else StateRef(task.file, "", None)
        return ClientState(RemoteStateRef(filed), self.remote._known(task))

    def answer(self, ask: Any, progress: float) -> Any:
        """Compute a step of the server's part, and return the answer to the request `ask`.

        Only one session computes at a time, as all sessions share one network.
        """
        with self.lock:
            return self.worker.answer(ask, progress)

    def turns(
        self,
        task: ClientTask,
        state: ClientState,
        messages: Iterable[Message],
        batch: TaskBatch,
        like: Mapping[str, Any],
        number: int,
    ) -> Iterator[TurnResult]:
        """Send a client messages in one exchange; yield the result of each.

        Args:
            task: the client's task in this round.
            state: reference to the state from which the first message starts.
            messages: the messages; each gets its own stamp (name in the run).
            batch: the batch of the session.
            like: shapes of those trees in the replies that are not among the trees sent.
            number: number of the first message in the client's session, from 1.
        """
        first, *then = messages
        pointer, now = (
            state.state.filed if isinstance(state.state, RemoteStateRef) else None,
            time.monotonic(),
        )
        if number == 1:
            self.ends[task.client] = now + self.remote.session_seconds
        # The client decides when its session ends: a malicious one that never does would otherwise
        # hold up the round, and everybody in it, for ever.
        if now > self.ends[task.client]:
            late = f"lost: its part took more than {self.remote.session_seconds:g} s"
            yield TurnResult(ClientResult(task.client, late), None, state)
            return
        asked = ClientTask(task.client, first, pointer.file if pointer else None)
        step = replace(batch, kind="turn", stamp=f"{batch.stamp}.{number}")
        replies = self.remote.ask_turns("turn", asked, step, like, tuple(then))
        last_result, last_reply = replies[-1]
        seed = self.remote.runner.store.seed
        of_session = file_of(seed, task.client, batch.stamp).removesuffix("safetensors")
        # States between the turns of one session are no checkpoint's: each may go once the next is
        # written. The state from before the session stays until the session counts.
        if (
            pointer
            and pointer.file.startswith(of_session)
            and (last_result.filed or last_reply is None)
        ):
            self.remote.drop_later(pointer.file)
        for result, sealed in replies:
            pointer = result.filed or pointer
            yield TurnResult(result, sealed, ClientState(RemoteStateRef(pointer)))

    def file_state(
        self, task: ClientTask, stamp: str, state: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """Return the reference to the client's state file, and None (no error).

        The client wrote the file. A session of split learning calls this when it ends.
        """
        return state.state.filed if isinstance(state.state, RemoteStateRef) else None, None
