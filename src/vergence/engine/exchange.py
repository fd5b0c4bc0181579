"""Exchange with simulated clients: deals turns out, aggregates replies, counts costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from vergence.core.aggregation import Aggregate, Sum
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.naming import called
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, ServedGroups, ServeGroups
from vergence.engine.participation import Participation
from vergence.engine.records import ClientResult, ClientTask, TaskBatch
from vergence.engine.secure_sums import SecureSum
from vergence.engine.split_session import UNFIT
from vergence.engine.storage.client_states import ClientStateIndex
from vergence.engine.virtual_clock import VirtualClock, waves
from vergence.engine.workers.pools import WorkerPool
from vergence.errors import ConfigError
from vergence.privacy.hooks import LEFT_OUT, ServerHooks, SingleReplies
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
    protections that draw cohorts, look at single replies, or change sums. With `sums`, what only
    their sum is asked of is added up as words.
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
        if self.asynchronous and timed:
            return self._whoever_arrives(request, messages, server, exposed, progress, points)
        silent = self._silent(messages, round, timed)
        there = [client for client in messages if client not in silent]
        judge = next((hook for hook in self.server_hooks if hook.looks_at(exposed)), None)
        reveal = request.reveal if judge is None else "each"
        batch = self._deal(there, messages, reveal, progress, points)
        whole, replies, results = Sum(), {}, {}
        for group in self._in_order(replace(batch, held=request.like)):
            whole.merge(group.sum)
            replies |= group.replies
            results |= {result.client: result for result in group.results}
        self._spare(batch, results)
        came = {client: replies[client] for client in messages if client in replies}
        combined = None
        form = self.sums and self.sums.asked(self.method, request, messages, server)
        if judge is not None:
            shapes = self._shapes(messages, server, exposed)
            stream = self.stream.child("jury", self.phase, self.jobs)
            combined = judge.combine(
                SingleReplies(came, messages, request.like, exposed, shapes, stream, form)
            )
            results |= self._overruled(combined.statuses, results)
        elif form is not None:
            results = self._counted(results)
        told: dict[str, list[float]] = {}
        for client, message in messages.items():
            result = results.get(client) or ClientResult(client, silent.get(client, "lost"))
            self._count(result, message, told)
        if form is not None and combined is None:
            assert self.sums is not None
            learned = self.sums.learned(form, whole)
            self._tell({name: [mean] * learned.count for name, mean in learned.metrics.items()})
            return self._with_noise(learned, messages) if learned.count else learned
        self._tell(told)
        if combined is not None:
            return self._with_noise(combined.aggregate, messages)
        if request.reveal == "each":
            return came
        shown = whole.aggregate(self._shapes(messages, server, exposed), told)
        return self._with_noise(shown, messages)

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

    def _with_noise(self, shown: Aggregate, messages: Mapping[str, Message]) -> Aggregate:
        for hook in self.server_hooks:
            shown = hook.release(shown, self.phase, self.jobs, len(messages))
        return shown

    def _overruled(
        self, statuses: Mapping[str, str], results: Mapping[str, ClientResult]
    ) -> dict[str, ClientResult]:
        """Return the results of those who did not count; whom a rule left out goes on as usual."""
        found = {}
        for client, status in statuses.items():
            found[client] = replace(results[client], status=status)
            if not status.startswith(LEFT_OUT):  # as if it had been quarantined at home
                filed = results[client].filed
                self.clients.spares += [filed.file] if filed is not None else []
                found[client] = replace(found[client], told={}, filed=None, share=None)
        return found

    def _counted(self, results: dict[str, ClientResult]) -> dict[str, ClientResult]:
        """Results, by whether replies count; the others' new states are written over."""
        assert self.sums is not None
        found = self.sums.counted(results)
        self.clients.spares += [
            before.filed.file
            for client, before in results.items()
            if before.filed and not found[client].filed
        ]
        return found

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
        self,
        request: Request,
        messages: Mapping[str, Message],
        server: Any,
        exposed: Exposure,
        progress: float,
        points: tuple[str, ...],
    ) -> Aggregate:
        """Add up the updates that arrive next; their turns are only now computed.

        A client goes on from the state its last turn left, with the message it was sent then. The
        engine, not the method, sees replies one by one: each counts by its age.
        """
        virtual_clock, at = self.virtual_clock, int(self.phase)
        assert virtual_clock is not None
        landed = virtual_clock.arrivals(messages, at, progress, request.like)
        whole, told = Sum(), {}
        for update, what in landed:
            if what != "arrived":
                self._count(ClientResult(update.client, what), messages[update.client], told)
        for wave in waves([update for update, what in landed if what == "arrived"]):
            updates = {update.client: update for update in wave}
            there = [client for client in messages if client in updates]
            sent = {client: virtual_clock.opened(updates[client]) for client in there}
            batch = self._deal(there, sent, "each", wave[0].progress, points)
            results: dict[str, ClientResult] = {}
            for group in self._in_order(replace(batch, held=request.like)):
                aged = Sum()
                results |= {result.client: result for result in group.results}
                for client, reply in group.replies.items():
                    now = {**request.like, **messages[client].trees}
                    aged.add(virtual_clock.aged(reply, updates[client], at, now))
                whole.merge(aged)
            self._spare(batch, results)
            for client in there:
                self._count(results[client], sent[client], told)
        virtual_clock.forget(at + 1)
        self._tell(told)
        shown = whole.aggregate(self._shapes(messages, server, exposed), told)
        return self._with_noise(shown, messages)

    def _spare(self, batch: TaskBatch, results: Mapping[str, ClientResult]) -> None:
        """Take back the files that were lent to be written over, and were not."""
        written = {c for c, result in results.items() if result.filed is not None}
        self.clients.spares += [c.spare for c in batch.tasks if c.spare and c.client not in written]

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
        whole, results = Sum(), {}
        for group in self._in_order(batch):
            whole.merge(group.sum)
            results |= {result.client: result for result in group.results}
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

    def _deal(
        self,
        there: Sequence[str],
        messages: Mapping[str, Message],
        reveal: Any,
        progress: float,
        points: tuple[str, ...],
    ) -> TaskBatch:
        """Deal longest work first, in groups that depend on nothing but the cohort."""
        dealt = sorted(there, key=lambda client: -self.loads.get(client, 1))
        registry = self.clients
        tasks = [ClientTask(c, messages[c], registry.file(c), registry.spare()) for c in dealt]
        length = max(-(-len(tasks) // GROUPS), self.chunk)
        groups = lengths([self.loads.get(c, 1) for c in dealt], length, self.chunk > 1)
        self.jobs += 1
        return TaskBatch(
            "turn", tasks, groups, reveal, f"{self.phase}.{self.jobs}", progress, points
        )

    def _in_order(self, batch: TaskBatch) -> Any:
        """Yield the groups' results in the order of the groups, however they arrive."""
        early: dict[int, Any] = {}
        next_ = 0
        for number, group in self.pool.run(batch):
            early[number] = group
            while next_ in early:
                yield early.pop(next_)
                next_ += 1

    def _shapes(
        self, messages: Mapping[str, Message], server: Any, exposed: Exposure
    ) -> dict[str, Params]:
        first = next(iter(messages.values()), None)
        trees = {t: first.trees[t] for t in exposed.trees if t in first.trees} if first else {}
        if trees:
            return trees
        offered = self.method.offer(server, "")
        return {t: offered[t] for t in exposed.trees if t in offered}

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
        for group in self._in_order(TaskBatch("evaluate", tasks, groups, points=points)):
            for result in group.results:
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
