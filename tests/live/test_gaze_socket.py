"""Gaze on a port: lines for who knows the token, nothing for others, and slow readers."""

import json
import math
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from rich.console import Console

from tests.live.fabricated import STREAM, dots, places, write_model
from vergence.errors import ConfigError
from vergence.live import gaze_socket
from vergence.live.camera import CameraOptions
from vergence.live.command import EyeOptions, OutputOptions, start
from vergence.live.gaze_socket import GazeSocket

COLUMNS = ("pitch_rad", "yaw_rad")


@pytest.fixture
def served():
    one = GazeSocket(0, COLUMNS)
    yield one
    one.close()


@pytest.fixture
def reader():
    """A function that connects to a port and sends its first line; closed after the test."""
    with ExitStack() as last:

        def connect(port, first):
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            last.callback(connection.close)
            connection.sendall(first)
            return connection

        yield connect


def lines_of(connection):
    with connection.makefile() as lines:
        yield from lines


def closed(connection):
    """True if the other end closed the connection without a word."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def joined(served, count=1):
    until = time.monotonic() + 10
    while len(served._server.readers) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_program_with_the_token_reads_a_line_per_frame(served, reader):
    connection = reader(served.port, served.token.encode() + b"\n")
    joined(served)
    served.send(7, 0.25, (0.1, -0.2), 0.01)
    served.send(8, 0.29, (), 0.02)
    served.send(9, 0.33, (0.1, math.nan), 0.02)
    lines = lines_of(connection)
    head = json.loads(next(lines))
    names = ["frame", "t_s", "unix_s", "pitch_rad", "yaw_rad", "latency_ms"]
    assert head == {"name": "vergence", "type": "gaze", "columns": names}
    first = dict(zip(names, json.loads(next(lines)), strict=True))
    assert abs(first.pop("unix_s") - time.time()) < 60
    assert first == {
        "frame": 7, "t_s": 0.25, "pitch_rad": 0.1, "yaw_rad": -0.2, "latency_ms": 10.0
    }  # fmt: skip
    assert json.loads(next(lines))[3:5] == [None, None], "no gaze"
    assert json.loads(next(lines))[3:5] == [0.1, None], "NaN is no JSON"


@pytest.mark.parametrize(
    "first",
    [
        b"\n",
        b"guess\n",
        b"POST / HTTP/1.1\r\nOrigin: https://example.org\r\n\r\n",
        b"x" * 10_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_without_the_token_nothing_is_said(served, reader, first):
    connection = reader(served.port, first)
    served.send(1, 0.0, (0.1, 0.2), 0.01)
    assert closed(connection)
    assert not served._server.readers


def test_the_port_is_this_computer_s_alone(served):
    assert served._server.server_address[0] == "127.0.0.1"
    assert len(served.token) >= 20
    other = GazeSocket(0, COLUMNS)
    other.close()
    assert served.token != other.token


def test_connections_that_say_nothing_take_no_more_than_their_places(served, reader, monkeypatch):
    """Beyond the limit a connection is closed at once; a place is free again when it is left."""
    monkeypatch.setattr(gaze_socket._Reader, "timeout", 60)
    silent = [reader(served.port, b"") for _ in range(gaze_socket.MOST_READERS)]
    until = time.monotonic() + 30
    while served._server.slots._value and time.monotonic() < until:
        time.sleep(0.01)
    late = reader(served.port, served.token.encode() + b"\n")
    assert closed(late)
    for one in silent:
        one.close()
    while not served._server.slots._value and time.monotonic() < until:
        time.sleep(0.01)
    reader(served.port, served.token.encode() + b"\n")
    joined(served)


def test_who_says_nothing_is_closed_in_time(served, reader, monkeypatch):
    monkeypatch.setattr(gaze_socket._Reader, "timeout", 0.2)
    assert closed(reader(served.port, b""))


def test_a_drip_of_bytes_is_closed_in_time(served, reader, monkeypatch):
    """The limit of a socket counts from byte to byte; here a byte comes every 0.1 s."""
    monkeypatch.setattr(gaze_socket, "PATIENCE_S", 0.5)
    slow = reader(served.port, b"")
    until = time.monotonic() + 10
    ended = False
    while not ended and time.monotonic() < until:
        try:
            slow.sendall(b"x")
        except OSError:
            ended = True
        time.sleep(0.1)
    assert ended


def test_a_reader_that_does_not_read_costs_no_frame(served, reader):
    reader(served.port, served.token.encode() + b"\n")
    joined(served)
    began = time.monotonic()
    for number in range(20_000):
        served.send(number, 0.0, (0.1, 0.2), 0.0)
    assert all(each.qsize() <= gaze_socket.WAITING for each in served._server.readers)
    assert time.monotonic() - began < 60


def test_a_session_serves_where_the_dot_is_and_writes_the_token(tmp_path, reader):
    model = write_model(tmp_path / "m.onnx", STREAM)
    video, token = dots(tmp_path / "dots.mp4", 12), tmp_path / "token"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shown = OutputOptions(True, seconds=3.0, serve=port, token=token)
    played = CameraOptions(realtime=True, loop=True)
    session = threading.Thread(
        target=start, args=(model, str(video), Console(quiet=True), played, EyeOptions(), shown)
    )
    session.start()
    until = time.monotonic() + 30
    while not token.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert token.stat().st_mode & 0o777 == 0o600
    lines = lines_of(reader(port, token.read_bytes()))
    names = json.loads(next(lines))["columns"]
    rows = [dict(zip(names, json.loads(line), strict=True)) for line in lines]
    session.join(30)
    assert rows
    for row in rows:
        assert row["mean_x"] == pytest.approx(places(12)[row["frame"] % 12, 0], abs=0.02)


def test_a_port_that_is_taken_is_named(served):
    with pytest.raises(ConfigError, match=rf"--serve {served.port}: .* take another port"):
        GazeSocket(served.port, COLUMNS)
    with pytest.raises(ConfigError, match=r"--serve 70000: "):
        GazeSocket(70000, COLUMNS)
