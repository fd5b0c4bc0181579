"""What goes over a line to a client and comes back: errands, answers, and what they must look like.

Both ends take each other for anybody: what does not look like this is refused before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import plain, unpack
from vergence.core.tags import tagged
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import TaskReceipt
from vergence.engine.secure_sum_attempts import Asked
from vergence.engine.storage.client_states import file_of
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import StateError
from vergence.privacy.reply_checks import HEAVIEST

HEAD = 4
"""Bytes that give the length of an answer's note."""
NOTE = 1 << 16
"""Bytes that a note may have."""
MODELS, SLACK = 16, 64 << 20
"""A message may be as large as so many models and so many bytes, where no limit is given."""
STAMP = r"\w{1,40}(\.\w{1,40}){0,3}"
"""What stamps of jobs look like: they name files."""
TURNS = 256
"""How many turns one errand may ask for."""
WORDS = 64
"""How many metrics a client may be measured by, and how long their names may be."""


@tagged("Errand")
@dataclass(frozen=True)
class ClientRequest:
    """Request to a client: a call, and what the client needs to know of its job.

    Attributes:
        kind: `turn`, `evaluate`, `digest` (of the state that counts), or `say`.
        file: the state that counts; None: the client starts anew.
        known: trees whose mask the server has, as that state's `told` holds it.
        drop: states that nobody needs any more.
        then: messages of turns that follow in the same exchange, each from the state before it.
        said: a message of the secure sum that a turn's reply goes into (`say`).
        beside: trees of the message that come by another hand, as who asks does not have them.
    """

    kind: str
    client: str
    message: Message
    stamp: str = ""
    file: str | None = None
    progress: float = 0.0
    points: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    then: tuple[Message, ...] = ()
    said: Asked | None = None


