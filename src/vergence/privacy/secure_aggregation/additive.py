"""Secure sum by additive shares: clients split their words among 2 to 4 named aggregators.

A client's words are its reply as integers modulo 2^64. Every aggregator except the first gets a
32-byte seed, which gives a pad. The first gets the words minus all these pads. Each aggregator adds
up the shares of all clients; the aggregators' results add up to the sum of the words. A client
whose share is missing at an aggregator is left out of the sum; nothing has to be recovered.

    coordinator            aggregator                         client
    Invitation    ->       fresh key       -> Opening
    Openings      ->                                          -> Contribution
    Parts         ->       who is there    -> Held
    Helds         ->       its share of the sum -> Opened
    SharedTotal

With `gated` words, entries with fewer contributors than the threshold are not opened. This takes
three more steps (`threshold.py`). After Helds the dealer makes lookup tables. The parties (the
aggregators except the dealer) show each other blinded counts and look up which entries may be
opened. Then all aggregators open these entries. The coordinator relays messages that it cannot
decrypt.

Aggregators and dealer are trusted to follow the protocol: a dealer that deviates can have entries
opened that only one person shares. Replies stay hidden as long as one aggregator does not collude
with the others. Counts below the threshold stay hidden as long as no party colludes with the
dealer. The coordinator is not trusted: an aggregator begins an attempt only once, every signature
covers the earlier messages, and each aggregator compares these with the messages that it saw.

Used by `deployment.secure_sum_aggregator`, `deployment.secure_sum_client`,
`engine.secure_sum_attempts` and `privacy.secure_aggregation.relay`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError
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
    SharePart,
    ShownCounts,
)
from vergence.privacy.secure_aggregation.masking import (
    SEED,
    add_pads,
    agreed,
    close_box,
    derived,
    new_key,
    new_seed,
    open_box,
)
from vergence.privacy.secure_aggregation.packing import Words, received, sent
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    BookState,
    Invitation,
    Participant,
    Refused,
    Register,
    Sign,
    UsedContributions,
    check,
    statement,
    sum_digest,
    transcript,
)
from vergence.privacy.secure_aggregation.threshold import (
    Table,
    deal,
    hidden_table,
    looked_up,
    passing,
    read_table,
    shown_counts,
)

KEY = 32
T = TypeVar("T", Opening, HeldParts, LookedUp, ShownCounts)


def sealed(terms: bytes, step: str, sender: str, to: Opening, data: bytes) -> bytes:
    """Return a message encrypted for one aggregator.

    Args:
        terms: digest of the attempt's parameters.
        step: name of the step in which the message is sent.
        sender: name of the sender.
        to: public key of the recipient.
        data: the message.

    Raises:
        Refused: the recipient's key cannot be used.
    """
    mine, about = new_key(), statement(step, terms, sender, to.sender.encode())
    try:
        key = agreed(mine, to.key, terms, f"box {about.hex()}")
    except ValueError:
        raise Refused(f"size: '{to.sender}' has no usable key") from None
    return mine.public_key().public_bytes_raw() + close_box(key, data, about)


def part_seed(secret: bytes, terms: bytes) -> bytes:
    """Return the seed of a pad, from the 32 secret bytes that a client sends to an aggregator.

    `Contributor` and `Aggregator` call this.
    """
    return derived(secret, terms, "seed of a part")


def checked_openings(
    openings: tuple[Opening, ...], terms: AdditiveParams, register: Register
) -> dict[str, Opening]:
    """Check the public keys of all aggregators; return them by aggregator.

    Raises:
        Refused: a key is missing, occurs twice, is of another attempt, or is wrongly signed.
    """
    keys = {opening.sender: opening for opening in openings}
    # A coordinator that added an aggregator of its own, or left one out, would change who has to
    # collude.
    if set(keys) != set(terms.aggregators) or len(keys) != len(openings):
        raise Refused(f"lists: keys of {sorted(keys)}, agreed are {sorted(terms.aggregators)}")
    for opening in openings:
        # A key of an earlier attempt, whose private half may have leaked since, could be replayed.
        if opening.terms != terms.digest:
            raise Refused(f"round: the key of '{opening.sender}' is of another attempt")
        # Without the signature the coordinator could offer keys of its own and open every box.
        check(opening.signed, opening.signature, opening.sender, register)
    # Two aggregators with one key are one party that would hold two shares.
    if len({opening.key for opening in openings}) != len(openings):
        raise Refused("lists: a key is there twice")
    return keys


class Contributor(Participant[AdditiveParams]):
    """The client's side of an attempt at a sum: it splits its words among the aggregators.

    Args:
        name: name of the client.
        terms: parameters of the attempt, made from the client's own plan of the run.
        words: the client's reply as integers modulo 2^64, uint64 `[words]`; it is not changed.
        sign: signs bytes with the client's long-lived key.
        register: the aggregators' long-lived keys, as known beforehand.
        spent: record of a digest of the words that the client gave for each request. The client
            refuses to give other words for the same request, so the record must outlive attempts
            and restarts.
    """

    def __init__(
        self,
        name: str,
        terms: AdditiveParams,
        words: Words,
        sign: Sign,
        register: Register,
        spent: UsedContributions,
    ) -> None:
        if len(words) != terms.words or words.dtype != np.uint64:
            raise ConfigError(f"'{name}' has {len(words)} words to add, agreed are {terms.words}")
        self.name, self.terms, self.words = name, terms, words
        self.sign, self.register, self.spent = sign, register, spent
        self.steps = [(Openings, self._split)]

    def _split(self, message: Openings) -> Contribution:
        terms = self.terms
        digest, parts = terms.digest, list[SharePart]()
        openings = checked_openings(message.openings, terms, self.register)
        books, (first, *others) = self.spent.books(terms.contribution), terms.aggregators
        seeds = {name: new_seed() for name in others}
        words, pads = np.empty_like(self.words), [part_seed(s, digest) for s in seeds.values()]
        add_pads(self.words, terms.cipher, minus=pads, out=words)
        for name in (first, *others):
            data = sent(words) if name == first else seeds[name]
            box = sealed(digest, "part", self.name, openings[name], data)
            parts.append(self._signed(SharePart(digest, self.name, name, box, books=books)))
        # Written down before the parts leave: after a crash another row could be asked for, and
        # two sums would differ by the difference of one client's rows.
        self.spent.spend_row(terms, self.words)
        return Contribution(digest, self.name, tuple(parts))


class Aggregator(Participant[AdditiveParams]):
    """An aggregator's side of one attempt at a sum by additive shares.

    Args:
        name: name of this aggregator in the terms.
        terms: parameters of the attempt, made from the aggregator's own plan of the run.
        sign: signs bytes with the aggregator's long-lived key.
        register: the long-lived keys of clients, aggregators and dealer, as known beforehand.
        spent: record of the attempts that the aggregator began and of the sums that it helped to
            open. The aggregator refuses to repeat an attempt, and to open a second sum for the same
            request. So the record must outlive attempts and restarts.
    """

    def __init__(
        self,
        name: str,
        terms: AdditiveParams,
        sign: Sign,
        register: Register,
        spent: UsedContributions,
    ) -> None:
        self.name, self.terms, self.sign, self.register = name, terms, sign, register
        self.spent, self.key = spent, new_key()
        self.refused: dict[str, str] = {}
        self.parts: dict[str, bytes] = {}
        self.books: dict[str, BookState] = {}
        self.names: tuple[str, ...] = ()
        self.openings: dict[str, Opening] = {}
        self.total = np.zeros(0, np.uint64)
        self.seed, self.before = b"", b""
        self.shown_counts: ShownCounts | None = None
        self.lookup: LookedUp | None = None
        self.table: Table | None = None
        self.steps = [(Invitation, self._open), (AggregatorParts, self._hold)]
        if not terms.gated:
            self.steps += [(HeldByAll, self._reveal)]
        elif name == terms.dealer:
            self.steps += [(HeldByAll, self._deal), (Lookups, self._reveal_passing)]
        else:
            self.steps += [
                (HeldByAll, self._ready),
                (Relayed, self._show),
                (Relayed, self._look),
                (Lookups, self._reveal_passing),
            ]

    def _open(self, message: Invitation) -> Opening:
        # Once per attempt: with two runs of it at a time the coordinator could show signatures of
        # the one in the other.
        self.spent.begin(self.terms)
        key = self.key.public_key().public_bytes_raw()
        opening = self._signed(Opening(message.terms, self.name, key))
        self.openings = {self.name: opening}
        return opening

    def _unsealed(self, step: str, sender: str, box: bytes) -> bytes:
        about = statement(step, self.terms.digest, sender, self.name.encode())
        try:
            key = agreed(self.key, box[:KEY], self.terms.digest, f"box {about.hex()}")
            return open_box(key, box[KEY:], about)
        except ValueError:
            raise Refused(f"signature: the box of '{sender}' does not open") from None

    def _hold(self, message: AggregatorParts) -> HeldParts:
        """Accept every valid share; a client whose share is invalid is left out of the sum.

        Return the signed list of the clients whose shares this aggregator holds.
        """
        for part in message.parts:
            try:
                self._take(part)
            except Refused as reason:
                self.refused[part.sender] = str(reason)
        key = transcript(b"", self.openings[self.name])
        return self._signed(HeldParts(self.terms.digest, self.name, tuple(sorted(self.parts)), key))

    def _take(self, part: SharePart) -> None:
        if part.terms != self.terms.digest or part.to != self.name:
            raise Refused("round: this is of another attempt, or for somebody else")
        # A second part would replace the first, and no longer fit this client's shares at the other
        # aggregators. An aggregator or dealer that also contributed would count towards the
        # threshold, and could subtract its own words from the sum.
        if part.sender in {*self.parts, *self.terms.aggregators, self.terms.dealer}:
            raise Refused(f"order: '{part.sender}' sent a part before, or must not")
        check(part.signed, part.signature, part.sender, self.register)
        self.spent.compare(self.terms, {part.sender: part.books})
        data = self._unsealed("part", part.sender, part.box)
        size = 8 * self.terms.words if self.name == self.terms.aggregators[0] else SEED
        if len(data) != size:
            raise Refused(f"size: '{part.sender}' sent {len(data):,} bytes, and {size:,} are due")
        self.parts[part.sender], self.books[part.sender] = data, part.books

    def _agree(self, message: HeldByAll) -> None:
        """Determine which clients are in the sum, and add up this aggregator's shares of them."""
        helds = {held.sender: held for held in message.helds}
        if set(helds) != set(self.terms.aggregators):
            raise Refused("lists: an aggregator does not say whose parts it has")
        for held in helds.values():
            check(held.signed, held.signature, held.sender, self.register)
            if held.terms != self.terms.digest:
                raise Refused(f"round: '{held.sender}' speaks of another attempt")
        # The coordinator must pass on every list as it was signed: different lists at different
        # aggregators would open two sums whose difference is one client's reply.
        if set(helds[self.name].names) != set(self.parts):
            raise Refused("lists: this is not what I said")
        openings = checked_openings(message.openings, self.terms, self.register)
        if openings[self.name].key != self.openings[self.name].key:
            raise Refused("lists: this is not my key")
        # A second key for one aggregator could have been shown to some clients only.
        for held in helds.values():
            if held.opening != transcript(b"", openings[held.sender]):
                raise Refused(f"lists: '{held.sender}' holds parts for another key of its own")
        self.openings, self.before = openings, agreed_on(self.terms, openings, helds)
        names = sorted(set(self.parts).intersection(*(held.names for held in helds.values())))
        if len(names) < self.terms.threshold:
            needed = self.terms.threshold
            raise Aborted(f"too few: {len(names)} sent all their parts, and {needed} are needed")
        self.names, total = tuple(names), np.zeros(self.terms.words, np.uint64)
        if self.name == self.terms.aggregators[0]:
            for name in names:
                np.add(total, received(self.parts[name]), total)
        else:
            seeds = [part_seed(self.parts[name], self.terms.digest) for name in names]
            add_pads(total, self.terms.cipher, plus=seeds)
        self.total, self.parts = total, {}

    def _counts(self) -> NDArray[np.uint8]:
        """Return this aggregator's share of the number of contributors to each gated word.

        Gated words are those that are opened only if enough clients contributed to them.
        """
        return self.total[: self.terms.gated].astype(np.uint8) & np.uint8(
            (1 << self.terms.count_bits) - 1
        )

    def _ready(self, message: HeldByAll) -> Ready:
        self._agree(message)
        return Ready(self.terms.digest, self.name)

    def _deal(self, message: HeldByAll) -> ShownCounts:
        self._agree(message)
        made = tables(self.name, self.terms, self.openings, self.sign, self._counts())
        self.before = transcript(self.before, made)
        return made

    def _boxed(self, message: Relayed, step: str, senders: set[str]) -> dict[str, bytes]:
        """Decrypt the messages of other parties to this aggregator; return them by sender.

        Args:
            message: the messages, as the coordinator relayed them.
            step: name of the step to which they must belong.
            senders: names of the parties from which messages are due.
        """
        opened: dict[str, bytes] = {}
        for boxes in message.boxes:
            check(boxes.signed, boxes.signature, boxes.sender, self.register)
            if boxes.terms != self.terms.digest or boxes.step != step:
                raise Refused(f"round: '{boxes.sender}' boxed this for another step or attempt")
            opened[boxes.sender] = self._unsealed(step, boxes.sender, boxes.boxes[self.name])
        if set(opened) != senders:
            raise Refused(f"lists: boxes of {sorted(opened)}, due are those of {sorted(senders)}")
        return opened

    def _show(self, message: Relayed) -> ShownCounts:
        terms = self.terms
        data = self._boxed(message, "tables", {terms.dealer})[terms.dealer]
        seed, rest = data[:SEED], data[SEED:]
        table = (
            read_table(rest, terms.count_bits)
            if self.name == terms.parties[-1]
            else hidden_table(seed, terms.gated, terms.count_bits, terms.digest)
        )
        if len(table) != terms.gated:
            raise Refused(f"size: '{terms.dealer}' dealt tables for {len(table)} entries")
        self.seed, self.table = seed, table
        mine = shown_counts(self._counts(), seed, terms.count_bits, terms.digest).tobytes()
        box = partial(sealed, terms.digest, "shown", self.name, data=mine)
        others = [name for name in terms.parties if name != self.name]
        boxes = {name: box(to=self.openings[name]) for name in others}
        self.shown_counts = self._signed(ShownCounts(terms.digest, self.name, "shown", boxes))
        self.before = transcript(self.before, *message.boxes)
        return self.shown_counts

    def _look(self, message: Relayed) -> LookedUp:
        terms, table = self.terms, self.table
        counts_of = self._boxed(message, "shown", set(terms.parties) - {self.name})
        if any(len(data) != terms.gated for data in counts_of.values()):
            raise Refused("size: counts of other entries than are gated")
        shown = [np.frombuffer(data, np.uint8) for data in counts_of.values()]
        shown.append(shown_counts(self._counts(), self.seed, terms.count_bits, terms.digest))
        assert table is not None
        assert self.shown_counts is not None
        # Spent before the lookup leaves: a second table for the same counts, at other places, would
        # tell the counts themselves.
        self._spend()
        bits = looked_up(table, shown, terms.count_bits).tobytes()
        self.seed, self.table = b"", None
        # In the order of the senders: each party gets the messages of a step in another order.
        counts = transcript(b"", *by_sender((self.shown_counts, *message.boxes)))
        self.lookup = self._signed(LookedUp(terms.digest, self.name, bits, self.before, counts))
        return self.lookup

    def _reveal(self, message: HeldByAll) -> OpenedShare:
        self._agree(message)
        self._spend()
        return self._opened(self.total)

    def _reveal_passing(self, message: Lookups) -> OpenedShare:
        opened = opened_words(message.looked, self.terms, self.register, self.before)
        if self.name == self.terms.dealer:
            self._spend()
        elif self.lookup not in message.looked:
            raise Refused("lists: this is not what I looked up")
        self.before = transcript(self.before, *by_sender(message.looked))
        gated = self.terms.gated
        return self._opened(np.concatenate([self.total[:gated][opened], self.total[gated:]]))

    def _spend(self) -> None:
        """Record which sum is opened; no other sum of these clients' replies may be opened."""
        self.spent.remember(self.terms, {name: self.books[name] for name in self.names})
        self.spent.spend(self.terms.contribution, sum_digest(self.names, self.terms.form))

    def _opened(self, words: Words) -> OpenedShare:
        self.total = np.zeros(0, np.uint64)
        return self._signed(OpenedShare(self.terms.digest, self.name, sent(words), self.before))


