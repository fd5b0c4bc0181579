"""Node whose process stays alive between requests, because its state is in memory.

Used by `deployment.aggregator_node`, `deployment.main_server_node` and `deployment.server_run`.
"""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any, NoReturn

from vergence.deployment.folders import ClientSide
from vergence.deployment.joined_node import JoinedNode
from vergence.system.local_sockets import limit_wait, name_of, peer_is_same_user

PROOF_S, PAUSE_S = 5, 0.1
"""Seconds to wait for the proof of a new peer, and seconds to pause after a failed accept."""
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Temporary errors of accepting a connection: too many open files, or the peer is gone."""


class ResidentNode(JoinedNode):
    """Node that answers requests over a local socket until its process ends.

    Flower starts a new process for each request; that process passes the request on to this node.
    The node takes part in one run at a time.
    """

    kind: str
    """Kind of the requests that belong to a run."""

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        self.runs: dict[tuple[Any, ...], Callable[[bytes], bytes]] = {}
        self.lock = threading.Lock()

    def begin(self, note: Mapping[str, Any]) -> Callable[[bytes], bytes]:
        """Begin a run, and return the function that answers its requests; subclasses override this.

        `note` is a request's JSON header: it names kind, run, method and seed.
        """
        raise NotImplementedError

    def work(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Answer a request of the run that `note` names; a new run takes the place of the last."""
        if note["kind"] != self.kind:
            return super().work(note, body)
        with self.lock:
            key = (note["run"], note["label"], note["seed"])
            if key not in self.runs:
                self.runs = {key: self.begin(note)}
            answer = self.runs[key]
        return answer(body)

    def listen(self, secret: Path) -> NoReturn:
        """Answer requests of processes that know the secret in the file `secret`, without end."""
        key = secret.read_bytes()
        with Listener(socket_name(key), "AF_UNIX", backlog=64) as listener:
            # Each peer proves itself in a thread of its own: one that says nothing would otherwise
            # keep all others waiting.
            while True:
                try:
                    connection = listener.accept()
                except OSError as error:
                    if error.errno not in PASSING:
                        raise
                    time.sleep(PAUSE_S)
                    continue
                try:
                    arguments = (connection, key)
                    threading.Thread(
                        target=self._serve_connection, args=arguments, daemon=True
                    ).start()
                except RuntimeError:
                    # Too many threads: the peer may connect again.
                    connection.close()

    def _serve_connection(self, connection: Connection, key: bytes) -> None:
        with suppress(OSError, EOFError, AuthenticationError), connection:
            # Every user of the machine sees the socket's name and can connect.
            if not peer_is_same_user(connection.fileno()):
                return
            limit_wait(connection.fileno(), PROOF_S)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            limit_wait(connection.fileno(), 0)
            connection.send_bytes(self.answer(connection.recv_bytes()))


@dataclass(frozen=True)
class ResidentConnection:
    """Connection from a process with one request to the node's process, which stays alive."""

    key: bytes = field(repr=False)

    def answer(self, asked: bytes) -> bytes:
        """Send a request to the node's process, and return the answer."""
        with Client(socket_name(self.key), "AF_UNIX", authkey=self.key) as connection:
            connection.send_bytes(asked)
            return connection.recv_bytes()


def socket_name(key: bytes) -> str:
    """Return the name of the node's socket, which is derived from the secret.

    The socket has no file, and ends with the process.
    """
    return name_of(hashlib.sha256(key).hexdigest()[:32])
