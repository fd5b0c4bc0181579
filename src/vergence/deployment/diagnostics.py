"""Connection diagnostics of a deployment: one line that says why server and node do not connect."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vergence.deployment import folders
from vergence.errors import ConfigError, StateError

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
"""Where a server may listen: on its own machine alone, or on all addresses of it."""
AGAIN = 3.0
"""Seconds between two attempts to reach a server."""
SOON = timedelta(days=30)
"""A certificate that ends within this time is told of."""
REASONS = {
    "Failed to initialize the connection": "the server does not let this node in: another one is "
    "connected with its key, or this node was killed less than half a minute ago",
    "Giving up reconnection": "the server went away",
    "SuperNode terminated": "the server started anew",
    "server sent code": "the server sent code of its own; only this package's is run",
}
"""What a node's log says when it ends, and what that means."""
FINAL = ("was revoked", "is not this server's")
"""How reasons of the gate's end that no second attempt can change."""
UNFIT = {
    9: "is not valid yet: this machine's clock is behind, or the server's was ahead at `deploy "
    "init`",
    10: "has expired, or this machine's clock is ahead: a new `deploy init` makes a new one",
    62: "is made out to another address: `deploy init --address` says which",
    64: "is made out to another address: `deploy init --address` says which",
}
"""What is wrong with a certificate, by OpenSSL's number."""


def parted(address: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ConfigError: it is none.
    """
    host, colon, port = address.rpartition(":")
    anywhere = "/" in host or host in ("0.0.0.0", "[::]", "::")
    if anywhere or not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(
            "an address is HOST:PORT as clients reach it, such as 192.168.1.5:8000; "
            f"got '{address}'"
        )
    return host, int(port)


def listening(address: str, listen: str = "") -> str:
    """Choose where a server listens that clients reach at an address, if nobody said where.

    Raises:
        ConfigError: it cannot listen there.
    """
    host, _ = parted(address)
    if listen not in ("", HERE, EVERYWHERE):
        raise ConfigError(
            f"a server listens on {HERE} or on {EVERYWHERE}, not on '{listen}': it speaks with "
            f"itself over {HERE}; leave the rest to a firewall"
        )
    if listen:
        return listen
    if host in (HERE, "localhost"):
        return HERE
    try:
        alone = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        alone = False
    if alone:
        raise ConfigError(
            f"'{address}' is of this machine alone, and no server listens there: give {HERE}"
        )
    return EVERYWHERE


def lasting(folder: Path) -> None:
    """Look how long a server's certificate lasts; say so if that is not long.

    Raises:
        StateError: it has expired, or is none.
    """
    from cryptography import x509

    file = folder / "server.pem"
    try:
        end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise StateError(f"{file} is no certificate ({error}); restore it") from None
    left = end - datetime.now(UTC)
    if left < timedelta(0):
        raise StateError(
            f"{file} expired on {end:%Y-%m-%d}, or this machine's clock is ahead; a "
            "new `vergence deploy init` makes a new one for all"
        )
    if left < SOON:
        folders.tell(
            folder,
            f"the certificate expires on {end:%Y-%m-%d}; from then on no client connects",
            "warning",
        )


def reachable(
    address: str,
    root: Path | None,
    said: str,
    folder: Path,
    heard: Callable[[], object] = lambda: None,
) -> str:
    """Wait until a server answers, and say once why it does not; return what was said.

    `heard` is called whenever something was said.

    Raises:
        StateError: it shows a certificate that this folder does not believe, or speaks TLS where
            none is wanted.
    """
    host, port = parted(address)
    context = None if root is None else believing(root)
    while True:
        try:
            with socket.create_connection((host, port), 5) as plain:
                if context is None:
                    unencrypted(plain, address)
                else:
                    with context.wrap_socket(plain, server_hostname=host):
                        pass
            return said
        except ssl.SSLCertVerificationError as error:
            unfit = f"does not fit {root}: copy this client's folder from the server's again"
            raise StateError(
                f"{address} shows a certificate that {UNFIT.get(error.verify_code, unfit)} "
                f"({error.verify_message})"
            ) from None
        except (OSError, ssl.SSLError) as error:
            plain_text = isinstance(error, ssl.SSLError) and "WRONG_VERSION" in str(error.reason)
            what = "it speaks no TLS" if plain_text else error.strerror or str(error)
            reason = f"cannot reach {address}: {what}"
        if reason != said:
            folders.tell(
                folder,
                f"{reason}; is `vergence deploy serve` running there? waiting",
                "unreachable",
            )
            said = reason
            heard()
        time.sleep(AGAIN)


def believing(root: Path) -> ssl.SSLContext:
    """TLS settings of a client that trusts one certificate authority alone.

    Raises:
        StateError: the file holds none.
    """
    try:
        context = ssl.create_default_context(cafile=str(root))
    except (OSError, ssl.SSLError) as error:
        raise StateError(
            f"{root} holds no certificate ({error.strerror or error}); copy this client's folder "
            "from the server's again"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def unencrypted(plain: socket.socket, address: str) -> None:
    """Ask a server without TLS.

    Raises:
        StateError: it does not answer so.
    """
    plain.sendall(b"POST /v1/fleet/ HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
    if plain.recv(4) != b"HTTP":  # an alert, or nothing
        raise StateError(f"{address} speaks TLS: leave --insecure out")


def reason_of(log: str) -> str:
    """Reason why a node ended, judged by the end of its log."""
    from vergence.deployment.transport.flower_processes import REFUSED

    refused = log.rfind(REFUSED)
    phrase = max(REASONS, key=log.rfind)
    if refused >= 0:
        said = log[refused + len(REFUSED) :].partition("\n")[0]
        return f"the server does not let this node in: {said}"
    return REASONS[phrase] if phrase in log else f"the node ended ({line_of(log)})"


def line_of(log: str) -> str:
    """Return the last line of a log that says something."""
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "no reason")


def free(host: str, port: int) -> None:
    """Refuse a port that somebody else listens on.

    Raises:
        StateError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StateError(
                f"cannot listen on {host}:{port} ({error.strerror}); stop who does, or change the "
                f"port in every {folders.SETTINGS}"
            ) from None


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
