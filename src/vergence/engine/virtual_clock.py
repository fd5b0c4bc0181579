"""The virtual clock: simulates when clients' replies arrive, and so which replies are late.

`asynchronous_aggregation` holds the rules for the replies that a round waits for.

Used by `engine.combiners`, `engine.exchange` and `engine.round_loop`.
"""

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
from vergence.engine.participation import Participation
from vergence.errors import DataError
from vergence.wire.size import bytes_of_arrays

# Names in checkpoints, which older runs have, too.
CLOCK, BASE = "agenda", "base"


@tagged("Flight")
@dataclass(frozen=True)
class PendingUpdate:
    """The update of a client that is training on the virtual clock; it has not arrived yet.

    Attributes:
        client: the client.
        due: virtual time at which the update arrives.
        turn: number of the client's turn.
        version: version of the model that the client was sent.
        progress: fraction of the run's rounds that were done when the turn began.
        offer: name of the message that the client was sent.
    """

    client: str
    due: float
    turn: int
    version: int
    progress: float
    offer: str


@tagged("Agenda", pending="flights")
@dataclass(frozen=True)
class ClockState:
    """State of the clock in a checkpoint.

    It has the virtual time, the number of turns that each client began, and the pending updates.
    """

    clock: float
    turns: Mapping[str, int]
    pending: tuple[PendingUpdate, ...]


class VirtualClock:
    """Simulates when replies arrive, and logs what happened.

    Attributes:
        delivery: rule that says for which replies a round waits.
        presence: which clients are present.
        stream: random numbers of the run.
        work: returns the number of samples that a client trains on in a turn.
        log: in a replay, client -> seconds of each of its turns; None: speeds are drawn at random.
        clock: the virtual time, in seconds.
        turns: client -> number of its turns that have begun.
        pending: updates of clients that are training, as a heap ordered by arrival.
        offers: name -> message that was sent to clients that are training.
        rows: lines for events.csv, without the seed; the round loop writes them, and clears this
            list.
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
        self.rows: list[tuple[str | int, ...]] = []

    def engine_state(self) -> dict[str, object]:
        """Return the parts of the clock's state that a checkpoint stores, by name."""
        # Messages stay the same objects, so that a checkpoint writes each only once.
        pending = tuple(update for *_, update in sorted(self.pending, key=lambda f: f[:2]))
        return {CLOCK: ClockState(self.clock, dict(self.turns), pending), **self.offers}

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Set the clock to the state that a checkpoint stored."""
        state = parts[CLOCK]
        self.clock, self.turns = state.clock, Counter(state.turns)
        self.pending = [(update.due, update.client, update) for update in state.pending]
        self.offers = {name: message for name, message in parts.items() if name != CLOCK}

    def gather(self, asked: Mapping[str, Message], lost: Collection[str], at: int) -> set[str]:
        """Move the clock to the end of a round; return the clients whose replies are late.

        Args:
            asked: client -> message that it was sent.
            lost: clients whose reply never arrives.
            at: number of the round.
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
        # Nobody waits for a reply that is lost. But the server does not know that it is: where a
        # reply is missing, a round with a deadline lasts until then.
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
        """Let the clock run until enough replies have arrived.

        At equal times, arrivals come first, in the order of client ids. Then idle clients are sent
        a message. Fewer replies arrive only if no client is training any more.

        Args:
            messages: client -> message that it is sent from now on.
            at: version of the model in these messages.
            progress: fraction of the run's rounds that are done.
            base: trees to which clients' updates are added, for trees that are not in the messages.

        Returns:
            Each update that ended, with "arrived", "lost" or "dropped".
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
        """Return what becomes of an update: "arrived", "lost", "dropped" (too old) or "gone".

        "gone" means that its client has left for good.
        """
        if not self.presence.stays(update.client, at):
            return "gone"
        if self.presence.loses(update.client, update.turn, self.stream):
            return "lost"
        return "dropped" if at - update.version > OLDEST else "arrived"

    def _dispatch(
        self, here: Sequence[str], messages: Mapping[str, Message], at: int, progress: float
    ) -> None:
        """Send messages to idle clients; if not all may train at once, to some at random."""
        flying = {client for _, client, _ in self.pending}
        idle = [client for client in here if client not in flying]
        room = max(self.presence.size(len(here)) - len(flying), 0)
        if room < len(idle):
            generator = self.stream.child("next", self.turns.total()).numpy()
            places: list[int] = generator.choice(len(idle), room, replace=False).tolist()
            idle = [idle[i] for i in sorted(places)]
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
        """Return the message that a client was sent, with the number of its turn as the round."""
        # A fast client may be sent the same version twice: it must draw other batches then.
        return replace(self.offers[update.offer], round=update.turn)

    def aged(
        self, sealed: SealedReply, update: PendingUpdate, at: int, now: Mapping[str, Params]
    ) -> SealedReply:
        """Return a reply scaled by its age, to be added to version `at` of the model.

        `now` are the trees of this version.
        """
        age = at - update.version
        factor, trees = self.delivery.scale(age), {}
        for name, tree in sealed.trees.items():
            total = tree.total
            # FedAsync mixes the client's model into the present one, so the update is measured from
            # the present trees; FedBuff adds updates as they are.
            if age and self.delivery.name == "fedasync":
                sent = self.offers[update.offer].trees.get(name)
                base = self.offers[f"{BASE}{update.version}"][name] if sent is None else sent
                moved = base - now[name]
                total = total + weighed(moved, tree.weight)
            trees[name] = replace(tree, total=total if factor == 1 else total * factor)
        return replace(sealed, trees=trees)

    def forget(self, at: int) -> None:
        """Forget messages whose updates are too old to count from version `at` on."""
        young = [f for *_, f in self.pending if at - f.version <= OLDEST]
        alive = {name for f in young for name in (f.offer, f"{BASE}{f.version}")}
        self.offers = {name: offer for name, offer in self.offers.items() if name in alive}

    def _begin(self, client: str, message: Message) -> tuple[int, float]:
        """Begin a client's next turn; return its number and the virtual seconds it will take."""
        turn = self.turns[client]
        self.turns[client] += 1
        return turn, self._seconds(client, turn, message)

    def _seconds(self, client: str, turn: int, message: Message) -> float:
        """Return the virtual seconds of a turn: computation, download and upload."""
        delivery = self.delivery
        if self.log is not None:
            logged = self.log.get(client, ())
            if turn >= len(logged):
                raise DataError(
                    f"{delivery.replay}: it holds {len(logged)} turns of '{client}', and more are "
                    "asked for; replay it with the delivery, seed and rounds that it was made with"
                )
            return logged[turn]
        # Speeds are log-normal over clients, and the same in every turn of a client.
        normal = float(self.stream.child("speed", client).numpy().standard_normal())
        seconds = self.work(client) / (delivery.pace * math.exp(delivery.sigma * normal))
        seconds *= delivery.slow.get(client, 1.0)
        if delivery.bandwidth:
            seconds += (
                2
                * bytes_of_arrays({t: p.flat for t, p in message.trees.items()})
                / delivery.bandwidth
            )
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
        """Add a line for events.csv; `repr` keeps every bit of a time, for an exact replay."""
        seconds = "" if took is None else repr(took)
        self.rows.append((at + 1, repr(time), client, turn, version, at - version, event, seconds))


