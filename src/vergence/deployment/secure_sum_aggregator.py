"""Aggregator's side of secure sums: it adds secret shares of replies, and sees no model.

The running attempt at a sum is only in memory: a restarted aggregator has lost it. The file
`sum.spent` lists the sums that the aggregator helped to open. Of one request's replies the
aggregator helps to open only one sum: two different sums could show a single reply.

Used by `deployment.aggregator_node`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.serialization import UNREADABLE, described, pack, printable, quick_digest, unpack
from vergence.deployment.protocol import LIMIT_SLACK, ClientRequest, framed, is_well_formed
from vergence.deployment.secure_sum_client import MarkedContributions
from vergence.engine.secure_sum_attempts import PartyIdentity, SumRequest
from vergence.engine.secure_sums import SecureSum, SumQuestion, gate_of
from vergence.engine.storage.checkpoint_validation import fits
from vergence.errors import StateError
from vergence.privacy.secure_aggregation.additive import Aggregator
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.session import Invitation


class SecureSumAggregator:
    """One aggregator's part in the secure sums of one run.

    Args:
        folder: folder for the list of the sums that the aggregator helped to open.
        name: the aggregator's name.
        sums: the rules of the experiment's secure sums, over the clients whose keys the aggregator
            has.
        identity: the aggregator's own signing key, and the public keys that it trusts.
        method: the method of the run.
        trees: the method's `known_trees` (sets of parameters), which give the shapes of replies.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        sums: SecureSum,
        identity: PartyIdentity,
        method: Method,
        trees: Mapping[str, Params],
    ) -> None:
        self.name, self.sums, self.identity = name, sums, identity
        self.spent, self.lock = MarkedContributions(folder, identity.mark), threading.Lock()
        self.forms = {
            verb: form
            for verb in method.exposure
            if (form := sums.form(method, verb, trees)) is not None
        }
        most = max((form.words for form in self.forms.values()), default=0)
        self.limit = 8 * most * (1 + sums.people) + LIMIT_SLACK
        self.attempt: Aggregator | None = None
        self.last_answer: tuple[str, bytes] = ("", b"")

    def answer(self, data: bytes) -> bytes:
        """Answer a message of an attempt at a sum; a repeated request gets the same answer.

        Raises:
            StateError: the message must not be answered; the text says why.
        """
        if len(data) > self.limit:
            raise StateError(f"a request of {len(data):,} bytes, where {self.limit:,} are allowed")
        with self.lock:
            key, mark = quick_digest(data), self.identity.mark
            if self.last_answer[0] != key:
                if mark is not None:
                    mark.check()
                answer = pack(self._answer(data))
                if mark is not None:
                    mark.commit()
                self.last_answer = key, framed({"to": key}, answer)
            return self.last_answer[1]

    def _answer(self, data: bytes) -> Any:
        request = unpack(data, ClientRequest, limit=self.limit)
        message = (
            request.sum_message
            if isinstance(request, ClientRequest) and is_well_formed(request)
            else None
        )
        if message is None or request.client != self.name or not fits(message, SumRequest):
            raise StateError(f"this is no message of a sum for '{self.name}'")
        try:
            terms = self._terms(request.message.facts)
            if isinstance(message, Invitation):
                assert self.identity.sign is not None
                self.attempt = Aggregator(
                    self.name, terms, self.identity.sign, self.identity.register, self.spent
                )
            if self.attempt is None or self.attempt.terms != terms:
                raise StateError(
                    f"round: '{self.name}' knows of no such attempt; it was started "
                    "anew, or another one began"
                )
            return self.attempt.answer(message)
        except UNREADABLE as error:
            raise StateError(f"this is no message of a sum ({described(error)})") from error

    def _terms(self, facts: Mapping[str, Any]) -> AdditiveParams:
        """Return the terms of an attempt from a message's facts.

        The terms contain a digest of the request to the clients. Clients sign the same terms.
        """
        attempt, threshold = facts.get("attempt"), facts.get("threshold")
        about, request = bytes.fromhex(str(facts.get("about"))), printable(facts.get("request"))
        verb = request.split(".")[1:2]
        if not verb or verb[0] not in self.forms:
            raise StateError(f"'{request}' is no sum of this run")
        if type(attempt) is not int or type(threshold) is not int:
            raise StateError("this is no message of a secure sum")
        form = self.forms[verb[0]]
        question = SumQuestion(request, about, form.words, *gate_of(form))
        run, cipher = self.identity.run, facts.get("cipher")
        terms = self.sums.terms_of(question, run, attempt, threshold, cipher)
        assert isinstance(terms, AdditiveParams)
        return terms
