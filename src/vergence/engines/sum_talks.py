"""Protocols that add up rows of words: held to their end, whoever carries their messages."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from vergence.core.state import pack, unpack
from vergence.core.wire import Message, Sum
from vergence.engines.job import Result
from vergence.engines.sums import SERVER, Sums, carrying, left_out
from vergence.privacy import shared_messages as shares
from vergence.privacy.additive_sharing import Aggregator, Contributor
from vergence.privacy.coordinator import Coordinator
from vergence.privacy.form import Form
from vergence.privacy.pairwise_messages import (
    Advert,
    Agreed,
    Agreements,
    Delivery,
    Masked,
    Pairwise,
    Roster,
    Shares,
    Survivors,
    Unmask,
)
from vergence.privacy.ring import Words
from vergence.privacy.secure_aggregation import STEPS, Client, Server, converse
from vergence.privacy.shared_messages import Shared
from vergence.privacy.terms import (
    Aborted,
    Genuine,
    Invitation,
    Refused,
    Register,
    Sign,
    Spent,
    signing_pair,
)

ATTEMPTS = 3
"""How often a sum is begun anew, with fresh keys, with those who were left."""
Asked = (
    Invitation | Roster | Delivery | Survivors | Agreements
    | shares.Openings | shares.Parts | shares.Helds | shares.Relayed | shares.Lookups
)  # fmt: skip
"""What a client or an aggregator is told in a sum."""
Answered = (
    Advert | Shares | Masked | Agreed | Unmask
    | shares.Opening | shares.Contribution | shares.Held | shares.Boxes | shares.Ready
    | shares.Looked | shares.Opened
)  # fmt: skip
"""What it says."""
T = TypeVar("T", Pairwise, Shared)
Ask = Callable[[T, Mapping[str, Any]], Mapping[str, Any]]
"""Tells some ends something each, and returns what those said who answered."""


@dataclass(frozen=True)
class Voice:
    """Who speaks in the sums of a run: its name, everybody's long-lived keys, and one's own."""

    run: str
    register: Register
    sign: Sign | None = None


@dataclass(frozen=True)
class Opened:
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
    whole.add(carrying(words))
    whole.count = people
    return whole


def told(done: Sequence[tuple[int, Result]], opened: Opened) -> Iterator[tuple[int, Result]]:
    """Yield the results of groups; the sum comes with the last."""
    for number, result in done:
        receipts = [left_out(r, opened.out[r.client]) if r.client in opened.out else r
                    for r in result.receipts]  # fmt: skip
        last = number == len(done) - 1
        yield number, Result(receipts, opened.sum if last else Sum())


def nothing_to_hide(form: Form, names: Collection[str]) -> Opened:
    """Return who gave, where too few did or there is nothing to add up: no message is needed."""
    return Opened(of_rows(np.zeros(form.words, np.uint64), len(names)))


def under_pads(
    sums: Sums,
    form: Form,
    message: Message,
    names: Collection[str],
    voice: Voice,
    ask: Ask[Pairwise],
) -> Opened:
    """Hold attempts at a sum of the replies to a message; none after something was unmasked."""
    left, out = sorted(names), {}
    if len(left) < sums.policy.min_contributors or not form.words:
        return nothing_to_hide(form, names)
    for _ in range(ATTEMPTS):
        if len(left) < sums.policy.min_contributors:
            break
        terms = sums.terms(form, message, voice.run, secrets.randbits(62), len(left))
        assert isinstance(terms, Pairwise)
        server = Server(terms, {name: voice.register[name] for name in left})
        try:
            total = hold(converse(server), partial(ask, terms))
        except Aborted as why:
            said = str(why)
        else:
            out |= _missing(left, total.names, server.refused)
            return Opened(of_rows(total.words, len(total.names)), out)
        still = sorted(server.heard)
        out |= _missing(left, still, server.refused)
        if server.step == len(STEPS) - 1 or len(still) == len(left):
            return Opened(Sum(), {**dict.fromkeys(left, f"lost: no sum: {said}"), **out})
        left = still
    few = f"lost: {len(left)} of {len(names)} are left in the sum, which is not opened"
    return Opened(Sum(), {**dict.fromkeys(left, few), **out})


def on_shares(
    sums: Sums, form: Form, message: Message, names: Collection[str], voice: Voice, ask: Ask[Shared]
) -> Opened:
    """Hold attempts at a sum that aggregators open; none where one is missing from the beginning.

    One that lost an attempt, as it was started anew, may have another: it opens one sum of a
    contribution, whatever the attempt.
    """
    left, out = sorted(names), {}
    if len(left) < sums.policy.min_contributors or not form.words:
        return nothing_to_hide(form, names)
    said = ""
    for _ in range(ATTEMPTS):
        terms = sums.terms(form, message, voice.run, secrets.randbits(62), len(left))
        assert isinstance(terms, Shared)
        coordinator = Coordinator(terms, tuple(left), voice.register, voice.sign, SERVER)
        try:
            total = hold(coordinator.converse(), partial(ask, terms))
        except (Aborted, Refused) as why:
            said = f"lost: no sum: {why}"
            out |= _missing(left, coordinator.clients, coordinator.refused)
            left = sorted(coordinator.clients)
            if not coordinator.openings or len(left) < sums.policy.min_contributors:
                break
        else:
            out |= _missing(left, total.names, coordinator.refused)
            return Opened(of_rows(total.words, len(total.names)), out)
    return Opened(Sum(), {**dict.fromkeys(left, said), **out})


def _missing(
    asked: Collection[str], there: Collection[str], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return why some who were asked are not in a sum."""
    return {name: f"quarantined: {refused[name]}" if name in refused else "lost: left the sum"
            for name in asked if name not in there}  # fmt: skip


