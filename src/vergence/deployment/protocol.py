"""Requests and answers between server and clients, and checks of their fields.

Neither side trusts the other: a message with a wrong field is refused before it is used. A turn is
a client's work on one message.

Used throughout `deployment`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from vergence.core.files import parse_json
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.serialization import printable, unpack
from vergence.core.tags import tagged
from vergence.engine.client_runner import ClientRunner
from vergence.engine.records import ClientResult
from vergence.engine.secure_sum_attempts import SumRequest
from vergence.engine.storage.client_states import file_of
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import StateError
from vergence.privacy.reply_checks import HEAVIEST

HEAD = 4
"""Number of bytes that hold the length of a message's JSON header (note)."""
# A client's answer is parsed before its signature's owner is trusted: without a limit one answer
# could be a JSON text that fills the memory.
NOTE = 1 << 16
"""Largest number of bytes of the JSON header (note) of a request or answer."""
LIMIT_IN_MODELS, LIMIT_SLACK = 16, 64 << 20
"""Default size limit of a message: the size of 16 models, plus 64 MiB."""
STAMP = r"\w{1,40}(\.\w{1,40}){0,3}"
"""Pattern of a stamp: the name of a client's turn (work on one message), and part of file names."""
TURNS = 256
"""Largest number of turns (messages) in one request."""
WORDS, METRIC = 64, r"[A-Za-z0-9][A-Za-z0-9_@.-]{0,39}"
"""Largest number of a client's metrics, and the pattern of their names.

The pattern excludes names that a spreadsheet would run as a formula, or that a CSV reader would
split into two columns.
"""
FARTHEST = 1e100
"""Largest allowed value of a metric. Its square, and means over people, are still finite."""
Scores = dict[str, dict[str, float]]


@tagged("Errand")
@dataclass(frozen=True)
class ClientRequest:
    """Request to a client.

    Attributes:
        kind: `turn`: handle one or several messages, such as training; `evaluate`: evaluate a
            model; `digest`: return the SHA-256 of the client's state; `say`: answer a protocol
            message of a secure sum.
        client: name of the client.
        message: the message to handle.
        stamp: text that names the turn in the run; it becomes part of the new state file's name.
        file: name of the client's state file from which to start; None: without a state.
        progress: fraction of the run's rounds that are finished.
        points: names of the points of the run at which to evaluate.
        known: names of the trees whose masks the server already has; replies omit these masks.
        drop: names of state files that the server will never need again.
        attachments: names of trees of the message that the aggregator attaches to a request of the
            main server, because the main server must not see them.
        then: further messages in the same exchange. Each starts from the state that the previous
            message left.
        sum_message: the message of a secure sum, in a request of kind `say`.
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
    attachments: tuple[str, ...] = ()
    then: tuple[Message, ...] = ()
    sum_message: SumRequest | None = None


@dataclass(frozen=True)
class SharedBytes:
    """Bytes at the end of requests to several clients, such as the model; in memory once."""

    data: bytes

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the bytes, computed once for all clients; b"" if there are none."""
        return hashlib.sha256(self.data).digest() if self.data else b""


