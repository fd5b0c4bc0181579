"""Worker pool of remote clients: sends every task as bytes to a client node (`client_node.py`).

A `Transport` carries the bytes; this module does not depend on its kind. A turn is a client's work
on one message.

Used by `cli.deploy`, `deployment.client_registry`, `deployment.main_server`,
`deployment.main_server_node`, `deployment.secure_sum_server`, `deployment.server_run` and
`deployment.transport.flower`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vergence.core.aggregation import Sum
from vergence.core.federation import Federation, without_data
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply
from vergence.core.params import Params
from vergence.core.serialization import pack, printable, quick_digest
from vergence.deployment.protocol import (
    ClientRequest,
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
        """Send a request to a client, and return its answer.

        Raises:
            ClientLost: no answer came.
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
class PartOutcome:
    """Results of one part of a batch: of one client, or of a group in split learning.

    Attributes:
        results: a result for each client of the part.
        replies: the replies that count, by client.
        server_copy: update of the server's copy in split learning; None if there is none.
    """

    results: list[ClientResult]
    replies: dict[str, SealedReply]
    server_copy: SealedReply | None = None

    def add_to(self, group: GroupResult, reveal: str) -> None:
        """Add this part's results to its group.

        If `reveal` is `each`, the group keeps every reply; otherwise replies are summed.
        """
        group.results += self.results
        for client, sealed in self.replies.items():
            if reveal == "each":
                group.replies[client] = sealed
            else:
                group.sum.add(sealed)
        if self.server_copy is not None:
            group.sum.add(self.server_copy)


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
        if not batch.tasks:
            return
        # One exchange carries one client's task; a server's copy that serves a group is one session
        # with all clients of the group.
        parts = (
            [[task] for task in batch.tasks]
            if batch.kind != "serve" or batch.alone
            else [batch.group(number) for number in range(len(batch.groups))]
        )
        with ThreadPoolExecutor(len(parts)) as pool:
            jobs = [pool.submit(self._carry_out, batch, part) for part in parts]
            outcomes = quarantine_other_shapes(batch, [job.result() for job in jobs])
            if self.sum_server is not None and batch.kind == "turn":
                yield from self.sum_server.sum_replies(
                    batch, [result for outcome in outcomes for result in outcome.results]
                )
                return
            finished = zip(parts, outcomes, strict=True)
            for number, length in enumerate(batch.groups):
                group, tasks_done = GroupResult([], Sum()), 0
                while tasks_done < length:
                    part, outcome = next(finished)
                    outcome.add_to(group, batch.reveal)
                    tasks_done += len(part)
                yield number, group

    def _carry_out(self, batch: TaskBatch, tasks: Sequence[ClientTask]) -> PartOutcome:
        """Carry out one part of a batch: one client's task, or split learning with a group."""
        if batch.kind == "serve":
            if self.relay is not None:
                results, server_copy = self.relay.serve(self, batch, tasks)
            else:
                results, server_copy = ServerSession(self.sessions, batch, tasks).hold(
                    batch.templates
                )
            return PartOutcome(results, {}, server_copy)
        task = tasks[0]
        result, sealed = self.ask(batch.kind, task, batch)
        if batch.kind == "evaluate":
            if result.status.startswith("quarantined"):
                # No table has a row for it, so that the operator would not learn of it.
                self.tell(
                    f"'{task.client}' is left out of an evaluation, {result.status}",
                    "unmeasured",
                    client=task.client,
                )
            result = self._without_guess(result)
        return PartOutcome([result], {} if sealed is None else {task.client: sealed})

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

    def ask(self, kind: str, task: ClientTask, batch: TaskBatch) -> CheckedReply:
        """Send a client one message; return the result, and the reply (None if it does not count).

        `kind` is the kind of request: `turn` or `evaluate`.
        """
        return self.ask_turns(kind, task, batch)[0]

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
        replies = self._exchange(kind, task, batch, like, then)
        if kind == "turn" and replies[-1][0].status != "ok":
            # The client may have written states of these turns all the same: no round starts from
            # them, and without this line they would stay on its disk for ever.
            for stamp in turn_stamps(batch.stamp, len(then)):
                self.drop_later(file_of(self.runner.store.seed, task.client, stamp))
        return replies

    def drop_later(self, file: str) -> None:
        """Name this state file in the next request to its client, so that the client deletes it."""
        with self.lock:
            self.drops.append(file)

    def _exchange(
        self,
        kind: str,
        task: ClientTask,
        batch: TaskBatch,
        like: Mapping[str, Params] | None,
        then: tuple[Message, ...],
    ) -> list[CheckedReply]:
        client, known = task.client, self._known(task)
        message, attachments = self.without_attachments(client, task.message)
        request = ClientRequest(
            kind,
            client,
            message,
            batch.stamp,
            task.file,
            batch.progress,
            tuple(batch.points),
            tuple(known),
            self.take_drops(client),
            attachments,
            then,
        )
        packed, replies = pack(request), list[CheckedReply]()
        try:
            answer = self.line.ask(client, packed)
        except ClientLost as lost:
            return [
                (ClientResult(client, printable(f"lost: {lost}" if str(lost) else "lost")), None)
            ]
        # Checked before anything is parsed: one malicious client could otherwise fill the memory.
        if len(answer) > self.limit:
            fault = f"too large: {len(answer):,} bytes, at most {self.limit:,} may come"
            return [(ClientResult(client, f"quarantined: {fault}"), None)]
        try:
            messages, parts = (task.message, *then), split_answer(answer, len(then))
            # Not strict: a client stops after the first turn that does not count.
            for turn, sent, part in zip(single_turns(request), messages, parts, strict=False):
                templates = {**(batch.templates if like is None else like), **sent.trees}
                replies.append(
                    self._checked_reply(part, turn, quick_digest(packed), known, templates)
                )
                if replies[-1][0].status != "ok":
                    break
        except Exception as error:
            # Every exception is caught: whatever bytes a malicious client sends, they cost its own
            # reply and never the round of the others.
            status = printable(f"quarantined: malformed: {type(error).__name__}: {error}")
            replies.append((ClientResult(client, status), None))
        return replies

    def ask_raw(self, client: str, request: bytes) -> bytes | None:
        """Send a request; return the answer's bytes; None if no answer came or it is too large."""
        try:
            answer = self.line.ask(client, request)
        except ClientLost:
            return None
        return answer if len(answer) <= self.limit else None

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


