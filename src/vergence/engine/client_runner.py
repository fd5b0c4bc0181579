"""Runner at the edge of a client: checks a turn's reply, keeps its state, adds replies up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from vergence.core.aggregation import Sum
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, SealedTree, support_mask
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.serialization import Packed
from vergence.engine.channel import DIRECT, Channel
from vergence.engine.client_executor import ClientExecutor, TurnResult
from vergence.engine.records import (
    QUARANTINED,
    ClientResult,
    ClientState,
    ClientTask,
    GroupResult,
    TaskBatch,
)
from vergence.engine.secure_sums import SecureSum, redact, request_of
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.state_journal import StateRef
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.reply_checks import fault, reply_trees, zeros_for
from vergence.privacy.secure_aggregation.packing import RangeFault
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout
from vergence.wire.size import travelled


class ClientRunner:
    """Carries out groups of tasks with one worker: guards, counts, keeps states, adds up.

    With `sums`, replies leave as rows of words wherever only their sum is for the server. What
    travels goes through the `channel`.
    """

    def __init__(
        self,
        worker: ClientExecutor,
        store: ClientStateStore,
        sums: SecureSum | None = None,
        channel: Channel = DIRECT,
    ) -> None:
        self.worker, self.store, self.sums, self.channel = worker, store, sums, channel

    def carry_out(self, batch: TaskBatch, number: int, whole: Sum) -> GroupResult:
        """Do one group; `whole` is an empty sum to add the replies to."""
        tasks = batch.group(number)
        if batch.kind == "evaluate":
            found = [self.measure(task, self.kept(task), batch.points) for task in tasks]
            return GroupResult(found, whole)
        result = GroupResult([], whole)
        if batch.kind == "serve":
            for served in [[task] for task in tasks] if batch.alone else [tasks]:
                results, became = ServerSession(self, batch, served).hold(batch.held)
                result.results += results
                if became is not None:
                    whole.add(became)
            return result
        for task, before, taken in self._turns(tasks, batch):
            told, sealed = self.settle(task, batch, before, taken)
            result.results.append(told)
            if sealed is not None and batch.reveal == "each":
                result.replies[task.client] = owned(sealed)
            elif sealed is not None:
                whole.add(sealed)
        return result

    def _turns(
        self, tasks: Sequence[ClientTask], batch: TaskBatch
    ) -> Iterator[tuple[ClientTask, ClientState, TurnResult]]:
        """Take the turns: all at once where they are stacked, else with one reply in memory."""
        if self.worker.together:
            kept = [self.kept(task) for task in tasks]
            yield from zip(tasks, kept, self.worker.turns(tasks, kept, batch), strict=True)
            return
        for task in tasks:
            before = self.kept(task)
            yield task, before, self.turn(task, before, batch)

    def turn(self, task: ClientTask, before: ClientState, batch: TaskBatch) -> TurnResult:
        """Take the turn of a client."""
        return self.worker.turn(task, before, batch)

    def measure(self, task: ClientTask, before: ClientState, points: Sequence[str]) -> ClientResult:
        """Measure a client."""
        return self.worker.evaluate(task.client, task.message, before, points)

    def exposed(self, verb: str) -> Exposure:
        """Exposure of a client's replies."""
        return self.worker.method.exposure[verb]

    def kept(self, task: ClientTask) -> ClientState:
        """State that the client keeps; one that never took part starts fresh."""
        fresh = self.fresh
        return fresh if task.file is None else self.store.read(task.file, fresh.state)

    @cached_property
    def fresh(self) -> ClientState:
        """State of a client that never took part."""
        return ClientState(self.worker.method.client(self.worker.task))

    def turns(
        self,
        task: ClientTask,
        kept: ClientState,
        messages: Iterable[Message],
        batch: TaskBatch,
        like: Mapping[str, Params],
        number: int,
    ) -> Iterator[TurnResult]:
        """Let a client that is being served take turns; the first is `number` of its session."""
        for message in messages:
            taken = self.worker.turn(replace(task, message=message), kept, batch)
            kept = taken.state
            yield taken

    def answer(self, ask: Any, progress: float) -> Any:
        """Answer what a server's own half asks for."""
        return self.worker.answer(ask, progress)

    def filed(
        self, task: ClientTask, stamp: str, kept: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """File what a served client keeps when all is said, or return why it does not count."""
        packed = Packed(kept)
        if not packed.finite:
            return None, "finite: the client's own state holds NaN or infinity"
        return self.store.write(task.client, stamp, packed, None, task.spare), None

    def form(self, message: Message, held: Mapping[str, Params]) -> ReplyLayout | None:
        """Layout by which the reply to a message becomes words, None where it leaves as it is."""
        method, task, verb = self.worker.method, self.worker.task, message.verb
        if self.sums is None or method.exposure[verb].reveal == "each":
            return None
        sent = {**held, **message.trees}
        like = reply_trees(method, verb, sent, lambda: method.server(task))
        return self.sums.form(method, verb, like)

    def _to_keep(
        self, task: ClientTask, before: ClientState, after: ClientState, exposed: Exposure
    ) -> Packed | None:
        """State that a turn leaves, None where there is nothing to keep, or nothing new."""
        # Of questions there are thousands, and an answer leaves a teacher as it was.
        answers = bool(exposed.numbered) and task.file is not None
        if after.empty or (answers and unchanged(before, after)):
            return None
        packed = Packed(after)
        # A client that never took part and holds no array is as new: nothing is kept for it.
        as_new = not packed.arrays and packed.header == Packed(self.fresh).header
        return None if task.file is None and as_new else packed

    def share(self, state: Any) -> float | None:
        """Personal share of a client's entries, None where there is none."""
        mask = self.worker.method.personal(state)
        return None if mask is None else mask.fraction

    def settle(
        self, task: ClientTask, batch: TaskBatch, before: ClientState, taken: TurnResult
    ) -> tuple[ClientResult, SealedReply | None]:
        """Guard a reply, count it, and file the new state if it counts."""
        result, sealed, after = taken
        if sealed is None:
            return result, None
        exposed = self.exposed(task.message.verb)
        form = self.form(task.message, batch.held)
        status, row, key = "ok", sealed, partial(self._noise_key, task, form)
        sent = {**batch.held, **task.message.trees}
        reason = fault(sealed, task.message.round, sent, exposed)
        if reason is None and form is not None and self.sums is not None:
            try:
                row = self.sums.given(form, sealed, key)
            except RangeFault as why:
                reason = str(why)
        told = before.told if form or reason else {**before.told, **masks(sealed)}
        state = self.channel.state(after.state, self.store.records)
        after = ClientState(state, told, after.owed)
        packed = self._to_keep(task, before, after, exposed)
        if reason is None and packed is not None and not packed.finite:
            reason = "finite: the client's own state holds NaN or infinity"
        if reason is not None:
            zeros = zeros_for(sealed, sent, exposed)
            after, kept = before, packed is not None
            if zeros is None or not self.worker.covers(task.client, sealed.round, reason):
                status, packed = f"{QUARANTINED}{reason}", None
            else:  # as after any other turn: a state is left where one would have been
                sealed = row = zeros
                if form is not None and self.sums is not None:
                    # Two verbs' zeros are alike, and must not get the same noise.
                    verb = task.message.verb
                    row = self.sums.given(form, zeros, lambda: key().child("zeros", verb))
                reason, packed = None, Packed(before) if kept else None
        share = None if form else self.share(after.state)
        filed = None
        if packed is not None:
            filed = self.store.write(task.client, batch.stamp, packed, share, task.spare)
        result = replace(
            result,
            status=status,
            up={t: travelled(tree, before.told.get(t)) for t, tree in sealed.trees.items()},
            weight={t: heaviest(tree) for t, tree in sealed.trees.items()},
            told={} if reason else sealed.metrics,
            filed=filed,
            share=share,
        )
        if form is not None:
            return redact(result, form), None if reason else row
        return result, None if reason else self.channel.reply(row, before.told)

    def _noise_key(self, task: ClientTask, form: ReplyLayout | None) -> NoiseKey:
        """Secret of the noise that a client adds to its reply to one question."""
        key, table = self.worker.noise_key(task.client), self.worker.method.exposure
        summed = [exposed for exposed in table.values() if exposed.reveal == "aggregate"]
        if form is None or (len(summed) == 1 and not form.exposed.numbered):
            return key
        # Replies to two questions of a round may be equal, and must not get the same noise: the
        # difference of both sums would show everything. Where only one is asked the key is as
        # before, so that runs repeat.
        return key.child("sum", request_of(form, task.message))


def unchanged(before: ClientState, after: ClientState) -> bool:
    """True if a turn left everything as it was, as a teacher's does that only answers."""
    told = {*before.told, *after.told}
    return (
        after.state is before.state
        and after.owed is before.owed
        and all(after.told.get(name) is before.told.get(name) for name in told)
    )


def owned(sealed: SealedReply) -> SealedReply:
    """Return a reply in memory of its own: a state's file, of which it may be, is written over."""
    trees = {}
    for name, tree in sealed.trees.items():
        weight = tree.weight
        if isinstance(weight, Params):
            weight = weight.like(weight.flat.clone())
        total = tree.total.like(tree.total.flat.clone())
        trees[name] = replace(tree, total=total, weight=weight)
    return replace(sealed, trees=trees)


def masks(sealed: SealedReply) -> dict[str, Mask]:
    """Masks of a client, as far as a receiver learns them."""
    found = {name: support_mask(tree) for name, tree in sealed.trees.items()}
    return {name: mask for name, mask in found.items() if mask is not None}


def heaviest(tree: SealedTree) -> float:
    """Return the largest weight of any entry, for the tables."""
    weight = tree.weight
    if isinstance(weight, Mask):
        return float(weight.count > 0)
    return float(weight.flat.max()) if isinstance(weight, Params) else weight
