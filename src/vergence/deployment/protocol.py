"""Requests and answers between server and clients, and checks of their form.

Neither side trusts the other: what is not of this form is refused before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from vergence.core.files import parse_json
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import plain, unpack
from vergence.core.tags import tagged
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import ClientResult
from vergence.engine.secure_sum_attempts import SumRequest
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
"""How many turns one request may ask for."""
WORDS, METRIC = 64, r"[A-Za-z0-9][A-Za-z0-9_@.-]{0,39}"
"""How many metrics a client may be measured by, and what their names look like: nothing that a
spreadsheet takes for a formula, or a table for two columns."""
FARTHEST = 1e100
"""The largest metric: means over people and squares of it are numbers still."""
Scores = dict[str, dict[str, float]]


@tagged("Errand")
@dataclass(frozen=True)
class ClientRequest:
    """Request to a client: a task, and what the client needs to know of its batch.

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
    said: SumRequest | None = None


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
    note = parse_json(data[HEAD:end])
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
    """Return the answers to a request's message and to so many more, as single ones look.

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


def steps(request: ClientRequest) -> list[ClientRequest]:
    """Return a request for each of its messages."""
    messages = (request.message, *request.then)
    named = stamps(request.stamp, len(request.then))
    return [
        replace(request, message=message, stamp=stamp, then=())
        for message, stamp in zip(messages, named, strict=True)
    ]


def is_file_of(file: str, seed: int, client: str) -> bool:
    """True if a file can be a state of a client."""
    names = re.escape(file_of(seed, client, "STAMP")).replace("STAMP", STAMP)
    return re.fullmatch(names, file, re.ASCII) is not None


def whole(request: ClientRequest, beside: bytes, limit: float) -> ClientRequest:
    """Return a request with the trees that came beside it.

    Raises:
        StateError: they are others than it names.
    """
    if not request.beside and not beside:
        return request
    trees, message = unpack(beside, limit=limit) if beside else {}, request.message
    if not isinstance(trees, dict) or sorted(trees) != sorted(request.beside):
        raise StateError("the trees beside this request are not those that it names")
    return replace(request, message=replace(message, trees={**message.trees, **trees}))


def inside(request: ClientRequest) -> set[str]:
    """Return the names of the trees that a request itself brings."""
    return {name for message in (request.message, *request.then) for name in message.trees}


def sound(request: ClientRequest) -> bool:
    """True if the fields of a request hold what they should."""
    lists = (request.points, request.known, request.drop, request.beside)
    return (
        request.kind in ("turn", "evaluate", "digest", "say")
        and (request.said is not None) is (request.kind == "say")
        and isinstance(request.then, tuple)
        and all(_sound(message) for message in (request.message, *request.then))
        and (not request.then or (request.kind == "turn" and len(request.then) < TURNS))
        and isinstance(request.progress, int | float)
        and 0 <= request.progress <= 1
        and isinstance(request.stamp, str)
        and (not request.then or re.fullmatch(r".*\.\d{1,9}", request.stamp, re.ASCII) is not None)
        and isinstance(request.file, str | None)
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


def scores(measured: Mapping[str, Mapping[str, Any]], points: Collection[str]) -> Scores:
    """Measurements of a client, at the points that it was asked for.

    Raises:
        ValueError: a metric has a name that none has, or is no number that can be averaged.
    """
    words = [name for found in measured.values() for name in found]
    for name in words:
        if re.fullmatch(METRIC, name, re.ASCII) is None:
            raise ValueError(f"it was measured by {plain(repr(name))[:60]}, which is no metric")
    if len(words) > WORDS:
        raise ValueError(f"it was measured by {len(words)} metrics, and {WORDS} are allowed")
    found = {
        point: {name: float(value) for name, value in each.items()}
        for point, each in measured.items()
        if point in points
    }
    for point, each in found.items():
        for name, value in each.items():
            if not abs(value) <= FARTHEST:
                raise ValueError(f"its {name} at {point} is {value:g}")
    return found


def checked(note: Mapping[str, Any], request: ClientRequest, seed: int) -> ClientResult:
    """Return the result that a note stands for, without what a client has no say in.

    Raises:
        ValueError: a field is not what it must be.
    """
    if note.get("client") != request.client:
        raise ValueError("it names another client")
    status = plain(note["status"])
    if status != "ok" and not status.startswith("quarantined: "):
        raise ValueError("its status is unknown")
    examples, steps = float(note["examples"]), note["steps"]
    if not (0 <= examples <= HEAVIEST and type(steps) is int and 0 <= steps <= HEAVIEST):
        raise ValueError("its counts are no numbers")
    filed = None
    if note["filed"] is not None:
        file, xxh3, share = note["filed"]
        if file != file_of(seed, request.client, request.stamp):
            raise ValueError("its state lies under another name")
        filed = StateRef(file, xxh3, None if share is None else float(share))
        if not re.fullmatch("[0-9a-f]{32}", xxh3) or not 0 <= (filed.share or 0) <= 1:
            raise ValueError("its state is told of in another way")
    share = filed.share if filed else None
    return ClientResult(
        request.client,
        status,
        examples=examples,
        steps=steps,
        measured=scores(note["measured"], request.points),
        filed=filed,
        share=share,
    )
