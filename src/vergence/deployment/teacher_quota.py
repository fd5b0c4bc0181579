"""Quota of made-up samples that an owner's teacher answers: counted, limited and written down.

The count is a file in the client's folder that only grows, and not part of the client's state: a
server decides which state a turn starts from, and could otherwise reset the count.

Used by `deployment.client_app`.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vergence.core.files import csv_of, fields_of, open_for_append, settle
from vergence.core.messages import Message
from vergence.core.serialization import printable
from vergence.deployment.client_registry import ENOUGH, LATER
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.system.file_locks import lock

FILE = "asked.csv"
COLUMNS = ("time", "mark", "what", "samples")
Entry = tuple[float, str, int]
"""Time of a question, digest of its request, and its number of samples."""
MINUTE = 60.0
MADE = "made"
"""Name of the tree of made-up samples, a row each."""


@dataclass(frozen=True)
class TeacherQuota:
    """Log of the questions to a client's teacher, in the client's folder.

    Attributes:
        folder: the client's folder, which holds the log as `asked.csv`.
        most: largest number of samples answered in all; 0: any number.
        a_minute: largest number of samples answered in a minute; 0: any number.
        clock: returns the seconds since 1970.
    """

    folder: Path
    most: int = 0
    a_minute: int = 0
    clock: Callable[[], float] = time.time

    def count(self, request: ClientRequest, mark: str) -> None:
        """Record a request's samples before they are answered; the same request counts once.

        Raises:
            StateError: the client does not answer this number of samples, in all or in a minute.
        """
        samples = sum(samples_in(message) for message in (request.message, *request.then))
        if not samples:
            return
        path = self.folder / FILE
        with open_for_append(path) as file:
            # All of a client's methods, and both of its askers, share the file: two processes that
            # counted at once would both find room for the same samples.
            lock(file)
            file.seek(0)
            whole = whole_lines(file.read())
            entries, now = parse_entries(whole), self.clock()
            if any(known == mark for _, known, _ in entries):
                return
            self.check_limits(entries, now, samples)
            what = f"{request.message.verb} {printable(request.stamp)}"
            line = (f"{now:.3f}", mark, what, samples)
            # A line that a power cut tore would otherwise run into this one.
            file.truncate(len(whole))
            file.write(encode_lines(*([] if whole else [COLUMNS]), line))
            file.flush()
            os.fsync(file.fileno())
        if not whole:
            settle(self.folder)

    def check_limits(self, entries: Sequence[Entry], now: float, samples: int) -> None:
        """Refuse samples beyond a limit.

        Raises:
            StateError: there are too many samples; `ENOUGH` and `LATER` tell the server whether to
                wait. The text is sent to the server, and so it names no path.
        """
        before = sum(number for _, _, number in entries)
        if self.most and before + samples > self.most:
            raise StateError(
                f"{ENOUGH}this client answers {self.most:,} samples in all, has answered "
                f"{before:,} and is asked about {samples:,} more; only its owner can raise "
                "answers_in_all in its deploy.toml"
            )
        if not self.a_minute:
            return
        if samples > self.a_minute:
            raise StateError(
                f"{ENOUGH}this client answers {self.a_minute:,} samples a minute and is asked "
                f"about {samples:,} at once; ask smaller questions (the method's batch), or have "
                "its owner raise answers_a_minute in its deploy.toml"
            )
        # A clock that was set back a little must not open a new minute.
        lately = sorted((at, number) for at, _, number in entries if abs(now - at) < MINUTE)
        over, wait = sum(number for _, number in lately) + samples - self.a_minute, 0.0
        for at, number in lately:
            if over <= 0:
                break
            over, wait = over - number, at + MINUTE - now
        if wait:
            raise StateError(
                f"{LATER}{math.ceil(wait)} s: this client answers {self.a_minute:,} samples a "
                f"minute and is asked about {samples:,} more"
            )

    def entries(self) -> list[Entry]:
        """Return the entries of the log; a torn last line is left out.

        Raises:
            StateError: the file is damaged.
        """
        path = self.folder / FILE
        return parse_entries(whole_lines(path.read_bytes())) if path.exists() else []


def whole_lines(data: bytes) -> bytes:
    """Return the whole lines of a log; a question whose line was torn was not answered."""
    return data[: data.rfind(b"\n") + 1]


def parse_entries(data: bytes) -> list[Entry]:
    """Return the entries of a log's lines, after the heading.

    Raises:
        StateError: a line is damaged.
    """
    try:
        head, *found = csv.reader(fields_of(data.decode())) if data else [COLUMNS]
        if tuple(head) != COLUMNS:
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return [(float(at), mark, int(number)) for at, mark, _, number in found]
    except (ValueError, csv.Error) as error:
        raise StateError(
            f"{FILE} of this client is damaged ({printable(error)}): what was asked is not known, "
            "and nothing more is answered; its owner must restore it"
        ) from None


def encode_lines(*lines: Sequence[object]) -> bytes:
    """Return lines as bytes of CSV."""
    return csv_of(lines).encode()


def samples_in(message: Message) -> int:
    """Return the number of generated samples about which a message asks."""
    tree = message.trees.get(MADE)
    return 0 if tree is None else max((len(t) for t in tree.values() if t.ndim), default=0)
