"""Runner of clients' tasks: runs turns, checks replies, writes states to files, adds replies up.

Used in `deployment` and `engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

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
from vergence.wire.size import bytes_of_tree

NOT_FINITE = "finite: the client's own state holds NaN or infinity"


class SettledReply(NamedTuple):
    """Checked reply of a client's turn, and the client's state after the turn.

    Attributes:
        reply: the reply, or the zeros that replace it.
        outgoing: the reply in the form in which it leaves the client. For a secure sum it is a
            vector of 64-bit integers.
        state: the client's state after the turn; the old state if the reply does not count.
        packed: the bytes of the state file to write; None: no file is written.
        fault: why the reply does not count; None: it counts.
    """

    reply: SealedReply
    outgoing: SealedReply
    state: ClientState
    packed: Packed | None
    fault: str | None


class ClientRunner:
    """Carries out groups of clients' tasks with one executor.

    Attributes:
        worker: the executor, which runs single turns.
        store: folder of clients' states.
        sums: secure sums. With them, a reply that the server may only see in a sum leaves the
            client as a vector of integers. None: no secure sums.
        channel: what messages, replies and states pass through, such as a conversion to bytes.
        prepares: whether people may be trained, and evaluated, together.
    """

    prepares = True

    def __init__(
        self,
        worker: ClientExecutor,
        store: ClientStateStore,
        sums: SecureSum | None = None,
        channel: Channel = DIRECT,
    ) -> None:
        self.worker, self.store, self.sums, self.channel = worker, store, sums, channel

    def carry_out(self, batch: TaskBatch, number: int, whole: Sum) -> GroupResult:
        """Carry out group `number` of a batch, and add its replies to the empty sum `whole`."""
        tasks = batch.group(number)
        if batch.kind == "evaluate":
            if self.prepares and self.worker.prepares:
                states = [self.state_of(task) for task in tasks]
                return GroupResult(self.worker.evaluate_all(tasks, states, batch.points), whole)
            scores = [self.measure(task, self.state_of(task), batch.points) for task in tasks]
            return GroupResult(scores, whole)
        group = GroupResult([], whole)
        if batch.kind == "serve":
            for served in [[task] for task in tasks] if batch.alone else [tasks]:
                results, trained = ServerSession(self, batch, served).hold(batch.templates)
                group.results += results
                if trained is not None:
                    whole.add(trained)
            return group
        for task, before, turn in self._turns(tasks, batch):
            result, reply = self.settle(task, batch, before, turn)
            group.results.append(result)
            if reply is not None and batch.reveal == "each":
                group.replies[task.client] = owned(reply)
            elif reply is not None:
                whole.add(reply)
        return group

    def _turns(
        self, tasks: Sequence[ClientTask], batch: TaskBatch
    ) -> Iterator[tuple[ClientTask, ClientState, TurnResult]]:
        """Run the turns of a group; yield each task, the client's state before it, and the result.

        The turns run at once if clients are stacked or a GPU trains; otherwise one by one.
        """
        if self.prepares and self.worker.together:
            states = [self.state_of(task) for task in tasks]
            yield from zip(tasks, states, self.worker.turns(tasks, states, batch), strict=True)
            return
        # One by one, only one reply is in memory at a time.
        for task in tasks:
            before = self.state_of(task)
            yield task, before, self.turn(task, before, batch)

    def turn(self, task: ClientTask, before: ClientState, batch: TaskBatch) -> TurnResult:
        """Run the turn of one client."""
        return self.worker.turn(task, before, batch)

    def measure(self, task: ClientTask, before: ClientState, points: Sequence[str]) -> ClientResult:
        """Evaluate one client at these evaluation points."""
        return self.worker.evaluate(task.client, task.message, before, points)

    def exposed(self, verb: str) -> Exposure:
        """Return what the method declares about clients' replies to a kind of request (`verb`)."""
        return self.worker.method.exposure[verb]

    def state_of(self, task: ClientTask) -> ClientState:
        """Return the client's stored state, or a fresh one if it never took part."""
        fresh = self.fresh
        return fresh if task.file is None else self.store.read(task.file, fresh.state)

    @cached_property
    def fresh(self) -> ClientState:
        """The state of a client that never took part."""
        return self.store.placed(ClientState(self.worker.method.client(self.worker.task)))

    def turns(
        self,
        task: ClientTask,
        state: ClientState,
        messages: Iterable[Message],
        batch: TaskBatch,
        like: Mapping[str, Params],
        number: int,
    ) -> Iterator[TurnResult]:
        """Run turns of one client in split learning, one for each message; yield their results.

        `number` is the number of the first of these turns in the client's session, from 1.
        """
        for message in messages:
            turn = self.worker.turn(replace(task, message=message), state, batch)
            state = turn.state
            yield turn

    def answer(self, ask: object, progress: float) -> object:
        """Answer a request of the method's server half, such as an optimiser step."""
        return self.worker.answer(ask, progress)

    def file_state(
        self, task: ClientTask, stamp: str, state: ClientState
    ) -> tuple[StateRef | None, str | None]:
        """Write a client's state to a file after its session of split learning.

        Returns:
            A reference to the file and None; or None and the reason why the session does not count.
        """
        packed = Packed(state)
        if not packed.finite:
            return None, NOT_FINITE
        return self.store.write(task.client, stamp, packed, None, task.spare), None

    def layout(self, message: Message, templates: Mapping[str, Params]) -> ReplyLayout | None:
        """Return how the reply to a message is encoded as integers for a secure sum.

        None: the reply is not encoded.
        """
        method, task, verb = self.worker.method, self.worker.task, message.verb
        if self.sums is None or method.exposure[verb].reveal == "each":
            return None
        trees = {**templates, **message.trees}
        like = reply_trees(method, verb, trees, lambda: method.server(task))
        return self.sums.form(method, verb, like)

    def _state_to_file(
        self, task: ClientTask, before: ClientState, after: ClientState, exposed: Exposure
    ) -> Packed | None:
        """Return the state to write to a file after a turn.

        None: no file is needed, as the state is empty, unchanged, or the same as a fresh one.
        """
        # A teacher answers thousands of questions and stays the same: writing its state each time
        # would cost more than the answers.
        answers = bool(exposed.numbered) and task.file is not None
        if after.empty or (answers and unchanged(before, after)):
            return None
        packed = Packed(after)
        # The state of a client that took part for the first time, holds no array and equals a fresh
        # one can be made again, so that no file is needed.
        as_new = not packed.arrays and packed.header == Packed(self.fresh).header
        return None if task.file is None and as_new else packed

    def share(self, state: object) -> float | None:
        """Return the fraction of a client's parameters that are personal; None: it has no mask."""
        mask = self.worker.method.personal(state)
        return None if mask is None else mask.fraction

    def settle(
        self, task: ClientTask, batch: TaskBatch, before: ClientState, turn: TurnResult
    ) -> tuple[ClientResult, SealedReply | None]:
        """Check a client's reply; if the reply counts, write the client's new state to a file.

        Returns:
            The result for the tables; and the reply in the form in which it leaves the client, or
            None if the reply does not count.
        """
        if turn.sealed is None:
            return turn.result, None
        layout = self.layout(task.message, batch.templates)
        templates = {**batch.templates, **task.message.trees}
        settled = self._check(task, layout, templates, before, turn.sealed, turn.state)
        if settled.fault is not None:
            settled = self._replace_with_zeros(task, layout, templates, before, settled)
        reply, state = settled.reply, settled.state
        # Under secure sums the share of personal entries is hidden like everything else.
        share = None if layout else self.share(state.state)
        packed, stamp = settled.packed, batch.stamp
        filed = packed and self.store.write(task.client, stamp, packed, share, task.spare)
        result = replace(
            turn.result,
            status="ok" if settled.fault is None else f"{QUARANTINED}{settled.fault}",
            up={
                t: bytes_of_tree(tree, before.known_masks.get(t)) for t, tree in reply.trees.items()
            },
            weight={t: heaviest(tree) for t, tree in reply.trees.items()},
            metrics=reply.metrics if settled.fault is None else {},
            filed=filed,
            share=share,
        )
        if layout is not None:
            result = redact(result, layout)
        if settled.fault is not None or layout is not None:
            return result, settled.outgoing if settled.fault is None else None
        return result, self.channel.reply(settled.outgoing, before.known_masks)

    def _check(
        self,
        task: ClientTask,
        layout: ReplyLayout | None,
        templates: Mapping[str, Params],
        before: ClientState,
        reply: SealedReply,
        after: ClientState,
    ) -> SettledReply:
        """Check a reply and the state after it; encode the reply if it goes into a secure sum."""
        exposed, outgoing = self.exposed(task.message.verb), reply
        reason = fault(reply, task.message.round, templates, exposed)
        if reason is None and layout is not None and self.sums is not None:
            try:
                outgoing = self.sums.encode(layout, reply, partial(self._noise_key, task, layout))
            except RangeFault as why:
                reason = str(why)
        # In a secure sum nobody sees this client's mask, so the server knows none of it.
        known = before.known_masks if layout or reason else {**before.known_masks, **masks(reply)}
        state = ClientState(
            self.channel.state(after.state, self.store.records), known, after.residuals
        )
        packed = self._state_to_file(task, before, state, exposed)
        # A model that diverged on the client would spoil each of its later rounds.
        if reason is None and packed is not None and not packed.finite:
            reason = NOT_FINITE
        return SettledReply(reply, outgoing, state, packed, reason)

    def _replace_with_zeros(
        self,
        task: ClientTask,
        layout: ReplyLayout | None,
        templates: Mapping[str, Params],
        before: ClientState,
        refused: SettledReply,
    ) -> SettledReply:
        """Replace a refused reply by zeros if a protection hides faults from the server.

        Without such a protection the reply does not count. In both cases the client's state stays
        as it was before the turn.
        """
        verb, reason = task.message.verb, str(refused.fault)
        zeros = zeros_for(refused.reply, templates, self.exposed(verb))
        if zeros is None or not self.worker.covers(task.client, refused.reply.round, reason):
            return refused._replace(state=before, packed=None)
        outgoing: SealedReply = zeros
        if layout is not None and self.sums is not None:
            # Zeros for two verbs are equal, and equal replies would get the same noise.
            outgoing = self.sums.encode(
                layout, zeros, lambda: self._noise_key(task, layout).child("zeros", verb)
            )
        # A state is filed if it would have been after any other turn: the server knows the files,
        # and a missing one would tell it of the fault.
        packed = Packed(before) if refused.packed is not None else None
        return SettledReply(zeros, outgoing, before, packed, None)

    def _noise_key(self, task: ClientTask, form: ReplyLayout | None) -> NoiseKey:
        """Return the secret key of the noise that a client adds to its reply to one request."""
        key, table = self.worker.noise_key(task.client), self.worker.method.exposure
        summed = [exposed for exposed in table.values() if exposed.reveal == "aggregate"]
        if form is None or (len(summed) == 1 and not form.exposed.numbered):
            return key
        # Replies to two questions of a round may be equal, and must not get the same noise: the
        # difference of both sums would show everything. Where a round asks one question the key
        # has no number of it, so that runs of earlier versions repeat.
        return key.child("sum", request_of(form, task.message))


