"""The main server's end: one process that holds its talks, and tasks that bring it requests."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
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
from typing import Any, NoReturn

from vergence.app.deploy_client import about_of
from vergence.app.deploy_end import End
from vergence.app.deploy_folder import ClientSide
from vergence.app.deploy_keys import BOX, Box
from vergence.engines.main_server import MainServer
from vergence.engines.remote import Lost, absent
from vergence.errors import StateError


class Serving(End):
    """Serves clients that it knows by their box keys; it has nobody's data."""

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        peers = sorted((folder / "peers").glob("*.box"))
        self.boxes = {peer.stem: Box(folder / BOX, peer, peer.stem) for peer in peers}
        self.servers: dict[tuple[Any, ...], MainServer] = {}
        self.lock = threading.Lock()

    @property
    def what(self) -> str:
        """What the operator calls this end."""
        return "main server"

    def work(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Begin or go on with a talk."""
        if note["kind"] != "main":
            return super().work(note, body)
        with self.lock:
            key = (note["run"], note["label"], note["seed"])
            if key not in self.servers:
                desk = self.desk(note, absent("nobody's", {}), self.folder / "state")
                sealed = Boxes(self.boxes, about_of(note))
                for before in self.servers.values():
                    before.end()
                self.servers = {key: MainServer(desk, sealed.close, sealed.open)}
            server = self.servers[key]
        return server.answer(body)

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
class Boxes:
    """Closes errands, and opens answers: each only as the answer to its own errand."""

    boxes: Mapping[str, Box]
    about: str

    def close(self, client: str, errand: bytes) -> bytes:
        """Return an errand as the client alone can read it.

        Raises:
            Lost: nobody knows the client's key.
        """
        if client not in self.boxes:
            raise Lost(f"the main server has no key of '{client}'")
        return self.boxes[client].close(errand, f"{self.about} errand")

    def open(self, client: str, closed: bytes, asked: bytes) -> bytes:
        """Return a client's answer to a closed errand.

        Raises:
            Lost: it is not this client's, or answers something else.
        """
        about = f"{self.about} answer to {hashlib.sha256(asked).hexdigest()}"
        try:
            return self.boxes[client].open(closed, about)
        except StateError as error:
            raise Lost(str(error)) from None


@dataclass(frozen=True)
class Reached:
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