def tables(
    dealer: str,
    terms: AdditiveParams,
    openings: Mapping[str, Opening],
    sign: Sign,
    share: NDArray[np.uint8] | None = None,
) -> ShownCounts:
    """Return the dealer's message with lookup tables, encrypted and signed.

    The parties are the aggregators that look up which entries have enough contributors.

    Args:
        dealer: name of the dealer.
        terms: parameters of the attempt.
        openings: the parties' public keys, by name.
        sign: signs bytes with the dealer's long-lived key.
        share: the dealer's own share of the counts of contributors, if it has one.
    """
    parties, digest = terms.parties, terms.digest
    bits, least = terms.count_bits, terms.threshold
    seeds, table = deal(terms.gated, bits, least, len(parties), digest, share)
    secrets = dict(zip(parties, seeds, strict=True))
    secrets[parties[-1]] += table
    boxes = {n: sealed(digest, "tables", dealer, openings[n], s) for n, s in secrets.items()}
    made = ShownCounts(digest, dealer, "tables", boxes)
    return replace(made, signature=sign(made.signed))


def by_sender(messages: Iterable[T]) -> list[T]:
    """Return messages sorted by the names of their senders."""
    return sorted(messages, key=lambda message: message.sender)


def agreed_on(
    terms: AdditiveParams, openings: Mapping[str, Opening], helds: Mapping[str, HeldParts]
) -> bytes:
    """Return a digest of the keys and lists that all aggregators must see before a sum is opened.

    Args:
        terms: parameters of the attempt.
        openings: the aggregators' public keys, by name.
        helds: each aggregator's list of the clients whose shares it holds, by aggregator.
    """
    return transcript(terms.digest, *by_sender(openings.values()), *by_sender(helds.values()))


