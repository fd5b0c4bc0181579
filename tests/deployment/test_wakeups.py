"""Notices between the processes of one folder: heard by whom they are for, made up by nobody."""

import os
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from vergence.deployment.transport import wakeups as module
from vergence.deployment.transport.wakeups import REST, Wakeups

SOON = 5.0


@pytest.fixture
def wakeups():
    """Of a secret of its own: everybody on the machine shares the names of its sockets."""
    return Wakeups(os.urandom(32))


@pytest.fixture
def link(wakeups):
    with wakeups.listen("link") as listening:
        yield listening


def send(data, place):
    """Send whatever somebody on this machine may send."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(data, place)


def crowd(place, count=20):
    """Send datagrams without a proof, as many as the socket takes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
        for _ in range(count):
            with suppress(BlockingIOError):
                sending.sendto(b"7", place)


def test_a_notice_is_heard_by_the_role_that_it_is_for(wakeups, link):
    with wakeups.listen("run") as run:
        Wakeups(wakeups.secret).tell("link", 2**64 - 1)
        assert link.wait(SOON) == ({2**64 - 1}, False)
        assert run.receive() == (set(), False)


def test_many_notices_are_heard_in_one_look(wakeups, link):
    for number in range(5):
        wakeups.tell("link", number)
    assert link.receive() == ({0, 1, 2, 3, 4}, False)


def test_without_a_notice_the_time_passes(link):
    began = time.monotonic()
    assert link.wait(0.05) == (set(), False)
    assert time.monotonic() - began >= 0.05


def test_nobody_is_told_who_does_not_listen(wakeups):
    wakeups.tell("link", 1)


def test_a_socket_that_is_full_holds_nobody_up_and_says_so(wakeups, link):
    for number in range(10_000):
        wakeups.tell("link", number)
    found, lost = link.receive()
    assert 0 < len(found) < 10_000
    assert lost
    assert link.receive() == (set(), False)


@pytest.mark.parametrize("made_up", [b"", b"7", b"x" * 32 + b"7", b"x" * 5000])
def test_a_notice_without_the_secret_is_not_heard(wakeups, link, made_up):
    """Everybody on the machine sees the name of a socket in /proc/net/unix."""
    send(made_up, wakeups.socket_name("link"))
    send(Wakeups(b"another folder's").proof("link") + b"7", wakeups.socket_name("link"))
    assert link.receive()[0] == set()


@pytest.mark.parametrize("what", [b"", b"-1", b"7x", b"\xb2"])
def test_what_is_no_number_is_not_heard(wakeups, link, what):
    send(wakeups.proof("link") + what, wakeups.socket_name("link"))
    assert link.receive()[0] == set()


def test_a_proof_of_one_role_is_none_of_another(wakeups, link):
    send(wakeups.proof("run") + b"7", wakeups.socket_name("link"))
    assert link.receive()[0] == set()


def test_of_what_has_no_proof_nothing_can_be_lost(wakeups, link):
    crowd(wakeups.socket_name("link"))
    assert link.receive() == (set(), False)


def test_who_waits_is_not_woken_by_what_has_no_proof(wakeups, link):
    crowd(wakeups.socket_name("link"))
    began = time.monotonic()
    assert link.wait(0.05) == (set(), False)
    assert time.monotonic() - began >= 0.05


def test_a_notice_behind_others_without_a_proof_is_waited_for(wakeups, link):
    send(b"7", wakeups.socket_name("link"))
    rest = threading.Timer(0.01, wakeups.tell, ("link", 8))
    rest.start()
    assert link.wait(SOON) == ({8}, False)
    rest.join()


def test_a_flood_keeps_nobody_in_one_look(link):
    """There is always one more: whoever sends is faster than whoever reads."""
    taken = []

    def recv(_):
        taken.append(1)
        assert len(taken) < 100_000
        return b"7"

    with link.socket:
        link.socket = SimpleNamespace(recv=recv, close=lambda: None)
        assert link.receive() == (set(), False)


def test_a_flood_is_looked_at_now_and_then(wakeups, link, monkeypatch):
    """Else each datagram costs a look, and a flood a processor."""
    now, looks = [0.0], []

    def heard():
        looks.append(now[0])
        now[0] += 1e-3  # what a look lasts
        return set(), False

    def sleep(seconds):
        now[0] += seconds

    crowd(wakeups.socket_name("link"))
    monkeypatch.setattr(link, "receive", heard)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert link.wait(10.0) == (set(), False)
    assert now[0] >= 10.0
    assert 1 < len(looks) <= 10.0 / REST + 1
