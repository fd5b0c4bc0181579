"""What goes over a line to a client and comes back: errands, answers, and what they must look like.

Both ends take each other for anybody: what does not look like this is refused before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vergence.core.params import Params
from vergence.core.state import plain
from vergence.core.wire import Message
from vergence.engines.desk import Desk
from vergence.engines.job import Receipt
from vergence.engines.journal import Filed
from vergence.privacy.guards import HEAVIEST

HEAD = 4
"""Bytes that give the length of an answer's note."""
NOTE = 1 << 16
"""Bytes that a note may have."""
MODELS, SLACK = 16, 64 << 20
"""A message may be as large as so many models and so many bytes, where no limit is given."""
STAMP = r"\w{1,40}(\.\w{1,40}){0,3}"
"""What stamps of jobs look like: they name files."""
WORDS = 64
"""How many metrics a client may be measured by, and how long their names may be."""


@dataclass(frozen=True)
class Errand:
    """What a client is asked: a call, and what it needs to know of its job.

    Attributes:
        kind: `turn`, `evaluate`, or `digest` (of the state that counts).
        file: the state that counts; None: the client starts anew.
        known: trees whose mask the server has, as that state's `told` holds it.
        drop: states that nobody needs any more.
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


def file_of(seed: int, client: str, stamp: str) -> str:
    """Return the name of the file that a client's turn leaves its state in."""
    return f"seed{seed}.client.{client}.{stamp}.safetensors"


def is_file_of(file: str, seed: int, client: str) -> bool:
    """Tell whether a file can be a state of a client."""
    names = re.escape(file_of(seed, client, "STAMP")).replace("STAMP", STAMP)
    return re.fullmatch(names, file, re.ASCII) is not None


def sound(errand: Errand) -> bool:
    """Tell whether the fields of an errand hold what they should."""
    message = errand.message
    lists = (errand.points, errand.known, errand.drop)
    return (
        errand.kind in ("turn", "evaluate", "digest")
        and isinstance(message, Message)
        and isinstance(message.verb, str)
        and isinstance(message.trees, dict)
        and isinstance(message.facts, dict)
        and all(isinstance(tree, Params) for tree in message.trees.values())
        and type(message.round) is int
        and message.round >= 0
        and isinstance(errand.progress, int | float)
        and 0 <= errand.progress <= 1
        and isinstance(errand.stamp, str)
        and isinstance(errand.file, str | None)
        and all(isinstance(words, tuple) for words in lists)
        and all(isinstance(word, str) for words in lists for word in words)
    )


def most(desk: Desk) -> int:
    """Return the bytes that a message may have where no limit is given."""
    return MODELS * desk.worker.solver.vector.nbytes + SLACK


def checked(note: Mapping[str, Any], errand: Errand, seed: int) -> Receipt:
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
    measured = {p: {n: float(v) for n, v in found.items()}
                for p, found in measured.items() if p in ("P0", "P1", "P2")}  # fmt: skip
    filed = None
    if note["filed"] is not None:
        file, xxh3, share = note["filed"]
        if file != file_of(seed, errand.client, errand.stamp):
            raise ValueError("its state lies under another name")
        filed = Filed(file, xxh3, None if share is None else float(share))
        if not re.fullmatch("[0-9a-f]{32}", xxh3) or not 0 <= (filed.share or 0) <= 1:
            raise ValueError("its state is told of in another way")
    share = filed.share if filed else None
    return Receipt(errand.client, status, examples=examples, steps=steps, measured=measured,
                   filed=filed, share=share)  # fmt: skip
