"""An end whose process stays, since its work lies in memory; tasks bring it their requests."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass
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


class ResidentNode(JoinedNode):
    """An end that answers its tasks over a socket, for as long as its folder is joined."""

    def listen(self, secret: Path) -> NoReturn:
        """Answer whoever has this folder's secret, until this process ends."""
        key = secret.read_bytes()
        with Listener(place(key), "AF_UNIX", backlog=64) as listener:
            while True:  # whoever connects proves in a thread of its own that it knows the secret
                connection = listener.accept()
                arguments = (connection, key)
                threading.Thread(target=self._one, args=arguments, daemon=True).start()

    def _one(self, connection: Connection, key: bytes) -> None:
        with suppress(OSError, EOFError, AuthenticationError), connection:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
            connection.send_bytes(self.answer(connection.recv_bytes()))


@dataclass(frozen=True)
class ResidentConnection:
    """Hands requests to the process that holds the talks."""

    key: bytes

    def answer(self, asked: bytes) -> bytes:
        """Return its answer."""
        with Client(place(self.key), "AF_UNIX", authkey=self.key) as connection:
            connection.send_bytes(asked)
            return connection.recv_bytes()


def place(key: bytes) -> str:
    """Return a socket's name that no path limits and that ends with its process."""
    return "\0vergence-" + hashlib.sha256(key).hexdigest()[:32]
