"""Attacks on the port of a real server, by sockets: what they see, and what the operator sees.

python -m tests.drills.sockets PORT COUNT     lines "on" and "off" open and close the slow ones
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vergence.deployment import keys as deploy_keys
from vergence.deployment.transport.admission import REASON, SHOWN

HELLO = bytes.fromhex("160301020001")
"""How a TLS handshake begins."""
CALL = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nx: "
"""How a request begins."""
READY = 30.0
"""Seconds after which slow sockets count as open, though some are not: a server may be gone."""


def careless() -> ssl.SSLContext:
    """Return a client that believes every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# --- requests as a node signs them


def signed(key: Path, at: datetime | None = None, by: Path | None = None) -> dict[str, str]:
    """Return the headers of a request of the node with a key, of now, or signed by another key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    when = (at or datetime.now(UTC)).isoformat()
    own, other = (
        serialization.load_ssh_private_key(k.read_bytes(), None) for k in (key, by or key)
    )
    public = own.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    values = (
        base64.b64encode(public).decode(),
        when,
        base64.b64encode(other.sign(when.encode(), ECDSA(hashes.SHA256()))).decode(),
    )  # type: ignore
    return {name.decode(): value for name, value in zip(SHOWN, values, strict=True)}


def asked(
    port: int, path: str, headers: Mapping[str, str], body: bytes = b"", host: str = "127.0.0.1"
) -> tuple[int, str, bytes]:
    """Send a request to Flower's interface; return status, the gate's reason, and the body."""
    line = http.client.HTTPSConnection(host, port, timeout=20, context=careless())
    try:
        kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        line.request("POST", path, body, {**kind, **headers})
        answer = line.getresponse()
        return answer.status, answer.headers.get(REASON, ""), answer.read()
    finally:
        line.close()


def refused(port: int, path: str, headers: Mapping[str, str], host: str = "127.0.0.1") -> str:
    """Return why a request is refused; empty if it is not."""
    status, reason, _ = asked(port, path, headers, host=host)
    return reason if status == 401 else ""


def own_address() -> str | None:
    """Return an address of this machine that is not loopback, None if it has none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        found = probe.getsockname()[0]
        return found if not found.startswith("127.") else None
    return None


@contextmanager
def announced(port: int, key: Path) -> Iterator[None]:
    """Be a node that announces an answer to the first request it gets, and never sends its parts.

    It stays connected until the block ends: Flower gives up at once on one that has gone.

    Raises:
        AssertionError: Flower did not take the announcement.
    """
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # Flower's own
        from flwr.proto import fleet_pb2 as fleet
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.inflatable.inflatable_object import get_object_tree

        from vergence.deployment.transport.flower import packed

    def call(path: str, request: Any, answer: Any) -> Any:
        data = request.SerializeToString()
        status, reason, body = asked(port, f"/v1/fleet/{path}", signed(key), data)
        assert status == 200, f"{path}: {status} {reason} {body!r}"
        return answer.FromString(body)

    public = base64.b64decode(signed(key)[SHOWN[0].decode()])
    hello = fleet.ActivateNodeRequest(public_key=public, heartbeat_interval=60)
    node = Node(node_id=call("activate-node", hello, fleet.ActivateNodeResponse).node_id)
    end = time.monotonic() + 30
    while not (
        got := call(
            "pull-messages", fleet.PullMessagesRequest(node=node), fleet.PullMessagesResponse
        )
    ).messages_list:
        assert time.monotonic() < end, "nobody greets it"
        time.sleep(0.5)
    tree = get_object_tree(packed(b"never sent"))
    message = got.messages_list[0]
    about = message.metadata
    about.reply_to_message_id, about.message_id = about.message_id, tree.object_id
    about.src_node_id, about.dst_node_id = node.node_id, about.src_node_id
    left = about.created_at + about.ttl - time.time()
    about.created_at, about.ttl = time.time(), left - 1  # an answer may not outlive its request
    wants = call(
        "push-messages",
        fleet.PushMessagesRequest(
            node=node,
            messages_list=[message],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        ),
        fleet.PushMessagesResponse,
    ).objects_to_push
    assert tree.object_id in wants
    yield
    call(
        "deactivate-node",
        fleet.DeactivateNodeRequest(node_id=node.node_id),
        fleet.DeactivateNodeResponse,
    )


