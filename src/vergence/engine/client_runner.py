"""Runner at the edge of a client: checks a turn's reply, keeps its state, adds replies up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from vergence.core.aggregation import Sum
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, SealedTree, support_mask
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.serialization import Packed
from vergence.engine.client_executor import ClientExecutor, ClientResult, ClientTask
from vergence.engine.records import GroupResult, TaskBatch, TaskCall, TaskReceipt
from vergence.engine.secure_sums import SecureSum, redact
from vergence.engine.split_session import ServerSession
from vergence.engine.storage.client_states import ClientState, ClientStateStore
from vergence.engine.storage.state_journal import StateRef
from vergence.privacy.keyed_noise import NoiseKey
from vergence.privacy.release_log import FOLDER, secret_in
from vergence.privacy.reply_checks import fault
from vergence.privacy.secure_aggregation.packing import RangeFault
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout
from vergence.wire.size import travelled


class ClientRunner:
    """Carries out groups of calls with one worker: guards, counts, keeps states, adds up.

    With `sums`, replies leave as rows of words wherever only their sum is for the server.
    """

    def __init__(
        self, worker: ClientExecutor, store: ClientStateStore, sums: SecureSum | None = None
    ) -> None:
        self.worker, self.store, self.sums = worker, store, sums
        self.fresh: ClientState | None = None

    def carry_out(self, job: TaskBatch, number: int, whole: Sum) -> GroupResult:
        """Do one group; `whole` is an empty sum to add the replies to."""
        calls = job.group(number)
        if job.kind == "evaluate":
            done = [self.worker.do(self._order(call, job, self.kept(call))) for call in calls]
            return GroupResult(
                [TaskReceipt(d.client, measured=numbers(d.metrics)) for d in done], whole
            )
        result = GroupResult([], whole)
        if job.kind == "serve":
            for served in [[call] for call in calls] if job.alone else [calls]:
                receipts, became = ServerSession(self, job, served).hold(job.held)
                result.receipts += receipts
                if became is not None:
                    whole.add(became)
            return result
        for call, before, done in self._turns(calls, job):
            receipt, sealed = self.settle(call, job, before, done)
            result.receipts.append(receipt)
            if sealed is not None and job.reveal == "each":
                result.replies[call.client] = owned(sealed)
            elif sealed is not None:
                whole.add(sealed)
        return result

    def _turns(
        self, calls: Sequence[TaskCall], job: TaskBatch
    ) -> Iterator[tuple[TaskCall, ClientState, ClientResult]]:
        """Take the turns: all at once where they are stacked, else with one reply in memory."""
        if self.worker.together:
            kept = [self.kept(call) for call in calls]
            orders = [self._order(c, job, k) for c, k in zip(calls, kept, strict=True)]
            yield from zip(calls, kept, self.worker.turns(orders), strict=True)
            return
        for call in calls:
            before = self.kept(call)
            yield call, before, self.worker.do(self._order(call, job, before))

    def delivered(self, message: Message) -> Message:
        """Return a message as it reaches a client."""
        return message

    def arrived(self, sealed: SealedReply, known: Mapping[str, Mask]) -> SealedReply:
        """Return a reply as it reaches the server."""
        return sealed

    def kept(self, call: TaskCall) -> ClientState:
        """State that the client keeps; one that never took part starts fresh."""
        fresh = self.kept_fresh()
        return fresh if call.file is None else self.store.read(call.file, fresh.state)

    def kept_fresh(self) -> ClientState:
        """State kept by a client that never took part."""
        if self.fresh is None:
            self.fresh = ClientState(self.worker.method.client(self.worker.task))
        return self.fresh

    def _as_new(self, packed: Packed) -> bool:
        """True if a state is that of a client that never took part, and holds no array."""
        return not packed.arrays and packed.header == Packed(self.kept_fresh()).header

    def _order(self, call: TaskCall, job: TaskBatch, kept: ClientState) -> ClientTask:
        kind = "evaluate" if job.kind == "evaluate" else "turn"
        return ClientTask(
            kind,
            call.client,
            call.message,
            kept.state,
            job.progress,
            job.points,
            owed=kept.owed,
        )

    def turns(
        self,
        order: ClientTask,
        messages: Iterable[Message],
        job: TaskBatch,
        like: Mapping[str, Params],
        number: int,
    ) -> Iterator[ClientResult]:
        """Let a client that is being served take turns; the first is `number` of its session."""
        for message in messages:
            done = self.worker.do(replace(order, message=message))
            order = replace(order, state=done.state, owed=done.owed)
            yield done

    def filed(
        self, call: TaskCall, stamp: str, kept: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """File what a served client keeps when all is said, or return why it does not count."""
        packed = Packed(kept)
        if not packed.finite:
            return None, "finite: the client's own state holds NaN or infinity"
        return self.store.write(call.client, stamp, packed, None, call.spare), None

    def form(self, message: Message, held: Mapping[str, Params]) -> ReplyLayout | None:
        """Layout by which the reply to a message becomes words, None where it leaves as it is."""
        if self.sums is None:
            return None
        method, sent = self.worker.method, {**held, **message.trees}
        if set(method.exposure[message.verb].trees) - set(sent):
            sent = {**method.offer(method.server(self.worker.task), ""), **sent}
        return self.sums.form(method, message.verb, sent)

    def _secret(self, client: str) -> NoiseKey:
        return secret_in(self.store.folder / FOLDER).child("share", self.store.seed, client)

    def _secret_of_zeros(self, call: TaskCall) -> NoiseKey:
        """Secret of the noise on zeros, which is of one verb: two verbs' zeros are alike."""
        return self._secret(call.client).child("zeros", call.message.verb)

    def _to_keep(
        self, call: TaskCall, before: ClientState, after: ClientState, exposed: Exposure
    ) -> Packed | None:
        """State that a turn leaves, None where there is nothing to keep, or nothing new."""
        # Of questions there are thousands, and an answer leaves a teacher as it was.
        answers = bool(exposed.numbered) and call.file is not None
        if after.empty or (answers and unchanged(before, after)):
            return None
        packed = Packed(after)
        return None if call.file is None and self._as_new(packed) else packed

    def settle(
        self, call: TaskCall, job: TaskBatch, before: ClientState, done: ClientResult
    ) -> tuple[TaskReceipt, SealedReply | None]:
        """Guard a reply, count it, and file the new state if it counts."""
        sealed = done.sealed
        if sealed is None:
            return TaskReceipt(call.client, f"quarantined: {done.fault}"), None
        exposed = self.worker.method.exposure[call.message.verb]
        form = self.form(call.message, job.held)
        status, row = "ok", sealed
        sent = {**job.held, **call.message.trees}
        reason = fault(sealed, call.message.round, sent, exposed)
        if reason is None and form is not None and self.sums is not None:
            try:
                row = self.sums.given(form, sealed, partial(self._secret, call.client))
            except RangeFault as why:
                reason = str(why)
        told = before.told if form or reason else {**before.told, **masks(sealed)}
        after = ClientState(done.state, told, done.owed)
        packed = self._to_keep(call, before, after, exposed)
        if reason is None and packed is not None and not packed.finite:
            reason = "finite: the client's own state holds NaN or infinity"
        if reason is not None:
            zeros = zeros_for(sealed, sent, exposed)
            after, kept = before, packed is not None
            if zeros is None or not self.worker.covers(call.client, sealed.round, reason):
                status, packed = f"quarantined: {reason}", None
            else:  # as after any other turn: a state is left where one would have been
                sealed = row = zeros
                if form is not None and self.sums is not None:
                    own = partial(self._secret_of_zeros, call)
                    row = self.sums.given(form, zeros, own)
                reason, packed = None, Packed(before) if kept else None
        mask = self.worker.method.personal(after.state)
        share = None if mask is None or form else mask.fraction
        filed = None
        if packed is not None:
            filed = self.store.write(call.client, job.stamp, packed, share, call.spare)
        receipt = TaskReceipt(
            call.client,
            status,
            {t: travelled(tree, before.told.get(t)) for t, tree in sealed.trees.items()},
            {t: heaviest(tree) for t, tree in sealed.trees.items()},
            done.examples,
            done.steps,
            {} if reason else sealed.metrics,
            numbers(done.metrics),
            filed,
            share,
        )
        return redact(receipt, form) if form else receipt, None if reason else row


def zeros_for(
    sealed: SealedReply, sent: Mapping[str, Params], exposed: Exposure
) -> SealedReply | None:
    """Reply of zeros in the place of another, None where nobody knows how long it would be."""
    like = {**{name: tree.total for name, tree in sealed.trees.items()}, **sent}
    if not set(exposed.trees) <= set(like):
        return None
    trees = {name: like[name].like(torch.zeros_like(like[name].flat)) for name in exposed.trees}
    return SealedReply(sealed.round, {name: SealedTree(t, 1.0) for name, t in trees.items()}, {})


def unchanged(before: ClientState, after: ClientState) -> bool:
    """True if a turn left everything as it was, as a teacher's does that only answers."""
    told = {*before.told, *after.told}
    return (
        after.state is before.state
        and after.owed is before.owed
        and all(after.told.get(name) is before.told.get(name) for name in told)
    )


def numbers(measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metrics as plain numbers, whatever a task calculates with."""
    return {point: {n: float(v) for n, v in found.items()} for point, found in measured.items()}


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