def unchanged(before: ClientState, after: ClientState) -> bool:
    """Return whether a turn left the client's state unchanged; compares objects by identity."""
    # By identity: a comparison of all entries would cost as much as writing them.
    return (
        after.state is before.state
        and after.residuals is before.residuals
        and all(
            after.known_masks.get(name) is before.known_masks.get(name)
            for name in {*before.known_masks, *after.known_masks}
        )
    )


def owned(sealed: SealedReply) -> SealedReply:
    """Return a reply whose parameters are copies, with memory of their own."""
    # Its tensors may lie in the mapped file of a client's state, which the next turn overwrites.
    trees = {
        name: replace(
            tree,
            total=tree.total.copy(),
            weight=tree.weight.copy() if isinstance(tree.weight, Params) else tree.weight,
        )
        for name, tree in sealed.trees.items()
    }
    return replace(sealed, trees=trees)


def masks(sealed: SealedReply) -> dict[str, Mask]:
    """Return the masks that a client's reply tells its receiver, by tree."""
    supports = {name: support_mask(tree) for name, tree in sealed.trees.items()}
    return {name: mask for name, mask in supports.items() if mask is not None}


def heaviest(tree: SealedTree) -> float:
    """Return the largest aggregation weight of any entry of a tree, for the tables."""
    weight = tree.weight
    if isinstance(weight, Mask):
        return float(weight.count > 0)
    return float(weight.flat.max()) if isinstance(weight, Params) else weight
