"""A sum whose terms nobody sees: clients split their words among 2 to 4 named aggregators.

All aggregators but the first get a 32-byte seed of a client, the first gets the words less the
seeds' pads. Each adds up what it has; the results add up to the sum. A client is in if all
aggregators have its part, else it is left out: there is nothing to recover.

    coordinator            aggregator                         client
    Invitation    ->       fresh key       -> Opening
    Openings      ->                                          -> Contribution
    Parts         ->       who is there    -> Held
    Helds         ->       its share of the sum -> Opened
    SharedTotal

With `gated` words, entries with fewer than `least` contributors stay closed, which takes three
steps more (`threshold_gate.py`): after Helds the dealer makes tables, the parties show blinded
counts to each other and look up, and all open what may be opened. The coordinator carries boxes
that it cannot open.

Aggregators follow the protocol, and so does the dealer: one that lies has entries opened that one
person alone shares. The terms stay hidden as long as one of them tells the others nothing; counts
below the threshold as long as no party and the dealer tell each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vergence.errors import ConfigError
from vergence.privacy.pads import (
    SEED,
    add_pads,
    agreed,
    close_box,
    derived,
    new_key,
    new_seed,
    open_box,
)
from vergence.privacy.ring import Words, received, sent
from vergence.privacy.shared_messages import (
    Boxes,
    Contribution,
    Held,
    Helds,
    Looked,
    Lookups,
    Opened,
    Opening,
    Openings,
    Part,
    Parts,
    Ready,
    Relayed,
    Shared,
)
from vergence.privacy.terms import (
    Aborted,
    End,
    Invitation,
    Refused,
    Register,
    Sign,
    Spent,
    check,
    given,
    statement,
)
from vergence.privacy.threshold_gate import (
    deal,
    hidden_table,
    looked_up,
    passing,
    read_table,
    shown_counts,
)

KEY = 32


def sealed(terms: bytes, step: str, sender: str, to: Opening, data: bytes) -> bytes:
    """Return a box that only one aggregator can open."""
    mine, about = new_key(), statement(step, terms, sender, to.sender.encode())
    try:
        key = agreed(mine, to.key, terms, f"box {about.hex()}")
    except ValueError:
        raise Refused(f"size: '{to.sender}' has no usable key") from None
    return mine.public_key().public_bytes_raw() + close_box(key, data, about)


def checked_openings(
    openings: tuple[Opening, ...], terms: Shared, register: Register
) -> dict[str, Opening]:
    """Return the aggregators' keys by name, if they are theirs and all are there.

    Raises:
        Refused: they are not.
    """
    found = {opening.sender: opening for opening in openings}
    if set(found) != set(terms.aggregators) or len(found) != len(openings):
        raise Refused(f"lists: keys of {sorted(found)}, agreed are {sorted(terms.aggregators)}")
    for opening in openings:
        if opening.terms != terms.digest:
            raise Refused(f"round: the key of '{opening.sender}' is of another attempt")
        check(opening.signed, opening.signature, opening.sender, register)
    if len({opening.key for opening in openings}) != len(openings):
        raise Refused("lists: a key is there twice")
    return found


class Contributor(End[Shared]):
    """A client's part of one attempt: it splits its words.

    Args:
        name: who this is.
        terms: made from the client's own plan.
        words: what it adds to the sum; they stay as they are.
        sign: signs with its long-lived key.
        register: the aggregators' long-lived keys, as known beforehand.
    """

    def __init__(
        self, name: str, terms: Shared, words: Words, sign: Sign, register: Register
    ) -> None:
        if len(words) != terms.words or words.dtype != np.uint64:
            raise ConfigError(f"'{name}' has {len(words)} words to add, agreed are {terms.words}")
        self.name, self.terms, self.words = name, terms, words
        self.sign, self.register = sign, register
        self.steps = [(Openings, self._split)]

    def _split(self, message: Openings) -> Contribution:
        terms = self.terms
        digest, parts = terms.digest, []
        openings = checked_openings(message.openings, terms, self.register)
        first, *others = terms.aggregators
        seeds = {name: new_seed() for name in others}
        words = self.words.copy()
        add_pads(words, minus=[derived(seed, digest, "part") for seed in seeds.values()])
        for name in (first, *others):
            data = sent(words) if name == first else seeds[name]
            box = sealed(digest, "part", self.name, openings[name], data)
            part = Part(digest, self.name, name, box)
            parts.append(replace(part, signature=self.sign(part.signed)))
        return Contribution(digest, self.name, tuple(parts))


class Aggregator(End[Shared]):
    """An aggregator's part of one attempt.

    Args:
        name: which of the terms' aggregators this is.
        terms: made from its own plan.
        sign: signs with its long-lived key.
        register: the long-lived keys of clients, aggregators and dealer, as known beforehand.
        spent: of which contributions it opened a sum, kept over attempts and restarts.
    """

    def __init__(
        self, name: str, terms: Shared, sign: Sign, register: Register, spent: Spent
    ) -> None:
        self.name, self.terms, self.sign, self.register = name, terms, sign, register
        self.spent, self.key = spent, new_key()
        self.refused: dict[str, str] = {}
        self.parts: dict[str, bytes] = {}
        self.names: tuple[str, ...] = ()
        self.openings: dict[str, Opening] = {}
        self.total = np.zeros(0, np.uint64)
        self.seed = b""
        self.table: NDArray | None = None
        self.steps = [(Invitation, self._open), (Parts, self._hold)]
        if not terms.gated:
            self.steps += [(Helds, self._reveal)]
        elif name == terms.dealer:
            self.steps += [(Helds, self._deal), (Lookups, self._reveal_passing)]
        else:
            self.steps += [
                (Helds, self._ready), (Relayed, self._show), (Relayed, self._look),
                (Lookups, self._reveal_passing),
            ]  # fmt: skip

    def _signed(self, message):  # noqa: ANN001, ANN202 - whatever comes goes
        return replace(message, signature=self.sign(message.signed))

    def _open(self, message: Invitation) -> Opening:
        return self._signed(
            Opening(message.terms, self.name, self.key.public_key().public_bytes_raw())
        )

    def _unsealed(self, step: str, sender: str, box: bytes) -> bytes:
        about = statement(step, self.terms.digest, sender, self.name.encode())
        try:
            key = agreed(self.key, box[:KEY], self.terms.digest, f"box {about.hex()}")
            return open_box(key, box[KEY:], about)
        except ValueError:
            raise Refused(f"signature: the box of '{sender}' does not open") from None

    def _hold(self, message: Parts) -> Held:
        """Take every part that is as it must be; who sent another is left out."""
        for part in message.parts:
            try:
                self._take(part)
            except Refused as reason:
                self.refused[part.sender] = str(reason)
        return self._signed(Held(self.terms.digest, self.name, tuple(sorted(self.parts))))

    def _take(self, part: Part) -> None:
        if part.terms != self.terms.digest or part.to != self.name:
            raise Refused("round: this is of another attempt, or for somebody else")
        if part.sender in {*self.parts, *self.terms.aggregators, self.terms.dealer}:
            raise Refused(f"order: '{part.sender}' sent a part before, or must not")
        check(part.signed, part.signature, part.sender, self.register)
        data = self._unsealed("part", part.sender, part.box)
        size = 8 * self.terms.words if self.name == self.terms.aggregators[0] else SEED
        if len(data) != size:
            raise Refused(f"size: '{part.sender}' sent {len(data):,} bytes, and {size:,} are due")
        self.parts[part.sender] = data

    def _agree(self, message: Helds) -> None:
        """Find out who is in, and add them up."""
        helds = {held.sender: held for held in message.helds}
        if set(helds) != set(self.terms.aggregators):
            raise Refused("lists: an aggregator does not say whose parts it has")
        for held in helds.values():
            check(held.signed, held.signature, held.sender, self.register)
            if held.terms != self.terms.digest:
                raise Refused(f"round: '{held.sender}' speaks of another attempt")
        if set(helds[self.name].names) != set(self.parts):
            raise Refused("lists: this is not what I said")
        self.openings = checked_openings(message.openings, self.terms, self.register)
        names = sorted(set(self.parts).intersection(*(held.names for held in helds.values())))
        if len(names) < self.terms.fewest:
            raise Aborted(f"too few: {len(names)} sent all their parts, and {self.terms.fewest} "
                          "are needed")  # fmt: skip
        self.names, total = tuple(names), np.zeros(self.terms.words, np.uint64)
        if self.name == self.terms.aggregators[0]:
            for name in names:
                np.add(total, received(self.parts[name]), total)
        else:
            digest = self.terms.digest
            add_pads(total, plus=[derived(self.parts[n], digest, "part") for n in names])
        self.total, self.parts = total, {}

    def _counts(self) -> NDArray[np.uint8]:
        """Return this aggregator's share of the numbers of contributors."""
        low = self.total[: self.terms.gated].astype(np.uint8)
        return low & np.uint8((1 << self.terms.count_bits) - 1)

    def _ready(self, message: Helds) -> Ready:
        self._agree(message)
        return Ready(self.terms.digest, self.name)

    def _deal(self, message: Helds) -> Boxes:
        self._agree(message)
        return tables(self.name, self.terms, self.openings, self.sign, self._counts())

    def _boxed(self, message: Relayed, step: str, senders: set[str]) -> dict[str, bytes]:
        """Open what some others boxed for this aggregator."""
        found = {}
        for boxes in message.boxes:
            check(boxes.signed, boxes.signature, boxes.sender, self.register)
            if boxes.terms != self.terms.digest or boxes.step != step:
                raise Refused(f"round: '{boxes.sender}' boxed this for another step or attempt")
            found[boxes.sender] = self._unsealed(step, boxes.sender, boxes.boxes[self.name])
        if set(found) != senders:
            raise Refused(f"lists: boxes of {sorted(found)}, due are those of {sorted(senders)}")
        return found

    def _show(self, message: Relayed) -> Boxes:
        terms = self.terms
        data = self._boxed(message, "tables", {terms.dealer})[terms.dealer]
        seed, rest = data[:SEED], data[SEED:]
        if self.name == terms.parties[-1]:
            table = read_table(rest, terms.count_bits)
        else:
            table = hidden_table(seed, terms.gated, terms.count_bits, terms.digest)
        if len(table) != terms.gated:
            raise Refused(f"size: '{terms.dealer}' dealt tables for {len(table)} entries")
        self.seed, self.table = seed, table
        mine = shown_counts(self._counts(), seed, terms.count_bits, terms.digest).tobytes()
        box = partial(sealed, terms.digest, "shown", self.name, data=mine)
        others = [name for name in terms.parties if name != self.name]
        boxes = {name: box(to=self.openings[name]) for name in others}
        return self._signed(Boxes(terms.digest, self.name, "shown", boxes))

    def _look(self, message: Relayed) -> Looked:
        terms, table = self.terms, self.table
        found = self._boxed(message, "shown", set(terms.parties) - {self.name})
        if any(len(data) != terms.gated for data in found.values()):
            raise Refused("size: counts of other entries than are gated")
        shown = [np.frombuffer(data, np.uint8) for data in found.values()]
        shown.append(shown_counts(self._counts(), self.seed, terms.count_bits, terms.digest))
        assert table is not None
        self._spend()
        bits = looked_up(table, shown, terms.count_bits)
        self.seed, self.table = b"", None
        return self._signed(Looked(terms.digest, self.name, bits.tobytes()))

    def _reveal(self, message: Helds) -> Opened:
        self._agree(message)
        self._spend()
        return self._opened(self.total)

    def _reveal_passing(self, message: Lookups) -> Opened:
        opened = which(message.looked, self.terms, self.register)
        if self.name == self.terms.dealer:
            self._spend()
        gated = self.terms.gated
        return self._opened(np.concatenate([self.total[:gated][opened], self.total[gated:]]))

    def _spend(self) -> None:
        """Note which sum of these contributions is opened: the very same one may be again."""
        self.spent.spend(self.terms.contribution, given(self.names, self.terms.form))

    def _opened(self, words: Words) -> Opened:
        self.total = np.zeros(0, np.uint64)
        return self._signed(Opened(self.terms.digest, self.name, sent(words)))


