"""Main server node: runs sessions of split learning with clients, through the aggregator.

Used by `deployment.server_run`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.deployment.client_app import run_words
from vergence.deployment.folders import ClientSide
from vergence.deployment.keys import BOX, SealedBox
from vergence.deployment.main_server import MainServer
from vergence.deployment.remote_clients import ClientLost, remote_people
from vergence.deployment.resident_node import ResidentNode
from vergence.errors import StateError


class MainServerNode(ResidentNode):
    """Node that trains the server's part in split learning, and has no data of clients.

    It knows clients by their public keys for encryption.
    """

    kind, role = "main", "main server"

    def __init__(self, folder: Path, side: ClientSide) -> None:
        super().__init__(folder, side)
        peers = sorted((folder / "peers").glob("*.box"))
        self.boxes = {peer.stem: SealedBox(folder / BOX, peer, peer.stem) for peer in peers}
        self.server: MainServer | None = None

    def begin(self, note: Mapping[str, Any]) -> Callable[[bytes], bytes]:
        """Return the function that begins or continues sessions of a run with clients.

        It returns a session's next message.
        """
        runner = self.runner(note, remote_people("nobody's", {}), self.folder / "state")
        sealed = BoxedMessages(self.boxes, run_words(note))
        if self.server is not None:
            self.server.end()
        self.server = MainServer(runner, sealed.close, sealed.open)
        return self.server.answer


@dataclass(frozen=True)
class BoxedMessages:
    """Encrypts requests to clients, and decrypts the answers.

    An encrypted request is bound to its run, and an encrypted answer to its request.
    """

    boxes: Mapping[str, SealedBox]
    about: str

    def close(self, client: str, request: bytes) -> bytes:
        """Encrypt a request for one client.

        Raises:
            ClientLost: the main server has no key of this client.
        """
        if client not in self.boxes:
            raise ClientLost(f"the main server has no key of '{client}'")
        return self.boxes[client].close(request, f"{self.about} request")

    def open(self, client: str, closed: bytes, asked: bytes) -> bytes:
        """Decrypt a client's answer to an encrypted request.

        Raises:
            ClientLost: the answer is not from this client, or belongs to another request.
        """
        # Bound to the digest of the request: the aggregator, which relays answers, could otherwise
        # hand over the answer to another request, or an old one.
        about = f"{self.about} answer to {hashlib.sha256(asked).hexdigest()}"
        try:
            return self.boxes[client].open(closed, about)
        except StateError as error:
            raise ClientLost(str(error)) from None
