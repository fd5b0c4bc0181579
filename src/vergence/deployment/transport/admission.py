"""Admission control before Flower's server: who may send which requests.

For every refusal, the sender and the operator get a line that says why.

Used by `deployment.transport.flower_processes`, `deployment.transport.long_polling` and
`deployment.transport.tls`.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

# Flower reads a request whole before it checks the signature: without a limit anybody could fill
# the server's memory. Flower sends arrays in parts of 5 MiB.
LARGEST_REQUEST = 16 << 20
"""Largest number of bytes of a request."""
WINDOW = 300.0
"""Largest difference in seconds between a request's time and this machine's clock.

Within this time, each signature is accepted once.
"""
SHOWN = (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature")
"""Flower's headers of a node's request: its public key, the time, and its signature of the time."""
KEY = b"x-vergence-key"
"""Header with the secret of `vergence deploy serve`; only requests with it may give commands."""
ONCE = frozenset((*SHOWN, KEY, b"content-length"))
"""Headers that may occur only once: of two, Flower could read the one that was not checked."""
REASON = "x-vergence-reason"
"""Header that tells a node why it was refused."""
# A flood from many addresses would otherwise fill memory and the log.
TOLD = 1000
"""Number of pairs of host and reason with their own count.

The hosts of later pairs share one count for each reason.
"""


class Refusals:
    """Counts refusals by host and reason; reports the first, the tenth, the hundredth and so on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, host: str, reason: str) -> None:
        """Count one refusal, and report it if its number is 1, 10, 100 and so on."""
        if (host, reason) not in self.counts and len(self.counts) >= TOLD:
            host = "others"
        count = self.counts[host, reason] = self.counts.get((host, reason), 0) + 1
        if str(count).strip("0") == "1":
            times = f", {count} times" if count > 1 else ""
            self.tell(f"refused {host}: {reason}{times}")


