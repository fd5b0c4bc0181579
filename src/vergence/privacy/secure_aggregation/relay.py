"""Coordinator of a secure sum by additive shares (`additive.py`); it learns only the sum.

Used by `engine.secure_sum_attempts`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vergence.privacy.secure_aggregation.additive import (
    agreed_on,
    by_sender,
    checked_openings,
    opened_words,
    tables,
)
from vergence.privacy.secure_aggregation.additive_messages import (
    AdditiveParams,
    AggregatorParts,
    Contribution,
    HeldByAll,
    HeldParts,
    LookedUp,
    Lookups,
    OpenedShare,
    Opening,
    Openings,
    Ready,
    Relayed,
    SharedTotal,
    SharePart,
    ShownCounts,
)
from vergence.privacy.secure_aggregation.packing import received
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Invitation,
    Refused,
    Register,
    Sign,
    check,
    transcript,
)

Answers = Mapping[str, object]
"""Answer of each client or aggregator, by name; answers are unchecked objects of any type."""
Question = Invitation | Openings | AggregatorParts | HeldByAll | Relayed | Lookups
Talk = Generator[Mapping[str, Question], Answers, SharedTotal]
FromAggregator = TypeVar("FromAggregator", Opening, HeldParts, ShownCounts, LookedUp, OpenedShare)


class Coordinator:
    """The server's side of one attempt at a sum by additive shares.

    After an attempt the attribute `refused` has the clients that were left out, with the reasons.
    `clients` then has the clients that sent valid shares. `openings` has the aggregators' public
    keys; it is empty if an aggregator did not answer the first message.

    Args:
        terms: parameters of the attempt, made from the server's own plan of the run.
        clients: names of the clients that the server asks.
        register: the long-lived keys of clients, aggregators and dealer.
        sign: signs bytes with the server's own key; needed if the server is the dealer.
        name: name of the server.
    """

    def __init__(
        self,
        terms: AdditiveParams,
        clients: tuple[str, ...],
        register: Register,
        sign: Sign | None = None,
        name: str = "server",
    ) -> None:
        self.terms, self.clients, self.register = terms, clients, register
        self.sign, self.name = sign, name
        self.refused: dict[str, str] = {}
        self.openings: tuple[Opening, ...] = ()
        self.before = b""

    def converse(self) -> Talk:
        """Run the attempt as a generator.

        It yields messages by recipient, is sent the answers by sender, and returns the sum.

        Raises:
            Aborted: the attempt ends without a sum.
        """
        terms, digest = self.terms, self.terms.digest
        invited = dict.fromkeys(terms.aggregators, Invitation(digest))
        openings = tuple(self._all((yield invited), Opening).values())
        keys = checked_openings(openings, terms, self.register)
        self.openings = openings
        answers = yield dict.fromkeys(self.clients, Openings(digest, openings))
        parts = self._parts(answers)
        self.clients = tuple(parts)
        asked = {
            a: AggregatorParts(digest, tuple(p[a] for p in parts.values()))
            for a in terms.aggregators
        }
        helds = self._all((yield asked), HeldParts)
        names = sorted(set.intersection(*(set(held.names) for held in helds.values())))
        if len(names) < terms.threshold:
            raise Aborted(
                f"too few: {len(names)} sent all their parts, and {terms.threshold} are needed"
            )
        self.before = agreed_on(terms, keys, helds)
        answers = yield dict.fromkeys(
            terms.aggregators, HeldByAll(digest, tuple(helds.values()), openings)
        )
        opened = np.ones(terms.gated, np.bool_)
        if terms.gated:
            lookups = yield from self._gate(answers, openings)
            opened = opened_words(lookups.looked, terms, self.register, self.before)
            self.before = transcript(self.before, *by_sender(lookups.looked))
            answers = yield dict.fromkeys(terms.aggregators, lookups)
        return self._sum(self._all(answers, OpenedShare), names, opened)

    def _all(
        self, answers: Answers, kind: type[FromAggregator], names: tuple[str, ...] = ()
    ) -> dict[str, FromAggregator]:
        """Check that all aggregators, or those in `names`, sent a message; return these by name.

        Raises:
            Aborted: a message is missing, or is not valid.
        """
        messages: dict[str, FromAggregator] = {}
        for name in names or self.terms.aggregators:
            answer = answers.get(name)
            if not isinstance(answer, kind) or answer.sender != name:
                raise Aborted(f"aggregator '{name}' has not sent its {kind.__name__}")
            try:
                self._checked(answer)
            except Refused as reason:
                raise Aborted(f"aggregator '{name}': {reason}") from None
            messages[name] = answer
        return messages

    def _checked(self, message: FromAggregator | SharePart) -> None:
        if message.terms != self.terms.digest:
            raise Refused("round: this is of another attempt, or on other terms")
        check(message.signed, message.signature, message.sender, self.register)

    def _parts(self, answers: Answers) -> dict[str, dict[str, SharePart]]:
        """Return the clients' valid shares, by client and aggregator.

        A client with an invalid share is left out; `refused` gets the reason.
        """
        parts_of: dict[str, dict[str, SharePart]] = {}
        for name, answer in answers.items():
            try:
                if type(answer) is not Contribution or answer.sender != name:
                    raise Refused(f"order: '{name}' sent something else than its parts")
                parts = {part.to: part for part in answer.parts}
                if set(parts) != set(self.terms.aggregators):
                    raise Refused(f"lists: '{name}' sent parts for {sorted(parts)}")
                for part in answer.parts:
                    # A client may not replace another one's parts by signed ones of its own.
                    if part.sender != name:
                        raise Refused(f"signature: '{name}' speaks for '{part.sender}'")
                    self._checked(part)
                parts_of[name] = parts
            except Refused as reason:
                self.refused[name] = str(reason)
        return parts_of

    def _gate(
        self, answers: Answers, openings: tuple[Opening, ...]
    ) -> Generator[Mapping[str, Relayed], Answers, Lookups]:
        """Relay encrypted messages between the dealer and the aggregators that look up tables.

        Return each aggregator's share of the bits that say which entries may be opened.
        """
        terms, digest, parties = self.terms, self.terms.digest, self.terms.parties
        dealt = (
            tables(self.name, terms, {key.sender: key for key in openings}, self.sign)
            if terms.dealer == self.name and self.sign is not None
            else answers.get(terms.dealer)
        )
        missing = [name for name in parties if type(answers.get(name)) is not Ready]
        if missing or type(dealt) is not ShownCounts:
            raise Aborted(f"aggregator '{[*missing, terms.dealer][0]}' is not ready for the gate")
        self.before = transcript(self.before, dealt)
        answers = yield {name: Relayed(digest, (dealt,)) for name in parties}
        shown = self._all(answers, ShownCounts, parties)
        answers = yield {
            to: Relayed(digest, tuple(boxes for name, boxes in shown.items() if name != to))
            for to in parties
        }
        return Lookups(digest, tuple(self._all(answers, LookedUp, parties).values()))

    def _sum(
        self, shares: Mapping[str, OpenedShare], names: list[str], opened: NDArray[np.bool_]
    ) -> SharedTotal:
        gated, terms = self.terms.gated, self.terms
        many = int(opened.sum()) + terms.words - gated
        total = np.zeros(many, np.uint64)
        for name, share in shares.items():
            if share.before != self.before:
                raise Aborted(f"aggregator '{name}' was told otherwise than the others")
            if len(share.words) != 8 * many:
                raise Aborted(f"aggregator '{name}' opened {len(share.words):,} bytes")
            np.add(total, received(share.words), total)
        words = np.zeros(terms.words, np.uint64)
        words[:gated][opened] = total[: many - (terms.words - gated)]
        words[gated:] = total[many - (terms.words - gated) :]
        # A dealer that deviates may have an entry opened that one person alone shares: the sum is
        # dropped, so that nobody computes with it.
        counts = words[:gated][opened] & np.uint64((1 << terms.count_bits) - 1)
        if gated and len(counts) and int(counts.min()) < terms.threshold:
            raise Aborted(
                "gate: an entry was opened that has too few contributors; stop using "
                "these aggregators"
            )
        return SharedTotal(words, tuple(names), opened)
