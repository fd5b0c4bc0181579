"""One copy of a server's part serves its clients: their talk, message by message, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vergence.core.conversation import Request, Requests, Silence, Silent
from vergence.core.params import Params
from vergence.core.state import is_finite
from vergence.core.stepping import Step
from vergence.core.wire import Message, Sealed, seal, size, travelled
from vergence.engines.job import Call, Job, Receipt
from vergence.engines.ranges import FRONT
from vergence.engines.shelf import Kept
from vergence.engines.turn import Done, Order
from vergence.errors import ConfigError
from vergence.privacy.guards import fault
from vergence.privacy.output_range import Span

if TYPE_CHECKING:
    from vergence.engines.desk import Desk


UNFIT = "shape: the server's layers cannot take it"
"""Begins the reason why what a client sent could not be computed with."""


@dataclass
class Seat:
    """A client that is being served: what it keeps, what travelled, and why it was silenced."""

    call: Call
    kept: Kept
    span: Span | None = None
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    told: dict[str, list[float]] = field(default_factory=dict)
    turns: int = 0
    steps: int = 0
    examples: float = 0.0
    fault: str | None = None


class Session:
    """Holds `Method.serve` for a group of clients and takes their turns, as the messages ask.

    A client's new state is kept once, when all is said: a client that fell silent keeps its old
    one, and its part of the talk counts for nothing.
    """

    def __init__(self, desk: Desk, job: Job, calls: Sequence[Call]) -> None:
        self.desk, self.job, self.worker = desk, job, desk.worker
        self.seats = {call.client: Seat(call, desk.kept(call)) for call in calls}
        self.round = calls[0].message.round
        self.last = self.seats[calls[0].client]

    def hold(self, held: Mapping[str, Params]) -> tuple[list[Receipt], Sealed | None]:
        """Serve the group; return a receipt per client, and what became of `held` if it counts."""
        talk = self.worker.method.serve(tuple(self.seats), held)
        outcome = self._talk(talk)
        sealed = None
        if outcome is not None:
            sealed = seal(outcome, self.round)
            if not all(is_finite(tree.total.flat) for tree in sealed.trees.values()):
                sealed = None
                for seat in self.seats.values():
                    seat.fault = seat.fault or "finite: the server's copy holds NaN or infinity"
            for name, value in outcome.metrics.items():
                for seat in self.seats.values():
                    seat.told.setdefault(name, []).append(value)
        heard = any(seat.fault is None for seat in self.seats.values())
        return [self._receipt(seat) for seat in self.seats.values()], sealed if heard else None

    def _talk(self, talk: Any) -> Any:
        """Drive the server's part; None if it gave up because a client fell silent."""
        answer, silent = None, None
        while True:
            try:
                ask = talk.send(answer) if silent is None else talk.throw(silent)
            except StopIteration as end:
                return end.value
            except Silent:
                return None
            answer, silent = None, None
            try:
                if isinstance(ask, Request):
                    answer = self._ask(ask)
                else:
                    answer = self._asks(ask) if isinstance(ask, Requests) else self._work(ask)
            except Silent as fell:
                silent = fell

    def _work(self, ask: Any) -> Any:
        """Compute with what the client sent last; if that cannot be, it falls silent."""
        if isinstance(ask, Silence):
            self.seats[ask.client].fault = ask.reason
            raise Silent(ask.client)
        self.last.steps += isinstance(ask, Step)
        try:
            return self.worker.answer(ask, self.job.progress)
        except (RuntimeError, LookupError, ValueError, TypeError) as error:
            self.last.fault = f"{UNFIT} ({type(error).__name__}: {str(error)[:60]})"
            raise Silent(self.last.call.client) from None

    def _ask(self, request: Request) -> dict[str, Sealed]:
        """Take the turns a request asks for."""
        self._declared(request.verb, request.reveal)
        return {client: self._turns(client, request.verb, [given], request.like)[0]
                for client, given in request.to.items()}  # fmt: skip

    def _asks(self, request: Requests) -> list[Sealed]:
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
    ) -> list[Sealed]:
        seat = self.last = self.seats[client]
        if seat.fault is not None:
            raise Silent(client)
        messages = [replace(seat.call.message if message is None else message, verb=verb,
                            round=self.round) for message in given]  # fmt: skip
        order = Order("turn", client, messages[0], seat.kept.state, self.job.progress,
                      owed=seat.kept.owed)  # fmt: skip
        delivered = (self.desk.delivered(message) for message in messages)
        taken = self.desk.turns(order, delivered, self.job, like, seat.turns + 1)
        return [self._heard(seat, message, done, like)
                for message, done in zip(messages, taken, strict=False)]  # fmt: skip

    def _heard(
        self, seat: Seat, message: Message, done: Done, like: Mapping[str, Params]
    ) -> Sealed:
        """Guard what a client said, and count it."""
        for name, params in message.trees.items():
            seat.down[name] = seat.down.get(name, 0) + size({"values": params.flat})
        seat.turns += 1
        seat.examples = done.examples or seat.examples
        sealed, told = done.sealed, seat.kept.told
        if sealed is None:
            seat.fault = done.fault
            raise Silent(seat.call.client)
        for name, tree in sealed.trees.items():
            seat.up[name] = seat.up.get(name, 0) + travelled(tree, told.get(name))
        exposed = self.worker.method.exposure[message.verb]
        seat.fault = fault(sealed, self.round, {**like, **message.trees}, exposed)
        ranges = self.worker.ranges
        if ranges is not None and seat.fault is None:
            if FRONT in message.trees:
                seat.span = ranges.span(message[FRONT])
            seat.fault = ranges.fault(seat.span, sealed)
        if seat.fault is not None:
            raise Silent(seat.call.client)
        for name, value in sealed.metrics.items():
            seat.told.setdefault(name, []).append(value)
        seat.kept = Kept(done.state, told, done.owed)
        return self.desk.arrived(sealed, told)

    def _receipt(self, seat: Seat) -> Receipt:
        """File the client's new state if its part of the talk counts."""
        call, filed = seat.call, None
        if seat.fault is None and not seat.kept.empty:
            filed, seat.fault = self.desk.filed(call, self.job.stamp, seat.kept)
        told = {name: sum(values) / len(values) for name, values in seat.told.items()}
        return Receipt(
            call.client,
            status(seat.fault),
            up=seat.up,
            down=seat.down,
            examples=seat.examples,
            steps=seat.steps,
            told={} if seat.fault else told,
            filed=filed,
        )


def status(fault: str | None) -> str:
    """Return what the tables say of a served client."""
    if fault is None or fault.startswith("lost"):
        return fault or "ok"
    return f"quarantined: {fault}"
