"""Wake-up notices between the processes of one folder: there is something to fetch.

Flower's programs ask each other again and again whether there is something. A notice says when
asking is worth it, so that they need not ask often. It carries no message: whoever hears nothing
asks after a while all the same, so that a notice that is lost costs seconds, and nothing else.
Where a system has no sockets for them nobody is told, nobody may listen, and all ask often.
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
"""Notices that a socket keeps until they are heard; by default Linux keeps no more."""
LONGEST = 64
"""Bytes that a notice may have beside its proof."""
MOST = 1000
"""Datagrams taken in one look: whoever sends faster than they are read keeps nobody in it."""
REST = 0.05
"""Seconds until the next look after one that brought nothing but datagrams without a proof."""


class Wakeups:
    """Sends notices to the processes that were started with the same secret.

    Everybody on the machine can see the name of their sockets and send something there: what does
    not begin with the proof, which takes the secret, is not heard. A flood of it wakes nobody and
    costs a small share of a processor; notices that it crowds out are lost.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def tell(self, role: str, what: int = 0) -> None:
        """Send a number to the process with a role; nobody is waited for."""
        if not LOCAL:
            return
        # It may not be there yet, or hear as many as it can.
        with suppress(OSError), datagrams() as sending:
            sending.sendto(self.proof(role) + b"%d" % what, self.place(role))

    def listen(self, role: str) -> WakeupSocket:
        """Socket on which the process with this role hears its notices; only where `LOCAL`."""
        return WakeupSocket(self.place(role), self.proof(role))

    def place(self, role: str) -> str:
        """Name of a process's socket, which no path limits and which ends with the process."""
        return name_of(self._derived("place", role).hex()[:32])

    def proof(self, role: str) -> bytes:
        """Bytes with which a notice begins."""
        return self._derived("proof", role)

    def _derived(self, purpose: str, role: str) -> bytes:
        return hmac.digest(self.secret, f"wake-up {purpose} {role}".encode(), hashlib.sha256)


class WakeupSocket:
    """Notices to one process."""

    def __init__(self, place: str, proof: bytes) -> None:
        self.proof = proof
        self.socket = datagrams()
        self.socket.bind(place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def wait(self, seconds: float) -> tuple[set[int], bool]:
        """Numbers that came, as soon as there are some; none if there are none in time."""
        end = time.monotonic() + seconds
        while select.select([self.socket], [], [], max(0.0, end - time.monotonic()))[0]:
            found, lost = self.heard()
            if found:
                return found, lost
            if (left := end - time.monotonic()) <= 0:
                break
            time.sleep(min(left, REST))
        return set(), False

    def heard(self) -> tuple[set[int], bool]:
        """Numbers that came until now, and whether so many came that some may be lost."""
        found, count = set(), 0
        with suppress(BlockingIOError):
            for _ in range(MOST):
                data = self.socket.recv(len(self.proof) + LONGEST)
                proof, number = data[: len(self.proof)], data[len(self.proof) :]
                if hmac.compare_digest(proof, self.proof) and number.isdigit():
                    found.add(int(number))
                    count += 1
        return found, count >= QUEUE
