"""Curves for TensorBoard, made from rounds.csv alone and written next to it.

Used by `experiment.run`.
"""

# Protobuf makes its classes when they are imported.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import csv
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from vergence.core.files import fields_of, open_for_append
from vergence.results.layout import COSTS
from vergence.results.run_files import whole_lines


def warn(text: str) -> None:
    """Print a warning on stderr; the program continues."""
    print(f"vergence: {text}", file=sys.stderr)


class Board:
    """Event file of one seed, written afresh whenever a run starts or is resumed.

    It therefore never holds a round twice. A file that cannot be written never ends the run: it is
    tried once more at the end of the seed, and then a warning is printed.

    Examples:
        >>> with Board(run, seed=0) as board:  # doctest: +SKIP
        ...     board.follow()  # after every round
    """

    def __init__(self, run: Path, seed: int, warn: Callable[[str], None] = warn) -> None:
        self.table, self.seed, self.warn = run / "rounds.csv", seed, warn
        self.folder = run / "tensorboard" / f"seed{seed}"
        self.file: Path | None = None
        self.read, self.costed = 0, -1

    def __enter__(self) -> Board:
        """Write the file with the rounds that exist already."""
        self._safely(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Add the last rounds, and warn if the file cannot be written."""
        self.follow()
        if self.file is None and kind is None:
            fault = self._safely(self._begin)
            if fault:
                self.warn(f"no TensorBoard curves of seed {self.seed} ({fault}); the run is whole")

    def follow(self) -> None:
        """Add the rounds that were finished since the last call."""
        if self.file is not None:
            self._safely(self._add)

    def _safely(self, work: Callable[[], None]) -> str:
        """Do some work, and return the text of its error; after an error there is no file."""
        # Curves must never end a run, whatever a library raises.
        try:
            work()
        except Exception as error:
            self.file = None
            return f"{type(error).__name__}: {error}"
        return ""

    def _begin(self) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog

        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("*.tfevents.*"):
            old.unlink()
        # Another name than before: a TensorBoard that is open goes on to files that come later.
        self.file = self.folder / f"events.out.tfevents.{time.time():.0f}.vergence"
        self.read, self.costed = 0, -1
        # It also drops what it read from the old file, from the step of this session on.
        start = {"session_log": SessionLog(status=SessionLog.START), "step": 0}
        self._write([{"file_version": "brain.Event:2"}, start])
        self._add(anew=True)

    def _add(self, anew: bool = False) -> None:
        text, self.read = whole_lines(self.table, self.read)
        rounds: dict[int, dict[str, float]] = {}
        for seed, at, point, metric, value, *costs in csv.reader(fields_of(text)):
            # The header has "seed" in this column, and is skipped with other seeds.
            if seed == str(self.seed):
                scalars = rounds.setdefault(int(at), {})
                scalars[f"{point}/{metric}"] = float(value)
                # Every row of a round repeats its costs, which are written once.
                if int(at) > self.costed:
                    columns = zip(COSTS, costs, strict=True)
                    scalars.update({f"cost/{k}": float(v) for k, v in columns if v})
        self.costed = max([self.costed, *rounds])
        self._write(list(_events(rounds, anew)))

    def _write(self, events: list[dict[str, Any]]) -> None:
        from tensorboardX.proto.event_pb2 import Event

        assert self.file is not None
        now = time.time()
        data = [framed(Event(**{"wall_time": now, **e}).SerializeToString()) for e in events]
        with open_for_append(self.file) as file:
            file.write(b"".join(data))


def _events(rounds: dict[int, dict[str, float]], anew: bool) -> Iterator[dict[str, Any]]:
    """Yield an event per round; times of rounds before a resumption follow from their durations."""
    from tensorboardX.proto.summary_pb2 import Summary

    took = {at: scalars.get("cost/seconds", 0.0) for at, scalars in rounds.items()}
    clock = time.time() - sum(took.values())
    for at, scalars in rounds.items():
        clock += took[at]
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        when = {"wall_time": clock} if anew else {}
        yield {"step": at, "summary": Summary(value=values), **when}


def framed(record: bytes) -> bytes:
    """Frame a record for an event file: length, its checksum, the record, its checksum.

    Source: TensorFlow, "TFRecord and tf.train.Example", section "TFRecords format details".
    """
    # tensorboardX's own writers keep a thread, which a run that forks cannot have, and wait for the
    # disk after every flush.
    from tensorboardX.record_writer import masked_crc32c

    size = struct.pack("<Q", len(record))
    return b"".join(
        [
            size,
            struct.pack("<I", masked_crc32c(size)),
            record,
            struct.pack("<I", masked_crc32c(record)),
        ]
    )