class AdmissionMiddleware:
    """ASGI middleware that admits or refuses each request before Flower's SuperLink sees it.

    Flower's SuperLink uses one port for nodes, its apps and `flwr run`, and lets everybody start
    code with `flwr run`. With this middleware, such commands need a key that only `vergence deploy
    serve` knows; other machines can send only requests of nodes. Flower checks the signature of a
    node's request only after reading the whole request, and accepts the same request again for five
    minutes. This middleware admits only known keys, each request once, and no request that is too
    large.

    Args:
        app: Flower's application, which gets the admitted requests.
        key: the key of `vergence deploy serve`.
        refusals: counts the refused requests.
        keys: folder of the admitted public keys, each in a file NAME.pub; None: all keys are
            admitted.
    """

    def __init__(self, app: Any, key: str, refusals: Refusals, keys: Path | None = None) -> None:
        self.app, self.key, self.refusals, self.keys = app, key.encode(), refusals, keys
        self.known: dict[bytes, str] = {}
        self.revoked: dict[bytes, str] = {}
        self.changed = -1
        self.seen: dict[tuple[bytes, int], float] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer with the reason for its refusal."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        reason = "no such thing is served" if scope["type"] != "http" else self.refusal(scope)
        if reason is None:
            await self.app(scope, receive, self.forgetting_send(scope, send))
            return
        self.refusals.add((scope.get("client") or ("somebody",))[0], reason)
        headers = [
            (REASON.encode(), reason.encode()),
            (b"connection", b"close"),
            (b"content-length", b"0"),
        ]
        await refuse(send, 401, headers)

    def refusal(self, scope: Mapping[str, Any]) -> str | None:
        """Return why a request may not pass; None if it may."""
        path, host = scope["path"], (scope.get("client") or ("",))[0]
        headers = dict(scope["headers"])
        names = [name for name, _ in scope["headers"] if name in ONCE]
        if len(names) > len(set(names)):
            return "a request with the same header twice"
        try:
            # A body in pieces has any length, whatever the header beside it says.
            chunked = b"transfer-encoding" in headers
            length = int(b"none" if chunked else headers.get(b"content-length", b"none"))
        except ValueError:
            return "a request that does not say how long it is"
        if not 0 <= length <= LARGEST_REQUEST:
            return f"a request of more than {LARGEST_REQUEST >> 20} MiB"
        if path.startswith("/v1/fleet/"):
            return None if self.keys is None else self.node_refusal(headers)
        # The other paths start and stop runs. From another machine nobody has a reason to, and a
        # stolen key should not be enough.
        if host not in ("127.0.0.1", "::1"):
            return "commands are taken from the server's own machine alone"
        if path.startswith("/v1/runtime/"):
            return None
        # Every user of this machine reaches the port. Compared in constant time, so that none of
        # them can find the key byte by byte from the time of the refusal.
        same = secrets.compare_digest(headers.get(KEY, b""), self.key)
        return None if same else "commands are taken from `vergence deploy serve` alone"

    def node_refusal(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Return why a node's request may not pass; None if it may.

        Flower checks the signature itself afterwards.
        """
        try:
            public, number = replay_key(headers)
            when = datetime.fromisoformat(headers[SHOWN[1]].decode())
            seconds = (datetime.now(UTC) - when).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            return "a request without a node's signature"
        self.read_keys()
        name = self.known.get(public)
        if name is None:
            name = self.revoked.get(public)
            return f"the key of '{name}' was revoked" if name else "its key is not this server's"
        if abs(seconds) > WINDOW:
            return f"'{name}' has a clock that is more than {WINDOW:.0f} s off: set it"
        now = time.monotonic()
        # Entries are in the order of their expiry, so that old ones are found at the front.
        while self.seen and now > next(iter(self.seen.values())):
            del self.seen[next(iter(self.seen))]
        # Flower accepts a signature for minutes: whoever recorded a request could send it again and
        # fetch a node's messages in its place.
        if (public, number) in self.seen:
            return f"a request of '{name}' that came before: a replay"
        self.seen[public, number] = now + 2 * WINDOW
        return None

    def read_keys(self) -> None:
        """Read the admitted keys again if the folder has changed: revoking a key moves its file."""
        assert self.keys is not None
        changed = self.keys.stat().st_mtime_ns
        if changed != self.changed:
            self.changed = changed
            self.known, self.revoked = (
                {file.read_bytes(): file.stem for file in folder.glob("*.pub")}
                for folder in (self.keys, self.keys.parent / "revoked")
            )

    def forgetting_send(self, scope: Mapping[str, Any], send: Any) -> Any:
        """Return a replacement of ASGI's `send` for a request.

        If Flower rejects the request's signature, the signature is forgotten: the genuine request
        may still come.
        """
        headers = dict(scope["headers"])

        async def send_and_check(message: Any) -> None:
            # Anybody can send a forged signature with a node's public key: remembered as seen, it
            # would have the node's genuine request refused as a replay.
            if message["type"] == "http.response.start" and message["status"] == 401:
                if headers.keys() >= set(SHOWN):
                    self.seen.pop(replay_key(headers), 0.0)
                self.refusals.add((scope.get("client") or ("",))[0], "its signature is not genuine")
            await send(message)

        return send_and_check


async def refuse(
    send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> None:
    """Answer a request with a status, headers and, mostly, no body."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def replay_key(headers: Mapping[bytes, bytes]) -> tuple[bytes, int]:
    """Return the pair that identifies a node's request: its key, and r of its signature (r, s).

    `AdmissionMiddleware` calls this.

    Raises:
        KeyError, ValueError: a header is missing or malformed.
    """
    # Without s: if (r, s) is a genuine signature, so is (r, -s), which anybody can compute: with s
    # in the pair, a recorded request could be sent a second time in that form.
    key, _, sign = (headers[name] for name in SHOWN)
    number, _ = decode_dss_signature(base64.b64decode(sign, validate=True))
    return base64.b64decode(key, validate=True), number
