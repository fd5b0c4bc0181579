"""Runner of labs: each of a lab's people takes a turn, and one reply leaves, the sum of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vergence.core.aggregation import Sum
from vergence.core.files import csv_of, growing
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.method import Exposure
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


class LabRunner(ClientRunner):
    """Takes turns, and measures, for all people of a lab; what leaves tells of them together.

    A reply that cannot count is left out inside the lab, as that of a client is by a server: the
    others' sum is what it is where that person was silent. Only the lab's own folder says so. Where
    a protection covers it, it is zeros that count.

    Args:
        silos: who is in which lab.
        worker: takes one person's turn.
        store: of the labs' states; a table of who was left out lies beside them.
        sums: as of every runner.
    """

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
        """Exposure of a lab's replies, which tell how many people share each entry."""
        exposed = super().exposed(verb)
        return replace(exposed, weight="per entry") if exposed.weight == "mask" else exposed

    def turn(self, task: ClientTask, before: ClientState, batch: TaskBatch) -> TurnResult:
        """Take a lab's turn: the weighted sum of its people's replies, and all their states."""
        states = dict(before.state.people) if isinstance(before.state, LabState) else {}
        whole, told, results = Sum(), dict[str, list[float]](), list[ClientResult]()
        exposed, reasons = self.worker.method.exposure[task.message.verb], list[str]()
        sent = {**batch.held, **task.message.trees}
        for person in self.silos.labs[task.client]:
            own = ClientState(states.get(person))
            result, sealed, after = self.worker.turn(replace(task, client=person), own, batch)
            reason = result.status.removeprefix(QUARANTINED) if sealed is None else None
            if sealed is not None:
                reason = unfit(sealed, after, task.message.round, sent, exposed)
            results.append(result)
            if reason is not None:
                sealed = self._covered(person, sealed, sent, exposed, reason)
                after = replace(after, state=self.worker.state(own))
            if sealed is None:
                reasons.append(str(reason))
                self._note(task, person, str(reason))
                continue
            whole.add(sealed)
            if not after.empty:
                states[person] = after.state
            for name, value in sealed.metrics.items():
                told.setdefault(name, []).append(value)
        result = ClientResult(
            task.client,
            examples=sum(one.examples for one in results),
            steps=sum(one.steps for one in results),
            measured=means([one.measured for one in results]),
        )
        if not whole.count:
            why = f"{QUARANTINED}of nobody in it a reply counts, as of the first: {reasons[0]}"
            return TurnResult(replace(result, status=why), None, before)
        metrics = {name: float(np.mean(values)) for name, values in told.items()}
        trees = {n: SealedTree(total, whole.weights[n]) for n, total in whole.totals.items()}
        reply = SealedReply(task.message.round, trees, metrics)
        return TurnResult(result, reply, ClientState(LabState(states), before.told))

    def _covered(
        self,
        person: str,
        sealed: SealedReply | None,
        sent: Mapping[str, Params],
        exposed: Exposure,
        reason: str,
    ) -> SealedReply | None:
        """Zeros in the place of a reply that cannot count, where nobody may learn of that."""
        zeros = None if sealed is None else zeros_for(sealed, sent, exposed)
        if zeros is None or not self.worker.covers(person, zeros.round, reason):
            return None
        return zeros

    def measure(self, task: ClientTask, before: ClientState, points: Sequence[str]) -> ClientResult:
        """Measure a person, or a lab as the mean over its people."""
        people = self.silos.labs.get(task.client)
        if people is None:
            return super().measure(task, own_state(before, task.client), points)
        found = [
            self.worker.evaluate(person, task.message, own_state(before, person), points).measured
            for person in people
        ]
        return ClientResult(task.client, measured=means(found))

    def share(self, state: LabState) -> float | None:
        """Mean personal share of a lab's people, None where the method keeps none."""
        own = map(super().share, state.people.values())
        shares = [share for share in own if share is not None]
        return float(np.mean(shares)) if shares else None

    def _note(self, task: ClientTask, person: str, reason: str) -> None:
        with growing(self.store.folder / left_out(self.store.seed)) as file:
            file.write(csv_of([(task.client, task.message.round, person, reason)]).encode())


def left_out(seed: int) -> str:
    """Name of the table of one seed's replies that a lab left out: lab, round, person, reason."""
    return f"left_out.seed{seed}.csv"


def own_state(kept: ClientState, person: str) -> ClientState:
    """State of one of a lab's people."""
    inside = isinstance(kept.state, LabState)
    return ClientState(kept.state.people.get(person) if inside else None)


def unfit(
    sealed: SealedReply,
    after: ClientState,
    round: int,
    sent: Mapping[str, Params],
    exposed: Exposure,
) -> str | None:
    """Reason why one person's reply, or the state after it, does not count; None if they do."""
    if (reason := fault(sealed, round, sent, exposed)) is not None:
        return reason
    if not after.empty and not Packed(after).finite:
        return "finite: the person's own state holds NaN or infinity"
    return None


def means(measured: Sequence[Measured]) -> dict[str, dict[str, float]]:
    """Means over people of what they were measured by: point -> metric -> mean."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in measured:
        for point, metrics in one.items():
            for name, value in metrics.items():
                found.setdefault(point, {}).setdefault(name, []).append(value)
    return {
        point: {name: float(np.mean(with_number(values))) for name, values in metrics.items()}
        for point, metrics in found.items()
    }
