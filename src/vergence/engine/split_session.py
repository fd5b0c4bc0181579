"""Session of split learning: one copy of a server's part serves its clients, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from vergence.core.conversation import NoReplyCounted
from vergence.core.messages import Message, SealedReply, seal
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
from vergence.wire.size import size, travelled

UNFIT = "shape: the server's layers cannot take it"
"""Begins the reason why what a client sent could not be computed with."""


@dataclass
class ServedClient:
    """A client that is being served: what it keeps, what travelled, and why it was silenced."""

    task: ClientTask
    kept: ClientState
    checks: Sequence[Check] = ()
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    told: dict[str, list[float]] = field(default_factory=dict)
    turns: int = 0
    steps: int = 0
    examples: float = 0.0
    fault: str | None = None


class SessionClients(Protocol):
    """Access to clients that a session needs: their turns and their states."""

    worker: ClientExecutor
    channel: Channel

    def kept(self, task: ClientTask) -> ClientState:
        """State of a client."""
        ...

    def turns(
        self,
        task: ClientTask,
        kept: ClientState,
        messages: Iterable[Message],
        batch: TaskBatch,
        like: Mapping[str, Params],
        number: int,
    ) -> Iterator[TurnResult]:
        """Turns of one client; the first is `number` of its session."""
        ...

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer to what a server's own half asks for."""
        ...

    def filed(
        self, task: ClientTask, stamp: str, kept: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """The file of what a client keeps when all is said, or why it does not count."""
        ...


class ServerSession:
    """Holds `Method.serve` for a group of clients and takes their turns, as the messages ask.

    A client's new state is kept once, when all is said: a client that fell silent keeps its old
    one, and its part of the talk counts for nothing.
    """

    def __init__(
        self, clients: SessionClients, batch: TaskBatch, tasks: Sequence[ClientTask]
    ) -> None:
        self.clients, self.batch, self.worker = clients, batch, clients.worker
        self.served = {
            task.client: ServedClient(task, clients.kept(task), checks=clients.worker.receiving())
            for task in tasks
        }
        self.round = tasks[0].message.round
        self.last = self.served[tasks[0].client]

    def hold(self, held: Mapping[str, Params]) -> tuple[list[ClientResult], SealedReply | None]:
        """Serve the group; return a result per client, and what became of `held` if it counts."""
        talk = self.worker.method.serve(tuple(self.served), held)
        outcome = self._talk(talk)
        sealed = None
        if outcome is not None:
            sealed = seal(outcome, self.round)
            if not all(is_finite(tree.total.flat) for tree in sealed.trees.values()):
                sealed = None
                for served in self.served.values():
                    served.fault = served.fault or "finite: the server's copy holds NaN or infinity"
            for name, value in outcome.metrics.items():
                for served in self.served.values():
                    served.told.setdefault(name, []).append(value)
        heard = any(served.fault is None for served in self.served.values())
        return [self._result(served) for served in self.served.values()], sealed if heard else None

    def _talk(self, talk: Any) -> Any:
        """Drive the server's part; None if it gave up because a client fell silent."""
        answer, silent = None, None
        while True:
            try:
                ask = talk.send(answer) if silent is None else talk.throw(silent)
            except StopIteration as end:
                return end.value
            except NoReplyCounted:
                return None
            answer, silent = None, None
            try:
                if isinstance(ask, Request):
                    answer = self._ask(ask)
                else:
                    answer = self._asks(ask) if isinstance(ask, Requests) else self._work(ask)
            except NoReplyCounted as fell:
                silent = fell

    def _work(self, ask: Any) -> Any:
        """Compute with what the client sent last; if that cannot be, it falls silent."""
        if isinstance(ask, Quarantine):
            self.served[ask.client].fault = ask.reason
            raise NoReplyCounted(ask.client)
        self.last.steps += isinstance(ask, Step)
        for hook in self.worker.hooks:
            ask = hook.serving(ask, self.last.task.client)
        answer = partial(self.clients.answer, progress=self.batch.progress)
        for hook in reversed(self.worker.hooks):  # the first is outermost, as in clients' turns
            answer = partial(hook.computing, round=self.round + 1, then=answer)
        try:
            return answer(ask)
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            self.last.fault = f"{UNFIT} ({type(error).__name__}: {str(error)[:60]})"
            raise NoReplyCounted(self.last.task.client) from None

    def _ask(self, request: Request) -> dict[str, SealedReply]:
        """Take the turns a request asks for."""
        self._declared(request.verb, request.reveal)
        return {
            client: self._turns(client, request.verb, [given], request.like)[0]
            for client, given in request.to.items()
        }

    def _asks(self, request: Requests) -> list[SealedReply]:
        """Take several turns of one client."""
        self._declared(request.verb, "each")
        return self._turns(request.client, request.verb, request.messages, request.like)

    def _declared(self, verb: str, reveal: str) -> None:
        exposed = self.worker.method.exposure.get(verb)
        if exposed is None or exposed.reveal != reveal:
            raise ConfigError(
                f"{type(self.worker.method).__name__} asks for '{verb}' revealing {reveal} while "
                "it serves, which its exposure table does not declare"
            )

    def _turns(
        self, client: str, verb: str, given: Sequence[Message | None], like: Mapping[str, Params]
    ) -> list[SealedReply]:
        served = self.last = self.served[client]
        if served.fault is not None:
            raise NoReplyCounted(client)
        messages = [
            replace(
                served.task.message if message is None else message, verb=verb, round=self.round
            )
            for message in given
        ]
        delivered = map(self.clients.channel.message, messages)
        turns = self.clients.turns(
            served.task, served.kept, delivered, self.batch, like, served.turns + 1
        )
        return [
            self._heard(served, message, taken, like)
            for message, taken in zip(messages, turns, strict=False)
        ]

    def _heard(
        self, served: ServedClient, message: Message, taken: TurnResult, like: Mapping[str, Params]
    ) -> SealedReply:
        """Guard what a client said, and count it."""
        for name, params in message.trees.items():
            served.down[name] = served.down.get(name, 0) + size({"values": params.flat})
        served.turns += 1
        result, sealed, after = taken
        served.examples, told = result.examples or served.examples, served.kept.told
        if sealed is None:
            served.fault = result.status.removeprefix(QUARANTINED)
            raise NoReplyCounted(served.task.client)
        for name, tree in sealed.trees.items():
            served.up[name] = served.up.get(name, 0) + travelled(tree, told.get(name))
        exposed = self.worker.method.exposure[message.verb]
        served.fault = fault(sealed, self.round, {**like, **message.trees}, exposed)
        for check in served.checks:
            served.fault = served.fault or check(message, sealed)
        if served.fault is not None:
            raise NoReplyCounted(served.task.client)
        for name, value in sealed.metrics.items():
            served.told.setdefault(name, []).append(value)
        served.kept = ClientState(after.state, told, after.owed)
        return self.clients.channel.reply(sealed, told)

    def _result(self, served: ServedClient) -> ClientResult:
        """File the client's new state if its part of the session counts."""
        task, filed = served.task, None
        if served.fault is None and not served.kept.empty:
            filed, served.fault = self.clients.filed(task, self.batch.stamp, served.kept)
        told = {name: sum(values) / len(values) for name, values in served.told.items()}
        return ClientResult(
            task.client,
            status(served.fault),
            up=served.up,
            down=served.down,
            examples=served.examples,
            steps=served.steps,
            told={} if served.fault else told,
            filed=filed,
        )


def status(fault: str | None) -> str:
    """Status of a served client, as the tables show it."""
    if fault is None or fault.startswith("lost"):
        return fault or "ok"
    return f"{QUARANTINED}{fault}"
