"""Sessions of a secure sum: agreed parameters, signed messages, and errors.

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import Field, dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vergence.core.tags import LATER, field_tags, tag, tagged
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.masking import PadCipher, check_pad, new_seed
from vergence.privacy.secure_aggregation.packing import Words

Sign = Callable[[bytes], bytes]
"""Signs data with a participant's long-lived key."""
Genuine = Callable[[bytes, bytes], bool]
"""Gets data and signature; returns whether one participant's long-lived key made the signature."""
Register = Mapping[str, Genuine]
"""Checks of signatures, by participant. A server that supplied them could invent clients."""
# In a sum over two, each of them learns the other's words by subtracting its own.
FEWEST = 3
"""Smallest number of people in a secure sum."""


QUESTION = "question of {}"
"""Key in `UsedContributions` for the digest of the request that a contribution answers."""
DRAWN = "orders of {}"
"""Key in `UsedContributions` for the number of orders that were drawn for a contribution."""
ROW = "row of {}"
"""Key in `UsedContributions` for the digest of the words that a client gave."""


BookState = tuple[int, int, bytes]
"""How far a client's books are, as the client signs it for the others.

These are the last round that it was asked for, the number of entries of its record of
contributions, and the head of the hash chain over the entries up to the question that a sum
answers.
"""
NO_BOOKS: BookState = (-1, 0, b"")
"""State of books that are not on a disk."""


def signed_books(books: BookState) -> tuple[bytes, ...]:
    """Return the parts of a signed message that cover the state of a client's books."""
    last, count, head = books
    return (b"%x %x" % (last, count), head) if books != NO_BOOKS else ()


def contribution(run: str, request: str) -> str:
    """Return the name of a client's contribution to one sum, from the run and the request."""
    return f"{run} {request}"


class Refused(StateError):
    """Raised for a message that must not count; the recipient's state does not change.

    The text begins with a keyword such as `round`, `order` or `size`.
    """


class Aborted(StateError):
    """Raised if a sum cannot be opened: too few parties are left, or their messages differ."""


@dataclass(frozen=True)
class SessionParams:
    """Parameters ("terms") of an attempt at a secure sum.

    Every party makes them from its own plan of the run, and accepts no others.

    Args:
        run: name of the run.
        request: name of the sum in the run.
        attempt: number of the attempt at this sum.
        words: number of integers modulo 2^64 in each client's reply.
        threshold: fewest people in a sum that is opened (>= 3). The server proposes it, all parties
            sign it, and each party refuses a threshold below its own bound.
        form: digest of the server's request and of the encoding of replies.
        cipher: cipher that generates the pads; a pad has fewer than 2^33 words.
    """

    run: str
    request: str
    attempt: int
    words: int
    threshold: int
    form: bytes = b""
    cipher: PadCipher = "aes-256-ctr"

    def __post_init__(self) -> None:
        if self.threshold < FEWEST or self.words < 1:
            raise ConfigError(
                f"a secure sum is over at least {FEWEST} people and 1 word; got "
                f"{self.threshold} people and {self.words} words"
            )
        check_pad(self.cipher, self.words)

    @cached_property
    def digest(self) -> bytes:
        """Digest of all parameters, 32 bytes."""
        kind = type(self)
        later = {
            f.name
            for f in fields(self)
            if LATER in f.metadata and getattr(self, f.name) == f.default
        }
        named = [
            f"{said}={getattr(self, name)!r}"
            for name, said in field_tags(kind)
            if name not in later
        ]
        parts = [part.encode() for part in (tag(kind), *named)]
        return hashlib.sha256(joined(parts)).digest()

    @property
    def contribution(self) -> str:
        """Name of a client's contribution to this sum; it is the same in all attempts."""
        return contribution(self.run, self.request)


@dataclass(frozen=True)
class SessionMessage:
    """Message of a secure sum; `terms` is the digest of the attempt's parameters."""

    terms: bytes


@dataclass(frozen=True)
class SentMessage(SessionMessage):
    """Message of a secure sum with the name of its sender."""

    sender: str


