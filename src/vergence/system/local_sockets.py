"""Sockets between processes of one machine that have a name and no file: Linux alone has them.

Used by `deployment.launcher`, `deployment.resident_node`, `deployment.server_run`,
`deployment.transport.flower_processes` and `deployment.transport.wakeups`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

LOCAL = hasattr(socket, "AF_UNIX") and sys.platform == "linux"
"""Whether this system has them."""
CREDENTIALS = "@iII"
"""The C structure `ucred`: process, user, group."""


def name_of(what: str) -> str:
    """Socket name that no path limits and that ends with its process."""
    return f"\0vergence-{what}"


def datagrams() -> socket.socket:
    """Socket for messages that nobody waits for.

    A deployment's wake-ups are sent over it.

    Raises:
        AttributeError: not `LOCAL`.
    """
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def peer_is_same_user(descriptor: int) -> bool:
    """Return whether the process at the other end of a connected socket runs as the same user.

    The resident node calls it before it sends its challenge.
    """
    link, size = socket.socket(fileno=descriptor), struct.calcsize(CREDENTIALS)
    try:
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    finally:
        link.detach()
    return struct.unpack(CREDENTIALS, credentials)[1] == os.geteuid()


def limit_wait(descriptor: int, seconds: int) -> None:
    """Let reads of a connected socket wait so long, after which they fail; 0: for ever.

    The resident node limits by it how long a peer may take.
    """
    link = socket.socket(fileno=descriptor)
    try:
        limit = struct.pack("@ll", seconds, 0)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    finally:
        link.detach()
