"""An aggregator's part in sums on shares: it is told of sums, not of what was asked for them.

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
from vergence.core.state import UNREADABLE, pack, plain, quick_digest, unpack
from vergence.engines.errand import SLACK, Errand, framed, sound
from vergence.engines.giving import OnDisk
from vergence.engines.manifest import fits
from vergence.engines.sum_talks import Asked, Voice
from vergence.engines.sums import Sums, gate_of
from vergence.errors import StateError
from vergence.privacy.additive_sharing import Aggregator
from vergence.privacy.shared_messages import Shared
from vergence.privacy.terms import Invitation, Spent


class Adding:
    """One aggregator's part in the sums of one run.

    Args:
        folder: where it keeps what it opened.
        name: its own.
        sums: as the experiment says; how many people there may be, by the keys that it has.
        voice: its own key, and everybody's as known beforehand.
        method: what the run trains, and `offered` the trees that its server offers.
    """

    def __init__(
        self, folder: Path, name: str, sums: Sums, voice: Voice, method: Method,
        offered: Mapping[str, Params],
    ) -> None:  # fmt: skip
        self.name, self.sums, self.voice = name, sums, voice
        self.spent, self.lock = Spent(OnDisk(folder / "sum.spent")), threading.Lock()
        forms = {verb: sums.form(method, verb, offered) for verb in method.exposure}
        self.forms = {verb: form for verb, form in forms.items() if form is not None}
        most = max((form.words for form in self.forms.values()), default=0)
        self.limit = 8 * most * (1 + sums.people) + SLACK
        self.end: Aggregator | None = None
        self.said: tuple[str, bytes] = ("", b"")

    def answer(self, data: bytes) -> bytes:
        """Answer a message of an attempt; the same errand again gets the same answer.

        Raises:
            StateError: it must not be answered, and why.
        """
        if len(data) > self.limit:
            raise StateError(f"an errand of {len(data):,} bytes, where {self.limit:,} are allowed")
        with self.lock:
            key = quick_digest(data)
            if self.said[0] != key:
                self.said = key, framed({"to": key}, pack(self._answered(data)))
            return self.said[1]

    def _answered(self, data: bytes) -> Any:
        errand = unpack(data, Errand, limit=self.limit)
        message = errand.said if isinstance(errand, Errand) and sound(errand) else None
        if message is None or errand.client != self.name or not fits(message, Asked):
            raise StateError(f"this is no message of a sum for '{self.name}'")
        try:
            terms = self._terms(errand.message.facts)
            if isinstance(message, Invitation):
                sign = self.voice.sign
                assert sign is not None
                self.end = Aggregator(self.name, terms, sign, self.voice.register, self.spent)
            if self.end is None or self.end.terms != terms:
                raise StateError(f"round: '{self.name}' knows of no such attempt; it was started "
                                 "anew, or another one began")  # fmt: skip
            return self.end.answer(message)
        except UNREADABLE as error:
            said = plain(f"{type(error).__name__}: {error}")
            raise StateError(f"this is no message of a sum ({said})") from error

    def _terms(self, facts: Mapping[str, Any]) -> Shared:
        """Return an attempt's terms: of what was asked only a digest, to which clients agree."""
        attempt, about = facts.get("attempt"), bytes.fromhex(str(facts.get("about")))
        request = plain(facts.get("request"))
        verb = request.split(".")[1:2]
        if type(attempt) is not int or not verb or verb[0] not in self.forms:
            raise StateError(f"'{request}' is no sum of this run")
        form = self.forms[verb[0]]
        return self.sums.on_shares(
            self.voice.run, request, attempt, form.words, about, gate_of(form)
        )
