"""What operators do in the middle of a run: behind a proxy, with a new certificate, on watch."""

import selectors
import socket
import socketserver
import threading
from importlib.util import find_spec

import pytest

from tests.drills import joining, machines, networks, upgrades
from tests.drills.deployment import CLIENTS, Deployment, deployed, fedcpf, simulated
from vergence.deployment.diagnostics import connected

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")


class _Tunnel(socketserver.StreamRequestHandler):
    """A proxy that connects to one other address (HTTP CONNECT), and to nobody without a login."""

    def handle(self):
        first = self.rfile.readline().decode().split()
        head = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(": ")
            head[name.lower()] = value
        self.server.asked.append(first[:2])
        if self.server.login and head.get("proxy-authorization") != self.server.login:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = first[1].rpartition(":")
        with socket.create_connection((host, int(port)), 10) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.copy(there)

    def copy(self, there):
        """Copy bytes both ways until one side ends."""
        pairs = {self.connection: there, there: self.connection}
        with selectors.DefaultSelector() as ready:
            for end in pairs:
                ready.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(60):
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    pairs[key.fileobj].sendall(data)


@pytest.fixture
def proxy():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Tunnel)
    server.daemon_threads = True
    server.asked, server.login = [], ""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def address(server) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


def test_a_client_asks_the_proxy_of_its_machine(proxy, monkeypatch):
    """127.0.0.2 stands for another machine: 127.0.0.1 is never asked for through a proxy."""
    with socket.create_server(("127.0.0.2", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address(proxy)}")
        with connected("127.0.0.2", port) as line:
            other, _ = listening.accept()
            with other:
                line.sendall(b"hello")
                assert other.recv(5) == b"hello"
        assert proxy.asked == [["CONNECT", f"127.0.0.2:{port}"]]
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        connected("127.0.0.2", port).close()
        monkeypatch.delenv("NO_PROXY")
        assert len(proxy.asked) == 1
        proxy.login = "Basic YW5uYTphIHdvcmQ="
        with pytest.raises(OSError, match=r"the proxy 127.0.0.1:\d+ says: .*407"):
            connected("127.0.0.2", port)
        monkeypatch.setenv("HTTPS_PROXY", f"http://anna:a%20word@{address(proxy)}")
        connected("127.0.0.2", port).close()
        with socket.create_server(("127.0.0.1", 0)) as here:
            connected("127.0.0.1", here.getsockname()[1]).close()
        assert len(proxy.asked) == 3
        proxy.login = ""
        monkeypatch.setenv("HTTPS_PROXY", address(proxy))
        connected("127.0.0.2", port).close()
        monkeypatch.delenv("HTTPS_PROXY")
        monkeypatch.setenv("ALL_PROXY", f"http://{address(proxy)}")
        connected("127.0.0.2", port).close()
        assert len(proxy.asked) == 5


class _Elsewhere(Deployment):
    """A deployment whose server is at 127.0.0.2, for clients behind a proxy."""

    @property
    def address(self) -> str:
        return f"127.0.0.2:{self.port}"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@needs_flower
def test_clients_behind_a_proxy_give_the_same_bits(tmp_path, proxy, monkeypatch):
    table = fedcpf(2)
    with deployed(tmp_path, table, kind=_Elsewhere) as made:
        served = made.serve()
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address(proxy)}")
        monkeypatch.setenv("HTTP_PROXY", f"http://{address(proxy)}")
        joined = [made.join(name) for name in CLIENTS]
        assert served.wait(500) == 0, made.events() + made.said()
        assert [process.wait(30) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == simulated(table, tmp_path / "here")
        # Nothing but the server is asked for, and all clients ask through the proxy.
        assert {tuple(words) for words in proxy.asked} == {("CONNECT", made.address)}
        assert len(proxy.asked) >= 2 * len(CLIENTS)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@needs_flower
def test_a_certificate_renewed_in_mid_run_changes_no_bit(tmp_path):
    """A client that has the old authority does not trust the new certificate."""
    table = fedcpf(4)
    with deployed(tmp_path, table) as made:
        served = made.serve()
        joined = [made.join(name) for name in CLIENTS]
        made.until("round 1 of 4", 300)
        assert made.run("renew", made.server).wait(60) != 0
        assert "running" in made.said()
        made.kill(made.server)
        served.wait()
        for name in CLIENTS:
            made.kill(made.client(name))
        old = (made.server / "ca.crt").read_bytes()
        assert made.run("renew", made.server).wait(60) == 0
        new = (made.server / "ca.crt").read_bytes()
        assert new != old
        served = made.serve()
        assert made.join("p00").wait(120) != 0
        assert "does not fit" in made.said()
        for name in CLIENTS:
            (made.client(name) / "ca.crt").write_bytes(new)
        joined = [made.join(name) for name in CLIENTS]
        assert served.wait(500) == 0, made.events() + made.said()
        assert [process.wait(60) for process in joined] == [0, 0, 0]
        assert made.fingerprints() == simulated(table, tmp_path / "here")


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@needs_flower
@pytest.mark.parametrize("table", [joining.PLAIN, joining.SECURE], ids=["plain", "pads"])
def test_a_client_that_is_added_in_mid_run(table, tmp_path):
    """Its keys are compared, and the bits are those of a person who was away until then."""
    said, good = joining.join_late(tmp_path, table)
    assert good, said


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@needs_flower
@pytest.mark.parametrize("drill", [upgrades.upgrades, networks.networks, machines.machines])
def test_an_operators_bad_day(drill):
    """Other versions, broken links, wrong clocks, full disks: see the tables of the drills."""
    assert [row for row in drill() if not row.good] == []
