"""Requests over Flower's grid: bytes in its records, and answers that a notice tells of."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs the extra 'deploy'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.lines import Grid
from vergence.deployment.remote_clients import ClientLost
from vergence.deployment.transport import flower, flower_processes
from vergence.deployment.transport.flower import SHORT, GridTransport, packed, unpacked
from vergence.deployment.transport.flower_processes import (
    BRIEFLY,
    GrowingPause,
    NodePolls,
    on_its_path,
    own_code,
)
from vergence.deployment.transport.wakeups import Wakeups

ANNA, BEN = 7, 2**63
SOON = 30.0


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Messages say of which of Flower's tasks they are."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Box:
    """A message with this content."""

    def __init__(self, content):
        self.content = content

    def has_error(self):
        return False


@pytest.mark.parametrize("length", [0, 1, SHORT, SHORT + 1])
def test_bytes_come_out_as_they_went_in(length):
    data = bytes(range(256)) * (length // 256) + b"x" * (length % 256)
    assert unpacked(Box(packed(data))) == data


def test_what_is_short_is_one_value_and_what_is_long_goes_in_parts():
    assert isinstance(packed(b"x" * SHORT)["body"], ConfigRecord)
    assert isinstance(packed(b"x" * (SHORT + 1))["body"], ArrayRecord)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"body": ConfigRecord({"other": b"x"})}),
        RecordDict({"body": ConfigRecord({"": "text"})}),
        RecordDict({"body": ConfigRecord({"": [b"x"]})}),
        RecordDict({"body": MetricRecord({"": 1.0})}),
        RecordDict({"other": ArrayRecord({"": Array("uint8", (1,), "bytes", b"x")})}),
    ],
)
def test_an_answer_that_holds_no_bytes_is_lost(content):
    with pytest.raises(ClientLost, match="its answer holds no bytes"):
        GridTransport(None)._body(Box(content))


class Answered(Grid):
    """Takes messages, and has an answer to each once it is answered; counts who looks."""

    def __init__(self):
        super().__init__()
        self.sent, self.answered, self.asked = {}, {}, 0
        self.lock, self.pushed = threading.Lock(), threading.Semaphore(0)

    def push_messages(self, messages):
        with self.lock:
            numbers = [str(len(self.sent) + place) for place in range(len(messages))]
            for number, message in zip(numbers, messages, strict=True):
                message.metadata.__dict__["_message_id"] = number
                self.sent[number] = message
        self.pushed.release()
        return numbers

    def answer(self, node, data):
        with self.lock:
            for number, message in self.sent.items():
                if message.metadata.dst_node_id == node:
                    self.answered[number] = Message(packed(data), reply_to=message)

    def pull_messages(self, numbers):
        with self.lock:
            self.asked += 1
            return [self.answered.pop(n) for n in numbers if n in self.answered]


def asked(line, node, found):
    """Ask a node in a thread of its own."""
    thread = threading.Thread(
        target=lambda: found.append(asyncio.run(line.send(node, b"question", SOON)))
    )
    thread.start()
    return thread


def test_an_answer_is_fetched_when_a_notice_tells_of_it(monkeypatch):
    """Nobody looks before, and only who waits for that node."""
    monkeypatch.setattr(flower, "RARELY", 1e6)
    wakeups, grid, found = Wakeups(os.urandom(32)), Answered(), []
    with wakeups.listen("link") as link:
        line = GridTransport(grid, wakeups=wakeups)
        waiting = [asked(line, node, found) for node in (ANNA, BEN)]
        told = set()
        while told != {ANNA, BEN}:
            told |= link.wait(SOON)[0]
        grid.answer(BEN, b"of ben")
        wakeups.tell("run", BEN)
        waiting[1].join(SOON)
        assert (found, grid.asked) == ([b"of ben"], 1)
        grid.answer(ANNA, b"of anna")
        wakeups.tell("run", ANNA)
        waiting[0].join(SOON)
        assert (found, grid.asked) == ([b"of ben", b"of anna"], 2)
        line.close()


def test_without_notices_an_answer_is_looked_for():
    grid, found = Answered(), []
    line = GridTransport(grid, poll=0.01)
    waiting = asked(line, ANNA, found)
    grid.pushed.acquire(timeout=SOON)
    grid.answer(ANNA, b"of anna")
    waiting.join(SOON)
    assert found == [b"of anna"]
    line.close()


def test_an_answer_that_comes_too_late_is_taken_from_the_link():
    """The link would have it in memory as long as the run lasts; nobody gets it."""
    grid = Answered()
    line = GridTransport(grid, poll=0.01)
    with pytest.raises(ClientLost, match="no answer"):
        asyncio.run(line.send(ANNA, b"question", 0.05))
    grid.answer(ANNA, b"of anna")
    end = time.monotonic() + SOON
    while (not grid.confirmed or line.waiting) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(grid.confirmed) == 1
    assert not line.waiting
    line.close()


def test_who_waits_looks_a_tenth_of_the_time_later(monkeypatch):
    """A short task is seen at once, and for a long one there are five looks a second."""
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(flower_processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(flower_processes.time, "sleep", sleep)
    pause = GrowingPause()
    while now[0] < 60:
        pause.sleep(0.5)
    assert slept[0] == BRIEFLY
    assert slept[-1] == flower.POLL
    assert len(slept) < 5 * 60 + 50
    pause.begin()
    pause.sleep(0.5)
    assert slept[-1] == BRIEFLY


def test_flowers_checks_stand_where_they_stood():
    """Each in its turn, before its own interface; those about all requests before all."""
    from flwr.superlink import main

    found = main._get_middleware()
    placed = [on_its_path(middleware) for middleware in found]
    paths = {
        old.cls.__name__: new.kwargs.get("path")
        for old, new in zip(found, placed, strict=True)
        if new is not old
    }
    assert [new.kwargs.get("kind", new.cls) for new in placed] == [old.cls for old in found]
    assert paths == {
        "ControlSensitiveResponseMiddleware": "/v1/control/",
        "ControlAuthenticationMiddleware": "/v1/control/",
        "ControlLicenseMiddleware": "/v1/control/",
        "RuntimeTracingMiddleware": "/v1/runtime/",
        "ControlEventLogMiddleware": "/v1/control/",
        "NodeAuthMiddleware": "/v1/fleet/",
    }


class Server:
    """Answers of a server to a node: when each comes, and whether it says to ask again."""

    def __init__(self, polls, answers):
        self.polls, self.answers, self.asked = polls, iter(answers), []

    def receive(self):
        self.asked.append(flower_processes.time.monotonic())
        seconds, again, message = next(self.answers)
        flower_processes.time.sleep(seconds)
        if again:
            self.polls.again.set()
        return message


def test_a_node_asks_again_after_a_pause_unless_the_server_says_so(monkeypatch):
    """A server that keeps nothing back is asked five times a second, whatever it answers."""
    now = [0.0]
    monkeypatch.setattr(flower_processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        flower_processes.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    polls = NodePolls(Wakeups(os.urandom(32)))
    server = Server(
        polls,
        [(0, False, None), (0.05, False, None), (9, False, None), (1, True, None), (0, 0, "it")],
    )
    assert polls.message(server.receive) == "it"
    assert server.asked == pytest.approx([0.0, 0.2, 0.4, 9.4, 10.4])


def test_a_server_that_always_says_again_is_asked_twice_in_a_pause(monkeypatch):
    """It would make a node ask as fast as its line goes."""
    now, asked = [0.0], []
    monkeypatch.setattr(flower_processes.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        flower_processes.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    polls = NodePolls(Wakeups(os.urandom(32)))

    def receive():
        asked.append(now[0])
        now[0] += 0.001
        polls.again.set()
        return "it" if now[0] > 10 else None

    assert polls.message(receive) == "it"
    assert len(asked) <= 2 * (10 / flower.POLL + 1)
    assert asked[1] == pytest.approx(0.001)


def test_whoever_works_on_a_message_is_woken_when_it_is_whole():
    wakeups, confirmed = Wakeups(os.urandom(32)), []
    with wakeups.listen("client") as labour:

        def confirm(*asked):
            assert labour.receive() == (set(), False)
            confirmed.append(asked)

        NodePolls(wakeups).confirm(confirm, 7, "message")
        assert labour.wait(SOON) == ({0}, False)
    assert confirmed == [(7, "message")]


def test_code_of_another_server_is_refused(monkeypatch):
    """What a node runs is what is installed there."""
    monkeypatch.setattr(flower_processes, "bundle", lambda: b"ours")
    ours, theirs = SimpleNamespace(content=b"ours"), SimpleNamespace(content=b"other")
    assert own_code(lambda *_: ours, "hash", 1) is ours
    with pytest.raises(RuntimeError, match="the server sent code of its own: refused"):
        own_code(lambda *_: theirs, "hash", 1)
