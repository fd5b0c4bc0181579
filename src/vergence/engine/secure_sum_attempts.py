"""Attempts at a secure sum: runs of a protocol, over a network or in one process.

Used in `deployment` and `engine`.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from vergence.core.aggregation import Sum
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack
from vergence.engine.records import GroupResult
from vergence.engine.secure_sums import SERVER, PackedReply, SecureSum, left_out
from vergence.privacy.folder_marks import FolderMark
from vergence.privacy.secure_aggregation import additive_messages as shares
from vergence.privacy.secure_aggregation.additive import Aggregator, Contributor
from vergence.privacy.secure_aggregation.additive_messages import AdditiveParams
from vergence.privacy.secure_aggregation.packing import Words
from vergence.privacy.secure_aggregation.pairwise import PairwiseClient, PairwiseServer, converse
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Advert,
    Agreed,
    Agreements,
    Masked,
    PairwiseParams,
    RandomNumbers,
    RelayedShares,
    Reveal,
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

# A sum is begun anew, with fresh keys, without the clients that vanished. Where clients keep
# vanishing, a round without this sum is better than one that never ends.
ATTEMPTS = 3
SumRequest = (
    Invitation
    | Roster
    | RandomNumbers
    | RelayedShares
    | Survivors
    | Agreements
    | shares.Openings
    | shares.AggregatorParts
    | shares.HeldByAll
    | shares.Relayed
    | shares.Lookups
)
"""Message of the server to a client or an aggregator during a secure sum."""
SumAnswer = (
    Advert
    | Reveal
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
"""Answer of a client or an aggregator."""
T = TypeVar("T", PairwiseParams, AdditiveParams)
Value = TypeVar("Value")
Requests = Mapping[str, SumRequest]
"""Name of a party -> message to the party."""
Answers = Mapping[str, SumAnswer]
"""Name of a party -> its answer; parties that did not answer are absent."""
Ask = Callable[[T, Requests], Answers]
"""Sends messages to parties and returns their answers."""


@dataclass(frozen=True)
class PartyIdentity:
    """Identity of a party in the sums of a run.

    Attributes:
        run: name of the run.
        register: long-lived public keys of all parties, by name.
        sign: signs with this party's own key; None: the party signs nothing.
        mark: mark of the party's folder, which shows whether the folder was put back from a copy;
            None: there is none.
    """

    run: str
    register: Register
    sign: Sign | None = None
    mark: FolderMark | None = None


@dataclass(frozen=True)
class OpenedSum:
    """A sum of encoded replies that was opened.

    Attributes:
        sum: the sum.
        out: client -> reason why its reply is not in the sum.
    """

    sum: Sum = field(default_factory=Sum)
    out: Mapping[str, str] = field(default_factory=dict)


def hold(
    protocol: Generator[Requests, Answers, Value], ask: Callable[[Requests], Answers]
) -> Value:
    """Run a protocol to its end, and return what it returns.

    Args:
        protocol: yields messages to parties, and is sent their answers.
        ask: sends messages to parties, and returns their answers.

    Raises:
        Aborted: the protocol ended without a sum.
    """
    messages = next(protocol)
    while True:
        try:
            messages = protocol.send(ask(messages))
        except StopIteration as end:
            return end.value


def of_rows(words: Words, people: int) -> Sum:
    """Return a vector of words as the sum of `people` encoded replies."""
    whole = Sum()
    whole.add(PackedReply.of(words))
    whole.count = people
    return whole


def with_opened_sum(
    done: Sequence[tuple[int, GroupResult]], opened: OpenedSum
) -> Iterator[tuple[int, GroupResult]]:
    """Yield all groups of a batch, the last one with the sum over all groups.

    Clients that are not in the sum get the reason as their status.
    """
    for number, result in done:
        results = [
            left_out(r, opened.out[r.client]) if r.client in opened.out else r
            for r in result.results
        ]
        last = number == len(done) - 1
        yield number, GroupResult(results, opened.sum if last else Sum())


def nothing_to_hide(form: ReplyLayout, names: Collection[str]) -> OpenedSum:
    """Return a sum of zeros; used without a protocol if replies are empty or too few."""
    return OpenedSum(of_rows(np.zeros(form.words, np.uint64), len(names)))


def under_pads(
    sums: SecureSum,
    form: ReplyLayout,
    message: Message,
    names: Collection[str],
    identity: PartyIdentity,
    ask: Ask[PairwiseParams],
) -> OpenedSum:
    """Sum the replies to a message by pairwise masking, in a few attempts.

    Args:
        sums: settings of secure sums.
        form: how replies are encoded.
        message: the message.
        names: the clients that replied.
        identity: the server's identity.
        ask: sends messages to clients, and returns their answers.
    """
    clients, out = sorted(names), {}
    if len(clients) < sums.policy.threshold or not form.words:
        return nothing_to_hide(form, names)
    for _ in range(ATTEMPTS):
        if len(clients) < sums.policy.threshold:
            break
        terms = sums.terms(form, message, identity.run, secrets.randbits(62), len(clients))
        assert isinstance(terms, PairwiseParams)
        server = PairwiseServer(terms, {name: identity.register[name] for name in clients})
        try:
            total = hold(converse(server), partial(ask, terms))
        except Aborted as why:
            reason = str(why)
        else:
            out |= _missing(clients, total.names, server.refused)
            return OpenedSum(of_rows(total.words, len(total.names)), out)
        present = sorted(server.answers)
        out |= _missing(clients, present, server.refused)
        # After the last step some clients have unmasked words, and unmask none a second time. Where
        # nobody vanished, another attempt would fail in the same way.
        if server.step == len(server.kinds) - 1 or len(present) == len(clients):
            return OpenedSum(Sum(), {**dict.fromkeys(clients, f"lost: no sum: {reason}"), **out})
        clients = present
    reason = f"lost: {len(clients)} of {len(names)} are left in the sum, which is not opened"
    return OpenedSum(Sum(), {**dict.fromkeys(clients, reason), **out})


def on_shares(
    sums: SecureSum,
    form: ReplyLayout,
    message: Message,
    names: Collection[str],
    identity: PartyIdentity,
    ask: Ask[AdditiveParams],
) -> OpenedSum:
    """Sum the replies to a message by additive secret shares, which aggregators open.

    Args:
        sums: settings of secure sums.
        form: how replies are encoded.
        message: the message.
        names: the clients that replied.
        identity: the server's identity.
        ask: sends messages to clients and aggregators, and returns their answers.
    """
    clients, out = sorted(names), {}
    if len(clients) < sums.policy.threshold or not form.words:
        return nothing_to_hide(form, names)
    status = ""
    for _ in range(ATTEMPTS):
        terms = sums.terms(form, message, identity.run, secrets.randbits(62), len(clients))
        assert isinstance(terms, AdditiveParams)
        coordinator = Coordinator(terms, tuple(clients), identity.register, identity.sign, SERVER)
        try:
            total = hold(coordinator.converse(), partial(ask, terms))
        except (Aborted, Refused) as why:
            status = f"lost: no sum: {why}"
            out |= _missing(clients, coordinator.clients, coordinator.refused)
            clients = sorted(coordinator.clients)
            # An aggregator that was restarted during an attempt may have another one, as it opens
            # one sum of a contribution only. One that never answered ends the sum.
            if not coordinator.openings or len(clients) < sums.policy.threshold:
                break
        else:
            out |= _missing(clients, total.names, coordinator.refused)
            return OpenedSum(of_rows(total.words, len(total.names)), out)
    return OpenedSum(Sum(), {**dict.fromkeys(clients, status), **out})


def _missing(
    asked: Collection[str], present: Collection[str], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return client -> reason, for clients that were asked and are not in a sum."""
    return {
        name: f"quarantined: {refused[name]}" if name in refused else "lost: left the sum"
        for name in asked
        if name not in present
    }