def quarantine_other_shapes(
    batch: TaskBatch, outcomes: Sequence[PartOutcome]
) -> Sequence[PartOutcome]:
    """Quarantine (exclude) replies with a tree whose shapes differ from those in most replies.

    Only trees that the server did not send are compared: the shapes of trees that it sent are
    checked earlier. Return the outcomes, which are changed in place.
    """
    if batch.kind != "turn":
        return outcomes
    sent = set(batch.templates).union(*(task.message.trees for task in batch.tasks))
    replies = {c: sealed.trees for part in outcomes for c, sealed in part.replies.items()}
    for name in {n for trees in replies.values() for n in trees if n not in sent}:
        kinds = {c: (t[name].total.layout, t[name].total.flat.dtype) for c, t in replies.items()}
        # Trees of two shapes cannot be added: without the vote a single malicious client would end
        # the round with an exception. The majority decides, as the server has no template.
        usual = Counter(kinds.values()).most_common(1)[0][0]
        for part in outcomes:
            for client in [c for c in part.replies if kinds[c] != usual]:
                status = f"quarantined: shape: the tensors of '{name}' are not as those of others"
                part.results[0] = replace(
                    part.results[0], status=status, metrics={}, filed=None, share=None
                )
                del part.replies[client]
    return outcomes


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
