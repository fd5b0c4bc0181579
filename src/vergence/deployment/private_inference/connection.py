"""TLS connections of a private prediction; wrong frames are refused before their content is read.

Used by `deployment.private_inference.client` and `deployment.private_inference.party`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from vergence.core.options import T
from vergence.deployment.diagnostics import host_and_port
from vergence.deployment.private_inference.agreement import Greeting, PrivateFolder, parsed
from vergence.errors import StateError, printable

HEADER = struct.Struct(">cIQ")
"""Header of a frame: kind, number of the step, and number of bytes that follow."""
WORDS, DATA, FAULT = b"w", b"d", b"f"
SHORT = 4096
"""Largest number of bytes of a record, or of the text of an error."""
HANDSHAKE = 10.0
"""Seconds for a TLS handshake, and for the first message of both sides."""
FAREWELL = 1.0
"""Seconds to wait until the last bytes are sent and TLS is closed."""
EXPIRED = 10
"""OpenSSL's error number for an expired certificate."""
PINNED = "localhost"
"""Host name in every party's certificate, besides the party's own host.

Each party has its own certificate authority, which signed a single certificate. Whoever has that
certificate's key is the party, even if the party has moved to another host.
"""


class Line:
    """One connection that carries frames (header and content).

    Args:
        reader: the connection's reader.
        writer: the connection's writer.
        who: name of the other side in error messages.
        patience: seconds to wait for every frame.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        who: str,
        patience: float = HANDSHAKE,
    ) -> None:
        self.reader, self.writer, self.who, self.patience = reader, writer, who, patience
        self.sent = self.received = 0

    async def with_timeout(self, talk: Awaitable[T]) -> T:
        """Wait at most `patience` seconds for a read or a write, and return its result.

        Raises:
            StateError: the operation took longer, or the connection broke.
        """
        # A party that sends nothing more would otherwise occupy all others for ever.
        try:
            return await asyncio.wait_for(talk, self.patience)
        except TimeoutError:
            raise StateError(f"{self.who} did not answer in {self.patience:g} s") from None
        except (asyncio.IncompleteReadError, OSError):
            raise StateError(f"{self.who} hung up") from None

    async def send(self, kind: bytes, payload: bytes, step: int = 0) -> None:
        """Send a frame.

        Raises:
            StateError: the other side does not accept the frame in time.
        """
        self.writer.write(HEADER.pack(kind, step, len(payload)) + payload)
        self.sent += HEADER.size + len(payload)
        await self.with_timeout(self.writer.drain())

    async def send_record(self, record: Any) -> None:
        """Send a record as JSON."""
        await self.send(WORDS, json.dumps(asdict(record)).encode())

    async def receive(self, kind: bytes, step: int = 0, exact: int | None = None) -> bytes:
        """Return the content of the next frame, which must be the expected one.

        Args:
            kind: the expected kind of frame.
            step: the expected step.
            exact: the expected number of bytes; None: at most `SHORT`.

        Raises:
            StateError: another frame came, the other side reported an error, or no frame came in
                time.
        """
        head = await self.with_timeout(self.reader.readexactly(HEADER.size))
        frame, number, size = HEADER.unpack(head)
        self.received += HEADER.size + size
        if frame == FAULT and size <= SHORT:
            text = await self.with_timeout(self.reader.readexactly(size))
            raise StateError(f"{self.who}: {printable(text.decode(errors='replace'))}")
        # A malicious party could otherwise answer one step of the computation with its share of
        # another, which the masks of this step do not hide.
        if (frame, number) != (kind, step):
            raise StateError(
                f"{self.who} sent frame {printable(frame.decode('latin-1'))} of step {number}, and "
                f"{kind.decode()} of step {step} was due"
            )
        # Before the bytes are read: a frame may claim any size and fill the memory.
        if size > SHORT if exact is None else size != exact:
            due = f"at most {SHORT}" if exact is None else str(exact)
            raise StateError(f"{self.who} sent {size:,} bytes, and {due} were due")
        return await self.with_timeout(self.reader.readexactly(size))

    async def fail(self, reason: str) -> None:
        """Send the text of an error, if the connection still works."""
        with suppress(StateError):
            await self.send(FAULT, reason.encode()[:SHORT])

    async def close(self) -> None:
        """Close the connection as soon as the last bytes are sent."""
        self.writer.close()
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self.writer.wait_closed(), FAREWELL)
        self.writer.transport.abort()


def server_context(folder: PrivateFolder) -> ssl.SSLContext:
    """Return a party's TLS settings for connections that others open to the party."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(folder.path / "server.pem", folder.path / "server.key")
    except (OSError, ssl.SSLError):
        raise StateError(
            f"{folder.path} has no usable server.pem and server.key: give the folder of a party"
        ) from None
    return context


async def dial(folder: PrivateFolder, party: str, patience: float) -> tuple[Line, Greeting]:
    """Connect to a party, and read its greeting.

    Raises:
        StateError: no party answers, another party answers, or the party has the folder of another
            agreement.
    """
    address = folder.addresses.parties[party]
    host, port = host_and_port(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Only this party's own authority is trusted: the image shares would otherwise go to whoever
    # answers at the address.
    context.load_verify_locations(folder.certificate(party))
    try:
        streams = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), port, ssl=context, server_hostname=PINNED),
            HANDSHAKE,
        )
    except ssl.SSLError as error:
        if getattr(error, "verify_code", None) == EXPIRED:
            raise StateError(
                f"the certificate of party '{party}' has expired: ask the model's owner for new "
                "folders"
            ) from None
        raise StateError(f"who answers at {address} is not party '{party}': another key") from None
    except (OSError, TimeoutError):
        raise StateError(f"party '{party}' does not answer at {address}") from None
    line = Line(*streams, f"party '{party}'")
    try:
        greeting = parsed(Greeting, await line.receive(WORDS), line.who)
        if (greeting.party, greeting.agreement) != (party, folder.agreement.digest):
            raise StateError(
                f"{line.who} serves another network or dealing, as '{printable(greeting.party)}' "
                f"({printable(greeting.agreement[:12])}, here {folder.agreement.digest[:12]}): "
                "both need folders of one `vergence privacy share`"
            )
    except StateError:
        await line.close()
        raise
    line.patience = patience
    return line, greeting
