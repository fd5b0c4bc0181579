"""Session of split learning: clients train with one copy of the server's layers, batch by batch.

Used by `deployment.main_server`, `deployment.remote_clients`, `engine.client_runner` and
`engine.exchange`.
"""

# A session has one owner of state and of failures; see docs/explanation/decisions/sessions.md.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from vergence.core.conversation import Conversation, NoReplyCounted
from vergence.core.messages import Message, Reply, SealedReply, seal
from vergence.core.params import Params
from vergence.core.requests import Quarantine, Request, Requests, Step
from vergence.core.serialization import is_finite
from vergence.engine.channel import Channel
from vergence.engine.client_executor import ClientExecutor, TurnResult
from vergence.engine.records import QUARANTINED, ClientResult, ClientState, ClientTask, TaskBatch
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import ConfigError
from vergence.privacy.hooks import Check
from vergence.privacy.reply_checks import fault
from vergence.wire.size import bytes_of_arrays, bytes_of_tree

UNFIT = "shape: the server's layers cannot take it"
"""First words of the reason to exclude a client whose data the server's layers cannot take."""


@dataclass
class ServedClient:
    """A client in a session of split learning, with its state and counts so far.

    Attributes:
        task: the client's task in the batch.
        state: the client's state so far, which is written to a file only at the end of the session.
        checks: checks of what the client sends.
        up: bytes that the client sent, by tree.
        down: bytes that the client was sent, by tree.
        metrics: metrics in the client's replies.
        turns: number of the client's turns so far.
        steps: number of optimiser steps that the server took with the client's batches.
        examples: weight of the client's training data.
        fault: why the client is excluded from the session; None: it is not.
    """

    task: ClientTask
    state: ClientState
    checks: Sequence[Check] = ()
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    turns: int = 0
    steps: int = 0
    examples: float = 0.0
    fault: str | None = None


