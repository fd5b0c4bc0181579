"""Admission control before a deployment's link: who may speak to which part of it, and why not.

What is refused is refused by a line that says why: to whoever asks, and to the operator.
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

LARGEST = 16 << 20
"""Bytes that a request may have: Flower sends arrays in parts of 5 MiB."""
WINDOW = 300.0
"""Seconds that a request's time may differ from the gate's; a signature counts once within it."""
SHOWN = (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature")
"""Flower's headers that say who asks: its key, when, and its signature over that time."""
KEY = b"x-vergence-key"
"""The header that shows who may give commands."""
ONCE = frozenset((*SHOWN, KEY, b"content-length"))
"""Headers that whoever reads a request later might read otherwise, were they there twice."""
REASON = "x-vergence-reason"
"""The header that tells a node why it was refused."""
TOLD = 1000
"""How many pairs of a host and a reason are counted apart; later hosts are counted as one."""


class Refusals:
    """Reasons for refusals, told the first time, the tenth, the hundredth, ..."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, host: str, reason: str) -> None:
        """Count one refusal."""
        if (host, reason) not in self.counts and len(self.counts) >= TOLD:
            host = "others"
        count = self.counts[host, reason] = self.counts.get((host, reason), 0) + 1
        if str(count).strip("0") == "1":
            times = f", {count} times" if count > 1 else ""
            self.tell(f"refused {host}: {reason}{times}")


class AdmissionMiddleware:
    """Admission control before the link (SuperLink): from outside, only nodes may speak to it.

    Flower serves nodes, its apps and `flwr run` on one port and lets everybody start code with the
    last of them. Here that takes a key that only `vergence deploy serve` knows. Of a node's
    requests Flower checks the signature, after it has read them whole, and takes the same one
    again for five minutes: the gate lets in known keys alone, each request once, and none that is
    too large.

    Attributes:
        keys: the folder of public keys that are let in, one NAME.pub for each; None: anybody.
    """

    def __init__(self, app: Any, key: str, refusals: Refusals, keys: Path | None = None) -> None:
        self.app, self.key, self.refusals, self.keys = app, key.encode(), refusals, keys
        self.known: dict[bytes, str] = {}
        self.revoked: dict[bytes, str] = {}
        self.changed = -1
        self.seen: dict[tuple[bytes, int], float] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        reason = "no such thing is served" if scope["type"] != "http" else self.refusal(scope)
        if reason is None:
            await self.app(scope, receive, self.watched(scope, send))
            return
        self.refusals.add((scope.get("client") or ("somebody",))[0], reason)
        headers = [
            (REASON.encode(), reason.encode()),
            (b"connection", b"close"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def refusal(self, scope: Mapping[str, Any]) -> str | None:
        """Reason why a request may not pass, None if it may."""
        path, host = scope["path"], (scope.get("client") or ("",))[0]
        headers = dict(scope["headers"])
        names = [name for name, _ in scope["headers"] if name in ONCE]
        if len(names) > len(set(names)):
            return "a request with the same header twice"
        try:
            length = int(headers.get(b"content-length", b"none"))
        except ValueError:
            return "a request that does not say how long it is"
        if not 0 <= length <= LARGEST:
            return f"a request of more than {LARGEST >> 20} MiB"
        if path.startswith("/v1/fleet/"):
            return None if self.keys is None else self.stranger(headers)
        if host not in ("127.0.0.1", "::1"):
            return "commands are taken from the server's own machine alone"
        if path.startswith("/v1/runtime/"):
            return None
        shown = headers.get(KEY, b"")
        same = secrets.compare_digest(shown, self.key)
        return None if same else "commands are taken from `vergence deploy serve` alone"

    def stranger(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Reason why a node's request may not pass; its signature is for Flower to check."""
        try:
            public, number = signed(headers)
            when = datetime.fromisoformat(headers[SHOWN[1]].decode())
            seconds = (datetime.now(UTC) - when).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            return "a request without a node's signature"
        self.read()
        name = self.known.get(public)
        if name is None:
            name = self.revoked.get(public)
            return f"the key of '{name}' was revoked" if name else "its key is not this server's"
        if abs(seconds) > WINDOW:
            return f"'{name}' has a clock that is more than {WINDOW:.0f} s off: set it"
        now = time.monotonic()
        while self.seen and now > next(iter(self.seen.values())):
            del self.seen[next(iter(self.seen))]
        if (public, number) in self.seen:
            return f"a request of '{name}' that came before: a replay"
        self.seen[public, number] = now + 2 * WINDOW
        return None

    def read(self) -> None:
        """Take note of the keys that are let in now: revoking one moves its file."""
        assert self.keys is not None
        changed = self.keys.stat().st_mtime_ns
        if changed != self.changed:
            self.changed = changed
            self.known, self.revoked = (
                {file.read_bytes(): file.stem for file in folder.glob("*.pub")}
                for folder in (self.keys, self.keys.parent / "revoked")
            )

    def watched(self, scope: Mapping[str, Any], send: Any) -> Any:
        """Return a way to answer that forgets a signature that was none: anybody could send it."""
        headers = dict(scope["headers"])

        async def heard(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                if headers.keys() >= set(SHOWN):
                    self.seen.pop(signed(headers), 0.0)
                self.refusals.add((scope.get("client") or ("",))[0], "its signature is not genuine")
            await send(message)

        return heard


def signed(headers: Mapping[bytes, bytes]) -> tuple[bytes, int]:
    """Pair that tells a node's requests apart: its key, and r of its signature (r, s).

    Not all of the signature: where (r, s) is genuine, so is (r, -s), which anybody can make.

    Raises:
        KeyError, ValueError: a header is missing, or not what it should be.
    """
    key, _, sign = (headers[name] for name in SHOWN)
    number, _ = decode_dss_signature(base64.b64decode(sign, validate=True))
    return base64.b64decode(key, validate=True), number
