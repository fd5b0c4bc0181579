"""Sessions of a secure sum: agreed terms, signed statements, refusals and aborts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vergence.core.tags import field_tags, tag, tagged
from vergence.errors import ConfigError, StateError
from vergence.privacy.secure_aggregation.masking import PadCipher, check_pad, new_seed
from vergence.privacy.secure_aggregation.packing import Words

Sign = Callable[[bytes], bytes]
"""Signs with an end's long-lived key."""
Genuine = Callable[[bytes, bytes], bool]
"""Tells whether data, signature is of one end's long-lived key, as known beforehand."""
Register = Mapping[str, Genuine]
"""Who may take part. Never from the server that runs the sum: it could name people of its own."""
FEWEST = 3
"""Of a sum over two, each of them learns what the other gave."""


QUESTION = "question of {}"
"""In what was spent: what was asked for a contribution."""
ROW = "row of {}"
"""In what was spent: the row of words that a contribution is."""


def contribution(run: str, request: str) -> str:
    """Name of a contribution, which a client gives once: the run, and the sum of the run."""
    return f"{run} {request}"


class Refused(StateError):
    """A message that must not count; begins with `round`, `order`, `signature`, `size`, `lists`...

    The end that got it stays as it was.
    """


class Aborted(StateError):
    """A sum that nobody learns: too few are left, or what they gave does not fit."""