# --- what is no request


def shaken(port: int, version: ssl.TLSVersion) -> str:
    """Shake hands with one version of TLS alone; return how that failed, empty if it did not."""
    context = careless()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that is the point
        context.minimum_version = context.maximum_version = version
    try:
        with socket.create_connection(("127.0.0.1", port), 10) as plain, context.wrap_socket(plain):
            return ""
    except ssl.SSLError as error:
        return str(error.reason)


def plain(port: int, data: bytes) -> bytes:
    """Send bytes without TLS; return what comes back before the server hangs up."""
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(data)
        found = b""
        with suppress(ConnectionError):
            while part := line.recv(4096):
                found += part
        return found


def dribbled(port: int, data: bytes) -> float:
    """Send a request's beginning over TLS and wait; return seconds until the server hangs up."""
    return asyncio.run(_dribbled(port, data))


async def _dribbled(port: int, data: bytes) -> float:
    loop = asyncio.get_running_loop()
    read, write = await asyncio.open_connection("127.0.0.1", port, ssl=careless())
    began = loop.time()
    with suppress(OSError):
        write.write(data)
        await write.drain()
        await read.read(1)
    write.transport.abort()
    return loop.time() - began


# --- many slow ones


class Slow:
    """Sockets that are opened, do not come to the point, and are opened again when closed.

    One third says nothing, one third begins a TLS handshake, and one third has a TLS connection
    and sends a byte of a request's header every second.
    """

    def __init__(self, port: int, count: int) -> None:
        self.port, self.count = port, count
        self.open, self.closed = 0, 0
        self.tasks: list[asyncio.Task[None]] = []

    async def one(self, number: int) -> None:
        """Be one socket, for ever."""
        kind = number % 3
        while True:
            with suppress(OSError, EOFError):
                read, write = await asyncio.open_connection(
                    "127.0.0.1", self.port, ssl=careless() if kind == 2 else None
                )
                self.open += 1
                try:
                    write.write((b"", HELLO, CALL)[kind])
                    ending = asyncio.ensure_future(read.read(1))
                    while not ending.done():
                        await asyncio.wait([ending], timeout=1.0)
                        if kind == 2 and not ending.done():
                            write.write(b"x")
                    ending.exception()
                finally:
                    self.open -= 1
                    self.closed += 1
                    write.transport.abort()
            await asyncio.sleep(0.5)

    async def serve(self) -> None:
        """Obey the lines of standard input; tell when all are open, and how many were closed."""
        lines = asyncio.StreamReader()
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            if line == b"on\n":
                for number in range(self.count):
                    self.tasks.append(asyncio.create_task(self.one(number)))
                    await asyncio.sleep(0.002)
                end = time.monotonic() + READY
                while self.open < 0.95 * self.count and time.monotonic() < end:
                    await asyncio.sleep(0.1)
            else:
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)
                self.tasks = []
            print(self.closed, flush=True)


class Crowd:
    """`Slow` in a process of its own."""

    def __init__(self, port: int, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.drills.sockets", str(port), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, state: str) -> int:
        """Turn it on or off; return how many connections the server has ended so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(state + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def crowd(port: int, count: int) -> Iterator[Crowd]:
    """Give slow sockets for a while."""
    made = Crowd(port, count)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


# --- a server whose certificate has expired


@contextmanager
def expired(folder: Path) -> Iterator[tuple[int, Path]]:
    """Give a TLS server whose certificate ended yesterday: its port, and the authority to believe.

    It is the certificate of a deployment's `init`, made two years and four months ago.
    """

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) - timedelta(days=deploy_keys.DAYS + 1)

    folder.mkdir()
    with patch.object(deploy_keys, "datetime", Then):
        deploy_keys.make_certificates(folder, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with suppress(ssl.SSLError):
                        context.wrap_socket(listening.accept()[0], server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], folder / "ca.crt"


if __name__ == "__main__":
    asyncio.run(Slow(int(sys.argv[1]), int(sys.argv[2])).serve())
