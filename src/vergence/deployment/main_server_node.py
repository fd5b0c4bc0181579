"""Main server node: holds sessions with clients, by way of the server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.deployment.client_app import about_of
from vergence.deployment.folders import ClientSide
from vergence.deployment.keys import BOX, SealedBox
from vergence.deployment.main_server import MainServer
from vergence.deployment.remote_clients import ClientLost, absent
from vergence.deployment.resident_node import ResidentNode
from vergence.errors import StateError


class MainServerNode(ResidentNode):
    """Serves clients that it knows by their box keys; it has nobody's data."""

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        peers = sorted((folder / "peers").glob("*.box"))
        self.boxes = {peer.stem: SealedBox(folder / BOX, peer, peer.stem) for peer in peers}
        self.servers: dict[tuple[Any, ...], MainServer] = {}
        self.lock = threading.Lock()

    @property
    def what(self) -> str:
        """Operator's name for this node."""
        return "main server"

    def work(self, note: Mapping[str, Any], body: bytes) -> bytes:
        """Begin or go on with a session."""
        if note["kind"] != "main":
            return super().work(note, body)
        with self.lock:
            key = (note["run"], note["label"], note["seed"])
            if key not in self.servers:
                runner = self.runner(note, absent("nobody's", {}), self.folder / "state")
                sealed = BoxedMessages(self.boxes, about_of(note))
                for before in self.servers.values():
                    before.end()
                self.servers = {key: MainServer(runner, sealed.close, sealed.open)}
            server = self.servers[key]
        return server.answer(body)


@dataclass(frozen=True)
class BoxedMessages:
    """Closes requests, and opens answers: each only as the answer to its own request."""

    boxes: Mapping[str, SealedBox]
    about: str

    def close(self, client: str, request: bytes) -> bytes:
        """Return a request as the client alone can read it.

        Raises:
            ClientLost: nobody knows the client's key.
        """
        if client not in self.boxes:
            raise ClientLost(f"the main server has no key of '{client}'")
        return self.boxes[client].close(request, f"{self.about} request")

    def open(self, client: str, closed: bytes, asked: bytes) -> bytes:
        """Return a client's answer to a closed request.

        Raises:
            ClientLost: it is not this client's, or answers something else.
        """
        about = f"{self.about} answer to {hashlib.sha256(asked).hexdigest()}"
        try:
            return self.boxes[client].open(closed, about)
        except StateError as error:
            raise ClientLost(str(error)) from None
