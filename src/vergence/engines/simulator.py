"""The simulator's exchange: ask clients on this machine, guard and count what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vergence.core.conversation import Request
from vergence.core.mask import Mask
from vergence.core.method import Exposed, Method
from vergence.core.params import Params
from vergence.core.state import finite
from vergence.core.stream import Stream
from vergence.core.wire import (
    Aggregate,
    Message,
    Sealed,
    SealedTree,
    add_up,
    payload,
    size,
    support_mask,
)
from vergence.engines.presence import Presence
from vergence.engines.turn import Done, Order
from vergence.engines.workers import Crew
from vergence.errors import ConfigError
from vergence.privacy.guards import fault


@dataclass
class Tally:
    """What one round cost and said, for the tables."""

    turns: list[tuple[Any, ...]] = field(default_factory=list)
    up: int = 0
    down: int = 0
    counted: int = 0
    asked: set[str] = field(default_factory=set)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)


@dataclass
class Simulator:
    """Answers a method's requests with turns of clients on this machine.

    Client states live in `clients`; a turn's new state replaces the old one only if its reply
    counted. `known` holds the masks the server has from each client.
    """

    method: Method
    crew: Crew
    presence: Presence
    stream: Stream
    clients: dict[str, Any] = field(default_factory=dict)
    known: dict[str, dict[str, Mask]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)

    def exchange(
        self,
        request: Request,
        server: Any,
        round: int,
        progress: float,
        points: tuple[str, ...] = (),
    ) -> Aggregate | dict[str, Sealed]:
        """Answer one request of a round."""
        exposed = self.method.exposure.get(request.verb)
        if exposed is None or exposed.reveal != request.reveal:
            raise ConfigError(
                f"{type(self.method).__name__} asks for '{request.verb}' revealing "
                f"{request.reveal}, which its exposure table does not declare"
            )
        messages = {c: self.message(m, request.verb, server, c, round)
                    for c, m in request.to.items()}  # fmt: skip
        arrived = self._turns(messages, round, progress, points)
        counted = {}
        for client, message in messages.items():
            done = arrived.get(client)
            status = self._status(done, message, exposed)
            if done is not None and status == "ok":
                assert done.sealed is not None
                counted[client] = done.sealed
                self.clients[client] = done.state
            self._count(client, message, done, status)
        if request.reveal == "each":
            return counted
        first = next(iter(messages.values()), None)
        trees = {t: first.trees[t] for t in exposed.trees if t in first.trees} if first else {}
        return add_up(counted.values(), trees or self._empty(server, exposed))

    def message(
        self, given: Message | None, verb: str, server: Any, client: str, round: int
    ) -> Message:
        """Return what a client is sent: the message given, or what the method offers."""
        if given is None:
            given = Message(verb, self.method.offer(server, client))
        return replace(given, verb=verb, round=round)

    def _empty(self, server: Any, exposed: Exposed) -> dict[str, Params]:
        offered = self.method.offer(server, "")
        return {t: offered[t] for t in exposed.trees if t in offered}

    def _turns(
        self, messages: Mapping[str, Message], round: int, progress: float, points: tuple[str, ...]
    ) -> dict[str, Done]:
        there = [c for c in messages if not self.presence.loses(c, round, self.stream)]
        orders = [
            Order("turn", c, messages[c], self.clients.get(c), progress, points) for c in there
        ]
        arrived = {there[number]: done for number, done in self.crew.run(orders, self.known)}
        for client, done in arrived.items():
            for point, metrics in done.metrics.items():
                self.tally.measured.setdefault(point, {})[client] = metrics
        return arrived

    def _status(self, done: Done | None, message: Message, exposed: Exposed) -> str:
        if done is None:
            return "lost"
        assert done.sealed is not None
        reason = fault(done.sealed, message.round, message.trees, exposed)
        if reason is None and not finite(done.state):
            reason = "finite: the client's own state holds NaN or infinity"
        return "ok" if reason is None else f"quarantined: {reason}"

    def _count(self, client: str, message: Message, done: Done | None, status: str) -> None:
        tally = self.tally
        tally.asked.add(client)
        down = {t: size({"values": p.flat}) for t, p in message.trees.items()}
        up: dict[str, int] = {}
        weight: dict[str, str] = {}
        if done is not None and done.sealed is not None:
            trees = done.sealed.trees
            up = {
                t: travelled(tree, self.known.get(client, {}).get(t)) for t, tree in trees.items()
            }
            weight = {t: f"{heaviest(tree.weight):g}" for t, tree in trees.items()}
            if status == "ok":
                tally.counted += 1
                self._learn(client, trees)
                for name, value in done.sealed.metrics.items():
                    tally.metrics.setdefault(name, []).append(value)
        if self.method.pooled:  # inside the data centre nothing travels
            down, up = {}, {}
        mask = self.method.personal(self.clients[client]) if client in self.clients else None
        share = "" if mask is None else f"{mask.fraction:.6f}"
        for tree in sorted({*down, *up}) or [""]:
            tally.turns.append((
                client, message.verb, tree, up.get(tree, 0), down.get(tree, 0),
                done.examples if done else 0, weight.get(tree, ""),
                done.steps if done else 0, share, status,
            ))  # fmt: skip
        tally.up += sum(up.values())
        tally.down += sum(down.values())

    def _learn(self, client: str, trees: Mapping[str, SealedTree]) -> None:
        """Remember a client's masks; a new mapping, because a checkpoint compares by identity."""
        before = self.known.get(client, {})
        masks = {t: mask for t, tree in trees.items() if (mask := support_mask(tree)) is not None}
        if {**before, **masks} != before:
            self.known = {**self.known, client: {**before, **masks}}

    def evaluate(
        self, people: Sequence[str], server: Any, round: int, points: tuple[str, ...]
    ) -> dict[str, dict[str, Mapping[str, float]]]:
        """Measure everybody: point -> person -> metrics. Nobody's state changes."""
        orders = [
            Order("evaluate", p, self.message(None, "evaluate", server, p, round),
                  self.clients.get(p), points=points)
            for p in people
        ]  # fmt: skip
        found: dict[str, dict[str, Mapping[str, float]]] = {}
        arrived = dict(self.crew.run(orders, {}))
        for number, person in enumerate(people):
            for point, metrics in arrived[number].metrics.items():
                found.setdefault(point, {})[person] = metrics
        return found

    def personal_fraction(self) -> float | None:
        """Return the mean personal share over clients that took part, None where masks are not."""
        masks = [self.method.personal(state) for state in self.clients.values()]
        shares = [m.fraction for m in masks if m is not None]
        return float(np.mean(shares)) if shares else None


def travelled(tree: SealedTree, known: Mask | None) -> int:
    """Return the bytes of a tree on the wire; one that fits nothing known counts all its values."""
    layout = tree.total.layout
    if isinstance(tree.weight, Mask | Params) and tree.weight.layout != layout:
        return size({"values": tree.total.flat})
    fitting = {"tree": known} if known is not None and known.layout == layout else {}
    return size(payload(Sealed(0, {"tree": tree}, {}), fitting)["tree"])


def heaviest(weight: float | Mask | Params) -> float:
    """Return the largest weight of any entry, for the tables."""
    if isinstance(weight, Mask):
        return float(weight.bits.any())
    return float(weight.flat.max()) if isinstance(weight, Params) else weight
