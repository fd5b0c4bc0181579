"""Gaze for other programs on the same computer: one JSON line per frame over TCP, with a token.

A reader connects to 127.0.0.1, sends the token as its first line, and then gets a line with the
names of the columns, and a line per frame.

Used by `live.command` and `live.session`.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from vergence.core.files import replacing
from vergence.errors import ConfigError

# A reader that stops reading loses the oldest lines, and is closed after PATIENCE_S.
WAITING, PATIENCE_S = 64, 5.0
MOST_READERS, LONGEST_LINE = 8, 200
"""Largest number of readers at a time, and of bytes of a reader's first line."""


class _Reader(socketserver.StreamRequestHandler):
    """Connection of one reader."""

    timeout = PATIENCE_S

    def handle(self) -> None:
        server, lines = self.server, Queue[bytes | None](WAITING)
        assert isinstance(server, _Server)
        # The time limit of a socket is for each byte: a drip of bytes would hold the place.
        late = threading.Timer(PATIENCE_S, self.connection.shutdown, (socket.SHUT_RDWR,))
        late.start()
        try:
            said = self.rfile.readline(LONGEST_LINE).strip()
            late.cancel()
            # A page in a browser can also send to this port: without the token it gets nothing.
            if not hmac.compare_digest(said, server.token.encode()):
                return
            self.wfile.write(server.header)
            server.readers.append(lines)
            for line in iter(lines.get, None):
                self.wfile.write(line)
        except OSError:
            return  # the reader is gone, or does not read
        finally:
            late.cancel()
            if lines in server.readers:
                server.readers.remove(lines)


class _Server(socketserver.ThreadingTCPServer):
    """Server of this computer alone; readers that are refused get nothing."""

    daemon_threads, block_on_close = True, False
    # On Windows this would let another program take the port, too, and collect tokens.
    allow_reuse_address = os.name != "nt"

    def __init__(self, port: int, header: bytes) -> None:
        self.token, self.header = secrets.token_urlsafe(16), header
        self.readers: list[Queue[bytes | None]] = []
        self.slots = threading.BoundedSemaphore(MOST_READERS)
        super().__init__(("127.0.0.1", port), _Reader)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Refused at once: a connection that waited could hold one of the system's few places.
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()


class GazeSocket:
    """Sends gaze to the programs on this computer that know the token.

    Args:
        port: TCP port on 127.0.0.1; 0: any that is free.
        columns: names of the predicted numbers of a frame.
        token_file: file that is written with the token, readable by its owner only; None: none.

    Raises:
        ConfigError: the port cannot be opened.
    """

    def __init__(self, port: int, columns: Sequence[str], token_file: Path | None = None) -> None:
        self.columns = tuple(columns)
        names = ["frame", "t_s", "unix_s", *columns, "latency_ms"]
        header = json.dumps({"name": "vergence", "type": "gaze", "columns": names}) + "\n"
        try:
            self._server = _Server(port, header.encode())
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--serve {port}: no program can be served there ({error}); take another port "
                "from 1024 to 65535, or 0 for any that is free"
            ) from None
        self.port, self.token = self._server.server_address[1], self._server.token
        if token_file is not None:
            with replacing(token_file, secret=True) as scratch:
                scratch.write_text(self.token + "\n", encoding="utf-8")
        threading.Thread(target=self._server.serve_forever, daemon=True, name="gaze socket").start()

    def send(self, frame: int, time_s: float, numbers: Sequence[float], latency_s: float) -> None:
        """Send the numbers of a frame to all readers; numbers that are not known are null.

        Args:
            frame: number of the frame.
            time_s: time of the frame in the video, or since the first frame of a device.
            numbers: one per column, or none where no gaze is known.
            latency_s: time from the frame's arrival to its gaze.
        """
        known = numbers or [math.nan] * len(self.columns)
        row = (time_s, time.time(), *known, 1000 * latency_s)
        line = json.dumps([frame, *(v if math.isfinite(v) else None for v in row)]) + "\n"
        for reader in list(self._server.readers):
            _offer(reader, line.encode())

    def close(self) -> None:
        """Send what waits, for a second at most, and close all connections."""
        for reader in list(self._server.readers):
            _offer(reader, None)
        until = time.monotonic() + 1
        while self._server.readers and time.monotonic() < until:
            time.sleep(0.01)
        self._server.shutdown()
        self._server.server_close()


def _offer(reader: Queue[bytes | None], line: bytes | None) -> None:
    """Put a line into a reader's queue; the oldest one gives way where the queue is full.

    One thread alone puts lines in, so there is room after one was taken out.
    """
    if reader.full():
        # The reader may have taken it meanwhile.
        with suppress(Empty):
            reader.get_nowait()
    reader.put_nowait(line)
