"""A client's own ledger of a run, by which the client refuses a server that lies about the run.

A server's request says how far the run is, at which points of the run to evaluate, and from which
of the client's states to start. The client computes progress and points itself, from the plan and
the message's round. It records its states in a ledger on its own disk. Secure sums hide a single
reply among many: a server that lied to one client about progress, points or state could make that
client's reply stand out.

Used by `deployment.client_node`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from vergence.core.files import parse_json, write_whole
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.naming import plural, registry_name
from vergence.core.params import Params
from vergence.core.serialization import digest, pack, printable
from vergence.deployment.protocol import ClientRequest, single_turns
from vergence.engine.plan import Plan
from vergence.engine.storage.client_states import file_of
from vergence.errors import StateError


def check_plan(request: ClientRequest, plan: Plan, method: Method) -> None:
    """Refuse a request that is not part of the run's plan.

    Args:
        request: a request for one or several turns (each handles one message), or an evaluation.
        plan: the client's own copy of the plan.
        method: the method of the run.

    Raises:
        StateError: the request's round, progress or evaluation points are not those of the plan, or
            a turn after the last round is not one of the method's finish.
    """
    for message in (request.message, *request.then):
        done, turn = message.round, request.kind == "turn"
        finishing = message.verb in method.finish_verbs
        # In asynchronous delivery a message's round is the number of the client's turn, and a fast
        # client takes more turns than there are rounds.
        any_time = turn and plan.delivery.asynchronous and not finishing
        last = plan.most_turns if any_time else plan.rounds
        # A server could otherwise go on asking after the run is over, and have as many replies of
        # each person as it likes.
        if not 0 <= done <= last:
            raise StateError(f"plan: round {done} is asked for, and this run has {last}")
        # After the last round a method may ask what its finish asks, and no further training.
        if turn and done == last and not finishing:
            raise StateError(
                f"plan: '{message.verb}' is asked for after the last round, and "
                f"{registry_name(method)}.finish_verbs names "
                f"{', '.join(method.finish_verbs) or 'none'}"
            )
        own = plan.progress(done) if turn else 0.0
        # The version that the turn begins with is not known here, but there must be one.
        if any_time and 0 <= request.progress < 1:
            own = plan.progress(round(request.progress * plan.rounds))
        # Progress sets learning rates and other schedules: a wrong one, told to one client, would
        # make its reply unlike the others'.
        if request.progress != own:
            raise StateError(
                f"plan: round {done} of {plan.rounds} is at progress {own:g}, and the server says "
                f"{request.progress:g}"
            )
        # Each point is measured with another model: an unplanned one would let a server evaluate a
        # model of its choice on this person's data.
        inside = plan.points_in(plan.rounds - 1 if any_time else done)
        planned = inside if turn else plan.points_at(done)
        if not set(request.points) <= set(planned) or not (turn or request.points):
            raise StateError(
                f"plan: after {plural(done, 'round')} {list(planned) or 'nothing'} is measured "
                f"here, and {list(request.points) or 'nothing'} is asked for"
            )


@dataclass(frozen=True)
class ClientRecord:
    """What a client records about a run. A turn is the client's work on one message.

    Attributes:
        committed: file of the client's valid state, according to the server's requests; None: the
            client has no state yet.
        pending: file of the state that the last turn wrote; the server's next request shows whether
            this state is valid.
        sum: name of the secure sum that gets the last turn's reply; "" if there is none.
        job: the last turn's round, and the first two parts of its stamp (its name in the run).
        last_round: last round in which the client took a turn; setup and finish are no rounds.
        models: for each round, digests of the trees (sets of parameters) with which this client was
            evaluated.
        measured: for each round, the digest of the evaluation request that was answered.
        saves: number of changes of this record so far; a smaller number than before shows that the
            file was put back from a copy.
    """

    committed: str | None = None
    pending: str | None = None
    sum: str = ""
    job: str = ""
    last_round: int = -1
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)
    saves: int = 0

    def may_count(self, file: str | None) -> bool:
        """Return whether a server may name this state file as the one from which a turn starts."""
        # While no new state is pending, `pending` is None, as is the file of a client without a
        # state: without this test a server could start a client anew although it has a state.
        return file == self.committed or (self.pending is not None and file == self.pending)


class ClientLedger:
    """Ledger of one run (one method and one seed) on a client's disk.

    Args:
        folder: the client's folder of the run.
        seed: seed of the run.
        client: the client's name.
        method: the method of the run, which says whether there is a setup or a finish.
        plan: the client's own copy of the plan.
        states: whether the ledger also records the client's states. This is needed if replies go
            into secure sums.
    """

    def __init__(
        self, folder: Path, seed: int, client: str, method: Method, plan: Plan, states: bool
    ) -> None:
        self.path = folder / f"ledger.seed{seed}.json"
        self.client, self.states, self.ahead = client, states, True
        self.seed, self.method, self.rounds = seed, method, plan.rounds
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else "{}"
            self.record = ClientRecord(**parse_json(text))
        except (ValueError, TypeError) as error:
            raise StateError(
                f"{self.path} is damaged ({printable(error)}): which state of '{client}' counts is "
                "not known; start a new run, as a copy would forget what was answered since"
            ) from None

    def begin_turn(
        self, request: ClientRequest, sums: Sequence[str], has_contributed: Callable[[str], bool]
    ) -> ClientRecord:
        """Check a request for turns before they are carried out; return the record to `save`.

        A server that was restarted goes back to its checkpoint and repeats its requests. A turn may
        start from an older state, or belong to an older round, only if it is a repetition: its
        secure sum already contains this client's reply. The ledger then stays unchanged. A new
        state is valid only when the sum contains the reply that belongs to the state.

        Args:
            request: a request for one or several turns (each handles one message).
            sums: for each turn, the name of the secure sum that gets its reply; "" if none.
            has_contributed: returns whether the sum of a given name contains this client's reply.

        Raises:
            StateError: the request names a state that is not valid, the round is over, the model is
                not the one that was evaluated, or the stamp (the turn's name) belongs to another
                part of the run.
        """
        if not self.states:
            return self.record
        self._check_part(request, sums)
        record, at = self.record, request.message.round
        outside, over = self._is_setup_or_finish(request.message), at < record.last_round
        repeated = all(has_contributed(name) for name in sums)
        self.ahead = record.may_count(request.file)
        fresh = self.ahead and request.file != record.committed
        # A server could otherwise have a turn taken, never open its words, and ask again from the
        # new state: the next reply would contain two turns' training, and no sum the first reply.
        if fresh and record.sum and not has_contributed(record.sum):
            raise self._wrong_state(request.file)
        if not (self.ahead or repeated):
            raise self._wrong_state(request.file)
        # Going back to a round that is over would give a server a second, different reply of it;
        # with the others' replies alike, the difference of the two sums is this person's.
        if over and not repeated:
            raise StateError(
                f"plan: '{self.client}' has trained in round {record.last_round}, and round {at} "
                "is over: only what was asked and given before may be asked again"
            )
        # Setup has round 0 as well, and a restarted server may repeat it after the first evaluation
        # of round 0, with another model.
        if not (outside and repeated):
            for message in (request.message, *request.then):
                self._check_model(message)
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

    def _is_setup_or_finish(self, message: Message) -> bool:
        """Return whether a message belongs to the method's setup or finish, and to no round."""
        if message.round == self.rounds:  # finish: rounds are numbered from 0
            return True
        return message.round == 0 and message.verb in self.method.setup_verbs

    def _check_part(self, request: ClientRequest, sums: Sequence[str]) -> None:
        """Refuse a turn whose stamp names another part of the run than its messages do.

        A part is a round, the setup or the finish. A stamp is the turn's name in the run; it
        becomes part of the state file's name:
        with a wrong stamp, a turn's state could overwrite the valid state. A request for several
        turns is also refused if their replies go into secure sums, as each turn must wait until the
        previous turn's reply was summed.

        Raises:
            StateError: the request is refused for one of these reasons.
        """
        part, first = request.stamp.partition(".")[0], request.message
        for message in (first, *request.then):
            own = {str(message.round)}
            if self._is_setup_or_finish(message):
                own |= {"setup" if message.round == 0 else "finish"}
            if part not in own:
                raise StateError(
                    f"stamp: '{printable(request.stamp)}' is of another part of the run than "
                    f"'{message.verb}' in round {message.round}; name it {' or '.join(sorted(own))}"
                )
        if request.then and (any(sums) or any(m.round != first.round for m in request.then)):
            raise StateError(
                f"plan: turns of several rounds, or whose replies go into sums, are asked for at "
                f"once ('{first.verb}' and {len(request.then)} more); ask for one at a time"
            )

    def _check_pending(self, request: ClientRequest, sums: Sequence[str]) -> None:
        """Refuse a repeated turn whose state file would overwrite the last turn's state file."""
        record = self.record
        for step, name in zip(single_turns(request), sums, strict=True):
            file = file_of(self.seed, self.client, step.stamp)
            if file == record.pending and name != record.sum:
                raise StateError(
                    f"stamp: '{printable(step.stamp)}' is of the last turn of '{self.client}', "
                    "which was another; take a new one"
                )

    def _check_model(self, message: Message) -> None:
        """Refuse to train another model than the one that this client evaluated in the round.

        Otherwise a server could send one client a model made so that the client's update shows more
        of the client's data. If the client was not evaluated in the round, any model is accepted.
        """
        at, shown = message.round, self.record.models.get(str(message.round), {})
        now = fingerprints(message.trees) if shown else {}
        if other := [name for name in shown if name in now and now[name] != shown[name]]:
            raise StateError(
                f"model: '{other[0]}' of round {at} is not the one that '{self.client}' was "
                "measured with"
            )

    def record_state(self, file: str, sum: str) -> None:
        """Record a turn's new state file, and the sum that gets the turn's reply.

        The client node calls this before it sends the answer.
        """
        if self.states and self.ahead:
            self.save(replace(self.record, pending=file, sum=sum))

    def record_evaluation(self, request: ClientRequest) -> None:
        """Record an evaluation request before it is answered.

        The plan allows one evaluation after each round. The same request may be repeated.

        Raises:
            StateError: a different evaluation was answered after this round, the client has already
                trained in the next round, or the request names a state that is not valid.
        """
        record, message, at = self.record, request.message, str(request.message.round)
        asked = digest(pack(message), f"{request.file} {sorted(request.points)}".encode())
        # Scores of many models of its choice would tell a server as much as it likes about this
        # person's data.
        if record.measured.get(at, asked) != asked:
            raise StateError(
                f"plan: '{self.client}' was measured after {plural(int(at), 'round')} before, "
                "with another model"
            )
        if at in record.measured:
            return
        # After the turn a server could choose the evaluated model by what the reply showed.
        if self.states and message.round <= record.last_round:
            raise StateError(
                f"plan: '{self.client}' has trained in round {message.round}, and is measured "
                "before that or not at all"
            )
        if self.states and not record.may_count(request.file):
            raise self._wrong_state(request.file)
        models = {**record.models, at: fingerprints(message.trees)}
        self.save(replace(record, measured={**record.measured, at: asked}, models=models))

    def _wrong_state(self, file: str | None) -> StateError:
        known = [name for name in (self.record.committed, self.record.pending) if name is not None]
        return StateError(
            f"state: the server says that {printable(file)} is the state of '{self.client}' that "
            f"counts, and it is {' or '.join(known) or 'none yet'}"
        )

    def save(self, record: ClientRecord) -> None:
        """Write the record to disk if it changed; a power cut afterwards cannot undo the write."""
        if record != self.record:
            record = replace(record, saves=record.saves + 1)
            whole = json.dumps(asdict(record)).encode()
            write_whole(self.path, whole, lasting=True, secret=True)
            self.record = record


def fingerprints(trees: Mapping[str, Params]) -> dict[str, str]:
    """Return the SHA-256 of every tree (named set of parameters), by name."""
    return {name: digest(tree.flat.contiguous().numpy().data) for name, tree in trees.items()}
