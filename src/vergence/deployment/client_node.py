"""Client node: answers a server's requests one after the other, with its own data and states.

All that a client remembers is on its disk, so that every request may be answered by a new process.
A turn is the client's work on one message. A request names the state file from which a turn starts;
the turn writes a new state file. The next request names the file that is valid, so that later turns
can ignore a turn whose reply did not count. The same request sent again gets the stored answer.

Used by `deployment.client_app`.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vergence.core.aggregation import Sum
from vergence.core.files import Unsaved, make_durable_folder, open_for_append, saving, write_whole
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.core.serialization import (
    UNREADABLE,
    described,
    digest,
    printable,
    quick_digest,
    unpack,
)
from vergence.deployment.client_ledger import ClientLedger, check_plan
from vergence.deployment.protocol import (
    ClientRequest,
    default_limit,
    framed,
    is_file_of,
    is_well_formed,
    single_turns,
    trees_inside,
    with_attachment,
)
from vergence.deployment.secure_sum_client import SecureSumClient
from vergence.engine.client_runner import ClientRunner
from vergence.engine.plan import Plan
from vergence.engine.protections.user_level import sums_of
from vergence.engine.records import ClientTask, TaskBatch
from vergence.engine.secure_sum_attempts import PartyIdentity
from vergence.engine.secure_sums import PackedReply, request_of
from vergence.engine.storage.client_states import file_of
from vergence.errors import StateError
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.system.file_locks import lock
from vergence.wire.encoding import encode


def check_forecast(request: ClientRequest, plan: Plan, method: Method) -> None:
    """Refuse to send trees after the last planned round, if `privacy.user` adds noise to sums.

    Trees are named sets of parameters. The noise was computed for one sum per planned round.

    Raises:
        StateError: the request asks for trees after the last round; the error's text names the
            kind of request (verb).
    """
    # The noise is made for one sum a round: a server that asked for one sum more than the plan has
    # would spend more of a person's budget than was forecast to them.
    for message in (request.message, *request.then):
        shares = request.kind == "turn" and bool(method.exposure[message.verb].trees)
        if plan.privacy.user is not None and shares and message.round >= plan.rounds:
            raise StateError(
                f"plan: '{message.verb}' of round {message.round} would share more than the noise "
                f"of privacy.user was made for: sums of {plural(plan.rounds, 'round')}"
            )


class ClientChannel(NamedTuple):
    """The sender of requests (the server or the main server), and what this sender may request.

    Attributes:
        name: `open` for the server, `closed` for the main server. Answers are stored under this
            name, so that an answer to one sender is never given to the other.
        barred: kinds of request, and verbs (kinds of message, such as `train`), that this sender
            may not use.
        attachments: names of the trees that must come as attachments, not in the message itself.
    """

    name: str = "open"
    barred: Sequence[str] = ()
    attachments: frozenset[str] = frozenset()


class ClientNode:
    """Client that answers a server's requests, with its own data, and its states on its own disk.

    Args:
        runner: carries out training and evaluation. Its folder of states also holds the client's
            ledger, the stored answers and the files of secure sums.
        client: this client's name.
        plan: the client's own copy of the plan; requests that are not in the plan are refused.
        channel: the sender of requests, and what it may request; default: the server, everything.
        every: number of rounds between two checkpoints of the server; 0: unknown. If it is known,
            the client deletes, without being asked, states that no checkpoint can name any more.
        identity: this client's signing key for secure sums, the public keys that it trusts, and
            the mark of its folder.
        admit_turn: called before each training request with the request and its digest; raises
            an error to refuse the request.
    """

    def __init__(
        self,
        runner: ClientRunner,
        client: str,
        *,
        plan: Plan,
        channel: ClientChannel | None = None,
        every: int = 0,
        identity: PartyIdentity | None = None,
        admit_turn: Callable[[ClientRequest, str], None] | None = None,
    ) -> None:
        self.runner, self.client, self.folder = runner, client, runner.store.folder
        self.limit, self.channel = default_limit(runner), channel or ClientChannel()
        self.admit_turn, self.plan, self.identity, self.every = admit_turn, plan, identity, every
        self.sum_client: SecureSumClient | None = None
        self.ledger: ClientLedger | None = None
        # Without a protection there is no book, and nothing that a copy could forget.
        promises = plan.privacy != type(plan.privacy)()
        self.mark = identity.mark if identity is not None and promises else None
        if runner.sums is not None and (identity is None or identity.sign is None):
            raise StateError(f"'{client}' has no keys to take part in secure sums with")

    def _open_books(self) -> None:
        """Read this client's ledgers from disk.

        The caller holds the client's lock, so that no other process writes the ledgers.
        """
        runner, plan, identity = self.runner, self.plan, self.identity
        if runner.sums is not None and identity is not None:
            book = None
            if plan.privacy.user is not None:
                place = runner.store.folder / FOLDER
                make_durable_folder(place, mode=0o700)
                book = ReleaseLog(place / sums_of(runner.store.seed), own_mark=False)
            self.sum_client = SecureSumClient(
                self.folder,
                self.client,
                runner.sums,
                identity,
                runner.store.lasting,
                book,
                plan.privacy.user,
            )
        if runner.sums is not None or plan.privacy.user is not None:
            self.ledger = ClientLedger(
                self.folder,
                runner.store.seed,
                self.client,
                runner.worker.method,
                plan,
                states=runner.sums is not None,
            )

    def answer(self, data: bytes, attachment: bytes = b"") -> bytes:
        """Carry out a request, and return the answer; a repeated request gets the stored answer.

        Args:
            data: the packed request.
            attachment: packed trees that the aggregator attached to the main server's request.

        Raises:
            StateError: the request is malformed, meant for another client, or refused.
        """
        # Before unpacking: a server could otherwise fill this machine's memory with one request.
        length = len(data) + len(attachment)
        if length > self.limit:
            raise StateError(f"a request of {length:,} bytes, where {self.limit:,} are allowed")
        request = unpack(data, ClientRequest, limit=self.limit)
        if not isinstance(request, ClientRequest) or request.client != self.client:
            raise StateError(f"this request is not for '{self.client}'")
        if not is_well_formed(request):
            raise StateError("this request asks for nothing that can be done")
        # The main server must not choose the client's layers: with layers of its own making, say
        # an identity, it would read a person's images in the smashed data.
        if (attachments := self.channel.attachments) and (
            set(request.attachments) - attachments or attachments & trees_inside(request)
        ):
            raise StateError(f"who asks '{self.client}' has no say in its layers")
        request = with_attachment(request, attachment, self.limit)
        with self._one_process(), self._saving():
            run, at = "", request.message.round
            if self.mark is not None:
                self.mark.check()
                run = self.mark.run = self.mark.run_of(self.folder, self.runner.store.seed)
                # After n rounds the last round is number n - 1. A digest is of no round.
                if request.kind != "digest":
                    self.mark.refuse_answered(run, at - (request.kind == "evaluate"))
            self._open_books()
            answer = self._answer_once(request, quick_digest(data), digest(data, attachment))
            if self.mark is not None:
                self.mark.commit(run, at if request.kind == "turn" else -1)
            return answer

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Turn a file that cannot be written, a book of sums too, into a line for the operators."""
        try:
            with saving(self.folder):
                yield
        except Unsaved as error:
            raise StateError(
                f"'{self.client}' cannot save: {error.reason}; {error.mend} in {self.folder}, "
                "until then its old state counts"
            ) from None

    @contextmanager
    def _one_process(self) -> Iterator[None]:
        """Hold this client's lock in the block, so that only one process at a time answers.

        A server that got no answer repeats its request, perhaps while the first request is still
        being carried out.
        """
        path, file = self.folder / ".turn", None
        try:
            file = open_for_append(path)
        except OSError as error:
            # On a read-only disk no answer is stored and no ledger written, so no lock is needed.
            # Any other error, ignored, would let two processes give one turn two answers.
            if error.errno != errno.EROFS:
                raise StateError(
                    f"{path} cannot be locked ({error.strerror}), and '{self.client}' answers "
                    "nothing without: make it a file that may be written"
                ) from None
        with file or nullcontext():
            if file is not None:
                lock(file)
            yield

    def _answer_once(self, request: ClientRequest, key: str, sha: str) -> bytes:
        """Carry out a request, unless the answer to the same request is stored; return the answer.

        `key` and `sha` are digests of the request; `sha` marks the stored answer.
        """
        named = self._states_to_drop(request)
        turn = request.kind in ("turn", "say")
        name = f"answer.{self.channel.name}" + (".say" if request.kind == "say" else "")
        stored, mark = self.folder / name, sha.encode()
        # A turn is taken once. A server that repeats a request would otherwise get many replies to
        # one question, each with other noise, and could average the noise away.
        if turn and stored.exists() and (content := stored.read_bytes()).startswith(mark):
            answer = content[len(mark) :]
        else:
            self._check_and_record(request)
            if request.kind == "turn" and self.admit_turn is not None:
                self.admit_turn(request, sha)
            answer = self._framed_answer(request, key)
            if turn:
                write_whole(stored, mark, answer, lasting=self.runner.store.lasting)
        # Deleted only after the answer is stored, as it may have started from them. On a read-only
        # disk they stay; a later request names them again or finds them obsolete.
        with suppress(OSError):
            for path in [*named, *self._obsolete_states(request)]:
                path.unlink(missing_ok=True)
        return answer

    def _check_and_record(self, request: ClientRequest) -> None:
        """Check a request against plan and ledger, and record the request before it is carried out.

        Raises:
            StateError: the request is not in the plan, or names a state that is not valid.
        """
        if request.kind not in ("turn", "evaluate"):
            return
        method = self.runner.worker.method
        check_plan(request, self.plan, method)
        check_forecast(request, self.plan, method)
        if self.ledger is None:
            return
        if request.kind == "evaluate":
            self.ledger.record_evaluation(request)
            return
        sums = [self._sum_name(step) for step in single_turns(request)]
        record = self.ledger.begin_turn(request, sums, self._is_in_sum)
        # Recorded before the turn: a server that asks another question under the same sum's name is
        # refused even if this process dies in between.
        for step in single_turns(request):
            form = self.runner.layout(step.message, {})
            if form is not None and self.sum_client is not None:
                self.sum_client.record_question(form, step.message, step.file)
        self.ledger.save(record)

    def _is_in_sum(self, sum_name: str) -> bool:
        """Return whether the secure sum of this name contains this client's reply; True for ""."""
        return not sum_name or self.sum_client is None or self.sum_client.has_contributed(sum_name)

    def _sum_name(self, step: ClientRequest) -> str:
        """Return the name of the secure sum that gets a turn's reply; "" if there is none."""
        form = self.runner.layout(step.message, {})
        if form is None or self.sum_client is None or not form.words:
            return ""
        return request_of(form, step.message)

    def _obsolete_states(self, request: ClientRequest) -> list[Path]:
        """Return the state files from which no server can resume any more, even after a crash.

        In round R a server can go back at most to its last checkpoint C. If the state from which
        this request starts is older than C, then C names that state, and every other state from
        before C is obsolete. Otherwise C names an older state that is not known here, and no state
        is deleted. A delayed request is safe, too: it names the state that was valid in its own
        round.
        """
        now, file = self._run_part(request.stamp), request.file
        counts = -2.0 if file is None else self._run_part(file.removeprefix(self._prefix))
        if request.kind != "turn" or not self.every or now is None or counts is None:
            return []
        since = now - now % self.every if 0 <= now < math.inf else now
        if counts >= since:
            return []
        return [
            path
            for path in self.runner.store.folder.iterdir()
            if path.name != request.file
            and is_file_of(path.name.removesuffix(".part"), self.runner.store.seed, self.client)
            and (part := self._run_part(path.name.removeprefix(self._prefix))) is not None
            and part < since
        ]

    @property
    def _prefix(self) -> str:
        return file_of(self.runner.store.seed, self.client, "").removesuffix(".safetensors")

    @staticmethod
    def _run_part(stamp: str) -> float | None:
        """Return the round that a stamp (the name of a turn in the run) contains.

        The number is -1 for the setup and infinity for the finish; None for any other stamp.
        """
        word = stamp.partition(".")[0]
        return float(word) if word.isdecimal() else {"setup": -1.0, "finish": math.inf}.get(word)

    def _states_to_drop(self, request: ClientRequest) -> list[Path]:
        """Check every verb (kind of message) and file in a request; return the files to delete.

        Raises:
            StateError: the sender may not use a verb or a file that the request names.
        """
        verbs = self.runner.worker.method.exposure
        asked = [message.verb for message in (request.message, *request.then)]
        if request.kind == "turn" and not set(asked) <= verbs.keys():
            raise StateError(f"this request asks '{self.client}' for nothing that can be done")
        for word in (request.kind, *asked):
            # In split learning with a main server, each of the two askers lacks the other's rights:
            # without this check one could ask for the clients' data or layers all the same.
            if word in self.channel.barred:
                raise StateError(f"'{word}' is not for who asks '{self.client}' here")
        in_use = [] if request.file is None else [self._state_path(request.file)]
        if request.kind == "turn":
            in_use += [
                self._state_path(file_of(self.runner.store.seed, self.client, step.stamp))
                for step in single_turns(request)
            ]
        dropped = [self._state_path(file) for file in request.drop]
        # A server could otherwise have a turn delete, or write over, the state it starts from.
        if len({*in_use, *dropped}) != len(in_use) + len(set(dropped)):
            raise StateError(f"this request would do away with a state of '{self.client}'")
        return dropped

    def _state_path(self, file: str) -> Path:
        store = self.runner.store
        if not is_file_of(file, store.seed, self.client):
            raise StateError(f"'{printable(file)}' is no state of '{self.client}'")
        return store.folder / file

    def _framed_answer(self, request: ClientRequest, key: str) -> bytes:
        try:
            if request.then:
                parts = [framed(*part) for part in self._take_turns(request)]
                return framed({"to": key, "parts": [len(part) for part in parts]}, b"".join(parts))
            note, body = self._carry_out(request)
            return framed({"to": key, **note}, body)
        except (OSError, *UNREADABLE) as error:
            raise StateError(f"this request cannot be carried out ({described(error)})") from error

    def _take_turns(self, request: ClientRequest) -> Iterator[tuple[Mapping[str, Any], bytes]]:
        """Handle the messages of a request in order, and yield header and body of each answer.

        Each message starts from the state that the previous message left. A failed message ends
        the sequence.
        """
        file, between = request.file, None
        for step in single_turns(request):
            note, body = self._carry_out(replace(step, file=file))
            if between is not None and (note["filed"] is not None or note["status"] != "ok"):
                self._state_path(between).unlink(missing_ok=True)
            yield note, body
            if note["status"] != "ok":
                return
            if note["filed"] is not None:
                file = between = note["filed"].file

    def _carry_out(self, request: ClientRequest) -> tuple[Mapping[str, Any], bytes]:
        if request.kind == "digest":
            return {"sha": digest(self._state_path(str(request.file)).read_bytes())}, b""
        if request.kind == "say":
            if self.sum_client is None or request.sum_message is None:
                raise StateError(f"'{self.client}' takes no part in sums")
            facts = request.message.facts
            return {}, self.sum_client.answer(request.stamp, facts, request.sum_message)
        task = ClientTask(self.client, request.message, request.file)
        kind = "evaluate" if request.kind == "evaluate" else "turn"
        batch = TaskBatch(
            kind, [task], [1], "each", request.stamp, request.progress, request.points
        )
        if kind == "evaluate":
            return vars(self.runner.carry_out(batch, 0, Sum()).results[0]), b""
        before = self.runner.state_of(task)
        result, sealed = self.runner.settle(
            task, batch, before, self.runner.turn(task, before, batch)
        )
        if result.filed is not None and self.ledger is not None:
            self.ledger.record_state(result.filed.file, self._sum_name(request))
        form = self.runner.layout(task.message, batch.templates)
        # A reply that goes into a secure sum leaves only in that sum's messages: in the answer here
        # the server would read it.
        if form is not None and self.sum_client is not None:
            if isinstance(sealed, PackedReply) and form.words:
                self.sum_client.store_row(request.stamp, form, task.message, sealed.words)
            return vars(result), b""
        known = {name: mask for name, mask in before.known_masks.items() if name in request.known}
        return vars(result), b"" if sealed is None else encode(sealed, known)
