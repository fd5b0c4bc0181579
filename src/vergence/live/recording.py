"""Recording of a live session: pictures with gaze as mp4, and a CSV of the same name.

Used by `live.command` and `live.session`.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vergence.core.files import replacing
from vergence.errors import ConfigError, VergenceError
from vergence.live.camera import CameraFrame
from vergence.video.encode import encode

# Length of the encoder's queue. When it is full the session waits and the camera drops frames,
# which is better than memory that grows without end.
WAITING = 8


RecordedFrame = tuple[float, NDArray[np.uint8], list[str]]


class GazeRecording:
    """Writes a recording in a separate thread, so that x264 does not add to the latency.

    Args:
        path: the video (.mp4); the table has the same name with .csv.
        columns: names of the predicted numbers of a frame.
        step_s: nominal time from frame to frame.

    Raises:
        ConfigError: the path has another ending, or one of the files exists already.
    """

    def __init__(self, path: Path, columns: Sequence[str], step_s: float) -> None:
        if path.suffix != ".mp4":
            raise ConfigError(f"a recording is written as .mp4, got {path}: end the name in .mp4")
        self.path, self.table = path, path.with_suffix(".csv")
        for each in (self.path, self.table):
            if each.exists():
                raise ConfigError(f"{each} is there already: give the recording another name")
        self.columns, self.step_s = ("frame", "t_s", *columns, "latency_ms"), step_s
        self.frames = 0
        self._queue: Queue[RecordedFrame | None] = Queue(WAITING)
        self._fault: VergenceError | OSError | None = None
        self._thread = threading.Thread(target=self._write, name="recording")

    def add(self, frame: CameraFrame, picture: NDArray[np.uint8], numbers: Sequence[float]) -> None:
        """Add the picture of a frame, uint8 `[H, W, 3]`, and its numbers, if there are any.

        Raises:
            VergenceError: the writer has failed.
        """
        if self._fault is not None:
            raise self._fault
        # With the first frame: a camera that gives none leaves no files behind.
        if not self.frames:
            self._thread.start()
        self.frames += 1
        # A ray that misses the screen has no point on it.
        known = ["" if value != value else f"{value:.5f}" for value in numbers]
        known = known or [""] * (len(self.columns) - 2)
        row = [str(frame.number), f"{frame.time_s:.6f}", *known]
        self._queue.put((frame.time_s, picture, row))

    def close(self) -> None:
        """Finish both files.

        Raises:
            VergenceError: they could not be written.
        """
        if not self.frames:
            return
        self._queue.put(None)
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _write(self) -> None:
        try:
            # Readable by their owner alone: a scene and where somebody looked are personal.
            with (
                replacing(self.table, secret=True) as table,
                replacing(self.path, secret=True) as video,
                table.open("w", newline="", encoding="utf-8") as file,
            ):
                rows = csv.writer(file)
                rows.writerow(self.columns)
                # The fastest preset: encoding shares the processor with the network.
                encode(video, self._pictures(rows), self.step_s, preset="ultrafast")
        except (VergenceError, OSError) as error:
            self._fault = error
            # The session must not wait for ever at a queue that nobody empties.
            while self._queue.get() is not None:
                pass

    def _pictures(self, rows: Any) -> Iterator[tuple[float, NDArray[np.uint8]]]:
        start = None
        for time_s, picture, row in iter(self._queue.get, None):
            start = time_s if start is None else start
            rows.writerow(row)
            yield time_s - start, picture
