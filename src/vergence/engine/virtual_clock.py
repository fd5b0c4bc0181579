"""The virtual clock of asynchronous rounds: clients at work, arrivals of replies, staleness."""

from __future__ import annotations

import csv
import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, Weight
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.tags import tagged
from vergence.engine.asynchronous_aggregation import OLDEST, Delivery
from vergence.engine.participation import Participation, round_half_up
from vergence.errors import DataError
from vergence.wire.size import size

CLOCK, BASE = "agenda", "base"


@tagged("Flight")
@dataclass(frozen=True)
class PendingUpdate:
    """A client at work: since which version of the model, with which message, until when."""

    client: str
    due: float
    turn: int
    version: int
    progress: float
    offer: str


@tagged("Agenda", pending="flights")
@dataclass(frozen=True)
class ClockState:
    """State of the clock in a checkpoint: its time, turns begun per client, who is at work."""

    clock: float
    turns: Mapping[str, int]
    pending: tuple[PendingUpdate, ...]


class VirtualClock:
    """Arrival times of replies, and a log of what happened.

    `work` is a client's work per turn, in samples. `rows` are lines for events.csv, less the seed;
    whoever writes them clears them.
    """

    def __init__(
        self,
        delivery: Delivery,
        presence: Participation,
        stream: RandomStream,
        work: Callable[[str], float],
        log: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.delivery, self.presence, self.stream = delivery, presence, stream
        self.work, self.log = work, log
        self.clock = 0.0
        self.turns: Counter[str] = Counter()
        self.pending: list[tuple[float, str, PendingUpdate]] = []
        self.offers: dict[str, Message] = {}
        self.rows: list[tuple[Any, ...]] = []

    def engine_state(self) -> dict[str, Any]:
        """State that a checkpoint needs; a message stays the same object while it is kept."""
        pending = tuple(update for *_, update in sorted(self.pending, key=lambda f: f[:2]))
        return {CLOCK: ClockState(self.clock, dict(self.turns), pending), **self.offers}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go back to what a checkpoint kept."""
        state = kept[CLOCK]
        self.clock, self.turns = state.clock, Counter(state.turns)
        self.pending = [(update.due, update.client, update) for update in state.pending]
        self.offers = {name: message for name, message in kept.items() if name != CLOCK}

    def gather(self, asked: Mapping[str, Message], lost: Collection[str], at: int) -> set[str]:
        """Wait for the replies of a round; move the clock to its end and return who is late.

        Nobody waits for a lost reply, but a deadline passes.
        """
        start, turns, due = self.clock, {}, {}
        for client, message in asked.items():
            turns[client], took = self._begin(client, message)
            due[client] = start + took
            self._note(at, start, client, turns[client], at, "sent", took)
        coming = sorted((time, client) for client, time in due.items() if client not in lost)
        within, limit = coming, start + self.delivery.seconds
        if self.delivery.name == "quorum":
            within = coming[: self.delivery.replies]
        elif self.delivery.name == "deadline":
            within = [arrival for arrival in coming if arrival[0] <= limit]
        for time, client in within:
            self._note(at, time, client, turns[client], at, "arrived")
        missed = self.delivery.name == "deadline" and len(within) < len(asked)
        self.clock = limit if missed else within[-1][0] if within else start
        late = {client for _, client in coming[len(within) :]}
        for client in (client for client in asked if client in late or client in lost):
            what = "late" if client in late else "lost"
            self._note(at, self.clock, client, turns[client], at, what)
        return late

    def arrivals(
        self,
        messages: Mapping[str, Message],
        at: int,
        progress: float,
        base: Mapping[str, Params] = MappingProxyType({}),
    ) -> list[tuple[PendingUpdate, str]]:
        """Let the clock run until enough replies are there; return what landed, and how.

        `messages` are what clients are sent from now on, version `at`, and `base` what their
        updates are added to where it is not sent. Of what happens at one moment, arrivals come
        first, in the order of client ids; then idle clients are sent a message. Fewer replies come
        only where nobody is at work any more.
        """
        self.forget(at)
        if base and self.delivery.name == "fedasync":
            self.offers[f"{BASE}{at}"] = Message(BASE, base, round=at)
        here = [c for c in messages if self.presence.here(c, at, self.stream)]
        wanted = self.delivery.replies if self.delivery.name == "fedbuff" else 1
        landed: list[tuple[PendingUpdate, str]] = []
        while wanted:
            if not self.pending or self.pending[0][0] > self.clock:
                self._dispatch(here, messages, at, progress)
            if not self.pending:
                break
            self.clock, client, update = heapq.heappop(self.pending)
            what = self._fate(update, at)
            self._note(at, self.clock, client, update.turn, update.version, what)
            if what != "gone":
                landed.append((update, what))
            wanted -= what == "arrived"
        return landed

    def _fate(self, update: PendingUpdate, at: int) -> str:
        if not self.presence.stays(update.client, at):
            return "gone"
        if self.presence.loses(update.client, update.turn, self.stream):
            return "lost"
        return "dropped" if at - update.version > OLDEST else "arrived"

    def _dispatch(
        self, here: Sequence[str], messages: Mapping[str, Message], at: int, progress: float
    ) -> None:
        """Send messages to idle clients, as many as may be at work; drawn where not all may."""
        flying = {client for _, client, _ in self.pending}
        idle = [client for client in here if client not in flying]
        cohort = self.presence.cohort
        most = cohort if isinstance(cohort, int) else max(round_half_up(cohort * len(here)), 1)
        room = max(most - len(flying), 0)
        if room < len(idle):
            generator = self.stream.child("next", self.turns.total()).numpy()
            drawn: list[int] = generator.choice(len(idle), room, replace=False).tolist()
            idle = [idle[i] for i in sorted(drawn)]
        names = {id(message): name for name, message in self.offers.items()}
        for client in idle:
            message = messages[client]
            name = names.setdefault(id(message), f"offer{at}.{len(self.offers)}")
            self.offers[name] = message
            turn, took = self._begin(client, message)
            update = PendingUpdate(client, self.clock + took, turn, at, progress, name)
            heapq.heappush(self.pending, (update.due, client, update))
            self._note(at, self.clock, client, turn, at, "sent", took)

    def opened(self, update: PendingUpdate) -> Message:
        """Return the message a client was sent, in the round of its own turn.

        A fast client may be sent the same version twice: it draws other batches the second time.
        """
        return replace(self.offers[update.offer], round=update.turn)

    def aged(
        self, sealed: SealedReply, update: PendingUpdate, at: int, now: Mapping[str, Params]
    ) -> SealedReply:
        """Return a reply as it counts for version `at`, whose trees are `now`."""
        age = at - update.version
        factor, trees = self.delivery.scale(age), {}
        for name, tree in sealed.trees.items():
            total = tree.total
            if age and self.delivery.name == "fedasync":
                sent = self.offers[update.offer].trees.get(name)
                base = self.offers[f"{BASE}{update.version}"][name] if sent is None else sent
                moved = base - now[name]
                total = total + weighed(moved, tree.weight)
            trees[name] = replace(tree, total=total if factor == 1 else total * factor)
        return replace(sealed, trees=trees)

    def forget(self, at: int) -> None:
        """Forget the messages that nobody is at work with whose update would count from now on."""
        young = [f for *_, f in self.pending if at - f.version <= OLDEST]
        alive = {name for f in young for name in (f.offer, f"{BASE}{f.version}")}
        self.offers = {name: offer for name, offer in self.offers.items() if name in alive}

    def _begin(self, client: str, message: Message) -> tuple[int, float]:
        """Return the number of the turn that a client begins, and the seconds it will take."""
        turn = self.turns[client]
        self.turns[client] += 1
        return turn, self._seconds(client, turn, message)

    def _seconds(self, client: str, turn: int, message: Message) -> float:
        of = self.delivery
        if self.log is not None:
            told = self.log.get(client, ())
            if turn >= len(told):
                raise DataError(
                    f"{of.replay}: it holds {len(told)} turns of '{client}', and more are asked "
                    "for; replay it with the delivery, seed and rounds that it was made with"
                )
            return told[turn]
        drawn = float(self.stream.child("speed", client).numpy().standard_normal())
        seconds = self.work(client) / (of.pace * math.exp(of.sigma * drawn))
        seconds *= of.slow.get(client, 1.0)
        if of.bandwidth:
            seconds += 2 * size({t: p.flat for t, p in message.trees.items()}) / of.bandwidth
        return seconds

    def _note(
        self,
        at: int,
        time: float,
        client: str,
        turn: int,
        version: int,
        event: str,
        took: float | None = None,
    ) -> None:
        seconds = "" if took is None else repr(took)
        self.rows.append((at + 1, repr(time), client, turn, version, at - version, event, seconds))


def waves(updates: Sequence[PendingUpdate]) -> list[list[PendingUpdate]]:
    """Put turns together that can be taken at once: from one version, nobody's second one yet."""
    found: dict[tuple[int, int], list[PendingUpdate]] = {}
    times: Counter[str] = Counter()
    for update in updates:
        found.setdefault((times[update.client], update.version), []).append(update)
        times[update.client] += 1
    return [found[key] for key in sorted(found)]


def weighed(params: Params, weight: Weight) -> Params:
    """Return weight * params, as a reply is weighed."""
    return weight.keep(params) if isinstance(weight, Mask) else params * weight


def read_log(path: Path | str, seed: int) -> dict[str, list[float]]:
    """Virtual seconds that every client's turns took, in their order, from an events.csv.

    Raises:
        DataError: it cannot be read, or holds nothing of this seed.
    """
    found: dict[str, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["event"] == "sent" and int(row["seed"]) == seed:
                    found.setdefault(row["client"], []).append(float(row["took"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no log of events ({error}); give a run's events.csv") from None
    if not found:
        raise DataError(f"{path}: no event of seed {seed}; replay a log of the same seeds")
    return found
