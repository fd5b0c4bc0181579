"""Attempts at a secure sum: protocols run to their end, however their messages travel."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from vergence.core.aggregation import Sum
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack
from vergence.engine.records import GroupResult
from vergence.engine.secure_sums import SERVER, PackedReply, SecureSum, left_out
from vergence.privacy.secure_aggregation import additive_messages as shares
from vergence.privacy.secure_aggregation.additive import Aggregator, Contributor
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.pairwise import (
    STEPS,
    PairwiseClient,
    PairwiseServer,
    converse,
)
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Advert,
    Agreed,
    Agreements,
    Masked,
    PairwiseParams,
    RelayedShares,
    Roster,
    Shares,
    Survivors,
    Unmask,
)
from vergence.privacy.secure_aggregation.relay import Coordinator
from vergence.privacy.secure_aggregation.reply_layout import ReplyLayout
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Genuine,
    Invitation,
    Refused,
    Register,
    Sign,
    UsedContributions,
    signing_pair,
)

ATTEMPTS = 3
"""How often a sum is begun anew, with fresh keys, with those who were left."""
Asked = (
    Invitation
    | Roster
    | RelayedShares
    | Survivors
    | Agreements
    | shares.Openings
    | shares.AggregatorParts
    | shares.HeldByAll
    | shares.Relayed
    | shares.Lookups
)
"""What a client or an aggregator is told in a sum."""
Answered = (
    Advert
    | Shares
    | Masked
    | Agreed
    | Unmask
    | shares.Opening
    | shares.Contribution
    | shares.HeldParts
    | shares.ShownCounts
    | shares.Ready
    | shares.LookedUp
    | shares.OpenedShare
)
"""What it says."""
T = TypeVar("T", PairwiseParams, AdditiveParams)
Ask = Callable[[T, Mapping[str, Any]], Mapping[str, Any]]
"""Tells some ends something each, and returns what those said who answered."""


@dataclass(frozen=True)
class PartyIdentity:
    """Speaker in the sums of a run: its name, everybody's long-lived keys, and one's own."""

    run: str
    register: Register
    sign: Sign | None = None


@dataclass(frozen=True)
class OpenedSum:
    """A sum of rows, and why some who gave one are not in it."""

    sum: Sum = field(default_factory=Sum)
    out: Mapping[str, str] = field(default_factory=dict)


def hold(talk: Any, ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """Hold a conversation to its end.

    Raises:
        Aborted: nobody learns the sum.
    """
    asked = next(talk)
    while True:
        try:
            asked = talk.send(ask(asked))
        except StopIteration as end:
            return end.value


def of_rows(words: Words, people: int) -> Sum:
    """Return words as the sum of so many people's rows."""
    whole = Sum()
    whole.add(PackedReply.of(words))
    whole.count = people
    return whole


def with_opened_sum(
    done: Sequence[tuple[int, GroupResult]], opened: OpenedSum
) -> Iterator[tuple[int, GroupResult]]:
    """Yield the results of groups; the sum comes with the last."""
    for number, result in done:
        results = [
            left_out(r, opened.out[r.client]) if r.client in opened.out else r
            for r in result.results
        ]
        last = number == len(done) - 1
        yield number, GroupResult(results, opened.sum if last else Sum())


def nothing_to_hide(form: ReplyLayout, names: Collection[str]) -> OpenedSum:
    """Empty sum, counting who gave, for too few people or nothing to add up: no message needed."""
    return OpenedSum(of_rows(np.zeros(form.words, np.uint64), len(names)))


def under_pads(
    sums: SecureSum,
    form: ReplyLayout,
    message: Message,
    names: Collection[str],
    identity: PartyIdentity,
    ask: Ask[PairwiseParams],
) -> OpenedSum:
    """Hold attempts at a sum of the replies to a message; none after something was unmasked."""
    left, out = sorted(names), {}
    if len(left) < sums.policy.threshold or not form.words:
        return nothing_to_hide(form, names)
    for _ in range(ATTEMPTS):
        if len(left) < sums.policy.threshold:
            break
        terms = sums.terms(form, message, identity.run, secrets.randbits(62), len(left))
        assert isinstance(terms, PairwiseParams)
        server = PairwiseServer(terms, {name: identity.register[name] for name in left})
        try:
            total = hold(converse(server), partial(ask, terms))
        except Aborted as why:
            said = str(why)
        else:
            out |= _missing(left, total.names, server.refused)
            return OpenedSum(of_rows(total.words, len(total.names)), out)
        still = sorted(server.heard)
        out |= _missing(left, still, server.refused)
        if server.step == len(STEPS) - 1 or len(still) == len(left):
            return OpenedSum(Sum(), {**dict.fromkeys(left, f"lost: no sum: {said}"), **out})
        left = still
    few = f"lost: {len(left)} of {len(names)} are left in the sum, which is not opened"
    return OpenedSum(Sum(), {**dict.fromkeys(left, few), **out})


