"""Wake-up notices between the processes of one folder: there is something to fetch.

Flower's programs poll each other. A notice tells a program that it should poll now, so that it can
poll rarely otherwise. A notice carries no message. A program without a notice still polls after a
while: a lost notice costs only seconds. On systems without such sockets there are no notices, and
all programs poll often.

Used by `deployment.server_run`, `deployment.transport.flower`,
`deployment.transport.flower_processes` and `deployment.transport.long_polling`.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import time
from contextlib import suppress
from typing import Self

from vergence.system.local_sockets import LOCAL, datagrams, name_of

QUEUE = 10
"""Number of notices that a socket keeps until they are read; Linux's default."""
LONGEST = 64
"""Largest number of bytes of a notice after its proof."""
MOST = 1000
"""Largest number of datagrams read at once: a fast sender cannot keep the reader busy for ever."""
REST = 0.05
"""Seconds to pause after a read in which no datagram had a valid proof."""


class Wakeups:
    """Sends notices to the processes that were started with the same secret.

    Every user of the machine can see the sockets' names and send datagrams to them. A genuine
    notice begins with a proof: bytes that are computed from the secret. Other datagrams are
    ignored. A flood of them wakes no process and needs little processor time, but genuine notices
    can be lost in it.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def tell(self, role: str, what: int = 0) -> None:
        """Send the number `what` to the process with a role; do not wait until it is received."""
        if not LOCAL:
            return
        # The process may not have started yet, or its queue may be full: it polls later anyway.
        with suppress(OSError), datagrams() as sending:
            sending.sendto(self.proof(role) + b"%d" % what, self.socket_name(role))

    def listen(self, role: str) -> WakeupSocket:
        """Open the socket on which the process with this role gets notices.

        Call this only if the system has such sockets (`LOCAL`).
        """
        return WakeupSocket(self.socket_name(role), self.proof(role))

    def socket_name(self, role: str) -> str:
        """Return the name of the socket of the process with a role.

        The socket is no file, and disappears with the process.
        """
        return name_of(self._derived("place", role).hex()[:32])

    def proof(self, role: str) -> bytes:
        """Return the bytes with which a genuine notice to the process with a role begins."""
        return self._derived("proof", role)

    def _derived(self, purpose: str, role: str) -> bytes:
        return hmac.digest(self.secret, f"wake-up {purpose} {role}".encode(), hashlib.sha256)


class WakeupSocket:
    """Socket on which one process gets its notices."""

    def __init__(self, place: str, proof: bytes) -> None:
        self.proof = proof
        self.socket = datagrams()
        self.socket.bind(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def wait(self, seconds: float) -> tuple[set[int], bool]:
        """Wait at most `seconds` for notices.

        Return the numbers in the notices, and whether other notices may have been lost.
        """
        end = time.monotonic() + seconds
        while select.select([self.socket], [], [], max(0.0, end - time.monotonic()))[0]:
            numbers, lost = self.receive()
            if numbers:
                return numbers, lost
            if (remaining := end - time.monotonic()) <= 0:
                break
            time.sleep(min(remaining, REST))
        return set(), False

    def receive(self) -> tuple[set[int], bool]:
        """Return the numbers in waiting notices, and whether other notices may have been lost."""
        numbers, count = set(), 0
        with suppress(BlockingIOError):
            for _ in range(MOST):
                data = self.socket.recv(len(self.proof) + LONGEST)
                proof, number = data[: len(self.proof)], data[len(self.proof) :]
                # Without the proof any user of the machine could wake the programs for ever. The
                # comparison takes constant time, so that the proof cannot be guessed byte by byte.
                if hmac.compare_digest(proof, self.proof) and number.isdigit():
                    numbers.add(int(number))
                    count += 1
        return numbers, count >= QUEUE