class SessionClients(Protocol):
    """Gives a session of split learning access to its clients: their turns and states."""

    worker: ClientExecutor
    channel: Channel

    def state_of(self, task: ClientTask) -> ClientState:
        """Return the state of a client."""
        ...

    def turns(
        self,
        task: ClientTask,
        state: ClientState,
        messages: Iterable[Message],
        batch: TaskBatch,
        like: Mapping[str, Params],
        number: int,
    ) -> Iterator[TurnResult]:
        """Run turns of one client, one for each message; yield their results.

        `number` is the number of the first of these turns in the client's session, from 1.
        """
        ...

    def answer(self, ask: object, progress: float) -> object:
        """Answer a request of the method's server half, such as an optimiser step."""
        ...

    def file_state(
        self, task: ClientTask, stamp: str, state: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """Write a client's state to a file after its session.

        Returns a reference to the file and None; or None and the reason why the client's part of
        the session does not count.
        """
        ...


class ServerSession:
    """Runs `Method.serve` for a group of clients (split learning), and the turns that it asks for.

    A client's new state is written to a file once, at the end of the session. A client that was
    excluded or lost keeps its old state, and its part of the session does not count.
    """

    def __init__(
        self, clients: SessionClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> None:
        self.clients, self.batch, self.worker = clients, batch, clients.worker
        self.served = {
            task.client: ServedClient(
                task, clients.state_of(task), checks=clients.worker.receiving()
            )
            for task in tasks
        }
        self.round = tasks[0].message.round
        self.last = self.served[tasks[0].client]

    def hold(
        self, templates: Mapping[str, Params]
    ) -> tuple[list[ClientResult], SealedReply | None]:
        """Train a copy of the server's layers with the group's clients.

        Args:
            templates: initial parameters of the copy, which is trained in place.

        Returns:
            A result for each client; and the copy's updates as a reply. The reply is None if the
            method stopped because a client was excluded or lost, if the copy holds NaN or infinity,
            or if no client is left.
        """
        outcome = self._drive(self.worker.method.serve(tuple(self.served), templates))
        sealed = None
        if outcome is not None:
            sealed = seal(outcome, self.round)
            # The copy was trained on all clients of the group, so all of them lose their part.
            if not all(is_finite(tree.total.flat) for tree in sealed.trees.values()):
                sealed = None
                for served in self.served.values():
                    served.fault = served.fault or "finite: the server's copy holds NaN or infinity"
            for name, value in outcome.metrics.items():
                for served in self.served.values():
                    served.metrics.setdefault(name, []).append(value)
        # Filing a state may find NaN in it, so that results come before the question who is left.
        results = [self._result(served) for served in self.served.values()]
        counts = any(served.fault is None for served in self.served.values())
        return results, sealed if counts else None

    def _drive(self, conversation: Conversation[Reply]) -> Reply | None:
        """Run the method's server half to its end, and return its reply.

        None: the server half stopped because a client was excluded.
        """
        answer, quarantine = None, None
        while True:
            try:
                # The method decides what to do without the client: it may catch the exception.
                ask = (
                    conversation.send(answer)
                    if quarantine is None
                    else conversation.throw(quarantine)
                )
            except StopIteration as end:
                return end.value
            except NoReplyCounted:
                return None
            answer, quarantine = None, None
            try:
                if isinstance(ask, Request):
                    answer = self._ask(ask)
                else:
                    answer = self._asks(ask) if isinstance(ask, Requests) else self._work(ask)
            except NoReplyCounted as error:
                quarantine = error

    def _work(self, ask: object) -> object:
        """Compute with what a client last sent; if that is impossible, exclude the client.

        `_drive` calls it for all that a method's `serve` yields other than requests to clients.

        Raises:
            NoReplyCounted: the client is excluded.
        """
        if isinstance(ask, Quarantine):
            self.served[ask.client].fault = ask.reason
            raise NoReplyCounted(ask.client)
        self.last.steps += isinstance(ask, Step)
        for hook in self.worker.hooks:
            ask = hook.serving(ask, self.last.task.client)
        answer = partial(self.clients.answer, progress=self.batch.progress)
        # The first hook of the run's list is the outermost, as in clients' turns.
        for hook in reversed(self.worker.hooks):
            answer = partial(hook.computing, round=self.round + 1, then=answer)
        # Shapes and types in a client's message are the client's choice: what torch raises on them
        # must silence that client and not end the run.
        try:
            return answer(ask)
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            self.last.fault = f"{UNFIT} ({type(error).__name__}: {str(error)[:60]})"
            raise NoReplyCounted(self.last.task.client) from None

    def _ask(self, request: Request) -> dict[str, SealedReply]:
        """Run one turn of each client that a request names; return the replies by client."""
        self._check_declared(request.verb, request.reveal)
        return {
            client: self._turns(client, request.verb, [message], request.like)[0]
            for client, message in request.to.items()
        }

    def _asks(self, request: Requests) -> list[SealedReply]:
        """Run the several turns of one client that a request names; return its replies."""
        self._check_declared(request.verb, "each")
        return self._turns(request.client, request.verb, request.messages, request.like)

    def _check_declared(self, verb: str, reveal: str) -> None:
        """Refuse a request that the method does not declare."""
        exposed = self.worker.method.exposure.get(verb)
        if exposed is None or exposed.reveal != reveal:
            raise ConfigError(
                f"{type(self.worker.method).__name__} asks for '{verb}' revealing {reveal} while "
                "it serves, which its exposure table does not declare"
            )

    def _turns(
        self, client: str, verb: str, content: Sequence[Message | None], like: Mapping[str, Params]
    ) -> list[SealedReply]:
        """Run one turn of a client for each message in `content`; return its replies.

        A message of None stands for the one that the method offers.
        """
        served = self.last = self.served[client]
        if served.fault is not None:
            raise NoReplyCounted(client)
        messages = [
            replace(message or served.task.message, verb=verb, round=self.round)
            for message in content
        ]
        delivered = map(self.clients.channel.message, messages)
        turns = self.clients.turns(
            served.task, served.state, delivered, self.batch, like, served.turns + 1
        )
        return [
            self._accept(served, message, turn, like)
            for message, turn in zip(messages, turns, strict=False)
        ]

    def _accept(
        self, served: ServedClient, message: Message, turn: TurnResult, like: Mapping[str, Params]
    ) -> SealedReply:
        """Check a client's reply, count its bytes and metrics, and adopt the client's new state.

        Returns the reply as the server receives it.

        Raises:
            NoReplyCounted: the reply is faulty, or no reply came.
        """
        for name, params in message.trees.items():
            served.down[name] = served.down.get(name, 0) + bytes_of_arrays({"values": params.flat})
        served.turns += 1
        result, sealed, after = turn
        served.examples, known = result.examples or served.examples, served.state.known_masks
        if sealed is None:
            served.fault = result.status.removeprefix(QUARANTINED)
            raise NoReplyCounted(served.task.client)
        for name, tree in sealed.trees.items():
            served.up[name] = served.up.get(name, 0) + bytes_of_tree(tree, known.get(name))
        exposed = self.worker.method.exposure[message.verb]
        served.fault = fault(sealed, self.round, {**like, **message.trees}, exposed)
        for check in served.checks:
            served.fault = served.fault or check(message, sealed)
        if served.fault is not None:
            raise NoReplyCounted(served.task.client)
        for name, value in sealed.metrics.items():
            served.metrics.setdefault(name, []).append(value)
        served.state = ClientState(after.state, known, after.residuals)
        return self.clients.channel.reply(sealed, known)

    def _result(self, served: ServedClient) -> ClientResult:
        """Return a client's result; if its part of the session counts, save its state."""
        task, filed = served.task, None
        if served.fault is None and not served.state.empty:
            filed, served.fault = self.clients.file_state(task, self.batch.stamp, served.state)
        metrics = {name: sum(values) / len(values) for name, values in served.metrics.items()}
        return ClientResult(
            task.client,
            status(served.fault),
            up=served.up,
            down=served.down,
            examples=served.examples,
            steps=served.steps,
            metrics={} if served.fault else metrics,
            filed=filed,
        )


def status(fault: str | None) -> str:
    """Return a client's status for the tables: "ok", lost, or quarantined with the reason."""
    # A client that vanished did nothing wrong: it is lost, not quarantined.
    if fault is None or fault.startswith("lost"):
        return fault or "ok"
    return f"{QUARANTINED}{fault}"
