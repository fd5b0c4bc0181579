"""The side of the clock that is timed: a process that does rounds when it is told to.

Needs the standard library alone: the peers' scripts load this file by its path.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MARK = "@bench "
"""Begins a line that is for the clock; whatever else a process prints goes to its log."""


class Gate:
    """Waits for the clock between rounds.

    The clock writes a number of rounds on a line; the process does them and answers with the wall
    seconds they took. 0 asks to finish. When the clock is gone, so is the process.
    """

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left = 0
        self._began: float | None = None

    def between_rounds(self, **more: Any) -> bool:
        """Call before the first and after every round; tells whether another one is wanted."""
        if self._left > 1:
            self._left -= 1
            return True
        ended = time.perf_counter()
        if self._began is None:
            self.tell(ready=True)
        else:
            self.tell(wall=ended - self._began, **more)
        line = sys.stdin.readline()
        if not line:
            os._exit(1)
        self._left = int(line)
        self._began = time.perf_counter()
        return self._left > 0

    def tell(self, **what: Any) -> None:
        """Send one line to the clock."""
        try:
            print(MARK + json.dumps(what), file=self._out, flush=True)
        except BrokenPipeError:
            os._exit(1)
