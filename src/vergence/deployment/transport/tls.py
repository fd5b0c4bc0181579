"""Time limits of connections before admission control: a connection that stalls is closed.

Without these limits Flower's server waits a minute for a TLS handshake and for ever for a request,
and buffers an unfinished header of any length: anybody could use up its connections or its memory.

Used by `deployment.transport.flower_processes`.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vergence.deployment.transport.admission import Refusals
from vergence.system.memory import raise_open_files

HANDSHAKE, HEADER, BODY = 10.0, 10.0, 300.0
"""Longest time in seconds for the TLS handshake, a request's header, and a request's body."""
LINES = 64 << 10
"""Largest number of bytes of a request's header."""
SAID = {
    "HTTP_REQUEST": "it spoke HTTP without TLS",
    "WRONG_VERSION_NUMBER": "it spoke no TLS",
    "UNSUPPORTED_PROTOCOL": "it spoke TLS older than 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust this server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not trust this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this server's certificate expired",
}
"""Explanation of a failed TLS handshake, by OpenSSL's name of the failure."""


def run(
    refusals: Refusals,
    app: Any,
    *,
    ssl_certfile: Any = None,
    ssl_keyfile: Any = None,
    **options: Any,
) -> None:
    """Serve an ASGI application as `uvicorn.run` does, with limits of time and size.

    `refusals` counts the connections that are closed.
    """
    # Every connection takes an open file: with the default limit a few hundred clients, or idle
    # connections of an outsider, would use them up.
    raise_open_files()
    context = None
    if ssl_certfile is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(ssl_certfile, ssl_keyfile)
    options["log_config"]["loggers"]["uvicorn.error"]["level"] = "ERROR"
    # Proxy headers would let anybody claim to be 127.0.0.1, from where commands are taken; a line
    # for each request would let anybody fill the disk.
    options |= {"ws": "none", "proxy_headers": False, "access_log": False}
    # Nodes that wait for messages would otherwise hold up the end of the server.
    options["timeout_graceful_shutdown"] = 1
    # uvloop drops bytes that arrive before a delayed TLS handshake begins.
    options["loop"] = "asyncio"
    uvicorn.run(app, http=partial(new_protocol, refusals, context), **options)  # type: ignore[arg-type]


def new_protocol(refusals: Refusals, context: ssl.SSLContext | None, **options: Any) -> Any:
    """Return the asyncio protocol of a new connection; uvicorn calls this for each connection.

    If `context` is None, connections do not use TLS.
    """
    http = LimitedHttp(refusals, **options)
    return http if context is None else TLSListener(refusals, context, http)


class TLSListener(asyncio.Protocol):
    """Protocol that starts TLS on a connection, or closes the connection if TLS fails."""

    def __init__(self, refusals: Refusals, context: ssl.SSLContext, http: LimitedHttp) -> None:
        self.refusals, self.context, self.http = refusals, context, http
        self.entering: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin the TLS handshake of a new connection."""
        transport.pause_reading()
        self.entering = asyncio.get_running_loop().create_task(self.enter(transport))

    async def enter(self, transport: Any) -> None:
        """Do the TLS handshake; then pass the connection to HTTP, or count why TLS failed."""
        host = (transport.get_extra_info("peername") or ("somebody",))[0]
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self.http,
                self.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE,
            )
        except ssl.SSLError as error:
            self.refusals.add(host, SAID.get(error.reason, f"TLS failed ({error.reason})"))
        except ConnectionAbortedError:
            self.refusals.add(host, f"no TLS handshake in {HANDSHAKE:.0f} s")
        except OSError:
            self.refusals.add(host, "it hung up in the TLS handshake")
        else:
            if not self.http.gone:
                self.http.connection_made(secured)  # type: ignore[arg-type]
            return
        transport.abort()


class LimitedHttp(HttpToolsProtocol):
    """HTTP connection that is closed if a request does not arrive in time, or is too large."""

    def __init__(self, refusals: Refusals, **options: Any) -> None:
        super().__init__(**options)
        self.refusals, self.heading, self.early, self.gone = refusals, 0, b"", False
        self.due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Set the deadline for the first request of a new connection."""
        super().connection_made(transport)
        self.set_deadline(HEADER, "no whole request header")
        if self.early:
            self.data_received(self.early)

    def data_received(self, data: bytes) -> None:
        """Process bytes; refuse a header that is too long."""
        # Bytes that came with the end of the handshake, before `connection_made`.
        if self.flow is None:
            self.early += data
            return
        if self.cycle is None or self.cycle.response_complete:
            self.heading += len(data)
            if self.due is None:
                self.set_deadline(HEADER, "no whole request header")
        super().data_received(data)
        if self.heading > LINES:
            self.refuse(f"a request header of more than {LINES >> 10} KiB")

    def on_headers_complete(self) -> None:
        """Set the deadline for a request's body, after its header has arrived."""
        self.heading = 0
        self.set_deadline(BODY, "no whole request")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Clear the deadline, as the request is complete."""
        self.clear_deadline()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clear the deadline when the connection ends, perhaps right after the TLS handshake."""
        self.clear_deadline()
        self.gone = True
        if self.flow is not None:
            super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed."""
        self.refusals.add(self.host, "what it sent is no HTTP")
        super().send_400_response(msg)

    @property
    def host(self) -> str:
        """Host of the peer."""
        return self.client[0] if self.client else "somebody"

    def set_deadline(self, seconds: float, what: str) -> None:
        """Close the connection after `seconds`, unless the deadline is set again or cleared.

        `what` is the beginning of the reason: what has not arrived.
        """
        self.clear_deadline()
        self.due = self.loop.call_later(seconds, self.refuse, f"{what} in {seconds:.0f} s")

    def clear_deadline(self) -> None:
        """Clear the deadline."""
        if self.due is not None:
            self.due.cancel()
            self.due = None

    def refuse(self, reason: str) -> None:
        """Close the connection now, and count the reason."""
        self.clear_deadline()
        self.refusals.add(self.host, reason)
        self.transport.abort()