class Indoors:
    """All ends of a run's sums in this process, each with a key of its own; messages are bytes.

    For trying a protocol out: who has this process's memory sees every row.
    """

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        self.keys: dict[str, tuple[Sign, Genuine]] = {}
        self.spent: dict[str, Spent] = defaultdict(Spent)

    def total(self, form: Form, message: Message, rows: Mapping[str, Words]) -> Opened:
        """Return the sum of some rows, the replies to a message."""
        if len(rows) < self.sums.policy.min_contributors or not form.words:
            return nothing_to_hide(form, rows)
        if self.sums.policy.name == "pairwise":
            ends: dict[str, Any] = {}
            ask = partial(self._ask, ends, rows)
            voice = Voice("here", self._register(rows))
            return under_pads(self.sums, form, message, rows, voice, ask)
        terms = self.sums.terms(form, message, "here", 0, len(rows))
        assert isinstance(terms, Shared)
        register = self._register([*rows, *terms.aggregators, SERVER])
        ends = {n: Contributor(n, terms, row, self._key(n)[0], register)
                for n, row in rows.items()}  # fmt: skip
        ends |= {n: Aggregator(n, terms, self._key(n)[0], register, self.spent[n])
                 for n in terms.aggregators}  # fmt: skip
        coordinator = Coordinator(terms, tuple(rows), register, self._key(SERVER)[0], SERVER)
        total = hold(coordinator.converse(), partial(self._carry, ends))
        return Opened(of_rows(total.words, len(total.names)),
                      _missing(rows, total.names, coordinator.refused))  # fmt: skip

    def _key(self, name: str) -> tuple[Sign, Genuine]:
        if name not in self.keys:
            self.keys[name] = signing_pair()
        return self.keys[name]

    def _register(self, names: Collection[str]) -> Register:
        return {name: self._key(name)[1] for name in names}

    def _ask(
        self, ends: dict[str, Any], rows: Mapping[str, Words], terms: Pairwise,
        asked: Mapping[str, Any],
    ) -> Mapping[str, Any]:  # fmt: skip
        for name, message in asked.items():
            if isinstance(message, Invitation):
                sign, register = self._key(name)[0], self._register(rows)
                ends[name] = Client(name, terms, rows[name], sign, register, self.spent[name])
        return self._carry(ends, asked)

    def _carry(self, ends: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: thawed(ends[name].answer(thawed(message))) for name, message in asked.items()}


def thawed(message: Any) -> Any:
    """Return a message as it is after it travelled as bytes."""
    return unpack(pack(message), type(message))
