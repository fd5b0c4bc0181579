"""One TLS connection of a private prediction: frames that are refused before they are read."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from vergence.deployment.diagnostics import parted
from vergence.deployment.private_inference.agreement import Greeting, PrivateFolder, parsed
from vergence.errors import StateError, printable

T = TypeVar("T")
HEADER = struct.Struct(">cIQ")
"""What a frame is, its step, and how many bytes follow."""
WORDS, DATA, FAULT = b"w", b"d", b"f"
SHORT = 4096
"""Bytes of a record, or of the reason of a fault."""
HANDSHAKE = 10.0
"""Seconds for a TLS handshake, and for the first words on both sides."""
FAREWELL = 1.0
"""Seconds for the last bytes on their way, and for TLS to say that no more come."""
EXPIRED = 10
"""OpenSSL's number for a certificate whose time is over."""
PINNED = "localhost"
"""Name that each certificate has beside its host's. Its authority signed nothing else, so that who
has the key is whom the authority's certificate names, wherever the party may have moved."""


class Line:
    """One connection to somebody.

    Args:
        who: is there, for errors.
        patience: seconds for every frame.
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

    async def in_time(self, talk: Awaitable[T]) -> T:
        """Wait for something, not for ever.

        Raises:
            StateError: it took too long, or the connection broke.
        """
        try:
            return await asyncio.wait_for(talk, self.patience)
        except TimeoutError:
            raise StateError(f"{self.who} did not answer in {self.patience:g} s") from None
        except (asyncio.IncompleteReadError, OSError):
            raise StateError(f"{self.who} hung up") from None

    async def tell(self, kind: bytes, payload: bytes, step: int = 0) -> None:
        """Send a frame.

        Raises:
            StateError: nobody takes it.
        """
        self.writer.write(HEADER.pack(kind, step, len(payload)) + payload)
        self.sent += HEADER.size + len(payload)
        await self.in_time(self.writer.drain())

    async def tell_record(self, record: Any) -> None:
        """Send a record as JSON."""
        await self.tell(WORDS, json.dumps(asdict(record)).encode())

    async def take(self, kind: bytes, step: int = 0, exact: int | None = None) -> bytes:
        """Return the next frame's content.

        Args:
            kind: what is due.
            step: the number that is due.
            exact: how many bytes are due; by default a record's, at most.

        Raises:
            StateError: another frame, a fault, or none in time.
        """
        head = await self.in_time(self.reader.readexactly(HEADER.size))
        found, number, size = HEADER.unpack(head)
        self.received += HEADER.size + size
        if found == FAULT and size <= SHORT:
            text = await self.in_time(self.reader.readexactly(size))
            raise StateError(f"{self.who}: {printable(text.decode(errors='replace'))}")
        if (found, number) != (kind, step):
            raise StateError(
                f"{self.who} sent frame {printable(found.decode('latin-1'))} of step {number}, and "
                f"{kind.decode()} of step {step} was due"
            )
        if size > SHORT if exact is None else size != exact:
            due = f"at most {SHORT}" if exact is None else str(exact)
            raise StateError(f"{self.who} sent {size:,} bytes, and {due} were due")
        return await self.in_time(self.reader.readexactly(size))

    async def fail(self, reason: str) -> None:
        """Send the reason of a fault, if it can still be sent."""
        with suppress(StateError):
            await self.tell(FAULT, reason.encode()[:SHORT])

    async def close(self) -> None:
        """Hang up, when what was sent has left."""
        self.writer.close()
        with suppress(TimeoutError, OSError):
            await asyncio.wait_for(self.writer.wait_closed(), FAREWELL)
        self.writer.transport.abort()


def server_context(folder: PrivateFolder) -> ssl.SSLContext:
    """TLS of a party that is spoken to."""
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
    """Connect to a party, and hear its greeting.

    Raises:
        StateError: nobody is there, it is somebody else, or it serves another dealing.
    """
    address = folder.addresses.parties[party]
    host, port = parted(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
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
        greeting = parsed(Greeting, await line.take(WORDS), line.who)
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