class InProcessProtocol:
    """Runs all parties of a secure sum in this process, each with its own key.

    Messages between parties are turned into bytes and back.
    """

    # It is for trying a protocol out, and hides nothing: this process has every row in memory.

    def __init__(self, sums: SecureSum) -> None:
        self.sums = sums
        self.keys: dict[str, tuple[Sign, Genuine]] = {}
        self.spent: dict[str, UsedContributions] = defaultdict(UsedContributions)

    def total(self, form: ReplyLayout, message: Message, rows: Mapping[str, Words]) -> OpenedSum:
        """Return the sum of the encoded replies to a message; `rows` maps clients to replies."""
        if len(rows) < self.sums.policy.threshold or not form.words:
            return nothing_to_hide(form, rows)
        if self.sums.policy.name == "pairwise":
            clients: dict[str, PairwiseClient] = {}
            ask = partial(self._ask, clients, rows)
            identity = PartyIdentity("here", self._register(rows))
            return under_pads(self.sums, form, message, rows, identity, ask)
        terms = self.sums.terms(form, message, "here", secrets.randbits(62), len(rows))
        assert isinstance(terms, AdditiveParams)
        register = self._register([*rows, *terms.aggregators, SERVER])
        parties: dict[str, Contributor | Aggregator] = {
            n: Contributor(n, terms, row, self._key(n)[0], register, self.spent[n])
            for n, row in rows.items()
        }
        parties |= {
            n: Aggregator(n, terms, self._key(n)[0], register, self.spent[n])
            for n in terms.aggregators
        }
        coordinator = Coordinator(terms, tuple(rows), register, self._key(SERVER)[0], SERVER)
        total = hold(coordinator.converse(), partial(self._carry, parties))
        return OpenedSum(
            of_rows(total.words, len(total.names)), _missing(rows, total.names, coordinator.refused)
        )

    def _key(self, name: str) -> tuple[Sign, Genuine]:
        """Return the long-lived keys of a party: a function that signs, and one that verifies."""
        if name not in self.keys:
            self.keys[name] = signing_pair()
        return self.keys[name]

    def _register(self, names: Collection[str]) -> Register:
        """Return the public keys of these parties."""
        return {name: self._key(name)[1] for name in names}

    def _ask(
        self,
        clients: dict[str, PairwiseClient],
        rows: Mapping[str, Words],
        terms: PairwiseParams,
        messages: Requests,
    ) -> Answers:
        """Deliver the server's messages, and return the answers.

        An invitation makes a new client object, as it begins a new attempt.
        """
        for name, message in messages.items():
            if isinstance(message, Invitation):
                sign, register = self._key(name)[0], self._register(rows)
                clients[name] = PairwiseClient(
                    name, terms, rows[name], sign, register, self.spent[name]
                )
        return self._carry(clients, messages)

    def _carry(
        self, parties: Mapping[str, PairwiseClient | Contributor | Aggregator], messages: Requests
    ) -> Answers:
        """Deliver messages to their parties as bytes, and return the answers."""
        return {
            name: through_bytes(parties[name].answer(through_bytes(message)))
            for name, message in messages.items()
        }


def through_bytes(message: Value) -> Value:
    """Return a message after its conversion to bytes and back; `InProcessProtocol` calls this."""
    return unpack(pack(message), type(message))
