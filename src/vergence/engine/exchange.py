"""Exchange with clients: distributes turns over workers, aggregates replies, counts costs.

Used by `deployment.main_server` and `engine.round_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from vergence.core.aggregation import Aggregate, Sum
from vergence.core.messages import Message, SealedReply
from vergence.core.method import Exposure, Method
from vergence.core.naming import registry_name
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
from vergence.engine.workers.pools import InProcess, WorkerPool
from vergence.errors import ConfigError
from vergence.privacy.hooks import LEFT_OUT, ServerHooks
from vergence.wire.size import bytes_of_arrays

SERVE = "serve"
"""Name in tables for all messages of a client in split learning, which are counted per round."""
# Enough groups to keep all workers busy to the end, few enough that adding their sums up costs
# little. The number is fixed because the grouping decides the last bits of a sum.
GROUPS = 64
# Their models are in memory at the same time.
TOGETHER = 16
"""People whom a single process evaluates together."""


@dataclass
class ExchangeTotals:
    """Costs and metrics of one round, for the tables.

    Attributes:
        turns: rows of turns.csv, without seed and round.
        up: bytes sent to the server.
        down: bytes sent to clients.
        counted: number of replies that counted.
        asked: clients that were asked to do something (to take a turn).
        metrics: values of each metric in replies that counted.
        measured: evaluation point (such as P0) -> client -> metrics of the engine's evaluation.
    """

    turns: list[tuple[str | float, ...]] = field(default_factory=list)
    up: int = 0
    down: int = 0
    counted: int = 0
    asked: set[str] = field(default_factory=set)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)


@dataclass
class ClientExchange:
    """Answers a method's requests to clients; a worker pool runs the clients' turns.

    Attributes:
        method: the method.
        pool: worker pool that runs the clients' turns.
        presence: which clients may be asked, and whose replies get lost.
        stream: source of the run's random numbers.
        clients: which clients took part, and the files with their states; a turn's new state
            replaces the old one only if its reply counted.
        loads: client -> amount of work in a turn, in training samples; 1 where it is unknown.
        chunk: number of clients that a worker trains at once.
        phase: part of the run: "setup", the round's number, or "finish".
        tally: costs and metrics of the round so far.
        jobs: number of batches of tasks so far in this phase.
        virtual_clock: clock that decides which replies are late; None: no reply is late.
        sums: secure sums. With them, a reply that the server may only see in a sum is encoded as
            integers, which are added securely. None: no secure sums.
        late: clients whose replies are late in this round; None: not yet decided.
        server_hooks: protections that draw cohorts, look at single replies, or change sums.
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
        """Start a phase of the run (setup, a round, finish), and number its batches from 1."""
        # Numbered so, batches and the noise of their sums have the same names when a resumed run
        # repeats a round.
        self.phase, self.jobs, self.late = phase, 0, None

    @property
    def asynchronous(self) -> bool:
        """True if clients go on without waiting for the end of a round."""
        return self.virtual_clock is not None and self.virtual_clock.delivery.asynchronous

    def cohort(self, clients: Sequence[str], round: int) -> Sequence[str]:
        """Return the clients that a round may ask: a random cohort, or everyone if asynchronous.

        Clients that have left for good are never among them.
        """
        # Without rounds that end there is no cohort: the virtual clock asks whoever is idle.
        if self.asynchronous:
            return self.presence.staying(clients, round)
        draw = partial(self.presence.ask, stream=self.stream)
        # The first hook of the run's list is the outermost, as in clients' turns.
        for hook in reversed(self.server_hooks):
            draw = partial(hook.cohort, draw=draw)
        return draw(clients, round)

    def exchange(
        self,
        request: Request,
        server: object,
        round: int,
        progress: float,
        points: tuple[str, ...] = (),
    ) -> Aggregate | dict[str, SealedReply]:
        """Send a request to its clients, and return the answer for the method.

        Args:
            request: the request.
            server: state of the method's server.
            round: number of the round, from 0.
            progress: fraction of the run's rounds that are done.
            points: evaluation points (such as P1) at which people are evaluated inside their turns.

        Returns:
            The sum of the replies, or each reply by client if the request reveals each.
        """
        exposed = self._declared(request)
        messages = self._messages(request.to, request.verb, server, round)
        timed = self.phase == str(round) and not exposed.joining
        # Asynchronous runs draw no cohort, so whoever is away is left out here.
        if self.asynchronous and self.phase == str(round) and exposed.joining:
            here = self.presence.here
            messages = {c: m for c, m in messages.items() if here(c, round, self.stream)}
        context = RoundRequest(request, exposed, self.method, server, messages)
        if self.asynchronous and timed:
            return self._next_arrivals(context, progress, points)
        silent = self._silent(messages, round, timed)
        sent = {client: message for client, message in messages.items() if client not in silent}
        combiner = self._combiner(context)
        results = self._turns(combiner, sent, progress, points)
        final = combiner.final_results(results)
        # Where the reply does not count, the client's old state stays, and the file with its new
        # one may be overwritten.
        self.clients.spares += [
            result.filed.file
            for client, result in results.items()
            if result.filed and not final[client].filed
        ]
        metrics: dict[str, list[float]] = {}
        for client, message in messages.items():
            result = final.get(client) or ClientResult(client, silent.get(client, "lost"))
            self._count(result, message, metrics)
        answer = combiner.answer(metrics)
        self._add_metrics(metrics)
        return answer

    def _combiner(self, context: RoundRequest) -> Combiner:
        """Choose how replies to a request are combined, by the run's protections."""
        request, layout = context.request, None
        release = partial(self._with_noise, asked=len(context.messages))
        if self.sums is not None and request.reveal == "aggregate":
            layout = self.sums.form_for(self.method, request.verb, context.messages, context.trees)
        judge = next((hook for hook in self.server_hooks if hook.looks_at(context.exposed)), None)
        if judge is not None:
            # Numbered like the batch that `_turns` is about to make.
            stream = self.stream.child("jury", self.phase, self.jobs + 1)
            return SingleCombiner(context, release, judge, stream, layout)
        if self.sums is not None and layout is not None:
            return SecureCombiner(context, release, self.sums, layout)
        return Combiner(context, release)

    def _turns(
        self,
        combiner: Combiner,
        sent: Mapping[str, Message],
        progress: float,
        points: tuple[str, ...],
    ) -> dict[str, ClientResult]:
        """Run the turns of the clients in `sent`, and add their replies to the combiner.

        Returns the result of each client.
        """
        # The longest work comes first, so that no worker is left with it at the end.
        order = sorted(sent, key=lambda client: -self.loads.get(client, 1))
        index = self.clients
        tasks = [ClientTask(c, sent[c], index.file(c), index.spare()) for c in order]
        # Groups depend on nothing but the cohort: with the number of workers, or their speed, sums
        # would have other last bits.
        length = max(-(-len(tasks) // GROUPS), self.chunk)
        groups = lengths([self.loads.get(c, 1) for c in order], length, self.chunk > 1)
        self.jobs += 1
        stamp, like = f"{self.phase}.{self.jobs}", combiner.context.request.like
        batch = TaskBatch("turn", tasks, groups, combiner.reveal, stamp, progress, points, like)
        results = self._results(batch, combiner.add)
        # Spare files that no worker overwrote are spare again.
        written = {client for client, result in results.items() if result.filed is not None}
        index.spares += [task.spare for task in tasks if task.spare and task.client not in written]
        return results

    def _declared(self, request: Request) -> Exposure:
        """Return what the method declares about replies to a request.

        Raises:
            ConfigError: the method does not declare the request, or clients in secure sums would
                refuse it in this phase.
        """
        exposed = self.method.exposure.get(request.verb)
        if exposed is None or exposed.reveal != request.reveal:
            raise ConfigError(
                f"{type(self.method).__name__} asks for '{request.verb}' revealing "
                f"{request.reveal}, which its exposure table does not declare"
            )
        parts = {"setup": self.method.setup_verbs, "finish": self.method.finish_verbs}
        if self.sums is not None and request.verb not in parts.get(self.phase, (request.verb,)):
            raise ConfigError(
                f"{registry_name(self.method)} asks for '{request.verb}' in {self.phase}, and "
                f"clients in secure sums refuse that: name it in its {self.phase}_verbs"
            )
        return exposed

    def _with_noise(self, total: Aggregate, asked: int) -> Aggregate:
        """Return a sum as the method may see it, with the noise of protections.

        `asked` is the number of clients that were asked for a reply.
        """
        for hook in self.server_hooks:
            total = hook.release(total, self.phase, self.jobs, asked)
        return total

    def _silent(self, asked: Mapping[str, Message], round: int, timed: bool) -> dict[str, str]:
        """Return the clients whose reply does not arrive in time: client -> "late" or "lost".

        `timed` says whether the request takes time on the virtual clock.
        """
        # After the last round nothing is lost: it could never be made up for
        # (docs/explanation/decisions/nobody-is-lost-at-the-end.md).
        if self.phase == "finish":
            return {}
        lost = {c for c in asked if self.presence.loses(c, round, self.stream)}
        # Who is late for the first request that takes time is late for the rest of the round.
        if self.virtual_clock is not None and timed and self.late is None:
            self.late = self.virtual_clock.gather(asked, lost, round)
        return {**dict.fromkeys(self.late or (), "late"), **dict.fromkeys(lost, "lost")}

    def _next_arrivals(
        self, context: RoundRequest, progress: float, points: tuple[str, ...]
    ) -> Aggregate | dict[str, SealedReply]:
        """Add up the updates that arrive next on the virtual clock; their turns are run only now.

        A turn starts from the state that the client's last turn left. It gets the message that the
        client was sent when the turn began on the clock.
        """
        virtual_clock, at, messages = self.virtual_clock, int(self.phase), context.messages
        assert virtual_clock is not None
        release = partial(self._with_noise, asked=len(messages))
        combiner = AgedCombiner(context, release, virtual_clock, at)
        landed = virtual_clock.arrivals(messages, at, progress, context.request.like)
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
        answer = combiner.answer(metrics)
        self._add_metrics(metrics)
        return answer

    def _add_metrics(self, metrics: Mapping[str, Sequence[float]]) -> None:
        """Add metric values from replies to those of the round."""
        for name, values in metrics.items():
            self.tally.metrics.setdefault(name, []).extend(values)

    def attend(self, ask: ServeGroups, server: object, round: int, progress: float) -> ServedGroups:
        """Do split learning: each group of clients trains a copy of the server's layers.

        Returns:
            The weighted sum of the copies' updates, and the clients whose training counts.

        Raises:
            ConfigError: the server's layers cannot compute with any client's smashed data (layer
                outputs).
        """
        groups = [self._present(group, ask.shuffled, round) for group in ask.groups]
        alone = all(len(group) == 1 for group in ask.groups)
        # Where each client has its own copy, work is grouped as for turns, so that sums have the
        # same last bits.
        if alone:
            there = [client for group in groups for client in group]
            by_work = sorted(there, key=lambda client: -self.loads.get(client, 1))
            length = -(-len(by_work) // GROUPS)
            groups = [by_work[i : i + length] for i in range(0, len(by_work), max(length, 1))]
        clients = [client for group in groups for client in group]
        messages = self._messages(dict.fromkeys(clients), SERVE, server, round)
        index = self.clients
        tasks = [ClientTask(c, messages[c], index.file(c), index.spare()) for c in clients]
        self.jobs += 1
        stamp, lengths_ = f"{self.phase}.{self.jobs}", [len(group) for group in groups if group]
        batch = TaskBatch(
            "serve",
            tasks,
            lengths_,
            stamp=stamp,
            progress=progress,
            templates=ask.templates,
            alone=alone,
        )
        whole = Sum()
        results = self._results(batch, lambda group: whole.merge(group.sum))
        # One client whose data do not fit is quarantined. If no client's fit, the network is wrong,
        # and a run that trains nothing must not go on.
        unfit = [r.status for r in results.values() if UNFIT in r.status]
        if unfit and len(unfit) == len(results):
            raise ConfigError(f"nobody could be served, which is no client's fault: {unfit[0]}")
        metrics: dict[str, list[float]] = {}
        order = [client for group in ask.groups for client in group]
        for client in order:
            result = results.get(client) or ClientResult(client, "lost", down={})
            self._count(result, Message(SERVE), metrics)
        self._add_metrics(metrics)
        served = tuple(c for c in order if c in results and results[c].status == "ok")
        return ServedGroups(whole.aggregate(ask.templates, metrics), served)

    def _present(self, group: Sequence[str], shuffled: bool, round: int) -> list[str]:
        """Return the clients of a group whose replies arrive, in the order in which they train."""
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
        self, content: Message | None, verb: str, server: object, client: str, round: int
    ) -> Message:
        """Return `content` as a message for a client; None: the message that the method offers."""
        if content is None:
            content = Message(verb, self.method.offer(server, client))
        return replace(content, verb=verb, round=round)

    def _messages(
        self, to: Mapping[str, Message | None], verb: str, server: object, round: int
    ) -> dict[str, Message]:
        """Return the message for each client; messages with equal content are one object."""
        # Workers and secure sums compare messages by identity: equal ones are sent to a worker
        # once, and a sum is only over replies to the same message.
        unique: dict[tuple[object, ...], Message] = {}
        messages = {}
        for client, content in to.items():
            message = self.message(content, verb, server, client, round)
            trees = tuple((name, id(params)) for name, params in message.trees.items())
            key = (trees, tuple(message.facts.items()))
            messages[client] = unique.setdefault(key, message)
        return messages

    def _results(
        self, batch: TaskBatch, add: Callable[[GroupResult], object]
    ) -> dict[str, ClientResult]:
        """Carry out a batch, and return the result of every client.

        `add` is called with each group's result, in the order of the groups' numbers.
        """
        # Floating-point sums depend on the order of additions, so a group that is done early waits.
        early, results = dict[int, GroupResult](), dict[str, ClientResult]()
        next_ = 0
        for number, group in self.pool.run(batch):
            early[number] = group
            while next_ in early:
                add(early[next_])
                results |= {result.client: result for result in early.pop(next_).results}
                next_ += 1
        return results

    def _count(
        self, result: ClientResult, message: Message, metrics: dict[str, list[float]]
    ) -> None:
        """Add a client's result to the round's costs, and its metrics to `metrics`.

        If the reply counts, the client's new state replaces the old one.
        """
        client, tally = result.client, self.tally
        for name, value in result.metrics.items():
            metrics.setdefault(name, []).append(value)
        tally.asked.add(client)
        # Messages of split learning are no replies to the round: the client's last reply is.
        if result.status == "ok":
            tally.counted += message.verb != SERVE
        if result.filed is not None and result.status.startswith(("ok", LEFT_OUT)):
            self.clients.commit(client, result.filed)
        for point, values in result.measured.items():
            tally.measured.setdefault(point, {})[client] = values
        down, up = result.down, result.up
        if down is None:
            down = {t: bytes_of_arrays({"values": p.flat}) for t, p in message.trees.items()}
        # Inside a data centre nothing travels; its raw data are counted as one upload at the start.
        if self.method.pooled:
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
        self, people: Sequence[str], server: object, round: int, points: tuple[str, ...]
    ) -> dict[str, dict[str, Mapping[str, float]]]:
        """Evaluate people, and return evaluation point -> person -> metrics.

        Nobody's state changes.
        """
        client_of = {person: self.clients.lab_of.get(person, person) for person in people}
        sent = self._messages(dict.fromkeys(client_of.values()), "evaluate", server, round)
        messages = {person: sent[client] for person, client in client_of.items()}
        server_part = self.method.server_part(server)
        if server_part:
            messages = {
                p: replace(m, trees={**m.trees, **server_part}) for p, m in messages.items()
            }
        tasks = [ClientTask(p, messages[p], self.clients.file(p)) for p in people]
        # One process need not divide people up, and on a GPU their outputs are computed together.
        length = TOGETHER if isinstance(self.pool, InProcess) else -(-len(tasks) // GROUPS)
        groups = lengths([1.0] * len(tasks), length, False)
        metrics: dict[str, dict[str, Mapping[str, float]]] = {}
        batch = TaskBatch("evaluate", tasks, groups, points=points)
        for result in self._results(batch, lambda _: None).values():
            for point, values in result.measured.items():
                metrics.setdefault(point, {})[result.client] = values
        return metrics

    def personal_fraction(self) -> float | None:
        """Return the mean personal fraction of parameters over clients with masks.

        None: no client has a mask.
        """
        shares = self.clients.shares()
        return float(np.mean(shares)) if shares else None


def lengths(loads: Sequence[float], length: int, alike: bool) -> list[int]:
    """Return the sizes of the groups into which consecutive tasks are cut, each up to `length`.

    With `alike`, a new group also begins where the load changes.
    """
    # A stack trains clients as one network, which needs equally many samples of each.
    groups: list[int] = []
    for place, load in enumerate(loads):
        starts = not groups or groups[-1] == length or (alike and load != loads[place - 1])
        if starts:
            groups.append(1)
        else:
            groups[-1] += 1
    return groups