def opened_words(
    looked: tuple[LookedUp, ...], terms: AdditiveParams, register: Register, before: bytes
) -> NDArray[np.bool_]:
    """Return which gated words may be opened, `[gated]`.

    A gated word may be opened only if enough clients contributed to it.

    Args:
        looked: each party's share of the returned truth values.
        terms: parameters of the attempt.
        register: the parties' long-lived keys.
        before: digest of all messages up to the dealer's tables, as the caller saw them.

    Raises:
        Refused: a party's share is missing, wrongly signed or of the wrong size. Or the parties saw
            different messages.
    """
    lookups = {lookup.sender: lookup for lookup in looked}
    if set(lookups) != set(terms.parties):
        raise Refused("lists: a party has not looked up")
    for lookup in lookups.values():
        check(lookup.signed, lookup.signature, lookup.sender, register)
        if lookup.terms != terms.digest or len(lookup.bits) != -(-terms.gated // 8):
            raise Refused(
                f"size: '{lookup.sender}' looked up for another attempt, or other entries"
            )
        # Lookups at different counts combine to bits that no threshold decided.
        if lookup.before != before or lookup.shown != looked[0].shown:
            raise Refused(f"lists: '{lookup.sender}' looked up what others were not shown")
    bits = [np.frombuffer(lookup.bits, np.uint8) for lookup in lookups.values()]
    return passing(bits, terms.gated)
