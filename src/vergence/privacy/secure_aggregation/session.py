"""Sessions of a secure sum: agreed terms, signed statements, refusals and aborts.

Used in `deployment`, `engine` and `privacy`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import Field, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vergence.core.tags import field_tags, tag, tagged
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.masking import PadCipher, check_pad, new_seed
from vergence.privacy.secure_aggregation.packing import Words

Sign = Callable[[bytes], bytes]
"""Signs data with a participant's long-lived key."""
Genuine = Callable[[bytes, bytes], bool]
"""Checks (data, signature) against the long-lived key of one participant."""
Register = Mapping[str, Genuine]
"""Participants and their keys. Never from the server of the sum: it could invent clients."""
# In a sum over two, each of them learns the other's words by subtracting its own.
FEWEST = 3
"""Smallest number of people in a secure sum."""


QUESTION = "question of {}"
"""Key in the record of used contributions: the question that a contribution answers."""
ROW = "row of {}"
"""Key in the record of used contributions: the row of words that a client gave."""


def contribution(run: str, request: str) -> str:
    """Return the name of a contribution: the run and the sum to which a client contributes once."""
    return f"{run} {request}"


class Refused(StateError):
    """Raised for a message that must not count; the text begins with `round`, `order`, `size`...

    The recipient's state does not change.
    """


class Aborted(StateError):
    """Raised if the sum cannot be opened: too few are left, or their messages do not fit."""


@dataclass(frozen=True)
class SessionParams:
    """Terms of an attempt at a sum; every party makes them from its own plan and accepts no others.

    Args:
        run: name of the run.
        request: name of the sum in the run.
        attempt: number of the attempt at this sum.
        words: number of words that each client gives.
        threshold: fewest people in a sum that is opened (>= 3). The server proposes it, all parties
            sign it, and each party refuses one below its own bound.
        form: digest of the question and of the encoding of replies.
        cipher: cipher with which pads are drawn; a pad has fewer than 2^33 words.
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
        """Return 32 bytes that differ whenever any of these terms differs."""
        kind = type(self)
        named = [f"{said}={getattr(self, name)!r}" for name, said in field_tags(kind)]
        parts = [part.encode() for part in (tag(kind), *named)]
        return hashlib.sha256(joined(parts)).digest()

    @property
    def contribution(self) -> str:
        """Name of the contribution that a client gives once, in any of the attempts."""
        return contribution(self.run, self.request)


@dataclass(frozen=True)
class SessionMessage:
    """Message of a session, with the digest of the session's terms."""

    terms: bytes


@dataclass(frozen=True)
class SentMessage(SessionMessage):
    """Message of a session with the name of its sender."""

    sender: str


class UsedContributions:
    """Record of a party's disclosures: one row of words per contribution, and one sum of it.

    Two sums of the same contributions over different people can differ by one person's words, and
    so can two sums over the same people if one of them gave another row. The same row and sum again
    disclose nothing new, so that a server that crashed before it stored the sum may ask again.
    `opened` must be on disk, and is written before the answer leaves.
    """

    def __init__(self, opened: MutableMapping[str, str] | None = None) -> None:
        self.opened: MutableMapping[str, str] = {} if opened is None else opened

    def spend(self, contribution: str, what: str = "") -> None:
        """Record that a sum of a contribution is opened; `what` identifies the sum.

        Raises:
            Refused: another or an unknown sum of this contribution was opened before.
        """
        if contribution not in self.opened:
            self.opened[contribution] = what
        elif not what or self.opened[contribution] != what:
            raise Refused(f"spent: a sum of '{contribution}' was opened before, in another attempt")

    def ask(self, contribution: str, about: bytes, state: str) -> None:
        """Record the question that a contribution answers, and the client's state at that time.

        The question is recorded before the client computes the answer. Otherwise a server could ask
        many questions and use the answer that suits it.

        Raises:
            Refused: another question was recorded before.
        """
        name = QUESTION.format(contribution)
        what = hashlib.sha256(joined([about, state.encode()])).hexdigest()
        if self.opened.setdefault(name, what) != what:
            raise Refused(f"spent: '{contribution}' was another question before")

    def spend_row(self, terms: SessionParams, words: Words) -> None:
        """Record the row of words that answers a question, before the row leaves the client.

        Raises:
            Refused: the client gave another row to this question, or to another question of this
                name.
        """
        row = hashlib.sha256(joined([terms.form, summary(words.data)])).hexdigest()
        name = ROW.format(terms.contribution)
        if self.opened.setdefault(name, row) != row:
            raise Refused(f"spent: another row of words was given to '{terms.contribution}' before")

    def gave(self, contribution: str) -> bool:
        """Return whether this client's row of words was sent for this contribution.

        A row that was recorded in order to be sent counts too.
        """
        return ROW.format(contribution) in self.opened

    def begin(self, terms: SessionParams) -> None:
        """Record that an attempt begins.

        A signature is valid only within its attempt. If an attempt ran twice, messages of the first
        time could be replayed in the second.

        Raises:
            Refused: the attempt began before.
        """
        name = f"attempt {terms.digest.hex()}"
        if name in self.opened:
            raise Refused(f"order: attempt {terms.attempt} at '{terms.contribution}' began before")
        self.opened[name] = "begun"


@tagged("Invitation")
@dataclass(frozen=True)
class Invitation(SessionMessage):
    """Asks for keys; every attempt begins with this message."""


class SignedMessage(Protocol):
    """Dataclass of a message with a signature over its other fields."""

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
    """One party's part of an attempt: it answers each message once and in order.

    `steps` are the messages to come, each with the method that answers it.
    """

    terms: T
    sign: Sign
    steps: list[tuple[type, Callable[[Any], object]]]

    def _signed(self, message: M) -> M:
        return replace(message, signature=self.sign(message.signed))

    def answer(self, message: object) -> Any:
        """Return the answer to a message.

        Raises:
            Refused: the message must not be answered; another message still can be.
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
    """Join parts so that different parts never give the same bytes."""
    # Lengths come first: without them ("ab", "c") and ("a", "bc") would have one signature.
    return b"".join(len(part).to_bytes(8) + part for part in parts)


def sum_digest(names: Collection[str], form: bytes) -> str:
    """Return the digest that identifies a sum: its people and its form."""
    return hashlib.sha256(joined([form, *(name.encode() for name in sorted(names))])).hexdigest()


def transcript(before: bytes, *messages: SignedMessage) -> bytes:
    """Return the digest of a conversation, from its digest so far and the next signed messages."""
    parts = (part for message in messages for part in (message.signed, message.signature))
    return hashlib.sha256(joined([before, *parts])).digest()


def statement(stage: str, terms: bytes, sender: str, *parts: bytes) -> bytes:
    """Return the bytes to sign: the step, the attempt, the sender, and the content."""
    # A signature for one step, attempt or purpose must not be valid for another.
    return joined([b"vergence secure sum 4", stage.encode(), terms, sender.encode(), *parts])


def summary(data: bytes | memoryview) -> bytes:
    """Return a 32-byte digest of data in a statement: BLAKE3, in a third of SHA-256's time."""
    return blake3(memoryview(data).cast("B")).digest()


def listed(named: Mapping[str, bytes]) -> bytes:
    """Join all parties' bytes and names, in the order of the names."""
    return joined(part for name in sorted(named) for part in (name.encode(), named[name]))


def check(signed: bytes, signature: bytes, sender: str, register: Register) -> None:
    """Check a signature.

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