def framed(note: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a note and the bytes behind it."""
    head = json.dumps(note, separators=(",", ":")).encode()
    return len(head).to_bytes(HEAD, "little") + head + body


def unframed(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Undo `framed`.

    Raises:
        ValueError: this is none.
    """
    end = HEAD + int.from_bytes(data[:HEAD], "little")
    if len(data) < end or end > HEAD + NOTE:
        raise ValueError("it ends too early" if len(data) < end else "its note is too long")
    try:
        note = json.loads(data[HEAD:end])
    except RecursionError:
        raise ValueError("its note is nested too deep") from None
    if not isinstance(note, dict):
        raise ValueError("its note is no table")
    return note, data[end:]


MOST_SAMPLES = 10**9
"""No client has more training samples."""


def miscounted(count: object) -> str:
    """Reason why nobody has so many training samples, whoever says so; empty if somebody can."""
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_SAMPLES:
        return ""
    return (
        f"{plain(repr(count))[:40]} training samples, where a whole number from 0 to "
        f"{MOST_SAMPLES:,} is wanted"
    )


def parts(data: bytes, more: int) -> list[bytes]:
    """Return the answers to an errand's message and to so many more, as single ones look.

    Raises:
        ValueError: these are others.
    """
    if not more:
        return [data]
    note, body = unframed(data)
    ends = list(accumulate(note["parts"], initial=0))
    if not 1 <= len(ends) - 1 <= 1 + more or ends[-1] != len(body) or sorted(ends) != ends:
        raise ValueError("its parts are not those of an answer")
    inner = [unframed(body[a:b]) for a, b in pairwise(ends)]
    return [framed({**told, "to": note["to"]}, rest) for told, rest in inner]


def stamps(first: str, more: int) -> list[str]:
    """Return the stamps of a turn and of so many that follow it in the same exchange."""
    if not more:
        return [first]
    base, _, number = first.rpartition(".")
    return [f"{base}.{int(number) + step}" for step in range(1 + more)]


def steps(errand: ClientRequest) -> list[ClientRequest]:
    """Return an errand for each of its messages."""
    messages = (errand.message, *errand.then)
    named = stamps(errand.stamp, len(errand.then))
    return [
        replace(errand, message=message, stamp=stamp, then=())
        for message, stamp in zip(messages, named, strict=True)
    ]


def is_file_of(file: str, seed: int, client: str) -> bool:
    """True if a file can be a state of a client."""
    names = re.escape(file_of(seed, client, "STAMP")).replace("STAMP", STAMP)
    return re.fullmatch(names, file, re.ASCII) is not None


def whole(errand: ClientRequest, beside: bytes, limit: float) -> ClientRequest:
    """Return an errand with the trees that came beside it.

    Raises:
        StateError: they are others than it names.
    """
    if not errand.beside and not beside:
        return errand
    trees, message = unpack(beside, limit=limit) if beside else {}, errand.message
    if not isinstance(trees, dict) or sorted(trees) != sorted(errand.beside):
        raise StateError("the trees beside this errand are not those that it names")
    return replace(errand, message=replace(message, trees={**message.trees, **trees}))


def inside(errand: ClientRequest) -> set[str]:
    """Return the names of the trees that an errand itself brings."""
    return {name for message in (errand.message, *errand.then) for name in message.trees}


def sound(errand: ClientRequest) -> bool:
    """True if the fields of an errand hold what they should."""
    lists = (errand.points, errand.known, errand.drop, errand.beside)
    return (
        errand.kind in ("turn", "evaluate", "digest", "say")
        and (errand.said is not None) is (errand.kind == "say")
        and isinstance(errand.then, tuple)
        and all(_sound(message) for message in (errand.message, *errand.then))
        and (not errand.then or (errand.kind == "turn" and len(errand.then) < TURNS))
        and isinstance(errand.progress, int | float)
        and 0 <= errand.progress <= 1
        and isinstance(errand.stamp, str)
        and (not errand.then or re.fullmatch(r".*\.\d{1,9}", errand.stamp, re.ASCII) is not None)
        and isinstance(errand.file, str | None)
        and all(isinstance(words, tuple) for words in lists)
        and all(isinstance(word, str) for words in lists for word in words)
    )


def _sound(message: Any) -> bool:
    return (
        isinstance(message, Message)
        and isinstance(message.verb, str)
        and isinstance(message.trees, dict)
        and isinstance(message.facts, dict)
        and all(isinstance(tree, Params) for tree in message.trees.values())
        and type(message.round) is int
        and message.round >= 0
    )


def most(runner: ClientRunner) -> int:
    """Return the bytes that a message may have where no limit is given."""
    return MODELS * runner.worker.solver.vector.nbytes + SLACK


def checked(note: Mapping[str, Any], errand: ClientRequest, seed: int) -> TaskReceipt:
    """Return the receipt that a note stands for, without what a client has no say in.

    Raises:
        ValueError: a field is not what it must be.
    """
    if note.get("client") != errand.client:
        raise ValueError("it names another client")
    status = plain(note["status"])
    if status != "ok" and not status.startswith("quarantined: "):
        raise ValueError("its status is unknown")
    examples, steps, measured = float(note["examples"]), note["steps"], note["measured"]
    if not (0 <= examples <= HEAVIEST and type(steps) is int and 0 <= steps <= HEAVIEST):
        raise ValueError("its counts are no numbers")
    words = [name for found in measured.values() for name in found]
    if len(words) > WORDS or not all(n.isprintable() and len(n) <= WORDS for n in words):
        raise ValueError("it was measured by something else")
    measured = {
        p: {n: float(v) for n, v in found.items()}
        for p, found in measured.items()
        if p in ("P0", "P1", "P2")
    }
    filed = None
    if note["filed"] is not None:
        file, xxh3, share = note["filed"]
        if file != file_of(seed, errand.client, errand.stamp):
            raise ValueError("its state lies under another name")
        filed = StateRef(file, xxh3, None if share is None else float(share))
        if not re.fullmatch("[0-9a-f]{32}", xxh3) or not 0 <= (filed.share or 0) <= 1:
            raise ValueError("its state is told of in another way")
    share = filed.share if filed else None
    return TaskReceipt(
        errand.client,
        status,
        examples=examples,
        steps=steps,
        measured=measured,
        filed=filed,
        share=share,
    )
