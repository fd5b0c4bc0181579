"""What a client knows of a run by itself, so that a server that lies about it is refused.

A server's request says how far the run is, which points to measure, and which of the client's
states counts. A client has the plan too: it computes the first two from the message's round, and
keeps a ledger of the third on its own disk. Where replies are summed so that nobody sees one of
them, any of the three would let a server choose what one person's reply looks like beside the
others'.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from vergence.core.files import write_whole
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.serialization import digest, pack, plain
from vergence.deployment.protocol import ClientRequest
from vergence.engine.plan import Plan
from vergence.errors import StateError


def check_plan(errand: ClientRequest, plan: Plan, method: Method) -> None:
    """Refuse a request that the run's plan does not ask.

    Args:
        errand: a turn, with the turns that follow, or an evaluation.
        plan: the client's own.
        method: what is run.

    Raises:
        StateError: its round, progress or points are not those of the plan.
    """
    for message in (errand.message, *errand.then):
        done, turn = message.round, errand.kind == "turn"
        last = has_finish(method) or not turn
        if done > plan.rounds or (done == plan.rounds and not last):
            raise StateError(f"plan: round {done} is asked for, and this run has {plan.rounds}")
        own = plan.progress(done) if turn else 0.0
        # Where nobody waits for a round, several messages' turns are taken at one progress.
        if errand.progress != own and not plan.delivery.asynchronous:
            raise StateError(
                f"plan: round {done} of {plan.rounds} is at progress {own:g}, and the server says "
                f"{errand.progress:g}"
            )
        planned = plan.points_in(done) if turn else plan.points_at(done)
        if not set(errand.points) <= set(planned) or not (turn or errand.points):
            raise StateError(
                f"plan: after {done} rounds {list(planned) or 'nothing'} is measured here, and "
                f"{list(errand.points) or 'nothing'} is asked for"
            )


@dataclass(frozen=True)
class ClientRecord:
    """Record that a client keeps of a run.

    Attributes:
        committed: the file of the state that counts, as far as this client was told; None: none.
        pending: the file that the last turn left, of which it was not told yet whether it counts.
        sum: the sum that its reply is for, "" where none hides it.
        job: which request of the server's the last turn was part of.
        last_round: the last round of which a turn was taken; setup and finish are none.
        models: per round, digests of the trees that this client was measured with.
        measured: per round, digest of the evaluation that was answered.
    """

    committed: str | None = None
    pending: str | None = None
    sum: str = ""
    job: str = ""
    last_round: int = -1
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)

    def knows(self, file: str | None) -> bool:
        """True if a server may name this file as the state that counts."""
        return file == self.committed or (self.pending is not None and file == self.pending)


class ClientLedger:
    """The ledger of one run (of one method and seed) on a client's disk.

    Args:
        folder: where it lies.
        seed: of the run.
        client: whose it is.
        method: what is run; setup and finish are rounds of their own only where it has them.
        plan: the client's own.
        states: whether it is kept of states, too, as they go into sums that hide them.
    """

    def __init__(
        self, folder: Path, seed: int, client: str, method: Method, plan: Plan, states: bool
    ) -> None:
        self.path = folder / f"ledger.seed{seed}.json"
        self.client, self.states, self.ahead = client, states, True
        has_setup = type(method).setup is not Method.setup
        self.outside = {
            ("setup", 0) if has_setup else None,
            ("finish", plan.rounds) if has_finish(method) else None,
        }
        try:
            held = json.loads(self.path.read_text()) if self.path.exists() else {}
            self.record = ClientRecord(**held)
        except (ValueError, TypeError) as error:
            raise StateError(
                f"{self.path} is damaged ({plain(error)}): which state of '{client}' counts is not "
                "known; restore it"
            ) from None

    def begin_turn(
        self, errand: ClientRequest, repeated: Callable[[], bool], given: Callable[[str], bool]
    ) -> ClientRecord:
        """Record to be kept (`keep`) once a turn begins from this state, if it may.

        A server that died goes back to its checkpoint, and asks again what it asked before: what
        is `repeated` may begin from an older state, and changes nothing here. A state counts only
        if the words of its reply were `given` to a sum.

        Raises:
            StateError: another state counts, or the round's model is not what was measured.
        """
        if not self.states:
            return self.record
        record, job = self.record, ".".join(errand.stamp.split(".")[:2])
        self.ahead = record.knows(errand.file)
        fresh = self.ahead and errand.file != record.committed and job != record.job
        if fresh and record.sum and not given(record.sum):
            raise self._stale(errand.file)
        if not self.ahead:
            if repeated():
                return record
            raise self._stale(errand.file)
        if job != record.job:  # within one request a client is asked again and again
            record = replace(record, job=job, committed=errand.file, pending=None, sum="")
        at = errand.message.round
        outside = (errand.stamp.partition(".")[0], at) in self.outside
        if at > record.last_round and not outside:
            for message in (errand.message, *errand.then):
                self._same_model(message)
            models = {done: m for done, m in record.models.items() if int(done) > at}
            record = replace(record, last_round=at, models=models)
        return record

    def _same_model(self, message: Message) -> None:
        """Refuse to train on another model in a round than the client was measured with."""
        at, shown = message.round, self.record.models.get(str(message.round), {})
        now = fingerprints(message.trees) if shown else {}
        if other := [name for name in shown if name in now and now[name] != shown[name]]:
            raise StateError(
                f"model: '{other[0]}' of round {at} is not the one that '{self.client}' was "
                "measured with"
            )

    def record_state(self, file: str, sum: str) -> None:
        """Note which file a turn left its state in, and for which sum; before the answer leaves."""
        if self.states and self.ahead:
            self.keep(replace(self.record, pending=file, sum=sum))

    def record_evaluation(self, errand: ClientRequest) -> None:
        """Note an evaluation before it is answered: one for each that the plan has.

        Raises:
            StateError: another one was answered at this point of the run, or it comes too late.
        """
        record, message, at = self.record, errand.message, str(errand.message.round)
        asked = digest(pack(message), f"{errand.file} {sorted(errand.points)}".encode())
        if record.measured.get(at, asked) != asked:
            raise StateError(
                f"plan: '{self.client}' was measured after {at} rounds before, with another model"
            )
        if at in record.measured:
            return
        if self.states and message.round <= record.last_round:
            raise StateError(
                f"plan: '{self.client}' has trained in round {message.round}, and is measured "
                "before that or not at all"
            )
        if self.states and not record.knows(errand.file):
            raise self._stale(errand.file)
        models = {**record.models, at: fingerprints(message.trees)}
        self.keep(replace(record, measured={**record.measured, at: asked}, models=models))

    def _stale(self, file: str | None) -> StateError:
        known = [name for name in (self.record.committed, self.record.pending) if name is not None]
        return StateError(
            f"state: the server says that {plain(file)} is the state of '{self.client}' that "
            f"counts, and it is {' or '.join(known) or 'none yet'}"
        )

    def keep(self, record: ClientRecord) -> None:
        """Write the record, where it changed; it outlasts a blackout."""
        if record != self.record:
            whole = json.dumps(asdict(record)).encode()
            write_whole(self.path, whole, lasting=True, secret=True)
            self.record = record


def has_finish(method: Method) -> bool:
    """True if a method talks to clients once more after the last round."""
    return type(method).finish is not Method.finish


def fingerprints(trees: Mapping[str, Params]) -> dict[str, str]:
    """SHA-256 of every tree, by name."""
    return {name: digest(tree.flat.contiguous().numpy().data) for name, tree in trees.items()}
