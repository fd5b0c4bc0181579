"""Exchange with simulated clients: deals turns out, aggregates replies, counts costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from vergence.core.aggregation import Aggregate, Sum
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.naming import called
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, ServedGroups, ServeGroups
from vergence.engine.combiners import (
    AgedCombiner,
    Combiner,
    RoundRequest,
    SecureCombiner,
    SingleCombiner,
)
from vergence.engine.participation import Participation
from vergence.engine.records import ClientResult, ClientTask, GroupResult, TaskBatch
from vergence.engine.secure_sums import SecureSum
from vergence.engine.split_session import UNFIT
from vergence.engine.storage.client_states import ClientStateIndex
from vergence.engine.virtual_clock import VirtualClock, waves
from vergence.engine.workers.pools import WorkerPool
from vergence.errors import ConfigError
from vergence.privacy.hooks import LEFT_OUT, ServerHooks
from vergence.wire.size import size

SERVE = "serve"
"""The verb under which a served client's messages of a round are counted together."""
GROUPS = 64
"""Into how many groups a large cohort is cut: enough to share out evenly, few enough to fold."""


@dataclass
class ExchangeTotals:
    """Costs and metrics of one round, for the tables."""

    turns: list[tuple[Any, ...]] = field(default_factory=list)
    up: int = 0
    down: int = 0
    counted: int = 0
    asked: set[str] = field(default_factory=set)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)


