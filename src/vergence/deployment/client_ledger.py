"""A client's own ledger of a run, by which a server that lies about the run is refused.

A server's request says how far the run is, which points to measure, and which of the client's
states counts. A client has the plan too: it computes the first two from the message's round, and
keeps a ledger of the third on its own disk. Where replies are summed so that nobody sees one of
them, any of the three would let a server choose what one person's reply looks like beside the
others'.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from vergence.core.files import parse_json, write_whole
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import called, plural
from vergence.core.params import Params
from vergence.core.serialization import digest, pack, plain
from vergence.deployment.protocol import ClientRequest, steps
from vergence.engine.plan import Plan
from vergence.engine.storage.client_states import file_of
from vergence.errors import StateError


def check_plan(request: ClientRequest, plan: Plan, method: Method) -> None:
    """Refuse a request that the run's plan does not ask.

    Args:
        request: a turn, with the turns that follow, or an evaluation.
        plan: the client's own.
        method: what is run.

    Raises:
        StateError: its round, progress or points are not those of the plan.
    """
    for message in (request.message, *request.then):
        done, turn = message.round, request.kind == "turn"
        # A method may exchange messages with clients once more after the last round.
        last = type(method).finish is not Method.finish or not turn
        if done > plan.rounds or (done == plan.rounds and not last):
            raise StateError(f"plan: round {done} is asked for, and this run has {plan.rounds}")
        own = plan.progress(done) if turn else 0.0
        # Where nobody waits for a round, several messages' turns are taken at one progress.
        if request.progress != own and not plan.delivery.asynchronous:
            raise StateError(
                f"plan: round {done} of {plan.rounds} is at progress {own:g}, and the server says "
                f"{request.progress:g}"
            )
        planned = plan.points_in(done) if turn else plan.points_at(done)
        if not set(request.points) <= set(planned) or not (turn or request.points):
            raise StateError(
                f"plan: after {plural(done, 'round')} {list(planned) or 'nothing'} is measured "
                f"here, and {list(request.points) or 'nothing'} is asked for"
            )


@dataclass(frozen=True)
class ClientRecord:
    """Record that a client keeps of a run.

    Attributes:
        committed: the file of the state that counts, as far as this client was told; None: none.
        pending: the file that the last turn left, of which it was not told yet whether it counts.
        sum: the sum that its reply is for, "" where none hides it.
        job: the last turn's round, and which of the server's jobs it says the turn is part of.
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
        self.seed, self.method, self.rounds = seed, method, plan.rounds
        try:
            held = parse_json(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
            self.record = ClientRecord(**held)
        except (ValueError, TypeError) as error:
            raise StateError(
                f"{self.path} is damaged ({plain(error)}): which state of '{client}' counts is not "
                "known; restore it"
            ) from None

    def begin_turn(
        self, request: ClientRequest, sums: Sequence[str], given: Callable[[str], bool]
    ) -> ClientRecord:
        """Record to be kept (`keep`) once a turn begins from this state, if it may.

        A server that died goes back to its checkpoint, and asks again what it asked before: if all
        words of such a turn were `given`, it may begin from an older state or be of an older round,
        and changes nothing here. A state counts only if the words of its reply were `given`, too.

        Args:
            request: the turn, with those that follow.
            sums: per turn, the sum that its reply is for, "" where none hides it.
            given: tells whether words were given to a sum.

        Raises:
            StateError: another state counts, the round is over, its model is not what was measured,
                or the stamp is another part's.
        """
        if not self.states:
            return self.record
        self._check_part(request, sums)
        record, at = self.record, request.message.round
        outside, over = self._outside(request.message), at < record.last_round
        repeated = all(given(name) for name in sums)
        self.ahead = record.knows(request.file)
        fresh = self.ahead and request.file != record.committed
        if fresh and record.sum and not given(record.sum):
            raise self._stale(request.file)
        if not (self.ahead or repeated):
            raise self._stale(request.file)
        if over and not repeated:
            raise StateError(
                f"plan: '{self.client}' has trained in round {record.last_round}, and round {at} "
                "is over: only what was asked and given before may be asked again"
            )
        if not (outside and repeated):  # setup may be asked again after the first measurement
            for message in (request.message, *request.then):
                self._same_model(message)
        if over or not self.ahead:
            self.ahead = False
            self._check_pending(request, sums)
            return record
        job = f"{at} {'.'.join(request.stamp.split('.')[:2])}"
        # A client that is served is asked again and again: all of it counts, or nothing does.
        if job != record.job or record.sum or any(sums):
            record = replace(record, job=job, committed=request.file, pending=None, sum="")
        if at > record.last_round and not outside:
            models = {done: m for done, m in record.models.items() if int(done) >= at}
            record = replace(record, last_round=at, models=models)
        return record

    def _outside(self, message: Message) -> bool:
        """True if a message is one of setup or finish, which belong to no round."""
        if message.round == self.rounds:  # rounds are numbered from 0
            return True
        return message.round == 0 and message.verb in self.method.setup_verbs

    def _check_part(self, request: ClientRequest, sums: Sequence[str]) -> None:
        """Refuse a turn that is not of the part of the run that its stamp names.

        By its stamp its state's file is called: one of another part could lie over a state that
        counts. Turns that follow another in one exchange can only be those that no sum hides: of
        the others each has to wait until its words were given.
        """
        said, first = request.stamp.partition(".")[0], request.message
        for message in (first, *request.then):
            own = {str(message.round)}
            if self._outside(message):
                own |= {"setup" if message.round == 0 else "finish"}
            if said not in own:
                raise StateError(
                    f"stamp: '{plain(request.stamp)}' is of another part of the run than "
                    f"'{message.verb}' in round {message.round}; name it {' or '.join(sorted(own))}"
                )
            if message.round == self.rounds and message.verb not in self.method.finish_verbs:
                raise StateError(
                    f"plan: '{message.verb}' is asked for after the last round, and "
                    f"{called(self.method)}.finish_verbs names "
                    f"{', '.join(self.method.finish_verbs) or 'none'}"
                )
        if request.then and (any(sums) or any(m.round != first.round for m in request.then)):
            raise StateError(
                f"plan: turns of several rounds, or whose replies go into sums, are asked for at "
                f"once ('{first.verb}' and {len(request.then)} more); ask for one at a time"
            )

    def _check_pending(self, request: ClientRequest, sums: Sequence[str]) -> None:
        """Refuse a turn that goes back where its state would lie over the last turn's."""
        record = self.record
        for step, name in zip(steps(request), sums, strict=True):
            file = file_of(self.seed, self.client, step.stamp)
            if file == record.pending and name != record.sum:
                raise StateError(
                    f"stamp: '{plain(step.stamp)}' is of the last turn of '{self.client}', which "
                    "was another; take a new one"
                )

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

    def record_evaluation(self, request: ClientRequest) -> None:
        """Note an evaluation before it is answered: one for each that the plan has.

        Raises:
            StateError: another one was answered at this point of the run, or it comes too late.
        """
        record, message, at = self.record, request.message, str(request.message.round)
        asked = digest(pack(message), f"{request.file} {sorted(request.points)}".encode())
        if record.measured.get(at, asked) != asked:
            raise StateError(
                f"plan: '{self.client}' was measured after {plural(int(at), 'round')} before, "
                "with another model"
            )
        if at in record.measured:
            return
        if self.states and message.round <= record.last_round:
            raise StateError(
                f"plan: '{self.client}' has trained in round {message.round}, and is measured "
                "before that or not at all"
            )
        if self.states and not record.knows(request.file):
            raise self._stale(request.file)
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


def fingerprints(trees: Mapping[str, Params]) -> dict[str, str]:
    """SHA-256 of every tree, by name."""
    return {name: digest(tree.flat.contiguous().numpy().data) for name, tree in trees.items()}
