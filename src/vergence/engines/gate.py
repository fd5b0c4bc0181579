"""The gate before a deployment's link: who may speak to which part of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any


class Gate:
    """Stands before the link: from outside, nobody but nodes may speak to it.

    Flower serves nodes, its apps and `flwr run` on one port and lets everybody start code with the
    last of them. Here that takes a key that only `vergence deploy serve` knows.
    """

    def __init__(self, app: Any, key: str) -> None:
        self.app, self.key = app, key.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 404."""
        if scope["type"] != "http" or self.passes(scope):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def passes(self, scope: Mapping[str, Any]) -> bool:
        """Tell whether a request may pass."""
        path, host = scope["path"], (scope.get("client") or ("",))[0]
        if path.startswith("/v1/fleet/"):
            return True
        if host not in ("127.0.0.1", "::1"):
            return False
        shown = dict(scope["headers"]).get(b"x-vergence-key", b"")
        return path.startswith("/v1/runtime/") or secrets.compare_digest(shown, self.key)