@dataclass
class ClientExchange:
    """Answers a method's requests with turns of clients on this machine.

    `clients` says who took part and where the states lie; a turn's new state replaces the old one
    only if its reply counted. `loads` is each client's amount of work, 1 where it is not known;
    `chunk` is how many clients a worker trains at once. `phase` names the part of the run. A
    `virtual_clock` counts time in rounds; without one nobody is late. `server_hooks` are the
    protections that draw cohorts, look at single replies, or change sums. With `sums`, replies of
    which the server may only see the sum are encoded as integers and added securely.
    """

    method: Method
    pool: WorkerPool
    presence: Participation
    stream: RandomStream
    clients: ClientStateIndex
    loads: Mapping[str, float] = field(default_factory=dict)
    chunk: int = 1
    phase: str = ""
    tally: ExchangeTotals = field(default_factory=ExchangeTotals)
    jobs: int = 0
    virtual_clock: VirtualClock | None = None
    sums: SecureSum | None = None
    late: set[str] | None = None
    server_hooks: Sequence[ServerHooks] = ()

    def begin(self, phase: str) -> None:
        """Enter a part of the run: the stamps of its jobs are counted from 1."""
        self.phase, self.jobs, self.late = phase, 0, None

    @property
    def asynchronous(self) -> bool:
        """True if nobody waits for a round to end."""
        return self.virtual_clock is not None and self.virtual_clock.delivery.asynchronous

    def cohort(self, clients: Sequence[str], round: int) -> Sequence[str]:
        """Return whom a round may ask: those drawn, or whoever is not gone where none are."""
        if self.asynchronous:
            return self.presence.staying(clients, round)
        draw = partial(self.presence.ask, stream=self.stream)
        for hook in reversed(self.server_hooks):
            draw = partial(hook.cohort, draw=draw)
        return draw(clients, round)

    def exchange(
        self,
        request: Request,
        server: Any,
        round: int,
        progress: float,
        points: tuple[str, ...] = (),
    ) -> Aggregate | dict[str, SealedReply]:
        """Answer one request of a round."""
        exposed = self._declared(request)
        messages = self._messages(request.to, request.verb, server, round)
        timed = self.phase == str(round) and not exposed.joining
        if self.asynchronous and self.phase == str(round) and exposed.joining:  # no cohort is drawn
            here = self.presence.here
            messages = {c: m for c, m in messages.items() if here(c, round, self.stream)}
        asked = RoundRequest(request, exposed, self.method, server, messages)
        if self.asynchronous and timed:
            return self._whoever_arrives(asked, progress, points)
        silent = self._silent(messages, round, timed)
        sent = {client: message for client, message in messages.items() if client not in silent}
        combiner = self._combiner(asked)
        results = self._turns(combiner, sent, progress, points)
        counted = combiner.counted(results)
        # The state after a turn of which the reply does not count is written over.
        self.clients.spares += [
            result.filed.file
            for client, result in results.items()
            if result.filed and not counted[client].filed
        ]
        metrics: dict[str, list[float]] = {}
        for client, message in messages.items():
            result = counted.get(client) or ClientResult(client, silent.get(client, "lost"))
            self._count(result, message, metrics)
        learned = combiner.learned(metrics)
        self._tell(metrics)
        return learned

    def _combiner(self, asked: RoundRequest) -> Combiner:
        """Combiner of the replies to a request, by the run's protections."""
        release, form = partial(self._with_noise, asked=len(asked.messages)), None
        if self.sums is not None and asked.request.reveal == "aggregate":
            form = self.sums.asked(self.method, asked.request.verb, asked.messages, asked.trees)
        judge = next((hook for hook in self.server_hooks if hook.looks_at(asked.exposed)), None)
        if judge is not None:
            stream = self.stream.child("jury", self.phase, self.jobs + 1)  # the batch to come
            return SingleCombiner(asked, release, judge, stream, form)
        if self.sums is not None and form is not None:
            return SecureCombiner(asked, release, self.sums, form)
        return Combiner(asked, release)

    def _turns(
        self,
        combiner: Combiner,
        sent: Mapping[str, Message],
        progress: float,
        points: tuple[str, ...],
    ) -> dict[str, ClientResult]:
        """Let those who are sent a message take their turns, and combine what comes of it.

        The longest work is dealt first, in groups that depend on nothing but the cohort.
        """
        dealt = sorted(sent, key=lambda client: -self.loads.get(client, 1))
        index = self.clients
        tasks = [ClientTask(c, sent[c], index.file(c), index.spare()) for c in dealt]
        length = max(-(-len(tasks) // GROUPS), self.chunk)
        groups = lengths([self.loads.get(c, 1) for c in dealt], length, self.chunk > 1)
        self.jobs += 1
        stamp, like = f"{self.phase}.{self.jobs}", combiner.asked.request.like
        batch = TaskBatch("turn", tasks, groups, combiner.reveal, stamp, progress, points, like)
        results = self._results(batch, combiner.add)
        # Files that were lent to be written over, and were not, are taken back.
        written = {client for client, result in results.items() if result.filed is not None}
        index.spares += [task.spare for task in tasks if task.spare and task.client not in written]
        return results

    def _declared(self, request: Request) -> Exposure:
        """Row of the method's exposure table that declares a request."""
        exposed = self.method.exposure.get(request.verb)
        if exposed is None or exposed.reveal != request.reveal:
            raise ConfigError(
                f"{type(self.method).__name__} asks for '{request.verb}' revealing "
                f"{request.reveal}, which its exposure table does not declare"
            )
        parts = {"setup": self.method.setup_verbs, "finish": self.method.finish_verbs}
        if self.sums is not None and request.verb not in parts.get(self.phase, (request.verb,)):
            raise ConfigError(
                f"{called(self.method)} asks for '{request.verb}' in {self.phase}, and clients in "
                f"secure sums refuse that: name it in its {self.phase}_verbs"
            )
        return exposed

    def _with_noise(self, shown: Aggregate, asked: int) -> Aggregate:
        for hook in self.server_hooks:
            shown = hook.release(shown, self.phase, self.jobs, asked)
        return shown

    def _silent(self, asked: Mapping[str, Message], round: int, timed: bool) -> dict[str, str]:
        """Return those asked whose reply does not come, or too late, and which of the two."""
        if self.phase == "finish":  # everybody is waited for: nothing at home can get lost
            return {}
        lost = {c for c in asked if self.presence.loses(c, round, self.stream)}
        # Who is late for the first request that takes time is late for the rest of the round.
        if self.virtual_clock is not None and timed and self.late is None:
            self.late = self.virtual_clock.gather(asked, lost, round)
        return {**dict.fromkeys(self.late or (), "late"), **dict.fromkeys(lost, "lost")}

    def _whoever_arrives(
        self, asked: RoundRequest, progress: float, points: tuple[str, ...]
    ) -> Aggregate:
        """Add up the updates that arrive next; their turns are only now computed.

        A client goes on from the state its last turn left, with the message it was sent then.
        """
        virtual_clock, at, messages = self.virtual_clock, int(self.phase), asked.messages
        assert virtual_clock is not None
        release = partial(self._with_noise, asked=len(messages))
        combiner = AgedCombiner(asked, release, virtual_clock, at)
        landed = virtual_clock.arrivals(messages, at, progress, asked.request.like)
        metrics: dict[str, list[float]] = {}
        for update, what in landed:
            if what != "arrived":
                self._count(ClientResult(update.client, what), messages[update.client], metrics)
        for wave in waves([update for update, what in landed if what == "arrived"]):
            updates = combiner.updates = {update.client: update for update in wave}
            sent = {c: virtual_clock.opened(updates[c]) for c in messages if c in updates}
            results = self._turns(combiner, sent, wave[0].progress, points)
            for client, message in sent.items():
                self._count(results[client], message, metrics)
        virtual_clock.forget(at + 1)
        learned = combiner.learned(metrics)
        self._tell(metrics)
        return learned

    def _tell(self, told: Mapping[str, Sequence[float]]) -> None:
        for name, values in told.items():
            self.tally.metrics.setdefault(name, []).extend(values)

    def attend(self, ask: ServeGroups, server: Any, round: int, progress: float) -> ServedGroups:
        """Let copies of a server's part serve groups of clients."""
        groups = [self._there(group, ask.shuffled, round) for group in ask.groups]
        alone = all(len(group) == 1 for group in ask.groups)
        if alone:  # dealt as turns are, so that sums have the same last bits
            there = [client for group in groups for client in group]
            dealt = sorted(there, key=lambda client: -self.loads.get(client, 1))
            length = -(-len(dealt) // GROUPS)
            groups = [dealt[i : i + length] for i in range(0, len(dealt), max(length, 1))]
        clients = [client for group in groups for client in group]
        offered = self._messages(dict.fromkeys(clients), SERVE, server, round)
        registry = self.clients
        tasks = [ClientTask(c, offered[c], registry.file(c), registry.spare()) for c in clients]
        self.jobs += 1
        stamp, lengths_ = f"{self.phase}.{self.jobs}", [len(group) for group in groups if group]
        batch = TaskBatch(
            "serve", tasks, lengths_, stamp=stamp, progress=progress, held=ask.held, alone=alone
        )
        whole = Sum()
        results = self._results(batch, lambda group: whole.merge(group.sum))
        unfit = [r.status for r in results.values() if UNFIT in r.status]
        if unfit and len(unfit) == len(results):
            raise ConfigError(f"nobody could be served, which is no client's fault: {unfit[0]}")
        told: dict[str, list[float]] = {}
        for client in (client for group in ask.groups for client in group):
            result = results.get(client) or ClientResult(client, "lost", down={})
            self._count(result, Message(SERVE), told)
        self._tell(told)
        order = [client for group in ask.groups for client in group]
        served = tuple(c for c in order if c in results and results[c].status == "ok")
        return ServedGroups(whole.aggregate(ask.held, told), served)

    def _there(self, group: Sequence[str], shuffled: bool, round: int) -> list[str]:
        """Return the clients of a group whose replies arrive, in the order they are served in."""
        order: Sequence[int] = range(len(group))
        if shuffled:
            order = (
                self.stream.child("served", round, *group[:1])
                .numpy()
                .permutation(len(group))
                .tolist()
            )
        served = [group[i] for i in order]
        return [c for c in served if not self.presence.loses(c, round, self.stream)]

    def message(
        self, given: Message | None, verb: str, server: Any, client: str, round: int
    ) -> Message:
        """Message that a client is sent: the one given, or what the method offers."""
        if given is None:
            given = Message(verb, self.method.offer(server, client))
        return replace(given, verb=verb, round=round)

    def _messages(
        self, to: Mapping[str, Message | None], verb: str, server: Any, round: int
    ) -> dict[str, Message]:
        """Return everybody's message; those that say the same are one object."""
        unique: dict[Any, Message] = {}
        found = {}
        for client, given in to.items():
            message = self.message(given, verb, server, client, round)
            trees = tuple((name, id(params)) for name, params in message.trees.items())
            key = (trees, tuple(message.facts.items()))
            found[client] = unique.setdefault(key, message)
        return found

    def _results(
        self, batch: TaskBatch, add: Callable[[GroupResult], object]
    ) -> dict[str, ClientResult]:
        """Carry out a batch; return the result of every client.

        `add` is given the groups in their order, however they arrive.
        """
        early, results = dict[int, GroupResult](), dict[str, ClientResult]()
        next_ = 0
        for number, group in self.pool.run(batch):
            early[number] = group
            while next_ in early:
                add(early[next_])
                results |= {result.client: result for result in early.pop(next_).results}
                next_ += 1
        return results

    def _count(self, result: ClientResult, message: Message, told: dict[str, list[float]]) -> None:
        """Write one call into the tally, its state into the registry, what it says into `told`."""
        client, tally = result.client, self.tally
        for name, value in result.told.items():
            told.setdefault(name, []).append(value)
        tally.asked.add(client)
        if result.status == "ok":
            tally.counted += message.verb != SERVE  # its last reply, when all is said, counts
        if result.filed is not None and result.status.startswith(("ok", LEFT_OUT)):
            self.clients.commit(client, result.filed)
        for point, metrics in result.measured.items():
            tally.measured.setdefault(point, {})[client] = metrics
        down = result.down
        if down is None:
            down = {t: size({"values": p.flat}) for t, p in message.trees.items()}
        up = result.up
        if self.method.pooled:  # inside the data centre nothing travels
            down, up = {}, {}
        share = "" if result.share is None else f"{result.share:.6f}"
        for tree in sorted({*down, *up}) or [""]:
            weight = f"{result.weight[tree]:g}" if tree in result.weight else ""
            tally.turns.append(
                (
                    client,
                    message.verb,
                    tree,
                    up.get(tree, 0),
                    down.get(tree, 0),
                    result.examples or 0,
                    weight,
                    result.steps,
                    share,
                    result.status,
                )
            )
        tally.up += sum(up.values())
        tally.down += sum(down.values())

    def evaluate(
        self, people: Sequence[str], server: Any, round: int, points: tuple[str, ...]
    ) -> dict[str, dict[str, Mapping[str, float]]]:
        """Measure people: point -> person -> metrics. Nobody's state changes."""
        homes = {person: self.clients.homes.get(person, person) for person in people}
        sent = self._messages(dict.fromkeys(homes.values()), "evaluate", server, round)
        messages = {person: sent[home] for person, home in homes.items()}
        beside = self.method.beside(server)
        if beside:
            messages = {p: replace(m, trees={**m.trees, **beside}) for p, m in messages.items()}
        tasks = [ClientTask(p, messages[p], self.clients.file(p)) for p in people]
        groups = lengths([1.0] * len(tasks), -(-len(tasks) // GROUPS), False)
        found: dict[str, dict[str, Mapping[str, float]]] = {}
        batch = TaskBatch("evaluate", tasks, groups, points=points)
        for result in self._results(batch, lambda _: None).values():
            for point, metrics in result.measured.items():
                found.setdefault(point, {})[result.client] = metrics
        return found

    def personal_fraction(self) -> float | None:
        """Return the mean personal share over clients that took part, None where masks are not."""
        shares = self.clients.shares()
        return float(np.mean(shares)) if shares else None


def lengths(loads: Sequence[float], length: int, alike: bool) -> list[int]:
    """Cut a row of tasks into groups of `length`; where `alike`, also where the load changes."""
    groups: list[int] = []
    for place, load in enumerate(loads):
        starts = not groups or groups[-1] == length or (alike and load != loads[place - 1])
        if starts:
            groups.append(1)
        else:
            groups[-1] += 1
    return groups