@dataclass(frozen=True)
class SessionParams:
    """One attempt at one sum. Every party makes its own from its own plan, and takes no other's.

    Args:
        run: which run.
        request: which sum of the run.
        attempt: which attempt at this sum.
        words: how many words everybody gives.
        threshold: of fewer people than this no sum is opened (>= 3). The server proposes it, all
            ends sign it, and each end refuses one below its own bound.
        form: digest of what was asked and how replies become words.
        cipher: what pads are drawn with; a pad has at most 2^33 words.
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
        """32 bytes that differ wherever anything here differs."""
        kind = type(self)
        named = [f"{said}={getattr(self, name)!r}" for name, said in field_tags(kind)]
        parts = [part.encode() for part in (tag(kind), *named)]
        return hashlib.sha256(joined(parts)).digest()

    @property
    def contribution(self) -> str:
        """Name of the contribution that a client gives once, in whatever attempt."""
        return contribution(self.run, self.request)


@dataclass(frozen=True)
class SessionMessage:
    """Something that is said in a session, under its terms (their digest)."""

    terms: bytes


@dataclass(frozen=True)
class SentMessage(SessionMessage):
    """Something that one party says in a session: under which terms, and who."""

    sender: str


class UsedContributions:
    """Record of all that a party gave away: one row of words per contribution, and one sum of it.

    Two sums of the same contributions over different people differ by what one of them gave, and
    so do two sums over the same people in which one of them gave another row. The very same row
    and the very same sum tell nothing new: a server that died before it kept the sum may ask
    again. Keep `opened` on disk, and write before the answer leaves.
    """

    def __init__(self, opened: MutableMapping[str, str] | None = None) -> None:
        self.opened: MutableMapping[str, str] = {} if opened is None else opened

    def spend(self, contribution: str, what: str = "") -> None:
        """Note that a contribution is given away; `what` tells the same sum from another.

        Raises:
            Refused: it was before, and for all that is known in another sum.
        """
        if contribution not in self.opened:
            self.opened[contribution] = what
        elif not what or self.opened[contribution] != what:
            raise Refused(f"spent: a sum of '{contribution}' was opened before, in another attempt")

    def ask(self, contribution: str, about: bytes, state: str) -> None:
        """Note what a client is asked for a contribution, and of which state of its.

        Before it works that out: else a server could ask again and again, and take what suits it.

        Raises:
            Refused: it was asked something else before.
        """
        name = QUESTION.format(contribution)
        what = hashlib.sha256(joined([about, state.encode()])).hexdigest()
        if self.opened.setdefault(name, what) != what:
            raise Refused(f"spent: '{contribution}' was another question before")

    def spend_row(self, terms: SessionParams, words: Words) -> None:
        """Note which row of words a client gives to a question, before they leave.

        Raises:
            Refused: it gave others to the same question, or to another one of the same name.
        """
        row = hashlib.sha256(joined([terms.form, summary(words.data)])).hexdigest()
        name = ROW.format(terms.contribution)
        if self.opened.setdefault(name, row) != row:
            raise Refused(f"spent: another row of words was given to '{terms.contribution}' before")

    def gave(self, contribution: str) -> bool:
        """True if a row of words was given, or about to be given, as a contribution."""
        return ROW.format(contribution) in self.opened

    def begin(self, terms: SessionParams) -> None:
        """Note that an attempt begins.

        Signatures of one attempt at a time mean one thing: held twice, what was said in the one
        could be shown in the other.

        Raises:
            Refused: it began before.
        """
        name = f"attempt {terms.digest.hex()}"
        if name in self.opened:
            raise Refused(f"order: attempt {terms.attempt} at '{terms.contribution}' began before")
        self.opened[name] = "begun"


@tagged("Invitation")
@dataclass(frozen=True)
class Invitation(SessionMessage):
    """Asks for keys; opens every attempt."""


M = TypeVar("M", bound=Any)
T = TypeVar("T", bound=SessionParams)


class Participant(Generic[T]):
    """One party's part of an attempt: answers what it is told, each step once and in order.

    `steps` are what comes next, and what answers it.
    """

    terms: T
    sign: Sign
    steps: list[tuple[type, Callable[[Any], Any]]]

    def _signed(self, message: M) -> M:
        return replace(message, signature=self.sign(message.signed))

    def answer(self, message: Any) -> Any:
        """Return the answer to a message.

        Raises:
            Refused: it must not be answered, and why; another can still be.
            Aborted: too few are left.
        """
        if not self.steps or type(message) is not self.steps[0][0]:
            due = self.steps[0][0].__name__ if self.steps else "nothing more"
            raise Refused(f"order: {type(message).__name__} came, due is {due}")
        if message.terms != self.terms.digest:
            raise Refused("round: this is of another attempt, or on other terms")
        answer = self.steps[0][1](message)
        self.steps.pop(0)
        return answer


def joined(parts: Iterable[bytes]) -> bytes:
    """Return parts as bytes that no other parts give."""
    return b"".join(len(part).to_bytes(8) + part for part in parts)


def given(names: Collection[str], form: bytes) -> str:
    """Digest that tells a sum over these people, of this form, from others."""
    return hashlib.sha256(joined([form, *(name.encode() for name in sorted(names))])).hexdigest()


def transcript(before: bytes, *messages: Any) -> bytes:
    """Digest of what was said so far: the digest before, and messages with their signatures."""
    parts = (part for message in messages for part in (message.signed, message.signature))
    return hashlib.sha256(joined([before, *parts])).digest()


def statement(stage: str, terms: bytes, sender: str, *parts: bytes) -> bytes:
    """Bytes to sign: the step, the attempt, the sender, and the content."""
    return joined([b"vergence secure sum 4", stage.encode(), terms, sender.encode(), *parts])


def summary(data: bytes | memoryview) -> bytes:
    """Return 32 bytes that stand for many in a statement: BLAKE3, in a third of SHA-256's time."""
    return blake3(memoryview(data).cast("B")).digest()


def listed(named: Mapping[str, bytes]) -> bytes:
    """Bytes that everybody gave, joined in the order of the names."""
    return joined(part for name in sorted(named) for part in (name.encode(), named[name]))


def check(signed: bytes, signature: bytes, sender: str, register: Register) -> None:
    """Check a signature.

    Raises:
        Refused: it is not this sender's, or nobody knows the sender.
    """
    if sender not in register:
        raise Refused(f"signature: nobody knows '{sender}'")
    if not register[sender](signed, signature):
        raise Refused(f"signature: this is not from '{sender}', or was changed on the way")


def signing_pair() -> tuple[Sign, Genuine]:
    """Return a new Ed25519 key as how to sign, and how to check."""
    key = Ed25519PrivateKey.from_private_bytes(new_seed())
    public = key.public_key()

    def genuine(data: bytes, signature: bytes) -> bool:
        try:
            public.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    return key.sign, genuine