def on_shares(
    sums: SecureSum,
    form: ReplyLayout,
    message: Message,
    names: Collection[str],
    identity: PartyIdentity,
    ask: Ask[AdditiveParams],
) -> OpenedSum:
    """Hold attempts at a sum that aggregators open; none where one is missing from the beginning.

    One that lost an attempt, as it was started anew, may have another: it opens one sum of a
    contribution, whatever the attempt.
    """
    left, out = sorted(names), {}
    if len(left) < sums.policy.threshold or not form.words:
        return nothing_to_hide(form, names)
    said = ""
    for _ in range(ATTEMPTS):
        terms = sums.terms(form, message, identity.run, secrets.randbits(62), len(left))
        assert isinstance(terms, AdditiveParams)
        coordinator = Coordinator(terms, tuple(left), identity.register, identity.sign, SERVER)
        try:
            total = hold(coordinator.converse(), partial(ask, terms))
        except (Aborted, Refused) as why:
            said = f"lost: no sum: {why}"
            out |= _missing(left, coordinator.clients, coordinator.refused)
            left = sorted(coordinator.clients)
            if not coordinator.openings or len(left) < sums.policy.threshold:
                break
        else:
            out |= _missing(left, total.names, coordinator.refused)
            return OpenedSum(of_rows(total.words, len(total.names)), out)
    return OpenedSum(Sum(), {**dict.fromkeys(left, said), **out})


def _missing(
    asked: Collection[str], there: Collection[str], refused: Mapping[str, str]
) -> dict[str, str]:
    """Reasons why some who were asked are not in a sum."""
    return {
        name: f"quarantined: {refused[name]}" if name in refused else "lost: left the sum"
        for name in asked
        if name not in there
    }


class InProcessProtocol:
    """All parties of a run's sums in this process, with a key each; messages are bytes.

    For trying a protocol out: who has this process's memory sees every row.
    """

    def __init__(self, sums: SecureSum) -> None:
        self.sums = sums
        self.keys: dict[str, tuple[Sign, Genuine]] = {}
        self.spent: dict[str, UsedContributions] = defaultdict(UsedContributions)

    def total(self, form: ReplyLayout, message: Message, rows: Mapping[str, Words]) -> OpenedSum:
        """Return the sum of some rows, the replies to a message."""
        if len(rows) < self.sums.policy.threshold or not form.words:
            return nothing_to_hide(form, rows)
        if self.sums.policy.name == "pairwise":
            ends: dict[str, Any] = {}
            ask = partial(self._ask, ends, rows)
            identity = PartyIdentity("here", self._register(rows))
            return under_pads(self.sums, form, message, rows, identity, ask)
        terms = self.sums.terms(form, message, "here", secrets.randbits(62), len(rows))
        assert isinstance(terms, AdditiveParams)
        register = self._register([*rows, *terms.aggregators, SERVER])
        ends = {
            n: Contributor(n, terms, row, self._key(n)[0], register, self.spent[n])
            for n, row in rows.items()
        }
        ends |= {
            n: Aggregator(n, terms, self._key(n)[0], register, self.spent[n])
            for n in terms.aggregators
        }
        coordinator = Coordinator(terms, tuple(rows), register, self._key(SERVER)[0], SERVER)
        total = hold(coordinator.converse(), partial(self._carry, ends))
        return OpenedSum(
            of_rows(total.words, len(total.names)), _missing(rows, total.names, coordinator.refused)
        )

    def _key(self, name: str) -> tuple[Sign, Genuine]:
        if name not in self.keys:
            self.keys[name] = signing_pair()
        return self.keys[name]

    def _register(self, names: Collection[str]) -> Register:
        return {name: self._key(name)[1] for name in names}

    def _ask(
        self,
        ends: dict[str, Any],
        rows: Mapping[str, Words],
        terms: PairwiseParams,
        asked: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        for name, message in asked.items():
            if isinstance(message, Invitation):
                sign, register = self._key(name)[0], self._register(rows)
                ends[name] = PairwiseClient(
                    name, terms, rows[name], sign, register, self.spent[name]
                )
        return self._carry(ends, asked)

    def _carry(self, ends: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: thawed(ends[name].answer(thawed(message))) for name, message in asked.items()}


def thawed(message: Any) -> Any:
    """Return a message as it is after it travelled as bytes."""
    return unpack(pack(message), type(message))
