"""Secure sum by pairwise pads: clients hide their words under pads that cancel out.

A client's words are its reply as integers modulo 2^64. Each pair of clients agrees on a seed; one
client adds the pad of this seed, the other subtracts it. Each client also adds a pad of its own.
All secrets are split into Shamir shares among the clients. So the remaining clients can help the
server to remove the pads that do not cancel: the own pads of clients whose words are in the sum,
and the pairwise pads of clients that vanished. They never give shares of both secrets of one
client.

    server                       client
    Invitation       ->          fresh keys                        -> Advert
    Roster           ->          a random number (on a ring only)  -> Reveal
    RandomNumbers    ->          shares of two secrets             -> Shares
    Delivery         ->          words under pads                  -> Masked
    Survivors        ->          signature: who is in              -> Agreed
    Agreements       ->          shares of one secret per client   -> Unmask
    Total

`PairwiseClient` and `PairwiseServer` are for one attempt each; a new attempt has new keys. Without
a number of `colluders` in the terms everybody is everybody's neighbour, and `Roster` is answered by
`Shares`. With it clients have pads and shares with their neighbours on a ring (`neighbours.py`).

Used by `deployment.secure_sum_client`, `engine.protections.secure_aggregation`,
`engine.secure_sum_attempts` and `privacy.secure_aggregation.client_checkpoint`.

Source: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning",
CCS 2017, Figure 4 with the steps for an active adversary.
Differs: signatures also cover the attempt, and the keys and senders of shares that a client was
shown; masked words and answers are signed. Each client commits to its own seed, so that a wrong
share ends the attempt instead of spoiling the sum. For one request a client gives only one vector
of words, and helps to open only one sum that contains it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation import shamir
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
from vergence.privacy.secure_aggregation.neighbours import (
    ATTEMPTS,
    neighbours,
    order,
    ring,
)
from vergence.privacy.secure_aggregation.packing import Words, received, sent
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
    Total,
    Unmask,
    check_roster,
    view_digest,
)
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    BookState,
    Invitation,
    Participant,
    Refused,
    Register,
    SentMessage,
    Sign,
    UsedContributions,
    check,
    joined,
    statement,
    sum_digest,
)

SHARES = 2 * shamir.SHARE
STEPS = (Advert, Shares, Masked, Agreed, Unmask)
"""Types of a client's messages, in the order in which they are sent."""
RING_STEPS = (Advert, Reveal, *STEPS[1:])
"""The same, where clients have pads with neighbours on a ring."""
ClientMessage = Advert | Reveal | Shares | Masked | Agreed | Unmask
Question = Invitation | Roster | RandomNumbers | RelayedShares | Survivors | Agreements
"""Types of the server's messages."""
Answer = TypeVar("Answer", bound=SentMessage)


def steps_of(terms: PairwiseParams) -> tuple[type[ClientMessage], ...]:
    """Return the types of a client's messages on these terms, in the order of sending."""
    return STEPS if terms.colluders is None else RING_STEPS


class Graph:
    """Who has pads with whom in an attempt: the same for the server and for all clients.

    Attributes:
        neighbours: each client's neighbours, by name.
        threshold: number of Shamir shares that recover a secret.
    """

    def __init__(self, terms: PairwiseParams, names: Collection[str], order: list[str]) -> None:
        found = ring(len(names), terms.colluders or 0, terms.dropouts) if order else None
        self.neighbours = (
            neighbours(order, found.reach)
            if found
            else {name: frozenset(names) - {name} for name in names}
        )
        self.threshold = found.threshold if found else terms.threshold

    def numbers(self, owner: str) -> dict[str, int]:
        """Return the numbers in Shamir's scheme of the clients with shares of `owner`'s secrets.

        These are its neighbours, and the owner itself. A client's share of a secret is the value of
        the secret's polynomial at the client's number, from 1 on.
        """
        sharers = self.neighbours[owner] | {owner}
        return {name: number for number, name in enumerate(sorted(sharers), 1)}