class UsedContributions:
    """Record of what one party disclosed: for each request, one reply and one sum.

    A contribution is a client's reply to one request, as a vector of words (integers modulo 2^64).
    Two sums over different people can differ by one person's words. Two sums over the same people
    can too, if one person gave other words. The same words and the same sum again disclose nothing
    new, so a server that crashed before it stored the sum may ask again.

    Args:
        opened: the record, a mapping that is stored on disk; it is written before the party
            answers. None: a new record in memory.
    """

    def __init__(self, opened: MutableMapping[str, str] | None = None) -> None:
        self.opened: MutableMapping[str, str] = {} if opened is None else opened

    def spend(self, contribution: str, what: str = "") -> None:
        """Record that this party helps to open a sum that contains a contribution.

        Args:
            contribution: name of the contribution.
            what: digest that identifies the sum; "": unknown.

        Raises:
            Refused: another sum with this contribution, or an unknown one, was opened before.
        """
        if contribution not in self.opened:
            self.opened[contribution] = what
        elif not what or self.opened[contribution] != what:
            raise Refused(f"spent: a sum of '{contribution}' was opened before, in another attempt")

    def ask(self, contribution: str, about: bytes, state: str) -> None:
        """Record the request that a contribution answers, before the client computes the answer.

        Otherwise a server could send many requests and use the answer that suits it.

        Args:
            contribution: name of the contribution.
            about: the request.
            state: identifier of the client's state before the answer.

        Raises:
            Refused: another request or state was recorded before.
        """
        name = QUESTION.format(contribution)
        what = hashlib.sha256(joined([about, state.encode()])).hexdigest()
        if self.opened.setdefault(name, what) != what:
            raise Refused(f"spent: '{contribution}' was another question before")

    def spend_row(self, terms: SessionParams, words: Words) -> None:
        """Record a digest of a client's words before they leave the client.

        Args:
            terms: parameters of the attempt.
            words: the client's reply.

        Raises:
            Refused: the client gave other words to this request before, or words to another request
                of this name.
        """
        row = hashlib.sha256(joined([terms.form, summary(words.data)])).hexdigest()
        name = ROW.format(terms.contribution)
        if self.opened.setdefault(name, row) != row:
            raise Refused(f"spent: another row of words was given to '{terms.contribution}' before")

    def draw(self, contribution: str, limit: int) -> None:
        """Record that the client helps to draw another order of the ring for a contribution.

        Raises:
            Refused: it has helped `limit` times. A server that may draw for ever waits for an order
                that suits it.
        """
        name = DRAWN.format(contribution)
        drawn = int(self.opened.get(name, "0"))
        if drawn >= limit:
            raise Refused(f"spent: {limit} orders were drawn for '{contribution}' before")
        self.opened[name] = str(drawn + 1)

    def gave(self, contribution: str) -> bool:
        """Return whether this client's words for a contribution were recorded.

        They are recorded immediately before they are sent.
        """
        return ROW.format(contribution) in self.opened

    def books(self, contribution: str) -> BookState:
        """Return how far this record is, for a contribution whose question was recorded."""
        return NO_BOOKS

    def compare(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Compare the books of other clients, by name, with what was remembered of them.

        Raises:
            Refused: the folder of one of them was put back from a copy.
        """

    def refuse_older(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Refuse a round that is over for others, and of which this record has no contribution.

        Raises:
            Refused: another client was asked for a later round.
        """

    def remember(self, terms: SessionParams, peers: Mapping[str, BookState]) -> None:
        """Remember the books of the clients in a sum before this party helps to open it."""

    def begin(self, terms: SessionParams) -> None:
        """Record that an attempt with these parameters begins.

        A signature is valid only within its attempt. If an attempt ran twice, messages of the first
        run could be replayed in the second.

        Raises:
            Refused: this party has begun the same attempt before.
        """
        name = f"attempt {terms.digest.hex()}"
        if name in self.opened:
            raise Refused(f"order: attempt {terms.attempt} at '{terms.contribution}' began before")
        self.opened[name] = "begun"


@tagged("Invitation")
@dataclass(frozen=True)
class Invitation(SessionMessage):
    """The server's first message of every attempt; it asks for public keys."""


class SignedMessage(Protocol):
    """A message, a dataclass, with a signature over its other fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        ...

    @property
    def signature(self) -> bytes:
        """Signature of the sender."""
        ...


M = TypeVar("M", bound=SignedMessage)
T = TypeVar("T", bound=SessionParams)


class Participant(Generic[T]):
    """One party's side of an attempt; it answers each expected message once and in order.

    Attributes:
        terms: parameters of the attempt.
        sign: signs bytes with the party's long-lived key.
        steps: types of the messages that are still expected, in order, each with the method that
            answers it.
    """

    terms: T
    sign: Sign
    steps: list[tuple[type, Callable[[Any], object]]]

    def _signed(self, message: M) -> M:
        return replace(message, signature=self.sign(message.signed))

    def answer(self, message: object) -> Any:
        """Return the answer to a message of the server or coordinator.

        Raises:
            Refused: the message must not be answered; the party still waits for a valid one.
            Aborted: too few parties are left.
        """
        # In order only: a server that skips a step would skip its checks.
        if not self.steps or type(message) is not self.steps[0][0]:
            due = self.steps[0][0].__name__ if self.steps else "nothing more"
            raise Refused(f"order: {type(message).__name__} came, due is {due}")
        if not isinstance(message, SessionMessage) or message.terms != self.terms.digest:
            raise Refused("round: this is of another attempt, or on other terms")
        answer = self.steps[0][1](message)
        self.steps.pop(0)
        return answer


def joined(parts: Iterable[bytes]) -> bytes:
    """Join byte strings, each with its length, so that different lists give different bytes."""
    # Lengths come first: without them ("ab", "c") and ("a", "bc") would have one signature.
    return b"".join(len(part).to_bytes(8) + part for part in parts)


def sum_digest(names: Collection[str], form: bytes) -> str:
    """Return the digest that identifies a sum, from the people in it and the digest `form`."""
    return hashlib.sha256(joined([form, *(name.encode() for name in sorted(names))])).hexdigest()


def transcript(before: bytes, *messages: SignedMessage) -> bytes:
    """Return the digest of a sequence of signed messages.

    `before` is the digest of the earlier messages, and `messages` are the next ones.
    """
    parts = (part for message in messages for part in (message.signed, message.signature))
    return hashlib.sha256(joined([before, *parts])).digest()


def statement(stage: str, terms: bytes, sender: str, *parts: bytes) -> bytes:
    """Return the bytes to sign for a message.

    Args:
        stage: name of the protocol's step.
        terms: digest of the attempt's parameters.
        sender: name of the sender.
        parts: the content of the message.
    """
    # A signature for one step, attempt or purpose must not be valid for another.
    return joined([b"vergence secure sum 4", stage.encode(), terms, sender.encode(), *parts])


def summary(data: bytes | memoryview) -> bytes:
    """Return the 32-byte BLAKE3 digest of data; it takes a third of SHA-256's time."""
    return blake3(memoryview(data).cast("B")).digest()


def listed(named: Mapping[str, bytes]) -> bytes:
    """Join names and byte strings, in the order of names; no two mappings give the same bytes."""
    return joined(part for name in sorted(named) for part in (name.encode(), named[name]))


def check(signed: bytes, signature: bytes, sender: str, register: Register) -> None:
    """Check a party's signature.

    Args:
        signed: the bytes that the signature covers.
        signature: the signature.
        sender: name of the party.
        register: checks of signatures, by party.

    Raises:
        Refused: the signature is not this sender's, or the sender is unknown.
    """
    if sender not in register:
        raise Refused(f"signature: nobody knows '{sender}'")
    if not register[sender](signed, signature):
        raise Refused(f"signature: this is not from '{sender}', or was changed on the way")


def signing_pair() -> tuple[Sign, Genuine]:
    """Return a new Ed25519 key as two functions: one signs, and one checks."""
    key = Ed25519PrivateKey.from_private_bytes(new_seed())
    public = key.public_key()

    def genuine(data: bytes, signature: bytes) -> bool:
        try:
            public.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    return key.sign, genuine
