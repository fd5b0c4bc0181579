"""Runner of labs: each person in a lab takes a turn, and the lab sends the sum of their replies.

Used by `engine.round_loop`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vergence.core.aggregation import Sum
from vergence.core.files import csv_of, open_for_append
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.naming import by_key
from vergence.core.params import Params
from vergence.core.serialization import Packed
from vergence.engine.client_executor import ClientExecutor, TurnResult
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import (
    QUARANTINED,
    ClientResult,
    ClientState,
    ClientTask,
    LabState,
    TaskBatch,
)
from vergence.engine.secure_sums import SecureSum
from vergence.engine.silos import Silos
from vergence.engine.storage.client_states import ClientStateStore
from vergence.metrics.intervals import with_number
from vergence.privacy.reply_checks import fault, zeros_for

Measured = Mapping[str, Mapping[str, float]]
"""Evaluation point -> metric -> value."""


class LabRunner(ClientRunner):
    """Runs the turns of all people of a lab (a client with several people), and evaluates them.

    Only sums and means leave the lab. A person's faulty reply is left out of the lab's sum; only a
    table in the lab's own folder records this. If a protection hides faults from the server, zeros
    replace the faulty reply and count.

    Args:
        silos: which people are in which lab.
        worker: runs one person's turn.
        store: folder of the labs' states, and of the table of replies that were left out.
        sums: secure sums over labs; None: the server sees each lab's sum.
    """

    # A person's state is part of its lab's.
    prepares = False

    def __init__(
        self,
        silos: Silos,
        worker: ClientExecutor,
        store: ClientStateStore,
        sums: SecureSum | None = None,
    ) -> None:
        super().__init__(worker, store, sums)
        self.silos = silos

    def exposed(self, verb: str) -> Exposure:
        """Return what is declared about a lab's replies to a kind of request (`verb`)."""
        # The sum of masks says how many of the lab's people share each entry: no mask any more.
        exposed = super().exposed(verb)
        return replace(exposed, weight="per entry") if exposed.weight == "mask" else exposed

    def turn(self, task: ClientTask, before: ClientState, batch: TaskBatch) -> TurnResult:
        """Run the turns of a lab's people; return the weighted sum of their replies.

        The result's state holds the new states of these people.
        """
        states = dict(before.state.people) if isinstance(before.state, LabState) else {}
        whole, values_of, results = Sum(), dict[str, list[float]](), list[ClientResult]()
        exposed, reasons = self.worker.method.exposure[task.message.verb], list[str]()
        sent = {**batch.templates, **task.message.trees}
        for person in self.silos.labs[task.client]:
            own = ClientState(states.get(person))
            result, sealed, after = self.worker.turn(replace(task, client=person), own, batch)
            reason = (
                result.status.removeprefix(QUARANTINED)
                if sealed is None
                else unfit(sealed, after, task.message.round, sent, exposed)
            )
            results.append(result)
            # The person goes on from the state before this turn.
            if reason is not None:
                sealed = self._zeros(person, sealed, sent, exposed, reason)
                after = replace(after, state=self.worker.state(own))
            if sealed is None:
                reasons.append(str(reason))
                self._note(task, person, str(reason))
                continue
            whole.add(sealed)
            if not after.empty:
                states[person] = after.state
            for name, value in sealed.metrics.items():
                values_of.setdefault(name, []).append(value)
        result = ClientResult(
            task.client,
            examples=sum(one.examples for one in results),
            steps=sum(one.steps for one in results),
            measured=means([one.measured for one in results]),
        )
        if not whole.count:
            why = f"{QUARANTINED}of nobody in it a reply counts, as of the first: {reasons[0]}"
            return TurnResult(replace(result, status=why), None, before)
        metrics = {name: float(np.mean(values)) for name, values in values_of.items()}
        sums = whole.aggregate({}, {})
        trees = {n: SealedTree(total, sums.weights[n]) for n, total in sums.totals.items()}
        reply = SealedReply(task.message.round, trees, metrics)
        return TurnResult(result, reply, ClientState(LabState(states), before.known_masks))

    def _zeros(
        self,
        person: str,
        sealed: SealedReply | None,
        sent: Mapping[str, Params],
        exposed: Exposure,
        reason: str,
    ) -> SealedReply | None:
        """Return the zeros that replace a faulty reply; None: the reply is left out of the sum."""
        zeros = None if sealed is None else zeros_for(sealed, sent, exposed)
        if zeros is None or not self.worker.covers(person, zeros.round, reason):
            return None
        return zeros

    def measure(self, task: ClientTask, before: ClientState, points: Sequence[str]) -> ClientResult:
        """Evaluate a person, or a lab as the mean over its people."""
        people = self.silos.labs.get(task.client)
        if people is None:
            return super().measure(task, own_state(before, task.client), points)
        measured = [
            self.worker.evaluate(person, task.message, own_state(before, person), points).measured
            for person in people
        ]
        return ClientResult(task.client, measured=means(measured))

    def share(self, state: object) -> float | None:
        """Return the mean fraction of personal parameters over a lab's people; None: no masks."""
        people = state.people.values() if isinstance(state, LabState) else ()
        shares = [share for share in map(super().share, people) if share is not None]
        return float(np.mean(shares)) if shares else None

    def _note(self, task: ClientTask, person: str, reason: str) -> None:
        """Append a left-out reply to a table that only the lab's operator sees."""
        with open_for_append(self.store.folder / left_out(self.store.seed)) as file:
            file.write(csv_of([(task.client, task.message.round, person, reason)]).encode())


def left_out(seed: int) -> str:
    """Return the name of a lab's file of left-out replies (lab, round, person, reason)."""
    return f"left_out.seed{seed}.csv"


def own_state(lab: ClientState, person: str) -> ClientState:
    """Return the state of one of a lab's people; `LabRunner.measure` calls this."""
    return ClientState(lab.state.people.get(person) if isinstance(lab.state, LabState) else None)


def unfit(
    sealed: SealedReply,
    after: ClientState,
    round: int,
    sent: Mapping[str, Params],
    exposed: Exposure,
) -> str | None:
    """Return why one person's reply, or the state after it, does not count; None: both count."""
    reason = fault(sealed, round, sent, exposed)
    if reason is None and not after.empty and not Packed(after).finite:
        reason = "finite: the person's own state holds NaN or infinity"
    return reason


def means(measured: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Average metrics over people: return evaluation point -> metric -> mean.

    NaN values are left out; a mean of nothing but NaN is NaN.
    """
    values_of = by_key(each for person in measured for each in person.items())
    # A metric that is not defined for a person's samples is NaN, and no part of the mean.
    return {
        point: {
            name: float(np.mean(with_number(values)))
            for name, values in by_key(pair for own in people for pair in own.items()).items()
        }
        for point, people in values_of.items()
    }
