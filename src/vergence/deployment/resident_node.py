"""Node whose process stays, since its work lies in memory; tasks bring it their requests."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
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
from typing import NoReturn

from vergence.deployment.joined_node import JoinedNode
from vergence.system.local_sockets import is_mine, limit_wait, name_of

PROOF_S, PAUSE_S = 5, 0.1
"""Seconds for the next word of who has not proven yet to know the secret; until a new attempt."""
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
"""Why a connection is not to be had that do not last: too many files, or whoever came is gone."""


class ResidentNode(JoinedNode):
    """A node that answers its tasks over a socket, for as long as its folder is joined.

    Everybody on the machine can see the socket's name and connect: other users are turned away, and
    who says nothing is not waited for.
    """

    def listen(self, secret: Path) -> NoReturn:
        """Answer whoever has this folder's secret, until this process ends."""
        key = secret.read_bytes()
        with Listener(socket_name(key), "AF_UNIX", backlog=64) as listener:
            while True:  # whoever connects proves in a thread of its own that it knows the secret
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
                except RuntimeError:  # too many threads: whoever it was may ask again
                    connection.close()

    def _serve_connection(self, connection: Connection, key: bytes) -> None:
        with suppress(OSError, EOFError, AuthenticationError), connection:
            if not is_mine(connection.fileno()):
                return
            limit_wait(connection.fileno(), PROOF_S)
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            limit_wait(connection.fileno(), 0)
            connection.send_bytes(self.answer(connection.recv_bytes()))


@dataclass(frozen=True)
class ResidentConnection:
    """Hands requests to the process that stays."""

    key: bytes = field(repr=False)

    def answer(self, asked: bytes) -> bytes:
        """Return its answer."""
        with Client(socket_name(self.key), "AF_UNIX", authkey=self.key) as connection:
            connection.send_bytes(asked)
            return connection.recv_bytes()


def socket_name(key: bytes) -> str:
    """Return a socket's name that no path limits and that ends with its process."""
    return name_of(hashlib.sha256(key).hexdigest()[:32])
