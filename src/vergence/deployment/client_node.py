"""Client node: answers one request after the other, with its own data and states.

A client works from its disk alone, so that every request may be answered by a new process. Its
state is staged: a request names the file that counts, a turn writes a new one beside it, and the
next request tells which of them counted. The same request again gets the stored answer.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vergence.core.aggregation import Sum
from vergence.core.files import Unsaved, growing, make_folder, saving, write_whole
from vergence.core.method import Method
from vergence.core.naming import plural
from vergence.core.serialization import UNREADABLE, digest, plain, quick_digest, unpack
from vergence.deployment.client_ledger import ClientLedger, check_plan
from vergence.deployment.protocol import (
    ClientRequest,
    framed,
    inside,
    is_file_of,
    most,
    sound,
    steps,
    whole,
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


def check_promised(request: ClientRequest, plan: Plan, method: Method) -> None:
    """Refuse a sum after the last round, which the forecast of `privacy.user` does not count.

    Raises:
        StateError: names the verb; what a method asks at its end may share nothing.
    """
    for message in (request.message, *request.then):
        shares = request.kind == "turn" and bool(method.exposure[message.verb].trees)
        if plan.privacy.user is not None and shares and message.round >= plan.rounds:
            raise StateError(
                f"plan: '{message.verb}' of round {message.round} would share more than the noise "
                f"of privacy.user was made for: sums of {plural(plan.rounds, 'round')}"
            )


class ClientNode:
    """Client that answers requests, with its own data, and its states on its own disk.

    `every` is how many rounds lie between two checkpoints of the server. Where it is known, states
    go that no checkpoint names any more, whether or not a server remembers them. `barred` are kinds
    of requests and verbs that whoever asks has no right to; `apart` are trees that another hand has
    to bring. Answers are stored by `channel`: who asks on one never gets those to another.
    `identity` is what this client signs with in secure sums, and whom it believes. `count` is told
    of every turn, by its request's digest, before it is taken, and may refuse it. `plan` is the
    client's own: what it does not ask for is refused, whoever asks.
    """

    def __init__(
        self,
        runner: ClientRunner,
        client: str,
        folder: Path,
        limit: int | None = None,
        every: int = 0,
        barred: Sequence[str] = (),
        apart: frozenset[str] = frozenset(),
        channel: str = "open",
        identity: PartyIdentity | None = None,
        count: Callable[[ClientRequest, str], None] | None = None,
        *,
        plan: Plan,
    ) -> None:
        self.runner, self.client, self.folder = runner, client, folder
        self.limit = most(runner) if limit is None else limit
        self.every, self.barred, self.apart, self.channel = every, barred, apart, channel
        self.count, self.plan, self.identity = count, plan, identity
        self.giving: SecureSumClient | None = None
        self.ledger: ClientLedger | None = None
        if runner.sums is not None and (identity is None or identity.sign is None):
            raise StateError(f"'{client}' has no keys to take part in secure sums with")

    def _open_books(self) -> None:
        """Read what this client remembers of the run: while no other process changes it."""
        runner, plan, identity = self.runner, self.plan, self.identity
        if runner.sums is not None and identity is not None:
            book = None
            if plan.privacy.user is not None:
                place = runner.store.folder / FOLDER
                make_folder(place, mode=0o700)
                book = ReleaseLog(place / sums_of(runner.store.seed))
            self.giving = SecureSumClient(
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

    def answer(self, data: bytes, beside: bytes = b"") -> bytes:
        """Carry out a request, or return the stored answer to the same turn.

        `beside` are trees of its message that come by another hand.

        Raises:
            StateError: it is no request, another client's, or cannot be carried out; then all is as
                it was before.
        """
        length = len(data) + len(beside)
        if length > self.limit:
            raise StateError(f"a request of {length:,} bytes, where {self.limit:,} are allowed")
        request = unpack(data, ClientRequest, limit=self.limit)
        if not isinstance(request, ClientRequest) or request.client != self.client:
            raise StateError(f"this request is not for '{self.client}'")
        if not sound(request):
            raise StateError("this request asks for nothing that can be done")
        if self.apart and (set(request.beside) - self.apart or self.apart & inside(request)):
            raise StateError(f"who asks '{self.client}' has no say in its layers")
        request = whole(request, beside, self.limit)
        with self._alone():
            self._open_books()
            return self._once(request, quick_digest(data), digest(data, beside))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time work here: a request may be sent again while it is done."""
        path, file = self.folder / ".turn", None
        try:
            file = growing(path)
        except OSError as error:
            if error.errno != errno.EROFS:  # else nothing will be written
                raise StateError(
                    f"{path} cannot be locked ({error.strerror}), and '{self.client}' answers "
                    "nothing without: make it a file that may be written"
                ) from None
        with file or nullcontext():
            if file is not None:
                lock(file)
            yield

    def _once(self, request: ClientRequest, key: str, sha: str) -> bytes:
        """Carry out a request, unless it is the turn whose answer is stored."""
        named = self._named(request)
        turn = request.kind in ("turn", "say")
        name = f"answer.{self.channel}" + (".say" if request.kind == "say" else "")
        stored, mark = self.folder / name, sha.encode()
        if turn and stored.exists() and (kept := stored.read_bytes()).startswith(mark):
            answer = kept[len(mark) :]
        else:
            self._admit(request)
            if request.kind == "turn" and self.count is not None:
                self.count(request, sha)
            try:
                answer = self._answered(request, key)
                if turn:
                    with saving(self.folder):
                        write_whole(stored, mark, answer, lasting=self.runner.store.lasting)
            except Unsaved as error:
                raise StateError(
                    f"'{self.client}' cannot save: {error.reason}; {error.mend} in {self.folder}, "
                    "until then its old state counts"
                ) from None
        with suppress(OSError):  # a disk that may only be read: they go another time
            for path in [*named, *self._outlived(request)]:
                path.unlink(missing_ok=True)
        return answer

    def _admit(self, request: ClientRequest) -> None:
        """Refuse what the run's plan does not ask, and a state that does not count.

        Raises:
            StateError: says which.
        """
        if request.kind not in ("turn", "evaluate"):
            return
        method = self.runner.worker.method
        check_plan(request, self.plan, method)
        check_promised(request, self.plan, method)
        if self.ledger is None:
            return
        if request.kind == "evaluate":
            self.ledger.record_evaluation(request)
            return
        sums = [self._sum(step) for step in steps(request)]
        record = self.ledger.begin_turn(request, sums, self._given)
        for step in steps(request):
            form = self.runner.layout(step.message, {})
            if form is not None and self.giving is not None:
                self.giving.ask(form, step.message, step.file)
        self.ledger.keep(record)

    def _given(self, request: str) -> bool:
        """True if words were given to a sum; to none there is nothing to give."""
        return not request or self.giving is None or self.giving.gave(request)

    def _sum(self, step: ClientRequest) -> str:
        """The sum that the words of a turn's reply are for, "" where there are none."""
        form = self.runner.layout(step.message, {})
        if form is None or self.giving is None or not form.words:
            return ""
        return request_of(form, step.message)

    def _outlived(self, request: ClientRequest) -> list[Path]:
        """Return the states that no server goes on from, wherever it is killed.

        In part R of a run it goes back to C at most, the checkpoint that R began from. If the state
        that counts is of a part before C, then C names it: nothing else from before C is needed.
        Else C names an earlier one, and which is not known here: all stay. A request that comes
        late only knows of parts before its own, and of those it names what counts.
        """
        now, counts = self._part(request.stamp), -2.0
        if request.file is not None:
            counts = self._part(request.file.removeprefix(self._prefix))
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
            and (part := self._part(path.name.removeprefix(self._prefix))) is not None
            and part < since
        ]

    @property
    def _prefix(self) -> str:
        return file_of(self.runner.store.seed, self.client, "").removesuffix(".safetensors")

    @staticmethod
    def _part(stamp: str) -> float | None:
        """Part of a run that a stamp is of: -1 setup, then rounds, infinity finish."""
        word = stamp.partition(".")[0]
        parts = {"setup": -1.0, "finish": math.inf}
        return float(word) if word.isdecimal() else parts.get(word)

    def _named(self, request: ClientRequest) -> list[Path]:
        """Return the states to drop, if all that a request names may be named.

        Raises:
            StateError: it may not.
        """
        verbs = self.runner.worker.method.exposure
        unknown = request.kind == "turn" and any(
            message.verb not in verbs for message in (request.message, *request.then)
        )
        if unknown:
            raise StateError(f"this request asks '{self.client}' for nothing that can be done")
        for word in (request.kind, *(message.verb for message in (request.message, *request.then))):
            if word in self.barred:
                raise StateError(f"'{word}' is not for who asks '{self.client}' here")
        left = [] if request.file is None else [self._own(request.file)]
        if request.kind == "turn":
            left += [
                self._own(file_of(self.runner.store.seed, self.client, step.stamp))
                for step in steps(request)
            ]
        dropped = [self._own(file) for file in request.drop]
        if len({*left, *dropped}) != len(left) + len(set(dropped)):
            raise StateError(f"this request would do away with a state of '{self.client}'")
        return dropped

    def _own(self, file: str) -> Path:
        store = self.runner.store
        if not is_file_of(file, store.seed, self.client):
            raise StateError(f"'{plain(file)}' is no state of '{self.client}'")
        return store.folder / file

    def _answered(self, request: ClientRequest, key: str) -> bytes:
        try:
            if request.then:
                parts = [framed(*part) for part in self._in_turn(request)]
                return framed({"to": key, "parts": [len(part) for part in parts]}, b"".join(parts))
            note, body = self._carry_out(request)
            return framed({"to": key, **note}, body)
        except (OSError, *UNREADABLE) as error:
            said = plain(f"{type(error).__name__}: {error}")
            raise StateError(f"this request cannot be carried out ({said})") from error

    def _in_turn(self, request: ClientRequest) -> Iterator[tuple[Mapping[str, Any], bytes]]:
        """Take one turn after the other, each from the state that the one before left."""
        file, between = request.file, None
        for step in steps(request):
            note, body = self._carry_out(replace(step, file=file))
            if between is not None and (note["filed"] is not None or note["status"] != "ok"):
                self._own(between).unlink(missing_ok=True)
            yield note, body
            if note["status"] != "ok":
                return
            if note["filed"] is not None:
                file = between = note["filed"].file

    def _carry_out(self, request: ClientRequest) -> tuple[Mapping[str, Any], bytes]:
        if request.kind == "digest":
            return {"sha": digest(self._own(str(request.file)).read_bytes())}, b""
        if request.kind == "say":
            return {}, self._say(request)
        task = ClientTask(self.client, request.message, request.file)
        kind = "evaluate" if request.kind == "evaluate" else "turn"
        batch = TaskBatch(
            kind, [task], [1], "each", request.stamp, request.progress, request.points
        )
        if kind == "evaluate":
            return vars(self.runner.carry_out(batch, 0, Sum()).results[0]), b""
        before = self.runner.state_of(task)
        taken = self.runner.turn(task, before, batch)
        result, sealed = self.runner.settle(task, batch, before, taken)
        if result.filed is not None and self.ledger is not None:
            self.ledger.record_state(result.filed.file, self._sum(request))
        form = self.runner.layout(task.message, batch.templates)
        if form is not None and self.giving is not None:  # the reply goes into a sum, not from here
            if isinstance(sealed, PackedReply) and form.words:
                self.giving.keep(request.stamp, form, task.message, sealed.words)
            return vars(result), b""
        known = {name: mask for name, mask in before.known_masks.items() if name in request.known}
        return vars(result), b"" if sealed is None else encode(sealed, known)

    def _say(self, request: ClientRequest) -> bytes:
        """Answer a message of a secure sum."""
        if self.giving is None or request.said is None:
            raise StateError(f"'{self.client}' takes no part in sums")
        return self.giving.answer(request.stamp, request.message.facts, request.said)
