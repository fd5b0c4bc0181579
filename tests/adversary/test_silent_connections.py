"""Connections that say nothing, and other users of the machine, do not end a resident node."""

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection

import pytest

from vergence.deployment.resident_node import ResidentConnection, ResidentNode, socket_name

FILES = 64
"""So many files the node may have open."""
NODE = f"""
import resource, sys
from pathlib import Path
from vergence.deployment import resident_node
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
resident_node.PROOF_S = 1
class Node(resident_node.ResidentNode):
    def __init__(self):
        pass
    def answer(self, asked):
        return asked[::-1]
print("listening", flush=True)
Node().listen(Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node of its own process, and the key to its socket."""
    key, folder = secrets.token_bytes(32), tmp_path_factory.mktemp("node")
    (folder / "secret").write_bytes(key)
    words = [sys.executable, "-c", NODE, str(folder / "secret")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"listening\n"
        for _ in range(100):
            try:
                assert ResidentConnection(key).answer(b"abc") == b"cba"
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        yield process, key
        process.kill()


def test_connections_that_say_nothing_end_no_node(node):
    process, key = node
    with ExitStack() as held:
        for _ in range(3 * FILES):
            silent = held.enter_context(socket.socket(socket.AF_UNIX))
            silent.settimeout(0.2)
            try:
                silent.connect(socket_name(key))
            except OSError:  # the node takes nobody more for the moment
                break
        time.sleep(1)
        assert process.poll() is None, process.stderr.read().decode()[-300:]
        found = []
        asker = threading.Thread(target=lambda: found.append(asked(key)), daemon=True)
        asker.start()
        asker.join(30)
        assert found == [b"cba"]


def asked(key):
    """What the node answers in the end, while others hold what they can."""
    for _ in range(100):
        try:
            return ResidentConnection(key).answer(b"abc")
        except OSError:
            time.sleep(0.1)
    return None


def test_who_knows_the_secret_may_take_time(node):
    """Only the proof is waited for briefly, not a request."""
    _, key = node
    from multiprocessing.connection import Client

    with Client(socket_name(key), "AF_UNIX", authkey=key) as connection:
        time.sleep(2.5)
        connection.send_bytes(b"late")
        assert connection.recv_bytes() == b"etal"


def heard(monkeypatch, user: int) -> bytes:
    """What a process hears first from a node of a user."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    here, there = socket.socketpair(socket.AF_UNIX)
    with here:
        here.settimeout(5)
        made = object.__new__(ResidentNode)
        arguments = (Connection(there.detach()), b"key")
        threading.Thread(target=made._serve_connection, args=arguments, daemon=True).start()
        return here.recv(4)


def test_other_users_are_not_even_asked_for_the_secret(monkeypatch):
    own = os.geteuid()
    assert heard(monkeypatch, own) != b""
    assert heard(monkeypatch, own + 1) == b""
