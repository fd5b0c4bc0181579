"""Clients that answer slowly, never, in pieces or twice: the others get their answers at once."""

import asyncio
import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra 'deploy'")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from tests.lines import Grid
from vergence.deployment.transport import flower
from vergence.deployment.transport.flower import FETCHERS, GridTransport, packed, unpacked

CROWD = 10 * FETCHERS
"""Number of clients that announce an answer, and send no part of it."""
SOON = 20.0


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Messages say of which of Flower's tasks they are."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Announced(Grid):
    """Nodes that announce an answer at once, of which those below `CROWD` send no part."""

    def __init__(self, size=10):
        super().__init__()
        self.size, self.sent, self.count, self.lock = size, {}, 0, threading.Lock()

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self.count += 1
            numbers.append(str(self.count))
            message.metadata.__dict__["_message_id"] = numbers[-1]
            if message.metadata.dst_node_id < CROWD:
                self.withheld.add(numbers[-1])
            self.sent[numbers[-1]] = message
        return numbers

    def pull_messages(self, numbers):
        """Announce each answer once, but the honest node's twice."""
        found = []
        for number in numbers:
            if (message := self.sent.pop(number, None)) is not None:
                own = message.metadata.dst_node_id.to_bytes(2, "little")
                answer = Message(packed(own * (self.size // 2)), reply_to=message)
                found += [answer, answer] if own[0] >= CROWD else [answer]
        return found


async def answers(line, nodes, seconds):
    """Ask nodes at once; return the answers that came."""
    asked = [line.send(node, b"question", seconds) for node in nodes]
    return await asyncio.gather(*asked, return_exceptions=True)


def test_answers_that_never_arrive_hold_up_no_other():
    """There are ten times as many as threads that fetch answers."""
    grid = Announced()
    line = GridTransport(grid, poll=0.01)

    async def check():
        slow = asyncio.create_task(answers(line, range(CROWD), SOON))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        assert await answers(line, [CROWD, CROWD + 1], SOON) == [
            number.to_bytes(2, "little") * 5 for number in (CROWD, CROWD + 1)
        ]
        assert time.monotonic() - began < SOON / 2
        assert not slow.done()
        slow.cancel()

    before = threading.active_count()
    asyncio.run(check())
    assert threading.active_count() <= before + 1 + FETCHERS
    line.close()


def test_an_answer_of_many_parts_waits_behind_others(monkeypatch):
    """A client may cut its answer into as many parts as it likes."""
    monkeypatch.setattr(flower, "AT_ONCE", 1)
    grid = Announced()
    order, honest = [], grid.PullObject
    monkeypatch.setattr(grid, "PullObject", lambda r: order.append(r.object_id) or honest(r))
    line = GridTransport(grid, poll=0.01)
    asyncio.run(answers(line, [CROWD], SOON))
    first = len(order)
    found = asyncio.run(answers(line, range(CROWD, CROWD + 8), SOON))
    line.close()
    assert [unpacked_number(answer) for answer in found] == list(range(CROWD, CROWD + 8))
    # One part of every answer is fetched before the last part of any.
    assert len(set(order[first : first + 8])) == 8


def unpacked_number(answer):
    return int.from_bytes(answer[:2], "little")


def test_the_bytes_that_messages_share_are_one_part_of_them():
    """The link gets, keeps and hands out one copy of the model, whatever the number of clients."""
    shared = bytes(range(256)) * (1 << 13)
    records = [packed(b"to %d" % number, shared) for number in range(3)]
    parts = [record["shared"].object_id for record in records]
    assert len(set(parts)) == 1
    for number, record in enumerate(records):

        class Box:
            content = record

        assert unpacked(Box()) == b"to %d" % number + shared
