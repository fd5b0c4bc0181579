"""What a server on the open net meets, a row each: refused, by a reason that somebody reads."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from subprocess import Popen, TimeoutExpired

from tests.drills import sockets
from tests.drills.deployment import CLIENTS, Deployment
from tests.drills.drilling import Row
from vergence.deployment.folders import ClientSide, settings, write_settings
from vergence.deployment.keys import make_node_key

PULL = "/v1/fleet/pull-messages"
PATIENCE = 120.0
"""Seconds that a client's command may take to say why it is refused; most of them is starting."""


@dataclass
class Field:
    """A server that runs, and who attacks it.

    Attributes:
        mallory: folder of a client whose key the server knows, and who is nobody's client.
        stranger: a node key of elsewhere.
    """

    deployment: Deployment
    mallory: Path
    stranger: Path

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self.deployment.port

    def copy(self, name: str) -> Path:
        """Return a client's folder that is as p02's, under another name."""
        folder = self.deployment.folder / name
        shutil.copytree(self.deployment.client("p02"), folder)
        return folder


def field(deployment: Deployment) -> Field:
    """Prepare a deployment that does not run yet."""
    made = Field(deployment, deployment.folder / "mallory", deployment.folder / "stranger")
    made.copy("mallory")
    make_node_key(made.mallory / "node", deployment.server / "keys" / "mallory.pub")
    make_node_key(made.stranger, deployment.folder / "stranger.pub")
    return made


def named(what: str, want: str, said: str, where: str) -> Row:
    """Return a row: somebody must read these words."""
    return Row(what, f"{where}: {want}", said.strip().rpartition("\n")[2][-300:], want in said)


# --- requests


def requests(at: Field) -> Iterator[Row]:
    """Send requests that nobody may send; the reason stands in the answer and in the events."""
    own, port = at.mallory / "node", at.port
    long_ago = datetime.now(UTC) - timedelta(minutes=10)
    big = {**sockets.signed(own), "content-length": str(1 << 40)}
    cases: list[tuple[str, str, Callable[[], str]]] = [
        (
            "request without a signature",
            "a request without a node's signature",
            lambda: sockets.refused(port, PULL, {}),
        ),
        (
            "unregistered node",
            "its key is not this server's",
            lambda: sockets.refused(port, PULL, sockets.signed(at.stranger)),
        ),
        ("a client's key, another's signature", "its signature is not genuine", lambda: forged(at)),
        ("the same signed request again", "a replay", lambda: replayed(at)),
        (
            "a request signed ten minutes ago",
            "has a clock that is more than 300 s off",
            lambda: sockets.refused(port, PULL, sockets.signed(own, long_ago)),
        ),
        (
            "a request of 1 TiB",
            "a request of more than 16 MiB",
            lambda: sockets.refused(port, PULL, big),
        ),
        (
            "`flwr run` without the key",
            "commands are taken from `vergence deploy serve` alone",
            lambda: sockets.refused(port, "/v1/control/start-run", {}),
        ),
    ]
    if address := sockets.own_address():
        paths = ("/v1/control/start-run", "/v1/runtime/acquire-task")
        cases += [
            (
                f"{path} from outside",
                "the server's own machine alone",
                lambda path=path, host=address: sockets.refused(port, path, {}, host),
            )
            for path in paths
        ]
    for what, want, do in cases:
        answered = do()
        at.deployment.until(want, 20)
        yield named(what, want, answered, "the answer and the server's events")


def forged(at: Field) -> str:
    """Send a request with a registered key, signed by another; return the reason."""
    headers = sockets.signed(at.mallory / "node", by=at.stranger)
    status, _, body = sockets.asked(at.port, PULL, headers)
    at.deployment.until("its signature is not genuine", 20)
    return "its signature is not genuine" if status == 401 else f"{status} {body!r}"