class PairwiseClient(Participant[PairwiseParams]):
    """The client's side of one attempt at a sum under pairwise pads.

    Args:
        name: name of the client.
        terms: parameters of the attempt, made from the client's own plan of the run.
        words: the client's reply as integers modulo 2^64, uint64 `[words]`; it is not changed.
        sign: signs bytes with the client's long-lived key.
        register: the long-lived keys of all clients, as known beforehand.
        spent: record of a digest of the words that the client gave, and of the sum that it helped
            to open, for each request. The client refuses to give other words, or to open another
            sum, for the same request. So the record must outlive attempts and restarts.
    """

    def __init__(
        self,
        name: str,
        terms: PairwiseParams,
        words: Words,
        sign: Sign,
        register: Register,
        spent: UsedContributions,
    ) -> None:
        if len(words) != terms.words or words.dtype != np.uint64:
            raise ConfigError(f"'{name}' has {len(words)} words to add, agreed are {terms.words}")
        self.name, self.terms, self.words = name, terms, words
        self.sign, self.register, self.spent = sign, register, spent
        self.box_key, self.pad_key, self.seed = new_key(), new_key(), new_seed()
        self.adverts: dict[str, Advert] = {}
        self.shares: dict[str, bytes] = {}
        self.names: frozenset[str] = frozenset()
        on_ring = terms.colluders is not None
        self.number, self.order = new_seed() if on_ring else b"", list[str]()
        self.sharers: frozenset[str] = frozenset()
        shares = [(Roster, self._reveal), (RandomNumbers, self._share_on_ring)]
        self.steps = [
            (Invitation, self._advert),
            *(shares if on_ring else [(Roster, self._share)]),
            (RelayedShares, self._mask),
            (Survivors, self._agree),
            (Agreements, self._unmask),
        ]

    def _advert(self, message: Invitation) -> Advert:
        promise = commitment(self.number, message.terms) if self.number else b""
        books = self.spent.books(self.terms.contribution)
        advert = Advert(message.terms, self.name, *self._publics(), promise=promise, books=books)
        return self._signed(advert)

    def _publics(self) -> tuple[bytes, bytes]:
        return (
            self.box_key.public_key().public_bytes_raw(),
            self.pad_key.public_key().public_bytes_raw(),
        )

    def _check_roster(self, roster: Roster) -> dict[str, Advert]:
        """Return the keys of all clients, by name, after all checks but those of signatures."""
        adverts = {advert.sender: advert for advert in roster.adverts}
        if len(adverts) != len(roster.adverts):
            raise Refused("lists: somebody is there twice")
        check_roster(adverts, self.terms)
        for advert in roster.adverts:
            # Keys of an attempt that ended may be known to the server, from unmasking it.
            if advert.terms != self.terms.digest:
                raise Refused(f"round: the keys of '{advert.sender}' are of another attempt")
            if advert.sender not in self.register:
                raise Refused(f"signature: nobody knows '{advert.sender}'")
        mine = adverts.get(self.name)
        # Others that saw another key for this client would agree on pads that do not cancel, with
        # somebody else.
        if mine is None or (mine.box_key, mine.pad_key) != self._publics():
            raise Refused("lists: my own keys are not there")
        self.spent.compare(self.terms, books_of(adverts))
        self.spent.refuse_older(self.terms, books_of(adverts))
        return adverts

    def _reveal(self, roster: Roster) -> Reveal:
        adverts = self._check_roster(roster)
        mine = commitment(self.number, self.terms.digest)
        # Only numbers that nobody knew when the roster was fixed make an order that nobody chose.
        sizes = {len(advert.promise) for advert in roster.adverts}
        if adverts[self.name].promise != mine or sizes != {SEED}:
            raise Refused("lists: somebody, or I, has committed to no random number")
        self.spent.draw(self.terms.contribution, ATTEMPTS)
        self.adverts = adverts
        return self._signed(Reveal(self.terms.digest, self.name, self.number))

    def _share_on_ring(self, message: RandomNumbers) -> Shares:
        self.order = ring_order(message.numbers, self.adverts, self.terms)
        return self._give_shares()

    def _share(self, roster: Roster) -> Shares:
        self.adverts = self._check_roster(roster)
        return self._give_shares()

    def _graph(self) -> Graph:
        return Graph(self.terms, self.adverts, self.order)

    def _give_shares(self) -> Shares:
        graph, adverts, terms = self._graph(), self.adverts, self.terms
        for name in graph.neighbours[self.name]:
            # Without the signature the server could stand in for every other client, and know all
            # pads. Who is not my neighbour has no pad with me, and its honest neighbours check it.
            check(adverts[name].signed, adverts[name].signature, name, self.register)
        numbers = graph.numbers(self.name)
        secrets = (self.pad_key.private_bytes_raw(), self.seed)
        halves = [shamir.split(s, graph.threshold, len(numbers)) for s in secrets]
        boxes: dict[str, bytes] = {}
        for name, number in numbers.items():
            both = b"".join(half[number - 1] for half in halves)
            if name == self.name:
                self.shares = {name: both}
                continue
            boxes[name] = close_box(self._box(adverts[name], self.name, name), both, terms.digest)
        promise = commitment(self.seed, terms.digest)
        return self._signed(Shares(terms.digest, self.name, promise, boxes))

    @cached_property
    def _box_salt(self) -> bytes:
        """What the keys of boxes are bound to; known as soon as the roster and the order are."""
        # Who was shown another roster or order must hold no share of mine: in its sum I may count
        # as vanished, or a vanished neighbour of mine as present.
        shown = view_digest(self.terms.digest, self.adverts, (), (), self.order)
        return shown if self.order else self.terms.digest

    def _box(self, other: Advert, sender: str, to: str) -> bytes:
        what = "box " + joined([sender.encode(), to.encode()]).hex()
        try:
            return agreed(self.box_key, other.box_key, self._box_salt, what)
        except ValueError:
            raise Refused(f"size: '{other.sender}' has no usable key") from None

    def _mask(self, delivery: RelayedShares) -> Masked:
        others, graph = set(delivery.boxes), self._graph()
        if not others <= graph.neighbours[self.name]:
            raise Refused("lists: boxes came from people whose keys are not known")
        self.sharers = frozenset(delivery.sharers or {*others, self.name})
        # A neighbour who shared, and whose box does not come, would have a pad that I have not.
        if self.sharers & graph.neighbours[self.name] != others or not (
            self.name in self.sharers <= set(self.adverts)
        ):
            raise Refused("lists: those who shared are not those whose boxes came")
        if len(self.sharers) < self.terms.threshold or 1 + len(others) < graph.threshold:
            raise Aborted(f"too few: {1 + len(others)} have shared their secrets")
        shares = dict(self.shares)
        for name, box in delivery.boxes.items():
            key = self._box(self.adverts[name], name, self.name)
            try:
                shares[name] = open_box(key, box, self.terms.digest)
            except ValueError:
                raise Refused(f"signature: the box of '{name}' does not open") from None
            if len(shares[name]) != SHARES:
                raise Refused(f"size: the box of '{name}' holds no shares")
        # The pad of its own hides the words even if they arrive late, after the server was helped
        # to remove the pairs' pads of a client that it took for vanished.
        plus, minus = [derived(self.seed, self.terms.digest, "own seed of a pad")], list[bytes]()
        for name in others:
            pads = plus if self.name < name else minus
            pads.append(pair_seed(self.pad_key, self.adverts[name], self.name, self.terms.digest))
        words = np.empty_like(self.words)
        add_pads(self.words, self.terms.cipher, plus, minus, out=words)
        # Written down before the words leave: after a crash the client must not give other words
        # to the same question.
        self.spent.spend_row(self.terms, self.words)
        self.shares = shares
        return self._signed(Masked(self.terms.digest, self.name, sent(words)))

    def _agree(self, survivors: Survivors) -> Agreed:
        names = frozenset(survivors.names)
        # A name that shared no secrets has no pads: its words would be in the sum as they are.
        if len(names) != len(survivors.names) or not names <= self.sharers:
            raise Refused("lists: somebody is there twice, or was not there before")
        if self.name not in names:
            raise Refused("lists: my own words are not there")
        if len(names) < self.terms.threshold:
            raise Aborted(f"too few: {len(names)} are left, and {self.terms.threshold} are needed")
        self.names = names
        signed = statement("agreed", self.terms.digest, self.name, self._shown())
        return Agreed(self.terms.digest, self.name, self.sign(signed))

    def _shown(self) -> bytes:
        shown = (self.adverts, self.sharers, self.names, self.order)
        return view_digest(self.terms.digest, *shown)

    def _unmask(self, agreements: Agreements) -> Unmask:
        if not set(agreements.signatures) <= self.names:
            raise Refused("lists: somebody agreed whose words are not there")
        # A server could tell half of the clients that a third one vanished, and the others that it
        # is in: with shares of both of its secrets it would open that client's words. Signatures of
        # more than two thirds over one list exclude that.
        if len(agreements.signatures) < self.terms.threshold:
            raise Aborted(f"too few: {len(agreements.signatures)} agreed on who is in")
        mine = self._shown()
        for name, signature in agreements.signatures.items():
            signed = statement("agreed", self.terms.digest, name, mine)
            try:
                check(signed, signature, name, self.register)
            except Refused:
                raise Refused(f"lists: '{name}' was shown others than I was, or lies") from None
        # One sum per contribution: two sums that differ by a person give that person's words.
        self.spent.spend(self.terms.contribution, sum_digest(self.names, self.terms.form))
        self.spent.remember(self.terms, books_of({n: self.adverts[n] for n in self.names}))
        seeds = {n: both[shamir.SHARE :] for n, both in self.shares.items() if n in self.names}
        keys = {n: both[: shamir.SHARE] for n, both in self.shares.items() if n not in self.names}
        self.shares, self.seed = {}, b""
        return self._signed(Unmask(self.terms.digest, self.name, seeds, keys))


