"""The server's part in sums of clients elsewhere: messages of a protocol go as errands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, get_args

from vergence.core.state import UNREADABLE, pack, quick_digest, unpack
from vergence.core.wire import Message
from vergence.engines.errand import Errand, file_of, unframed
from vergence.engines.job import Job, Receipt, Result
from vergence.engines.manifest import fits
from vergence.engines.sum_talks import (
    Answered,
    Asked,
    Opened,
    Voice,
    on_shares,
    told,
    under_pads,
)
from vergence.engines.sums import Sums
from vergence.errors import ConfigError, StateError
from vergence.privacy.pairwise_messages import Pairwise
from vergence.privacy.shared_messages import Shared

if TYPE_CHECKING:
    from vergence.engines.remote import Remote


class Speaking:
    """Asks the clients of a line for a sum, and aggregators, where there are any.

    Raises:
        ConfigError: nobody's keys are known.
    """

    def __init__(self, remote: Remote, sums: Sums, voice: Voice | None) -> None:
        if voice is None:
            raise ConfigError(
                "privacy.aggregation: clients elsewhere need keys that all of them know"
            )
        self.remote, self.sums, self.voice = remote, sums, voice

    def summed(self, job: Job, receipts: Sequence[Receipt]) -> Iterator[tuple[int, Result]]:
        """Yield the results of a job's groups whose replies stayed with the clients, and the sum.

        `receipts` in the order of the job's calls.
        """
        first = job.calls[0].message
        form = self.remote.desk.form(first, job.held)
        assert form is not None  # a method that shows replies is refused before
        names = [receipt.client for receipt in receipts if receipt.status == "ok"]

        def ask(terms: Pairwise | Shared, asked: Mapping[str, Any]) -> Mapping[str, Any]:
            return self._ask(job, terms, asked)

        total = under_pads if self.sums.policy.name == "pairwise" else on_shares
        opened = total(self.sums, form, first, names, self.voice, ask)
        self._leave(job, opened)
        rest, done = iter(receipts), []
        for number, length in enumerate(job.groups):
            done.append((number, Result([next(rest) for _ in range(length)], opened.sum)))
        yield from told(done, opened)

    def _leave(self, job: Job, opened: Opened) -> None:
        """Let who is not in a sum drop the state that its turn left."""
        for client in opened.out:
            self.remote.leave(file_of(self.remote.desk.shelf.seed, client, job.stamp))

    def _ask(self, job: Job, terms: Pairwise | Shared, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Tell some ends something each; return what those said who answered."""
        facts: dict[str, Any] = {"attempt": terms.attempt}
        if isinstance(terms, Pairwise):
            facts["threshold"] = terms.threshold
        else:  # an aggregator was not asked the question itself
            facts |= {"request": terms.request, "about": terms.form.hex()}
        sent = Message("say", {}, facts, job.calls[0].message.round)
        with ThreadPoolExecutor(len(asked)) as pool:
            said = pool.map(lambda name: self._say(job, sent, name, asked[name]), asked)
            found = dict(zip(asked, said, strict=True))
        return {name: answer for name, answer in found.items() if answer is not None}

    def _say(self, job: Job, sent: Message, client: str, message: Asked) -> Answered | None:
        """Return what one end answers; None if that is nothing that can be."""
        errand = pack(Errand("say", client, sent, job.stamp, said=message))
        data = self.remote.carried(client, errand)
        try:
            note, body = unframed(data or b"")
            answer = unpack(body, *get_args(Answered), limit=self.remote.limit)
            if note["to"] == quick_digest(errand) and fits(answer, Answered):
                return answer
        except (StateError, *UNREADABLE):
            return None
        return None
