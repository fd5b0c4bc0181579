"""Quota of made-up samples that an owner's teacher answers: counted, limited and written down.

The count is a file in the client's folder that only grows, and no state: whoever asks decides which
state counts, but not what was asked.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vergence.core.files import csv_of, fields_of, growing, settle
from vergence.core.messages import Message
from vergence.core.serialization import plain
from vergence.deployment.client_registry import ENOUGH, LATER
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.system.file_locks import lock

FILE = "asked.csv"
COLUMNS = ("time", "mark", "what", "samples")
Entry = tuple[float, str, int]
"""When a question was answered, its request's digest, and how many samples it had."""
MINUTE = 60.0
MADE = "made"
"""The tree that holds made-up samples, a row each."""


@dataclass(frozen=True)
class TeacherQuota:
    """The log of questions to a teacher in one client's folder.

    Attributes:
        folder: where it lies, as `asked.csv`.
        most: samples answered in all; 0: any number.
        a_minute: samples answered in a minute; 0: any number.
        clock: seconds since 1970.
    """

    folder: Path
    most: int = 0
    a_minute: int = 0
    clock: Callable[[], float] = time.time

    def count(self, request: ClientRequest, mark: str) -> None:
        """Write a request's samples down before they are answered; the same request counts once.

        One process at a time: a client's methods, and whoever asks, share this file.

        Raises:
            StateError: more than this client answers, in all or in a minute.
        """
        samples = sum(samples_in(message) for message in (request.message, *request.then))
        if not samples:
            return
        path = self.folder / FILE
        with growing(path) as file:
            lock(file)
            file.seek(0)
            whole = whole_lines(file.read())
            entries, now = parse_entries(whole), self.clock()
            if any(known == mark for _, known, _ in entries):
                return
            self.check_limits(entries, now, samples)
            what = f"{request.message.verb} {plain(request.stamp)}"
            line = (f"{now:.3f}", mark, what, samples)
            file.truncate(len(whole))  # else a line goes on where another was torn
            file.write(encode_lines(*([] if whole else [COLUMNS]), line))
            file.flush()
            os.fsync(file.fileno())
        if not whole:
            settle(self.folder)

    def check_limits(self, entries: Sequence[Entry], now: float, samples: int) -> None:
        """Refuse so many samples more where a limit says so; the server is told, so no path.

        Raises:
            StateError: they are too many; `ENOUGH` and `LATER` tell a server whether to wait.
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
        # A clock that was set back a little opens no new minute.
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
        """Return time, mark and number of all that was answered; a torn last line is none.

        Raises:
            StateError: the file is damaged: what was asked is not known.
        """
        path = self.folder / FILE
        return parse_entries(whole_lines(path.read_bytes())) if path.exists() else []


def whole_lines(data: bytes) -> bytes:
    """Return the whole lines of a file; what was asked in a torn one was not answered."""
    return data[: data.rfind(b"\n") + 1]


def parse_entries(data: bytes) -> list[Entry]:
    """Return time, mark and number of every line after the first.

    Raises:
        StateError: they are damaged.
    """
    try:
        head, *found = csv.reader(fields_of(data.decode())) if data else [COLUMNS]
        if tuple(head) != COLUMNS:
            raise ValueError(f"its first line is not {','.join(COLUMNS)}")
        return [(float(at), mark, int(number)) for at, mark, _, number in found]
    except (ValueError, csv.Error) as error:
        raise StateError(
            f"{FILE} of this client is damaged ({plain(error)}): what was asked is not known, and "
            "nothing more is answered; its owner must restore it"
        ) from None


def encode_lines(*lines: Sequence[object]) -> bytes:
    """Return lines of the file."""
    return csv_of(lines).encode()


def samples_in(message: Message) -> int:
    """Number of made-up samples that a message asks about."""
    tree = message.trees.get(MADE)
    return 0 if tree is None else max((len(t) for t in tree.values() if t.ndim), default=0)