class PairwiseServer:
    """The server's side of one attempt at a sum under pairwise pads.

    Call `open` first; then, in every step, call `receive` for each answer and `close` once. A
    client that does not answer before `close`, or whose answer is refused, takes no part in later
    steps.

    Args:
        terms: parameters of the attempt, made from the server's own plan of the run.
        register: the long-lived keys of all clients that are invited.
    """

    def __init__(self, terms: PairwiseParams, register: Register) -> None:
        self.terms, self.register = terms, register
        self.step = 0
        self.due: frozenset[str] = frozenset(register)
        self.answers: dict[str, SentMessage | None] = {}
        self.refused: dict[str, str] = {}
        self.adverts: dict[str, Advert] = {}
        self.shares: dict[str, Shares] = {}
        self.names: frozenset[str] = frozenset()
        self.kinds, self.order = steps_of(terms), list[str]()
        self.total, self.keys = np.zeros(terms.words, np.uint64), set[bytes]()

    def open(self) -> dict[str, Invitation]:
        """Return the first message to each client, by name."""
        return dict.fromkeys(sorted(self.due), Invitation(self.terms.digest))

    def receive(self, message: object) -> None:
        """Check and store a client's answer in the current step.

        Raises:
            Refused: the answer must not count; the error says why.
        """
        if self.step == len(self.kinds) or not isinstance(message, self.kinds[self.step]):
            raise Refused(f"order: {type(message).__name__} came, and is not due")
        if message.terms != self.terms.digest:
            raise Refused("round: this is of another attempt, or on other terms")
        name = message.sender
        # A second answer could replace words that are in the sum already.
        if name not in self.due or name in self.answers:
            reason = "answered before" if name in self.answers else "is not due to answer"
            raise Refused(f"order: '{name}' {reason}")
        signed = (
            statement("agreed", self.terms.digest, name, self._shown)
            if isinstance(message, Agreed)
            else message.signed
        )
        check(signed, message.signature, name, self.register)
        self._check_content(message)
        if isinstance(message, Masked):
            np.add(self.total, received(message.words), self.total)
        # Of words only the sum is kept: rows of all clients would not fit into memory.
        self.answers[name] = None if isinstance(message, Masked) else message

    @cached_property
    def _shown(self) -> bytes:
        return view_digest(self.terms.digest, self.adverts, self.shares, self.names, self.order)

    @cached_property
    def graph(self) -> Graph:
        """Who has pads with whom; known as soon as the keys, and the order of a ring, are there."""
        return Graph(self.terms, self.adverts, self.order)

    def _check_content(self, message: SentMessage) -> None:
        """Check that a message has the fields, sizes and recipients that its step demands."""
        if isinstance(message, Advert):
            try:
                for key in (message.box_key, message.pad_key):
                    agreed(new_key(), key, b"", "test")
            except ValueError:
                raise Refused(f"size: '{message.sender}' sent no usable key") from None
            # Everybody would refuse a roster with a key that is there twice, or without a promise.
            keys = {message.box_key, message.pad_key}
            if len(keys) < 2 or keys & self.keys:
                raise Refused(f"lists: a key of '{message.sender}' is there twice")
            if self.terms.colluders is not None and len(message.promise) != SEED:
                raise Refused(f"size: '{message.sender}' has committed to no random number")
            self.keys |= keys
        elif isinstance(message, Reveal):
            check_number(message.sender, message.number, self.adverts, self.terms)
        elif isinstance(message, Shares):
            fits = set(message.boxes) == self.graph.neighbours[message.sender]
            if not fits or len(message.commitment) != SEED:
                raise Refused(f"size: '{message.sender}' closed boxes for others than it should")
        elif isinstance(message, Masked) and len(message.words) != 8 * self.terms.words:
            raise Refused(f"size: '{message.sender}' sent {len(message.words):,} bytes of words")
        elif isinstance(message, Unmask):
            asked = set(self.graph.numbers(message.sender)) & set(self.shares)
            shares = [*message.seeds.values(), *message.keys.values()]
            # A share of both secrets of one client would let this server unmask it: none is wanted.
            given = set(message.seeds), set(message.keys)
            if given != (asked & self.names, asked - self.names):
                raise Refused(f"lists: '{message.sender}' sent shares of others than it should")
            if any(len(share) != shamir.SHARE for share in shares):
                raise Refused(f"size: '{message.sender}' sent what is no share")

    def close(self) -> Mapping[str, Question] | Total:
        """End the current step with the answers that were received.

        Returns:
            The next message to each client that answered, by name; after the last step the sum.

        Raises:
            Aborted: too few clients are left, or their answers do not fit together.
        """
        names, digest, least = frozenset(self.answers), self.terms.digest, self.terms.threshold
        if len(names) < least:
            raise Aborted(
                f"too few: {len(names)} answered with {self.kinds[self.step].__name__}, and "
                f"{least} are needed"
            )
        questions: Mapping[str, Question] = {}
        kind = self.kinds[self.step]
        if kind is Advert:
            self.adverts = self._came(Advert)
            check_roster(self.adverts, self.terms)
            roster = Roster(digest, tuple(self.adverts[name] for name in sorted(names)))
            questions = dict.fromkeys(names, roster)
        elif kind is Reveal:
            # The order needs the numbers of all: without one of them the server would choose
            # between two orders.
            if names != set(self.adverts):
                raise Aborted("order: somebody vanished before the ring was drawn")
            numbers = {name: each.number for name, each in self._came(Reveal).items()}
            self.order = ring_order(numbers, self.adverts, self.terms)
            questions = dict.fromkeys(names, RandomNumbers(digest, numbers))
        elif kind is Shares:
            self.shares = self._came(Shares)
            questions = {to: self._boxes_for(to) for to in names}
        elif kind is Masked:
            self.names = names
            questions = dict.fromkeys(names, Survivors(digest, tuple(sorted(names))))
        elif kind is Agreed:
            agreed = {n: each.signature for n, each in sorted(self._came(Agreed).items())}
            questions = dict.fromkeys(names, Agreements(digest, agreed))
        else:
            self._unmask(self._came(Unmask))
        self.step, self.due, self.answers = self.step + 1, names, {}
        return questions or Total(self.total, tuple(sorted(self.names)))

    def _boxes_for(self, to: str) -> RelayedShares:
        near = self.graph.neighbours[to] & self.shares.keys()
        sharers = tuple(sorted(self.shares)) if self.order else ()
        boxes = {name: self.shares[name].boxes[to] for name in near}
        return RelayedShares(self.terms.digest, boxes, sharers)

    def _came(self, kind: type[Answer]) -> dict[str, Answer]:
        """Return the answers of this step, by client; all have the type `kind`."""
        return {name: each for name, each in self.answers.items() if isinstance(each, kind)}

    def _unmask(self, answers: Mapping[str, Unmask]) -> None:
        """Remove from the sum the pads that did not cancel, with the help of clients' shares."""
        graph = self.graph
        minus, plus, digest = list[bytes](), list[bytes](), self.terms.digest
        for name in self.names:
            seed = self._secret(name, graph, {n: a.seeds for n, a in answers.items()})
            # Wrong shares of a malicious client would give another seed, and a spoiled sum.
            if commitment(seed, digest) != self.shares[name].commitment:
                raise Aborted(f"shares: those of '{name}' do not give its seed")
            minus.append(derived(seed, digest, "own seed of a pad"))
        for gone in set(self.shares) - self.names:
            secret = self._secret(gone, graph, {n: a.keys for n, a in answers.items()})
            key = X25519PrivateKey.from_private_bytes(secret)
            if key.public_key().public_bytes_raw() != self.adverts[gone].pad_key:
                raise Aborted(f"shares: those of '{gone}' do not give its key")
            for name in self.names & graph.neighbours[gone]:
                # The opposite of what the client `name` did with this pad in `_mask`.
                pads = minus if name < gone else plus
                pads.append(pair_seed(key, self.adverts[name], gone, digest))
        add_pads(self.total, self.terms.cipher, plus, minus)

    @staticmethod
    def _secret(name: str, graph: Graph, shares: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """Return a client's secret, from the shares that others sent, by sender and owner."""
        numbers = graph.numbers(name)
        came = {numbers[n]: shares[n][name] for n in sorted(numbers) if n in shares}
        if len(came) < graph.threshold:
            raise Aborted(f"too few: {len(came)} of the holders of '{name}''s shares are left")
        try:
            return shamir.join(dict(list(came.items())[: graph.threshold]))
        except StateError as error:
            raise Aborted(f"shares: those of '{name}' do not fit ({error})") from None


def converse(
    server: PairwiseServer,
) -> Generator[Mapping[str, Question], Mapping[str, object], Total]:
    """Run the server's side of an attempt as a generator.

    It yields messages by client, is sent the clients' answers by client, and returns the sum.

    Raises:
        Aborted: the attempt ends without a sum.
    """
    asked: Mapping[str, Question] = server.open()
    while True:
        answers = yield asked
        for name, answer in answers.items():
            try:
                # The connection knows who sent the answer: nobody may answer for another client.
                if (sender := getattr(answer, "sender", name)) != name:
                    raise Refused(f"signature: '{name}' speaks for '{sender}'")
                server.receive(answer)
            except Refused as reason:
                server.refused[name] = str(reason)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                server.refused[name] = f"malformed: {type(error).__name__}"
        result = server.close()
        if isinstance(result, Total):
            return result
        asked = result


def colluders(people: int, least: int) -> int:
    """Return how many clients must collude with a malicious server to reveal a person's reply.

    Reports show this number to the user. Among n clients with threshold t, 2t - n clients can give
    the server both secrets of another client, and n - 1 clients can subtract their own words from
    the sum. The server chooses n. Clients refuse a threshold below `least`, or of at most two
    thirds of n.

    Args:
        people: number of people in the federation, all of whom the server may invite; a number
            below `least` counts as `least`.
        least: fewest people in a sum.
    """
    return min(
        min(2 * max(least, 2 * roster // 3 + 1) - roster, roster - 1)
        for roster in range(least, max(people, least) + 1)
    )


def check_number(
    name: str, number: object, adverts: Mapping[str, Advert], terms: PairwiseParams
) -> None:
    """Check a client's random number against its commitment.

    Raises:
        Refused: the client has committed to another number.
    """
    whole = isinstance(number, bytes) and len(number) == SEED and number
    if not whole or commitment(whole, terms.digest) != adverts[name].promise:
        raise Refused(f"order: the random number of '{name}' is not the one that it promised")


def ring_order(
    numbers: Mapping[str, bytes], adverts: Mapping[str, Advert], terms: PairwiseParams
) -> list[str]:
    """Return the order of the ring, from the random numbers of all clients.

    Raises:
        Refused: a number is missing, or is not the one to which its client committed.
    """
    if set(numbers) != set(adverts):
        raise Refused("order: these are not the random numbers of all that take part")
    for name, number in numbers.items():
        check_number(name, number, adverts, terms)
    return order(numbers, view_digest(terms.digest, adverts, (), ()))


def books_of(adverts: Mapping[str, Advert]) -> dict[str, BookState]:
    """Return how far the books of clients are, from their adverts, by client."""
    return {name: advert.books for name, advert in adverts.items()}


def commitment(seed: bytes, terms: bytes) -> bytes:
    """Return the commitment to a seed: 32 bytes that verify the seed and do not reveal it."""
    return derived(seed, terms, "commitment")


def pair_seed(mine: X25519PrivateKey, other: Advert, me: str, terms: bytes) -> bytes:
    """Return the 32-byte seed of the pad between two clients; both compute the same seed.

    Args:
        mine: private key of one client.
        other: public keys of the other client.
        me: name of the client with the private key.
        terms: digest of the attempt's parameters.

    Raises:
        Refused: the other client's public key cannot be used.
    """
    both = joined(name.encode() for name in sorted((me, other.sender)))
    try:
        return agreed(mine, other.pad_key, terms, f"seed of a pad {both.hex()}")
    except ValueError:
        raise Refused(f"size: '{other.sender}' has no usable key") from None
