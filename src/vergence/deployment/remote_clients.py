"""Worker pool of remote clients: sends every task as bytes to a client node (`client_node.py`).

How bytes travel is a `Transport`'s business.
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
from vergence.core.serialization import pack, plain, quick_digest
from vergence.deployment.protocol import (
    ClientRequest,
    checked,
    miscounted,
    most,
    parts,
    stamps,
    steps,
    unframed,
)
from vergence.deployment.secure_sum_server import SecureSumServer
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
from vergence.wire.size import size, travelled

TALK = 3600.0
"""Seconds that a client's part of a round may take where it is served message by message."""


class ClientLost(Exception):
    """No answer came; the message is a status for the tables."""


class ReplyRelay(Protocol):
    """Lets a remote main server serve; `deployment/main_server.py` has one."""

    def hold(
        self, remote: RemoteClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Return a result for each client, and what became of a server's copy, if it counts."""
        ...


class Transport(Protocol):
    """Carries a request to a client and brings the answer back; several threads use it at once."""

    def ask(self, client: str, request: bytes) -> bytes:
        """Return the answer.

        Raises:
            ClientLost: there is none.
        """
        ...


@dataclass(frozen=True)
class RemoteStateRef:
    """Stands for a state that lies with its client."""

    filed: StateRef | None


def unheard(_line: str, _event: str, **_about: Any) -> None:
    """Tell nobody."""


class RemoteClients:
    """Carries out jobs by remote clients: sends requests, guards every answer, adds up."""

    def __init__(
        self,
        runner: ClientRunner,
        line: Transport,
        limit: int | None = None,
        relay: ReplyRelay | None = None,
        talk: float = TALK,
        identity: PartyIdentity | None = None,
        tell: Callable[..., object] = unheard,
        guesses: dict[str, dict[str, float]] | None = None,
    ) -> None:
        self.line, self.relay, self.lock, self.tell = line, relay, threading.Lock(), tell
        self.guesses = {} if guesses is None else guesses
        self.speaking = (
            None if runner.sums is None else SecureSumServer(self, runner.sums, identity)
        )
        self.limit = most(runner) if limit is None else limit
        self.talk = talk
        self.runner = runner
        self.sessions = RemoteSessions(self)
        self.told: dict[str, dict[str, Mapping[str, Mask]]] = {}
        self.spares: list[str] = []

    def run(self, batch: TaskBatch) -> Iterator[tuple[int, GroupResult]]:
        """Carry out the groups of a batch at the same time; yield them in their order."""
        if not batch.tasks:
            return
        parts = (
            [[task] for task in batch.tasks]
            if batch.kind != "serve" or batch.alone
            else [batch.group(number) for number in range(len(batch.groups))]
        )
        with ThreadPoolExecutor(len(parts)) as pool:
            wait = [pool.submit(self._part, batch, part) for part in parts]
            found, at = agreed(batch, [part.result() for part in wait]), 0
            if self.speaking is not None and batch.kind == "turn":
                yield from self.speaking.summed(batch, [r for parts, *_ in found for r in parts])
                return
            for number, length in enumerate(batch.groups):
                result, left = GroupResult([], Sum()), length
                while left:
                    results, replies, became = found[at]
                    result.results += results
                    for client, sealed in replies.items():
                        if batch.reveal == "each":
                            result.replies[client] = sealed
                        else:
                            result.sum.add(sealed)
                    if became is not None:
                        result.sum.add(became)
                    left -= len(parts[at])
                    at += 1
                yield number, result

    def _part(self, batch: TaskBatch, tasks: Sequence[ClientTask]) -> Any:
        """Return results, replies that count, and what became of a server's copy."""
        if batch.kind == "serve":
            if self.relay is not None:
                results, became = self.relay.hold(self, batch, tasks)
            else:
                results, became = ServerSession(self.sessions, batch, tasks).hold(batch.templates)
            return results, {}, became
        task = tasks[0]
        kind = "evaluate" if batch.kind == "evaluate" else "turn"
        result, sealed = self.ask(kind, task, batch)
        if kind == "evaluate" and result.status.startswith("quarantined"):  # in no table
            said = f"'{task.client}' is left out of an evaluation, {result.status}"
            self.tell(said, "unmeasured", client=task.client)
        if kind == "evaluate":
            result = self._without_guess(result)
        counts = {} if sealed is None else {task.client: sealed}
        return [result], counts, None

    def _without_guess(self, result: ClientResult) -> ClientResult:
        """Note the scores of the client's own constant, which are of no model, and drop them."""
        measured = {point: dict(found) for point, found in result.measured.items()}
        for found in measured.values():
            for name in [name for name in found if name.startswith(GUESS)]:
                of = self.guesses.setdefault(result.client, {})
                of[name.removeprefix(GUESS)] = found.pop(name)
        return replace(result, measured=measured)

    def ask(self, kind: str, task: ClientTask, batch: TaskBatch) -> Any:
        """Send one request; return a result, and the reply if it counts."""
        return self.asks(kind, task, batch)[0]

    def asks(
        self,
        kind: str,
        task: ClientTask,
        batch: TaskBatch,
        like: Mapping[str, Any] | None = None,
        then: tuple[Message, ...] = (),
    ) -> list[Any]:
        """Send one request with several messages; return a result and a reply for each.

        After one that does not count there are no more.
        """
        found = self._asks(kind, task, batch, like, then)
        if kind == "turn" and found[-1][0].status != "ok":  # it may have left states nevertheless
            for stamp in stamps(batch.stamp, len(then)):
                self.leave(file_of(self.runner.store.seed, task.client, stamp))
        return found

    def leave(self, file: str) -> None:
        """Tell a client with its next request that it may drop a state."""
        with self.lock:
            self.spares.append(file)

    def _asks(
        self,
        kind: str,
        task: ClientTask,
        batch: TaskBatch,
        like: Mapping[str, Any] | None,
        then: tuple[Message, ...],
    ) -> list[Any]:
        client, known = task.client, self._known(task)
        message, beside = self.sent(client, task.message)
        request = ClientRequest(
            kind,
            client,
            message,
            batch.stamp,
            task.file,
            batch.progress,
            tuple(batch.points),
            tuple(known),
            self.dropped(client),
            beside,
            then,
        )
        asked, found = pack(request), []
        try:
            data = self.line.ask(client, asked)
        except ClientLost as lost:
            return [(ClientResult(client, plain(f"lost: {lost}" if str(lost) else "lost")), None)]
        if len(data) > self.limit:
            said = f"too large: {len(data):,} bytes, at most {self.limit:,} may come"
            return [(ClientResult(client, f"quarantined: {said}"), None)]
        messages = (task.message, *then)
        try:
            for step, sent, part in zip(
                steps(request), messages, parts(data, len(then)), strict=False
            ):
                offered = {**(like if like is not None else batch.templates), **sent.trees}
                found.append(self._heard(part, step, quick_digest(asked), known, offered))
                if found[-1][0].status != "ok":
                    break
        except Exception as error:  # whatever bytes from elsewhere may cause
            said = plain(f"quarantined: malformed: {type(error).__name__}: {error}")
            found.append((ClientResult(client, said), None))
        return found

    def carried(self, client: str, request: bytes) -> bytes | None:
        """Answer of a client to a request; None if there is none, or it is too long."""
        try:
            data = self.line.ask(client, request)
        except ClientLost:
            return None
        return data if len(data) <= self.limit else None

    def _heard(
        self,
        data: bytes,
        request: ClientRequest,
        key: str,
        known: Mapping[str, Mask],
        offered: Mapping[str, Params],
    ) -> Any:
        """Return a result for what a client answered, and its reply if it counts."""
        note, body = unframed(data)
        if note["to"] != key:
            return ClientResult(
                request.client, "quarantined: stale: it answers another request"
            ), None
        result = checked(note, request, self.runner.store.seed)
        form = self.runner.layout(request.message, offered) if request.kind == "turn" else None
        if form is not None:  # its reply goes into a sum, not from here
            return redact(result, form), None
        if request.kind == "evaluate" or result.status != "ok":
            return result, None
        sealed = decode(body, known, sum(size({"": tree.flat}) for tree in offered.values()))
        exposed = self.runner.exposed(request.message.verb)
        reason = fault(sealed, request.message.round, offered, exposed)
        reason = reason or self.runner.worker.fault(sealed, request.client)
        up = {name: travelled(tree, known.get(name)) for name, tree in sealed.trees.items()}
        weights = {name: heaviest(tree) for name, tree in sealed.trees.items()}
        if reason is not None:
            return ClientResult(request.client, plain(f"quarantined: {reason}"), up, weights), None
        if result.filed is not None:
            told = {**known, **masks(sealed)}
            self.told.setdefault(request.client, {})[result.filed.file] = told
        return replace(result, up=up, weight=weights, metrics=dict(sealed.metrics)), sealed

    def sent(self, client: str, message: Message) -> tuple[Message, tuple[str, ...]]:
        """Part of a message that a request holds, and the names of trees that go beside it."""
        return message, ()

    def _known(self, task: ClientTask) -> Mapping[str, Mask]:
        """Return the masks of the state that counts; those of states passed over are forgotten."""
        mine = self.told.get(task.client, {})
        if task.file is None or task.file not in mine:
            return {}
        return mine[task.file]

    def dropped(self, client: str) -> tuple[str, ...]:
        """States that a client may drop; they are told once."""
        with self.lock:
            mine = tuple(f for f in self.spares if f.split(".")[2] == client)
            self.spares[:] = [f for f in self.spares if f not in mine]
        for file in mine:
            self.told.get(client, {}).pop(file, None)
        return mine

    def digest(self, client: str, filed: StateRef) -> str:
        """Return the SHA-256 of the state that counts, as its client says.

        Raises:
            StateError: it does not answer.
        """
        asked = pack(ClientRequest("digest", client, Message("digest"), file=filed.file))
        try:
            note, _ = unframed(self.line.ask(client, asked))
            if note["to"] != quick_digest(asked) or not re.fullmatch("[0-9a-f]{64}", note["sha"]):
                raise ValueError("it answers something else")
        except (ClientLost, ValueError, KeyError, TypeError) as error:
            said = plain(error)
            raise StateError(f"'{client}' did not say what its state is ({said})") from None
        return note["sha"]

    def close(self) -> None:
        """Nothing to stop: requests under way count for nothing."""


def agreed(batch: TaskBatch, found: Sequence[Any]) -> Sequence[Any]:
    """Quarantine whose trees are not as most clients' are, where nobody was sent such a tree."""
    if batch.kind != "turn":
        return found
    sent = set(batch.templates).union(*(task.message.trees for task in batch.tasks))
    replies = {c: sealed.trees for _, counts, _ in found for c, sealed in counts.items()}
    for name in {n for trees in replies.values() for n in trees if n not in sent}:
        kinds = {c: (t[name].total.layout, t[name].total.flat.dtype) for c, t in replies.items()}
        usual = Counter(kinds.values()).most_common(1)[0][0]
        for results, counts, _ in found:
            for client in [c for c in counts if kinds[c] != usual]:
                said = f"quarantined: shape: the tensors of '{name}' are not as those of others"
                results[0] = replace(results[0], status=said, metrics={}, filed=None, share=None)
                del counts[client]
    return found


class RemoteStateIndex(ClientStateIndex):
    """Clients that took part, where the states lie with the clients themselves."""

    at_once = 64
    """How many clients are asked at the same time what their states are."""

    def __init__(self, store: ClientStateStore, remote: RemoteClients) -> None:
        super().__init__(store)
        self.remote = remote
        self.spares = remote.spares

    def __getitem__(self, client: str) -> Any:
        raise StateError(f"the state of '{client}' lies with the client, not here")

    def spare(self) -> None:
        """Nothing is written over here; what is spare is dropped where it lies."""

    def clear(self) -> None:
        """Leave spare files to the next request."""

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 of every state, as its client says."""
        clients = sorted(self.filed)
        with ThreadPoolExecutor(self.at_once) as pool:
            found = pool.map(self.remote.digest, clients, map(self.filed.__getitem__, clients))
            return dict(zip(clients, found, strict=True))


def remote_pool(
    line: Transport,
    limit: int | None = None,
    relay: ReplyRelay | None = None,
    talk: float = TALK,
    identity: PartyIdentity | None = None,
    tell: Callable[..., object] = unheard,
    guesses: dict[str, dict[str, float]] | None = None,
) -> Callable[[ClientRunner], tuple[RemoteClients, RemoteStateIndex]]:
    """Function by which a run connects to remote clients; their answers may be so long.

    With a relay, a main server elsewhere serves them. `talk` is how many seconds a client may be
    served in a round. Secure sums need everybody's keys (`identity`). `tell` hears, as a line, an
    event and a client, whose evaluation does not count. In `guesses`, by client and metric, the
    scores of each client's own constant are noted.
    """

    def connect(runner: ClientRunner) -> tuple[RemoteClients, RemoteStateIndex]:
        remote = RemoteClients(runner, line, limit, relay, talk, identity, tell, guesses)
        return remote, RemoteStateIndex(runner.store, remote)

    return connect


def absent(name: str, counts: Mapping[str, int]) -> Federation:
    """Return people whose data are remote: client id to the number of training samples.

    Raises:
        StateError: somebody cannot have so many.
    """
    for client, count in counts.items():
        if wrong := miscounted(count):
            raise StateError(f"'{client}' is said to have {wrong}")
    return without_data(name, counts)


class RemoteSessions:
    """Clients of sessions whose turns are taken elsewhere; the server's steps are its own."""

    def __init__(self, remote: RemoteClients) -> None:
        self.remote, self.worker, self.channel = remote, remote.runner.worker, DIRECT
        self.ends: dict[str, float] = {}
        self.lock = threading.Lock()

    def state_of(self, task: ClientTask) -> ClientState:
        """Return a pointer to the client's state."""
        filed = None if task.file is None else StateRef(task.file, "", None)
        return ClientState(RemoteStateRef(filed), self.remote._known(task))

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer one session at a time: the network is one."""
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
        """Let the client take its turns in one exchange; each has a stamp of its own.

        It says which message is its last: one that never does would hold the round for ever.
        """
        first, *then = messages
        pointer, now = (
            state.state.filed if isinstance(state.state, RemoteStateRef) else None,
            time.monotonic(),
        )
        if number == 1:
            self.ends[task.client] = now + self.remote.talk
        if now > self.ends[task.client]:
            late = f"lost: its part took more than {self.remote.talk:g} s"
            yield TurnResult(ClientResult(task.client, late), None, state)
            return
        asked = ClientTask(task.client, first, pointer.file if pointer else None)
        step = replace(batch, kind="turn", stamp=f"{batch.stamp}.{number}")
        found = self.remote.asks("turn", asked, step, like, tuple(then))
        last, sealed = found[-1]
        seed = self.remote.runner.store.seed
        begun = file_of(seed, task.client, batch.stamp).removesuffix("safetensors")
        if pointer and pointer.file.startswith(begun) and (last.filed or sealed is None):
            self.remote.leave(pointer.file)  # of the message before, in the same session
        for result, sealed in found:
            pointer = result.filed or pointer
            yield TurnResult(result, sealed, ClientState(RemoteStateRef(pointer)))

    def file_state(
        self, task: ClientTask, stamp: str, state: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """Record of the place where the client left its state."""
        return state.state.filed if isinstance(state.state, RemoteStateRef) else None, None
