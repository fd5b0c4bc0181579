"""Limit on the generated samples for which a client's teacher network returns outputs.

The count is kept in a file in the client's folder that only grows. It is not part of the client's
state: a server decides from which state a client starts, and could otherwise reset the count.

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

from vergence.core.files import complete_length, csv_of, fields_of, open_for_append, settle
from vergence.core.messages import Message
from vergence.core.serialization import printable
from vergence.deployment.client_registry import ENOUGH, LATER
from vergence.deployment.protocol import ClientRequest
from vergence.errors import StateError
from vergence.privacy.folder_marks import FolderMark
from vergence.system.file_locks import lock

FILE = "asked.csv"
COLUMNS = ("time", "mark", "what", "samples")
Entry = tuple[float, str, int]
"""Time of a request in seconds since 1970, the request's digest, and its number of samples."""
MINUTE = 60.0
MADE = "made"
"""Name of the tree that holds generated samples, one per row."""


@dataclass(frozen=True)
class TeacherQuota:
    """Log and limits of the requests to a client's teacher network for outputs.

    Attributes:
        folder: the client's folder, which holds the log as `asked.csv`.
        most: largest number of samples answered in all; 0: no limit.
        a_minute: largest number of samples answered in a minute; 0: no limit.
        clock: returns the seconds since 1970.
        mark: mark of the folder, which shows whether the log was put back from a copy; None: there
            is none.
    """

    folder: Path
    most: int = 0
    a_minute: int = 0
    clock: Callable[[], float] = time.time
    mark: FolderMark | None = None

    def count(self, request: ClientRequest, mark: str) -> None:
        """Record the number of a request's samples before they are answered.

        `mark` is the request's digest: a repeated request counts once.

        Raises:
            StateError: the samples would exceed a limit.
        """
        samples = sum(samples_in(message) for message in (request.message, *request.then))
        if not samples:
            return
        path = self.folder / FILE
        with open_for_append(path) as file:
            # All of a client's methods, and both of its askers, share the file: two processes that
            # counted at once would both find room for the same samples.
            lock(file)
            if self.mark is not None:
                self.mark.check()
            file.seek(0)
            data = file.read()
            # A request whose line is incomplete was not answered.
            whole = data[: complete_length(data)]
            entries, now = parse_entries(whole), self.clock()
            if any(known == mark for _, known, _ in entries):
                return
            self.check_limits(entries, now, samples)
            what = f"{request.message.verb} {printable(request.stamp)}"
            line = (f"{now:.3f}", mark, what, samples)
            # A line that a power cut tore would otherwise run into this one.
            file.truncate(len(whole))
            file.write(csv_of([*([] if whole else [COLUMNS]), line]).encode())
            file.flush()
            os.fsync(file.fileno())
        if not whole:
            settle(self.folder)
        if self.mark is not None:
            self.mark.commit()

    def check_limits(self, entries: Sequence[Entry], now: float, samples: int) -> None:
        """Refuse a request whose samples would exceed a limit.

        `entries` are the earlier requests; `now` is the time in seconds since 1970.

        Raises:
            StateError: there are too many samples. The text goes to the server, and names no path.
                It begins with `ENOUGH` or `LATER`, which tells the server whether to wait.
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
            "and nothing more is answered in this run; start a new one, as a copy of the file "
            "would forget what was asked since"
        ) from None


def samples_in(message: Message) -> int:
    """Return the number of generated samples in a message; `TeacherQuota.count` calls this."""
    tree = message.trees.get(MADE)
    return 0 if tree is None else max((len(t) for t in tree.values() if t.ndim), default=0)
