"""Connection diagnostics of a deployment: one line that says why a node cannot connect.

Used in `cli` and `deployment`.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from vergence.deployment import folders
from vergence.errors import ConfigError, StateError

HERE, EVERYWHERE = "127.0.0.1", "0.0.0.0"
"""Addresses on which a server listens: only for its own machine, or for all machines."""
LOOPBACK = ("127.0.0.1", "localhost")
"""Hosts that are reached without a proxy."""
AGAIN = 3.0
"""Seconds between two attempts to reach a server."""
SOON = timedelta(days=30)
"""The operator is warned if a certificate expires within this time."""
REASONS = {
    "Failed to initialize the connection": "the server does not let this node in: another one is "
    "connected with its key, or this node was killed less than half a minute ago",
    "Giving up reconnection": "the server went away",
    "SuperNode terminated": "the server started anew",
    "server sent code": "the server sent code of its own; only this package's is run",
}
"""Phrases in the log of a node that ended, each with its meaning for the operator."""
FINAL = ("was revoked", "is not this server's")
"""Last words of the refusals after which another attempt is useless."""
UNFIT = {
    9: "is not valid yet: this machine's clock is behind, or the server's was ahead at `deploy "
    "init`",
    10: "has expired, or this machine's clock is ahead: `deploy renew` makes a new one",
    62: "is made out to another address: `deploy init --address` says which",
    64: "is made out to another address: `deploy init --address` says which",
}
"""Explanation of a certificate's error, by OpenSSL's error number."""


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of an address HOST:PORT.

    Raises:
        ConfigError: the text is no address that clients can reach.
    """
    host, colon, port = address.rpartition(":")
    # These hosts mean "every address of this machine": good to listen on, no place to connect to.
    anywhere = "/" in host or host in ("0.0.0.0", "[::]", "::")
    if anywhere or not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(
            "an address is HOST:PORT as clients reach it, such as 192.168.1.5:8000; "
            f"got '{address}'"
        )
    return host, int(port)


def listen_address(address: str, listen: str = "") -> str:
    """Return the address on which a server listens: `listen`, or a default if that is "".

    The default depends on `address`, at which clients reach the server.

    Raises:
        ConfigError: the server cannot listen there.
    """
    host, _ = host_and_port(address)
    if listen not in ("", HERE, EVERYWHERE):
        raise ConfigError(
            f"a server listens on {HERE} or on {EVERYWHERE}, not on '{listen}': it speaks with "
            f"itself over {HERE}; leave the rest to a firewall"
        )
    if listen or host in (HERE, "localhost"):
        return listen or HERE
    with suppress(ValueError):  # a name is no number
        if ipaddress.ip_address(host.strip("[]")).is_loopback:
            raise ConfigError(
                f"'{address}' is of this machine alone, and no server listens there: give {HERE}"
            )
    return EVERYWHERE


def check_certificate(folder: Path) -> None:
    """Check a server's certificate; warn the operator if it expires soon.

    Raises:
        StateError: the certificate has expired, or the file is no certificate.
    """
    from cryptography import x509

    file = folder / "server.pem"
    try:
        end = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise StateError(f"{file} is no certificate ({error}); restore it") from None
    remaining = end - datetime.now(UTC)
    if remaining < timedelta(0):
        raise StateError(
            f"{file} expired on {end:%Y-%m-%d}, or this machine's clock is ahead; `vergence "
            "deploy renew` makes a new one"
        )
    if remaining < SOON:
        folders.tell(
            folder,
            f"the certificate expires on {end:%Y-%m-%d}; from then on no client connects: "
            "`vergence deploy renew` makes a new one",
            "warning",
        )


def wait_for_server(
    address: str,
    root: Path | None,
    last_reason: str,
    folder: Path,
    on_line: Callable[[], object] = lambda: None,
) -> str:
    """Wait until a server answers; tell the operator each new reason why it does not.

    Args:
        address: HOST:PORT.
        root: file of the certificate authority to trust; None: without TLS.
        last_reason: the last reason that the operator was told; it is not told again.
        folder: folder of the deployment whose log of events gets the reasons.
        on_line: called after each reason.

    Returns:
        The last reason that the operator was told.

    Raises:
        StateError: the server shows a certificate that this folder does not trust, or uses TLS
            although `root` is None.
    """
    host, port = host_and_port(address)
    context = None if root is None else client_context(root)
    while True:
        try:
            with closing(connected(host, port)) as plain:
                if context is None:
                    ask_without_tls(plain, address)
                else:
                    context.wrap_socket(plain, server_hostname=host).close()
            return last_reason
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
        if reason != last_reason:
            folders.tell(
                folder,
                f"{reason}; is `vergence deploy serve` running there? waiting",
                "unreachable",
            )
            last_reason = reason
            on_line()
        time.sleep(AGAIN)


def connected(host: str, port: int) -> socket.socket:
    """Return a connection, by the proxy in HTTPS_PROXY or ALL_PROXY unless NO_PROXY has the host.

    Raises:
        OSError: the host, or the proxy, cannot be reached, or the proxy refuses.
    """
    stated = getproxies()
    text = stated.get("https") or stated.get("all", "")
    proxy = urlsplit(text if "://" in text or not text else f"http://{text}")
    if not proxy.hostname or host in LOOPBACK or proxy_bypass(host):
        return socket.create_connection((host, port), 5)
    tunnel = HTTPConnection(proxy.hostname, proxy.port or 80, timeout=5)
    words = f"{unquote(proxy.username or '')}:{unquote(proxy.password or '')}"
    login = f"Basic {base64.b64encode(words.encode()).decode()}"
    tunnel.set_tunnel(host, port, {"Proxy-Authorization": login} if proxy.username else {})
    try:
        tunnel.connect()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"the proxy {proxy.hostname}:{proxy.port or 80} says: {reason}") from None
    return tunnel.sock


def client_context(root: Path) -> ssl.SSLContext:
    """Return TLS settings of a client that trusts one certificate authority and no other.

    Raises:
        StateError: the file holds no certificate.
    """
    # Public authorities are not trusted: whoever gets one of them to sign for this host could
    # otherwise stand between client and server.
    try:
        context = ssl.create_default_context(cafile=str(root))
    except (OSError, ssl.SSLError) as error:
        raise StateError(
            f"{root} holds no certificate ({error.strerror or error}); copy this client's folder "
            "from the server's again"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def ask_without_tls(plain: socket.socket, address: str) -> None:
    """Send a server a request without TLS, to see whether it answers.

    Raises:
        StateError: the server does not answer, so that it probably speaks TLS.
    """
    plain.sendall(b"POST /v1/fleet/ HTTP/1.0\r\ncontent-length: 0\r\n\r\n")
    if plain.recv(4) != b"HTTP":  # an alert, or nothing
        raise StateError(f"{address} speaks TLS: leave --insecure out")


def reason_of(log: str) -> str:
    """Return why a node ended, according to the end of its log."""
    from vergence.deployment.transport.flower_processes import REFUSED

    _, refused, reason = log.rpartition(REFUSED)
    if refused:
        return "the server does not let this node in: " + reason.partition("\n")[0]
    phrase = max(REASONS, key=log.rfind)
    return REASONS[phrase] if phrase in log else f"the node ended ({line_of(log)})"


def line_of(log: str) -> str:
    """Return the last line of a log that is not blank."""
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "no reason")


def check_port(host: str, port: int) -> None:
    """Refuse a port on which another process listens.

    Raises:
        StateError: another process listens; the message names host and port.
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
    """Return a port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