def replayed(at: Field) -> str:
    """Send a genuine request and then its bytes again; return what is said to the second."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # Flower's own
        from flwr.proto.fleet_pb2 import (
            ActivateNodeRequest,
            ActivateNodeResponse,
            DeactivateNodeRequest,
        )

    public = (at.deployment.server / "keys" / "mallory.pub").read_bytes()
    body = ActivateNodeRequest(public_key=public, heartbeat_interval=10).SerializeToString()
    path, headers = "/v1/fleet/activate-node", sockets.signed(at.mallory / "node")
    status, _, answer = sockets.asked(at.port, path, headers, body)
    again, reason, _ = sockets.asked(at.port, path, headers, body)
    number = ActivateNodeResponse.FromString(answer).node_id
    body = DeactivateNodeRequest(node_id=number).SerializeToString()
    left = sockets.asked(
        at.port, "/v1/fleet/deactivate-node", sockets.signed(at.mallory / "node"), body
    )[0]
    return reason if (status, again, left) == (200, 401, 200) else f"{status} {again} {left}"


def announced(at: Field) -> Row:
    """Let a node that the server knows announce an answer that never comes: rounds go on."""
    before = at.deployment.rounds()
    with sockets.announced(at.port, at.mallory / "node"):
        began = time.monotonic()
        spent = paced(at.deployment, 10)
    return Row(
        "an answer that is announced and never sent",
        "rounds go on",
        f"{at.deployment.rounds() - before} rounds ended; the slowest of 10 after it took "
        f"{max(spent):.2f} s",
        time.monotonic() - began < 60,
    )


# --- connections


def connections(at: Field) -> Iterator[Row]:
    """Open connections that come to nothing; they are closed, and the events say why."""
    port = at.port
    for version, name in (
        (ssl.TLSVersion.TLSv1, "1.0"),
        (ssl.TLSVersion.TLSv1_1, "1.1"),
        (ssl.TLSVersion.TLSv1_2, "1.2"),
    ):
        failed = sockets.shaken(port, version)
        yield closed(at, f"downgrade to TLS {name}", "it spoke TLS older than 1.3", failed != "")
    spoken = sockets.plain(port, b"GET / HTTP/1.0\r\n\r\n")
    yield closed(at, "HTTP to the TLS port", "it spoke HTTP without TLS", spoken == b"")
    seconds = sockets.dribbled(port, sockets.CALL + b"x" * 70_000)
    yield closed(at, "a header without end", "a request header of more than 64 KiB", seconds < 5)
    began = time.monotonic()
    sockets.plain(port, sockets.HELLO)
    in_time = 9 < time.monotonic() - began < 15
    yield closed(at, "a TLS handshake that is never finished", "no TLS handshake in 10 s", in_time)
    seconds = sockets.dribbled(port, sockets.CALL)
    want = "no whole request header in 10 s"
    yield closed(at, "a request's header that is never finished", want, 9 < seconds < 15)


def closed(at: Field, what: str, want: str, good: bool) -> Row:
    """Return a row: the server has closed the connection, and its events say why."""
    at.deployment.until(want, 20)
    return Row(what, f"closed; the server's events: {want}", want if good else "not in time", good)


# --- clients


def said_by(process: Popen[bytes], file: Path) -> str:
    """Return the line that a command ends with."""
    try:
        process.wait(PATIENCE)
    except TimeoutExpired:
        return "still running"
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    return lines[-1].partition("Error: ")[2] if lines and process.returncode else "no error"


def clients(at: Field) -> Iterator[Row]:
    """Let clients join that are not let in, or should not go in; each ends with its reason."""
    deployment = at.deployment
    with sockets.expired(deployment.folder / "expired") as (port, old):
        cases = [
            ("join with an unregistered key", "its key is not this server's", strange(at), ()),
            ("join with a revoked key", "the key of 'left' was revoked", left(at), ()),
            ("join a server of another authority", "does not fit", elsewhere(at, old), ()),
            ("join where the certificate has expired", "has expired", elsewhere(at, old, port), ()),
            (
                "join --insecure",
                "speaks TLS: leave --insecure out",
                at.copy("open"),
                ("--insecure",),
            ),
        ]
        started = [
            (
                what,
                want,
                folder / "said",
                deployment.run("join", folder, *more, said=folder / "said"),
            )
            for what, want, folder, more in cases
        ]
        for what, want, file, process in started:
            yield named(what, want, said_by(process, file), "the client ends with")


def strange(at: Field) -> Path:
    """Return the folder of a client whose key the server does not know."""
    folder = at.copy("strange")
    shutil.copy(at.stranger, folder / "node")
    return folder


def left(at: Field) -> Path:
    """Return the folder of a client whose key was revoked."""
    folder, server = at.copy("left"), at.deployment.server
    make_node_key(folder / "node", server / "keys" / "left.pub")
    assert at.deployment.run("revoke", server, "left").wait(60) == 0
    return folder


def elsewhere(at: Field, root: Path, port: int | None = None) -> Path:
    """Return the folder of a client that believes another authority, and may call elsewhere."""
    folder = at.copy(f"elsewhere{port or ''}")
    shutil.copy(root, folder / "ca.crt")
    if port is not None:
        side = settings(folder, ClientSide)
        write_settings(folder, replace(side, address=f"127.0.0.1:{port}"))
    return folder


def impostor(at: Field) -> Iterator[Row]:
    """Let a node that the server knows answer as p00; then take its key away while it runs."""
    side, said = settings(at.mallory, ClientSide), at.mallory / "said"
    write_settings(at.mallory, replace(side, client="p00", person="p02"))
    process = at.deployment.run("join", at.mallory, said=said)
    want = "the signature is not that of 'p00'"
    at.deployment.until(want, PATIENCE)
    line = next(row for row in at.deployment.events().splitlines() if want in row)
    yield named("a client that answers in another's name", want, line, "the server's events")
    assert at.deployment.run("revoke", at.deployment.server, "mallory").wait(60) == 0
    want = "the key of 'mallory' was revoked"
    yield named("revoked while it runs", want, said_by(process, said), "the client ends with")
    at.deployment.until("'mallory' is revoked", 20)


@contextmanager
def insecure(deployment: Deployment) -> Iterator[None]:
    """Run a server without TLS for a while."""
    process = deployment.run("serve", deployment.server, "--insecure")
    deployment.until("clients expected", PATIENCE)
    yield
    process.terminate()
    process.wait(30)


def undressed(deployment: Deployment) -> Iterator[Row]:
    """Let a client join a server that was started without TLS."""
    with insecure(deployment):
        folder = deployment.client("p00")
        process = deployment.run("join", folder)
        want = "it speaks no TLS"
        deployment.until(want, PATIENCE, folder)
        process.terminate()
        yield named(
            "join a server that speaks no TLS",
            want,
            deployment.events(folder),
            "the client's events",
        )


def old_server(deployment: Deployment) -> Iterator[Row]:
    """Serve with a certificate that has expired."""
    with sockets.expired(deployment.folder / "old") as (_, root):
        for name in ("ca.crt", "server.pem", "server.key"):
            shutil.copy(root.parent / name, deployment.server / name)
    said = deployment.folder / "old.txt"
    process = deployment.run("serve", deployment.server, said=said)
    yield named(
        "serve with an expired certificate",
        "expired on",
        said_by(process, said),
        "the server ends with",
    )


# --- how slow honest rounds become


def paced(deployment: Deployment, count: int) -> list[float]:
    """Return the seconds of the next rounds that begin from now on."""
    seen, ends, latest = deployment.rounds(), [], time.monotonic() + PATIENCE
    while len(ends) <= count:
        assert time.monotonic() < latest, f"no round ends: {deployment.events()[-500:]}"
        if (now := deployment.rounds()) > seen:
            seen, latest = now, time.monotonic() + PATIENCE
            ends.append(time.monotonic())
        time.sleep(0.02)
    return [after - before for before, after in pairwise(ends)]


def seconds_of(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slowed(at: Field, count: int, blocks: int, each: int, most: float | None = 0.1) -> Row:
    """Measure rounds with and without slow sockets, in turns; and what attacking itself costs."""
    spent: dict[str, list[float]] = {"off": [], "on": []}
    ended, attacked = 0, 0.0
    with sockets.crowd(at.port, count) as crowd:
        for _ in range(blocks):
            for state in ("on", "off"):
                ended = crowd.turn(state)
                used = seconds_of(crowd.process.pid)
                spent[state] += paced(at.deployment, each)
                attacked += seconds_of(crowd.process.pid) - used if state == "on" else 0.0
    calm, busy = median(spent["off"]), median(spent["on"])
    cost = attacked / sum(spent["on"])
    return Row(
        f"{count:,} slow sockets",
        "rounds " + (f"at most {most:.0%} slower" if most else "go on"),
        f"median of {len(spent['on'])} rounds {busy:.2f} s, of {len(spent['off'])} without "
        f"{calm:.2f} s: {busy / calm - 1:+.1%}; {ended:,} connections ended; the attacker takes "
        f"{cost:.0%} of one of the two cores",
        most is None or busy <= (1 + most) * calm,
    )


def flood(at: Field, count: int) -> Row:
    """Open connections all at once and say nothing; a client's call must come through."""
    lines: list[socket.socket] = []
    try:
        for _ in range(count):
            lines.append(socket.create_connection(("127.0.0.1", at.port), 10))  # noqa: PERF401
        began = time.monotonic()
        status, _, _ = sockets.asked(at.port, PULL, sockets.signed(at.stranger))
        seconds = time.monotonic() - began
        time.sleep(12)
        ended = sum(over(line) for line in lines)
    finally:
        for line in lines:
            line.close()
    at.deployment.until("no TLS handshake in 10 s", 20)
    return Row(
        f"{count:,} connections that say nothing",
        "others are served; all closed in 10 s",
        f"answered in {seconds:.2f} s ({status}); {ended:,} closed",
        seconds < 2 and ended == count,
    )


def over(line: socket.socket) -> bool:
    """Tell whether the other side has closed a connection."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def revoked(at: Field, joined: Sequence[Popen[bytes]]) -> Row:
    """Revoke a client that takes part; rounds go on without it, and it ends with the reason."""
    deployment = at.deployment
    assert deployment.run("revoke", deployment.server, CLIENTS[-1]).wait(60) == 0
    code = joined[-1].wait(PATIENCE)
    deployment.until(lambda: "2 replies" in deployment.events(), PATIENCE)
    said = deployment.said().splitlines()
    want = f"the key of '{CLIENTS[-1]}' was revoked"
    line = next((line for line in said if want in line and "Error" in line), "")
    found = line.partition("Error: ")[2]
    return Row(
        "a client revoked in the middle of a run",
        f"the others go on; it ends with: {want}",
        f"2 replies from then on; {found}",
        code != 0 and want in found,
    )
