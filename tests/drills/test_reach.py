"""Why two ends do not reach each other, in one line."""

import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import pytest

from tests.drills.sockets import expired
from vergence.deployment import diagnostics
from vergence.deployment.diagnostics import check_certificate, reason_of, wait_for_server
from vergence.deployment.folders import EVENTS
from vergence.deployment.keys import make_certificates
from vergence.errors import StateError


@contextmanager
def listening(answer):
    """Give a port at which every connection is handed to `answer`."""
    with socket.create_server(("", 0)) as server:

        def serve():
            try:
                while True:
                    with server.accept()[0] as line:
                        answer(line)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def certified(tmp_path):
    make_certificates(tmp_path, "127.0.0.1")
    return tmp_path


def dressed(folder, context=None):
    """Return how a server with a folder's certificate answers."""
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def answer(line):
        with suppress(OSError):
            context.wrap_socket(line, server_side=True).close()

    return answer


def said(line):
    """Answer as HTTP without TLS does."""
    line.recv(100)
    line.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")


def test_a_server_with_the_right_certificate_is_reached(certified):
    with listening(dressed(certified)) as address:
        assert wait_for_server(address, certified / "ca.crt", "before", certified) == "before"
    assert not (certified / EVENTS).exists()


def test_a_server_without_tls_is_reached_by_who_wants_none(tmp_path):
    with listening(said) as address:
        assert wait_for_server(address, None, "", tmp_path) == ""


@pytest.mark.parametrize("alert", [b"", bytes.fromhex("15030100020246")])
def test_tls_where_none_is_wanted(alert, tmp_path):
    """A TLS server hangs up on HTTP, with an alert or without."""
    with (
        listening(lambda line: line.recv(100) and line.sendall(alert)) as address,
        pytest.raises(StateError, match="leave --insecure out"),
    ):
        wait_for_server(address, None, "", tmp_path)


def test_another_authoritys_certificate(certified, tmp_path):
    (tmp_path / "other").mkdir()
    make_certificates(tmp_path / "other", "127.0.0.1")
    with (
        listening(dressed(certified)) as address,
        pytest.raises(StateError, match="copy this client's folder from the server's again"),
    ):
        wait_for_server(address, tmp_path / "other" / "ca.crt", "", tmp_path)


def test_a_certificate_for_another_address(tmp_path):
    make_certificates(tmp_path, "192.168.1.5")
    with (
        listening(dressed(tmp_path)) as address,
        pytest.raises(StateError, match="made out to another address"),
    ):
        wait_for_server(address.replace("0.1", "0.2"), tmp_path / "ca.crt", "", tmp_path)


def test_an_expired_certificate(tmp_path):
    with expired(tmp_path / "old") as (port, root):
        with pytest.raises(StateError, match=r"has expired, or this machine's clock is ahead"):
            wait_for_server(f"127.0.0.1:{port}", root, "", tmp_path)
        with pytest.raises(StateError, match=r"server.pem expired on 20"):
            check_certificate(root.parent)


def test_a_certificate_that_expires_soon_is_told_of(certified, monkeypatch):
    check_certificate(certified)
    assert not (certified / EVENTS).exists()
    monkeypatch.setattr(diagnostics, "SOON", diagnostics.SOON * 100)
    check_certificate(certified)
    assert "the certificate expires on" in (certified / EVENTS).read_text()


def test_a_file_that_holds_no_authority(tmp_path):
    (tmp_path / "ca.crt").write_text("nothing")
    for root in (tmp_path / "ca.crt", tmp_path / "none"):
        with pytest.raises(StateError, match="holds no certificate"):
            wait_for_server("127.0.0.1:9", root, "", tmp_path)


def test_waiting_says_why_once(certified, monkeypatch):
    """A server that speaks no TLS, three times; then one that does."""
    turns = iter([said, said, said, dressed(certified)])
    monkeypatch.setattr(diagnostics.time, "sleep", lambda _: None)
    with listening(lambda line: next(turns)(line)) as address:
        heard = []
        found = wait_for_server(
            address, certified / "ca.crt", "", certified, lambda: heard.append(1)
        )
    assert found == f"cannot reach {address}: it speaks no TLS"
    assert heard == [1]  # whoever waits at the terminal is told then, not when it is over
    assert (certified / EVENTS).read_text().count("it speaks no TLS") == 1


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "x\nrefused: the key of 'a' was revoked\nSuperNode terminated gracefully.\n",
            "the server does not let this node in: the key of 'a' was revoked",
        ),
        ("SuperNode terminated gracefully.\nGiving up reconnection\n", "the server went away"),
        ("something\n\n", "the node ended (something)"),
        ("", "the node ended (no reason)"),
    ],
)
def test_what_a_nodes_log_means(log, says):
    assert reason_of(log) == says