def framed(note: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a frame: the length of the JSON header (`note`), the header, and a body."""
    head = json.dumps(note, separators=(",", ":")).encode()
    return len(head).to_bytes(HEAD, "little") + head + body


def unframed(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON header (note) and the body of a frame; the inverse of `framed`.

    Raises:
        ValueError: the bytes are not a frame, or the header is too long.
    """
    end = HEAD + int.from_bytes(data[:HEAD], "little")
    if len(data) < end or end > HEAD + NOTE:
        raise ValueError("it ends too early" if len(data) < end else "its note is too long")
    note = parse_json(data[HEAD:end])
    if not isinstance(note, dict):
        raise ValueError("its note is no table")
    return note, data[end:]


MOST_SAMPLES = 10**9
"""Largest number of training samples that a client may report."""


def sample_count_fault(count: object) -> str:
    """Return why a client's number of training samples is impossible; "" if it is possible."""
    # The number becomes the length of a tensor in `remote_people`: a negative or fractional one of
    # a single malicious client would stop the run for everybody. True is an int to Python.
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_SAMPLES:
        return ""
    return (
        f"{printable(repr(count))[:40]} training samples, where a whole number from 0 to "
        f"{MOST_SAMPLES:,} is wanted"
    )


def split_answer(data: bytes, more: int) -> list[bytes]:
    """Split the answer to a request with several messages into one answer per message.

    Args:
        data: the whole answer.
        more: number of messages after the first; the client may have stopped earlier.

    Raises:
        ValueError: the lengths in the answer's header do not fit its body.
    """
    if not more:
        return [data]
    note, body = unframed(data)
    # Lengths come from the client: without these checks parts could overlap, be read twice as
    # replies of two turns, or outnumber the turns that were asked for.
    ends = list(accumulate(note["parts"], initial=0))
    if not 1 <= len(ends) - 1 <= 1 + more or ends[-1] != len(body) or sorted(ends) != ends:
        raise ValueError("its parts are not those of an answer")
    inner = [unframed(body[a:b]) for a, b in pairwise(ends)]
    return [framed({**part_note, "to": note["to"]}, part) for part_note, part in inner]


def turn_stamps(first: str, more: int) -> list[str]:
    """Return the stamps of a client's turn and of `more` turns that follow it.

    A turn is the client's work on one message; its stamp is its name in the run. The number at the
    end of the stamp grows by one per turn.
    """
    if not more:
        return [first]
    base, _, number = first.rpartition(".")
    return [f"{base}.{int(number) + step}" for step in range(1 + more)]


def single_turns(request: ClientRequest) -> list[ClientRequest]:
    """Split a request with several messages into one request per message."""
    messages = (request.message, *request.then)
    named = turn_stamps(request.stamp, len(request.then))
    return [
        replace(request, message=message, stamp=stamp, then=())
        for message, stamp in zip(messages, named, strict=True)
    ]


def is_file_of(file: str, seed: int, client: str) -> bool:
    """Return whether a name is a valid name of this client's state files in the run with `seed`."""
    # A server sends this name, and a client opens or deletes the file: without the whole match a
    # server could name `../../id_rsa`, or a state of another run.
    names = re.escape(file_of(seed, client, "STAMP")).replace("STAMP", STAMP)
    return re.fullmatch(names, file, re.ASCII) is not None


def with_attachment(request: ClientRequest, attachment: bytes, limit: float) -> ClientRequest:
    """Return a request whose message also holds the attached trees.

    `attachment` are the packed trees; unpacking them may use at most `limit` bytes of memory.

    Raises:
        StateError: the attached trees are not exactly those that the request names.
    """
    if not request.attachments and not attachment:
        return request
    # The main server wrote the request and the aggregator attached the trees: an aggregator that
    # attaches a tree of another name would replace one that the main server chose.
    trees, message = unpack(attachment, limit=limit) if attachment else {}, request.message
    if not isinstance(trees, dict) or sorted(trees) != sorted(request.attachments):
        raise StateError("the trees attached to this request are not those that it names")
    return replace(request, message=replace(message, trees={**message.trees, **trees}))


def trees_inside(request: ClientRequest) -> set[str]:
    """Return the names of the trees (sets of parameters) in a request, without attachments."""
    return {name for message in (request.message, *request.then) for name in message.trees}


def is_well_formed(request: ClientRequest) -> bool:
    """Return whether every field of a request has the expected type and range."""
    # `unpack` builds the record without checking its fields, so a server could send, say, a text in
    # place of a tuple and have it iterated letter by letter as names of files to drop.
    lists = (request.points, request.known, request.drop, request.attachments)
    return (
        request.kind in ("turn", "evaluate", "digest", "say")
        and (request.sum_message is not None) is (request.kind == "say")
        and isinstance(request.then, tuple)
        and all(_is_message(message) for message in (request.message, *request.then))
        and (not request.then or (request.kind == "turn" and len(request.then) < TURNS))
        and isinstance(request.progress, int | float)
        and 0 <= request.progress <= 1
        and isinstance(request.stamp, str)
        and (not request.then or re.fullmatch(r".*\.\d{1,9}", request.stamp, re.ASCII) is not None)
        and isinstance(request.file, str | None)
        and all(isinstance(words, tuple) for words in lists)
        and all(isinstance(word, str) for words in lists for word in words)
    )


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, Message)
        and isinstance(message.verb, str)
        and isinstance(message.trees, dict)
        and isinstance(message.facts, dict)
        and all(isinstance(tree, Params) for tree in message.trees.values())
        and type(message.round) is int
        and message.round >= 0
    )


def default_limit(runner: ClientRunner) -> int:
    """Return the default size limit of a message of this run, in bytes."""
    return LIMIT_IN_MODELS * runner.worker.solver.vector.nbytes + LIMIT_SLACK


def scores(measured: Mapping[str, Mapping[str, Any]], points: Collection[str]) -> Scores:
    """Return a client's metrics by point of the run and by name, at the requested points only.

    Raises:
        ValueError: a metric's name is malformed, there are too many metrics, or a value is not
            finite or too large.
    """
    metric_names = [name for values in measured.values() for name in values]
    # These names go into CSV tables that people open: one that begins with "=" is run by a
    # spreadsheet as a formula on the operator's machine.
    for name in metric_names:
        if re.fullmatch(METRIC, name, re.ASCII) is None:
            raise ValueError(f"it was measured by {printable(repr(name))[:60]}, which is no metric")
    if len(metric_names) > WORDS:
        raise ValueError(f"it was measured by {len(metric_names)} metrics, and {WORDS} are allowed")
    scores_at = {
        point: {name: float(value) for name, value in values.items()}
        for point, values in measured.items()
        if point in points
    }
    for point, values in scores_at.items():
        for name, value in values.items():
            # `not <=` also catches NaN: one NaN or infinity would make everybody's mean useless.
            if not abs(value) <= FARTHEST:
                raise ValueError(f"its {name} at {point} is {value:g}")
    return scores_at


def checked_result(note: Mapping[str, Any], request: ClientRequest, seed: int) -> ClientResult:
    """Return a client's result from the JSON header of its answer; every field is checked.

    Fields that a client must not set, such as byte counts, keep their defaults.

    Raises:
        ValueError: a field is missing or impossible; the message says which.
    """
    # Without this check a client's scores could be written into another person's row.
    if note.get("client") != request.client:
        raise ValueError("it names another client")
    status = printable(note["status"])
    if status != "ok" and not status.startswith("quarantined: "):
        raise ValueError("its status is unknown")
    # Examples weigh the reply in the aggregate: a negative or huge number would let one malicious
    # client turn the sum around or drown everybody else.
    examples, steps = float(note["examples"]), note["steps"]
    if not (0 <= examples <= HEAVIEST and type(steps) is int and 0 <= steps <= HEAVIEST):
        raise ValueError("its counts are no numbers")
    filed = None
    if note["filed"] is not None:
        file, xxh3, share = note["filed"]
        # The server sends this name back as the state to start from: it must not name another one.
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