def waves(updates: Sequence[PendingUpdate]) -> list[list[PendingUpdate]]:
    """Group updates whose turns can run at once.

    A group has updates from one model version, and at most one update per client.
    """
    # A client's second turn goes on from the state that its first one leaves.
    groups: dict[tuple[int, int], list[PendingUpdate]] = {}
    times: Counter[str] = Counter()
    for update in updates:
        groups.setdefault((times[update.client], update.version), []).append(update)
        times[update.client] += 1
    return [groups[key] for key in sorted(groups)]


def weighed(params: Params, weight: Weight) -> Params:
    """Return the product of parameters and the weight of a reply."""
    return weight.keep(params) if isinstance(weight, Mask) else params * weight


def read_log(path: Path | str, seed: int) -> dict[str, list[float]]:
    """Read the virtual seconds of every client's turns in an events.csv.

    Raises:
        DataError: the file cannot be read, or has no lines of this seed.
    """
    seconds: dict[str, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["event"] == "sent" and int(row["seed"]) == seed:
                    took = float(row["took"])
                    # NaN would have no place in the order of arrivals, and time would go back.
                    if not 0 <= took < math.inf:
                        raise ValueError(f"a turn of '{row['client']}' takes {took:g} s")
                    seconds.setdefault(row["client"], []).append(took)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no log of events ({error}); give a run's events.csv") from None
    if not seconds:
        raise DataError(f"{path}: no event of seed {seed}; replay a log of the same seeds")
    return seconds
