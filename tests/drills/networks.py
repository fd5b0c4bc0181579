"""Drills: slow, lossy and broken links between a server and its clients, in network namespaces.

    unshare -rmn python -m tests.drills.networks FOLDER DRILL  # what a drill runs

Each client has a network namespace, and a link that a thread of the drill relays packet by packet:
it delays and drops them as `tc netem` does, which many kernels lack.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.drills.deployment import CLIENTS, Deployment, deployed, fedcpf, simulated
from tests.drills.drilling import Row
from tests.drills.flower_deaths import LABEL, with_silence

SERVER = "10.9.9.9"
ROUNDS = 5
NEW_TUN, IP_PACKETS = 0x400454CA, 0x1001
"""From linux/if_tun.h: TUNSETIFF, and IFF_TUN | IFF_NO_PI."""
APART = ("unshare", "-rmn")


def ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Link:
    """A client's network namespace, and the link from there to the server."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.delay, self.loss, self.cut = name, 0.0, 0.0, False
        self.dropped, self.draw, self.over = 0, random.Random(number), threading.Event()
        near, far = f"near{number}", f"far{number}"
        self.ends = [self._device(near), self._device(far)]
        here, there = f"10.7.{number}.1", f"10.7.{number}.2"
        ip("netns", "add", name)
        ip("link", "set", far, "netns", name)
        ip("addr", "add", here, "peer", there, "dev", near)
        ip("link", "set", near, "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", there, "peer", here, "dev", far)
        ip("-n", name, "link", "set", far, "up")
        ip("-n", name, "route", "add", "default", "dev", far)
        threading.Thread(target=self._relay, daemon=True).start()

    @staticmethod
    def _device(name: str) -> int:
        import fcntl  # other systems have neither this nor namespaces

        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, NEW_TUN, struct.pack("16sH22x", name.encode(), IP_PACKETS))
        return file

    def _relay(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        for number in iter(int, 1):
            if self.over.is_set():
                return
            due = under_way[0][0] - time.monotonic() if under_way else 0.2
            ready, _, _ = select.select(self.ends, [], [], max(due, 0.0))
            for end in ready:
                packet = os.read(end, 1 << 16)
                if self.cut or self.draw.random() < self.loss:
                    self.dropped += 1
                    continue
                to = self.ends[1 - self.ends.index(end)]
                entry = (time.monotonic() + self.delay, self.dropped + number, to, packet)
                heapq.heappush(under_way, entry)
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                with suppress(OSError):
                    os.write(to, packet)


class Apart(Deployment):
    """A deployment whose clients are in network namespaces of their own."""

    @property
    def address(self) -> str:
        return f"{SERVER}:{self.port}"

    def join(self, name: str, **how: Any) -> subprocess.Popen[bytes]:
        return super().join(name, before=("ip", "netns", "exec", name), **how)


@contextmanager
def links() -> Iterator[dict[str, Link]]:
    """Give each client a link; the namespaces end with this process."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{SERVER}/32", "dev", "lo")
    made = {name: Link(name, number) for number, name in enumerate(CLIENTS)}
    try:
        yield made
    finally:
        for link in made.values():
            link.over.set()


def finished(made: Deployment, served: Any, table: dict[str, Any]) -> tuple[str, bool]:
    """Wait for the end; say which turns were lost, and whether the bits are the simulator's."""
    ended = served.wait(200) == 0
    turns = made.table("turns.csv")
    lost = {(row["client"], int(row["round"])) for row in turns if row["status"] != "ok"}
    if lost:
        expected = {LABEL: {"0": with_silence(made, ROUNDS, lost)}}
    else:
        expected = simulated(table, made.folder / "here")
    same = ended and made.fingerprints() == expected
    return f"{len(lost)} turns lost, fingerprint {'equal' if same else 'DIFFERENT'}", same


def slow_and_lossy(folder: Path) -> Row:
    """Let every packet take 100 ms each way, and one in thirty vanish."""
    table = fedcpf(ROUNDS)
    with links() as ways, deployed(folder, table, kind=Apart) as made:
        for way in ways.values():
            way.delay, way.loss = 0.1, 1 / 30
        served = made.serve()
        for name in CLIENTS:
            made.join(name)
        made.until("round 0 of", 200)
        began = time.monotonic()
        said, same = finished(made, served, table)
        dropped = sum(way.dropped for way in ways.values())
        took = time.monotonic() - began
    return Row(
        "round trips of 200 ms, one packet in 30 lost",
        "the simulator's fingerprint, nothing lost",
        f"{dropped} packets vanished, {said}; {ROUNDS} rounds in {took:.0f} s",
        same and said.startswith("0 ") and dropped > 0,
    )


def interrupted(folder: Path) -> Row:
    """Let a client's packets vanish for 12 seconds: no end of the connection is told."""
    table = fedcpf(ROUNDS)
    with links() as ways, deployed(folder, table, kind=Apart) as made:
        served = made.serve()
        for name in CLIENTS:
            made.join(name)
        made.until("round 1 of", 200)
        ways["p01"].cut, began = True, time.monotonic()
        time.sleep(12)
        ways["p01"].cut = False
        said, same = finished(made, served, table)
        took, dropped = time.monotonic() - began, ways["p01"].dropped
    return Row(
        "a half-open connection, 12 s",
        "the simulator's fingerprint, nothing lost",
        f"{dropped} packets vanished, {said}; {took:.0f} s until the end",
        same and said.startswith("0 ") and dropped > 0,
    )


def vanished(folder: Path) -> Row:
    """Let a client's packets vanish until the server stops; neither side is told."""
    table = fedcpf(ROUNDS)
    settings: dict[str, Any] = {"absent_s": 3.0, "answer_s": 10.0}
    with links() as ways, deployed(folder, table, kind=Apart, **settings) as made:
        served = made.serve()
        for name in CLIENTS:
            made.join(name)
        made.until("round 1 of", 200)
        ways["p01"].cut = True
        stopped = served.wait(200)
        # The fingerprint is over the states of all: a run cannot end without one of them.
        reasons = ("no answer in 10 s", "'p01' did not say what its state is")
        told = all(reason in made.events() for reason in reasons)
        ways["p01"].cut, began = False, time.monotonic()
        said, same = finished(made, made.serve(), table)
        took = time.monotonic() - began
    return Row(
        "a half-open connection until the last round is over, answer_s = 10",
        "each round ends; the server says whose state it lacks, and stops; then as if silent",
        f"exit {stopped}, {'both reasons' if told else 'NO REASON'}; then {said}; {took:.0f} s",
        same and told and stopped != 0 and not said.startswith("0 "),
    )


DRILLS: dict[str, Callable[[Path], Row]] = {
    "slow": slow_and_lossy,
    "interrupted": interrupted,
    "vanished": vanished,
}


def refusal() -> str:
    """Return why this machine cannot make such networks; "" if it can."""
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    tried = subprocess.run([*APART, "ip", "tuntap", "add", "x", "mode", "tun"], capture_output=True)
    return "this machine lets nobody make network namespaces" if tried.returncode else ""


def apart(module: str, drill: str) -> Row:
    """Do a drill in a process that mounts, and makes networks, for itself alone."""
    with tempfile.TemporaryDirectory() as here:
        words = [*APART, sys.executable, "-m", module, here, drill]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=500)
    try:
        return Row(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return Row(f"drill '{drill}'", "comes to its end", f"exit {done.returncode}", False)


def networks() -> Iterator[Row]:
    """Drill all links, or say why none."""
    if why := refusal():
        yield Row("slow and broken links", "the simulator's fingerprint", f"skipped: {why}", True)
        return
    for drill in DRILLS:
        yield apart("tests.drills.networks", drill)


if __name__ == "__main__":
    print(json.dumps(vars(DRILLS[sys.argv[2]](Path(sys.argv[1])))))
