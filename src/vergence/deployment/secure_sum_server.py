"""Server's side of secure sums of remote clients: sends the protocol's messages as requests.

Used by `deployment.remote_clients`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import islice
from typing import Any, get_args

from vergence.core.messages import Message
from vergence.core.serialization import UNREADABLE, pack, quick_digest, unpack
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.remote_clients import ClientLost, RemoteClients
from vergence.engine.records import ClientResult, GroupResult, TaskBatch
from vergence.engine.secure_sum_attempts import (
    PartyIdentity,
    SumAnswer,
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


class SecureSumServer:
    """Runs secure sums over the replies of remote clients, with aggregators if there are any.

    Raises:
        ConfigError: `identity` is None: the clients' keys are not known.
    """

    def __init__(
        self, remote: RemoteClients, sums: SecureSum, identity: PartyIdentity | None
    ) -> None:
        if identity is None:
            raise ConfigError(
                "privacy.aggregation: clients on other machines need keys that all of them know"
            )
        self.remote, self.sums, self.identity = remote, sums, identity

    def sum_replies(
        self, batch: TaskBatch, results: Sequence[ClientResult]
    ) -> Iterator[tuple[int, GroupResult]]:
        """Sum the replies of a batch without seeing any single reply.

        Yield number and result of each of the batch's groups.

        Args:
            batch: the batch of tasks, which the clients have carried out.
            results: the clients' results so far, in the order of the batch's tasks.
        """
        first = batch.tasks[0].message
        form = self.remote.runner.layout(first, batch.templates)
        assert form is not None  # a method that shows replies is refused before
        names = [result.client for result in results if result.status == "ok"]

        total = under_pads if self.sums.policy.name == "pairwise" else on_shares
        ask = partial(self._ask_all, batch)
        opened = total(self.sums, form, first, names, self.identity, ask)
        # A client whose reply is not in the sum must go on from its old state, or its state would
        # hold training that the model never got.
        for client in opened.out:
            self.remote.drop_later(file_of(self.remote.runner.store.seed, client, batch.stamp))
        rest = iter(results)
        groups = [GroupResult([*islice(rest, length)], opened.sum) for length in batch.groups]
        yield from with_opened_sum([*enumerate(groups)], opened)

    def _ask_all(
        self, batch: TaskBatch, terms: PairwiseParams | AdditiveParams, asked: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send each node its message in `asked`; return the valid answers, by node."""
        # No two exchanges can be one: each asks with what everybody answered before. The invitation
        # alone could travel with the turn, but names a threshold that follows from who answered the
        # turn. A threshold that is set before would be one that a server chooses.
        facts: dict[str, Any] = {
            name: getattr(terms, name) for name in ("attempt", "threshold", "cipher")
        }
        # An aggregator must not see the model of the turn: it gets the sum's name and a digest.
        if isinstance(terms, AdditiveParams):
            facts |= {"request": terms.request, "about": terms.form.hex()}
        sent = Message("say", {}, facts, batch.tasks[0].message.round)
        requests = {
            name: pack(ClientRequest("say", name, sent, batch.stamp, sum_message=message))
            for name, message in asked.items()
        }
        started = {name: self.remote.line.start(name, data) for name, data in requests.items()}
        return {
            name: answer
            for name, data in requests.items()
            if (answer := self._answer(started.pop(name), data)) is not None
        }

    def _answer(self, started: Future[bytes], request: bytes) -> SumAnswer | None:
        """Wait for a node's answer to a request; return it, or None if there is no valid answer."""
        try:
            data = started.result()
            # Checked before anything is parsed: one malicious client could fill the memory.
            note, body = unframed(data if len(data) <= self.remote.limit else b"")
            answer = unpack(body, *get_args(SumAnswer), limit=self.remote.limit)
            if note["to"] == quick_digest(request) and fits(answer, SumAnswer):
                return answer
        except ClientLost as error:
            # Only the operator can leave out the person whose folder was put back.
            if str(error).startswith("books: "):
                self.remote.tell(str(error), "refused")
        except (StateError, *UNREADABLE):
            return None
        return None
