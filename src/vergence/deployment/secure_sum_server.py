"""Server's side of secure sums of remote clients: messages of a protocol go as requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, get_args

from vergence.core.messages import Message
from vergence.core.serialization import UNREADABLE, pack, quick_digest, unpack
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import ClientResult, GroupResult, TaskBatch
from vergence.engine.secure_sum_attempts import (
    PartyIdentity,
    SumAnswer,
    SumRequest,
    on_shares,
    under_pads,
    with_opened_sum,
)
from vergence.engine.secure_sums import SecureSum
from vergence.engine.storage.checkpoint_validation import fits
from vergence.engine.storage.client_states import file_of
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.pairwise_messages import PairwiseParams


class SumClients(Protocol):
    """Access to clients that a secure sum needs."""

    limit: int

    @property
    def runner(self) -> ClientRunner:
        """The edge of the clients: forms of replies, where states lie."""
        ...

    def carried(self, client: str, request: bytes) -> bytes | None:
        """Answer of a client to a request; None if nothing came, or too much."""
        ...

    def leave(self, file: str) -> None:
        """Tell a client with its next request that it may drop a state."""
        ...


class SecureSumServer:
    """Asks remote clients for a sum, and aggregators, where there are any.

    Raises:
        ConfigError: nobody's keys are known.
    """

    def __init__(self, remote: SumClients, sums: SecureSum, identity: PartyIdentity | None) -> None:
        if identity is None:
            raise ConfigError(
                "privacy.aggregation: clients elsewhere need keys that all of them know"
            )
        self.remote, self.sums, self.identity = remote, sums, identity

    def summed(
        self, batch: TaskBatch, results: Sequence[ClientResult]
    ) -> Iterator[tuple[int, GroupResult]]:
        """Yield the results of a batch's groups whose replies stayed with the clients, and the sum.

        `results` in the order of the batch's tasks.
        """
        first = batch.tasks[0].message
        form = self.remote.runner.layout(first, batch.templates)
        assert form is not None  # a method that shows replies is refused before
        names = [result.client for result in results if result.status == "ok"]

        def ask(
            terms: PairwiseParams | AdditiveParams, asked: Mapping[str, Any]
        ) -> Mapping[str, Any]:
            return self._ask(batch, terms, asked)

        total = under_pads if self.sums.policy.name == "pairwise" else on_shares
        opened = total(self.sums, form, first, names, self.identity, ask)
        # Let who is not in a sum drop the state that its turn left.
        for client in opened.out:
            self.remote.leave(file_of(self.remote.runner.store.seed, client, batch.stamp))
        rest, done = iter(results), []
        for number, length in enumerate(batch.groups):
            done.append((number, GroupResult([next(rest) for _ in range(length)], opened.sum)))
        yield from with_opened_sum(done, opened)

    def _ask(
        self, batch: TaskBatch, terms: PairwiseParams | AdditiveParams, asked: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send some nodes a message each; return the answers of those who gave one."""
        facts: dict[str, Any] = {
            name: getattr(terms, name) for name in ("attempt", "threshold", "cipher")
        }
        if isinstance(terms, AdditiveParams):  # an aggregator was not asked the question itself
            facts |= {"request": terms.request, "about": terms.form.hex()}
        sent = Message("say", {}, facts, batch.tasks[0].message.round)
        with ThreadPoolExecutor(len(asked)) as pool:
            said = pool.map(lambda name: self._say(batch, sent, name, asked[name]), asked)
            found = dict(zip(asked, said, strict=True))
        return {name: answer for name, answer in found.items() if answer is not None}

    def _say(
        self, batch: TaskBatch, sent: Message, client: str, message: SumRequest
    ) -> SumAnswer | None:
        """Answer of one node; None if that is no valid one."""
        request = pack(ClientRequest("say", client, sent, batch.stamp, said=message))
        data = self.remote.carried(client, request)
        try:
            note, body = unframed(data or b"")
            answer = unpack(body, *get_args(SumAnswer), limit=self.remote.limit)
            if note["to"] == quick_digest(request) and fits(answer, SumAnswer):
                return answer
        except (StateError, *UNREADABLE):
            return None
        return None