def tables(
    dealer: str,
    terms: Shared,
    openings: Mapping[str, Opening],
    sign: Sign,
    share: NDArray[np.uint8] | None = None,
) -> Boxes:
    """Return what a dealer gives the parties; `share`: its own of the counts, if it has one."""
    parties, digest = terms.parties, terms.digest
    seeds, table = deal(terms.gated, terms.count_bits, terms.least, len(parties), digest, share)
    given = dict(zip(parties, seeds, strict=True))
    given[parties[-1]] += table
    boxes = {n: sealed(digest, "tables", dealer, openings[n], data) for n, data in given.items()}
    made = Boxes(digest, dealer, "tables", boxes)
    return replace(made, signature=sign(made.signed))


def which(looked: tuple[Looked, ...], terms: Shared, register: Register) -> NDArray[np.bool_]:
    """Return which gated words may be opened, by all parties' lookups.

    Raises:
        Refused: they are not those of all parties.
    """
    found = {one.sender: one for one in looked}
    if set(found) != set(terms.parties):
        raise Refused("lists: a party has not looked up")
    for one in found.values():
        check(one.signed, one.signature, one.sender, register)
        if one.terms != terms.digest or len(one.bits) != -(-terms.gated // 8):
            raise Refused(f"size: '{one.sender}' looked up for another attempt, or other entries")
    bits = [np.frombuffer(one.bits, np.uint8) for one in found.values()]
    return passing(bits, terms.gated)
