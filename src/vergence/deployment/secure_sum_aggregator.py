"""Aggregator's side of sums on shares: it is told of sums, not of what was asked for them.

An attempt under way lies in memory alone: an aggregator that is started anew has lost it, and its
part in another attempt can be no more than the very same sum (`sum.spent`, on its disk).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.serialization import UNREADABLE, pack, plain, quick_digest, unpack
from vergence.deployment.protocol import SLACK, ClientRequest, framed, sound
from vergence.deployment.secure_sum_client import SecureSumFiles
from vergence.engine.secure_sum_attempts import PartyIdentity, SumRequest
from vergence.engine.secure_sums import SecureSum, SumQuestion, gate_of
from vergence.engine.storage.checkpoint_validation import fits
from vergence.errors import StateError
from vergence.privacy.secure_aggregation.additive import Aggregator
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.session import Invitation, UsedContributions


class SecureSumAggregator:
    """One aggregator's part in the sums of one run.

    Args:
        folder: where it keeps what it opened.
        name: its own.
        sums: as the experiment says; how many people there may be, by the keys that it has.
        identity: its own key, and everybody's as known beforehand.
        method: what the run trains, and `offered` the trees that its server offers.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        sums: SecureSum,
        identity: PartyIdentity,
        method: Method,
        offered: Mapping[str, Params],
    ) -> None:
        self.name, self.sums, self.identity = name, sums, identity
        self.spent, self.lock = (
            UsedContributions(SecureSumFiles(folder / "sum.spent")),
            threading.Lock(),
        )
        forms = {verb: sums.form(method, verb, offered) for verb in method.exposure}
        self.forms = {verb: form for verb, form in forms.items() if form is not None}
        most = max((form.words for form in self.forms.values()), default=0)
        self.limit = 8 * most * (1 + sums.people) + SLACK
        self.end: Aggregator | None = None
        self.said: tuple[str, bytes] = ("", b"")

    def answer(self, data: bytes) -> bytes:
        """Answer a message of an attempt; the same request again gets the same answer.

        Raises:
            StateError: it must not be answered, and why.
        """
        if len(data) > self.limit:
            raise StateError(f"a request of {len(data):,} bytes, where {self.limit:,} are allowed")
        with self.lock:
            key = quick_digest(data)
            if self.said[0] != key:
                self.said = key, framed({"to": key}, pack(self._answered(data)))
            return self.said[1]

    def _answered(self, data: bytes) -> Any:
        request = unpack(data, ClientRequest, limit=self.limit)
        message = request.said if isinstance(request, ClientRequest) and sound(request) else None
        if message is None or request.client != self.name or not fits(message, SumRequest):
            raise StateError(f"this is no message of a sum for '{self.name}'")
        try:
            terms = self._terms(request.message.facts)
            if isinstance(message, Invitation):
                sign = self.identity.sign
                assert sign is not None
                self.end = Aggregator(self.name, terms, sign, self.identity.register, self.spent)
            if self.end is None or self.end.terms != terms:
                raise StateError(
                    f"round: '{self.name}' knows of no such attempt; it was started "
                    "anew, or another one began"
                )
            return self.end.answer(message)
        except UNREADABLE as error:
            said = plain(f"{type(error).__name__}: {error}")
            raise StateError(f"this is no message of a sum ({said})") from error

    def _terms(self, facts: Mapping[str, Any]) -> AdditiveParams:
        """Return an attempt's terms: of what was asked only a digest, to which clients agree."""
        attempt, threshold = facts.get("attempt"), facts.get("threshold")
        about, request = bytes.fromhex(str(facts.get("about"))), plain(facts.get("request"))
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
