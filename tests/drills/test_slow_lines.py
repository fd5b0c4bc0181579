"""Connections that are half open, and clients that answer too late: rounds end by their deadline.

A grid in memory carries Flower's own messages; its link may fall silent in either direction.
"""

import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra 'deploy'")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from tests.conformance.test_methods import build
from tests.deployment.test_remote_clients import PEOPLE, Loop, there
from tests.engine.toys import table
from tests.lines import Grid
from vergence.core.messages import Message as Sent
from vergence.core.serialization import pack, unpack
from vergence.deployment.client_registry import (
    ClientConnection,
    ClientRegistry,
    RequestQueue,
    Timeouts,
    reply,
)
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.remote_clients import ClientLost
from vergence.deployment.transport.flower import GridTransport, packed, unpacked

DEADLINE = 0.3
SLOW = PEOPLE.clients[1]
AT = 1
"""The round in which one client is slow."""


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Messages say of which of Flower's tasks they are."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Slow(Grid):
    """Carries messages to nodes in this process; `fate` says what becomes of an answer.

    "now", "never", "late": it arrives with the node's next answer, or "announced": its parts never
    come.
    """

    def __init__(self, answer, fate):
        super().__init__()
        self.answer, self.fate = answer, fate
        self.there, self.late, self.count, self.asked = {}, {}, 0, set()
        self.lock, self.dead = threading.Lock(), False

    def push_messages(self, messages):
        with self.lock:
            numbers = []
            for message in messages:
                self.count += 1
                numbers.append(str(self.count))
                number = message.metadata.__dict__["_message_id"] = str(self.count)
                node = message.metadata.dst_node_id
                fate = self.fate(node, unpacked(message))
                if fate == "announced":
                    self.withheld.add(number)
                if fate == "never":
                    continue
                found = Message(packed(self.answer(node, unpacked(message))), reply_to=message)
                if fate == "late":
                    self.late.setdefault(node, []).append((number, found))
                    continue
                for old, answer in self.late.pop(node, []):
                    self.there[old] = answer
                self.there[number] = found
        time.sleep(0.02)  # whoever fetches now has it before its number is known
        return numbers

    def pull_messages(self, numbers):
        if self.dead:
            raise ConnectionError("half open")
        # Flower's link hands out answers to the messages that it is asked for. This one hands out
        # late answers, too: those for which nobody waits any more, but somebody once asked.
        with self.lock:
            self.asked.update(numbers)
            return [self.there.pop(number) for number in self.asked & self.there.keys()]


class Hasty(GridTransport):
    """A line that waits long for those who answer: how fast this machine is does not matter."""

    async def send(self, node, data, seconds, there=lambda: True, shared=b""):
        slow = self.grid.fate(node, data + shared) != "now"
        return await super().send(node, data, DEADLINE if slow else seconds, there, shared)


def quiet(*_, **__):
    """Tell nobody."""


def lines(method, folder, fate):
    """Return a line for one run, over a registry in which everybody is connected, and its grid."""
    homes, names = Loop(method, folder), dict(enumerate(PEOPLE.clients))

    def answer(node, asked):
        found = homes.ask(names[node], unframed(asked)[1])
        return reply(asked, names[node], lambda _: "signed", found)

    def about(node, asked):
        return fate(names[node], unpack(unframed(asked)[1], ClientRequest))

    grid = Slow(answer, about)
    registry = ClientRegistry(
        Hasty(grid, poll=0.01), PEOPLE.clients, {}, lambda *_: True, quiet, Timeouts(60.0, 60.0)
    )
    registry.connections.update(
        {name: ClientConnection(node, "", {}) for node, name in names.items()}
    )
    return RequestQueue(registry, {}), grid


@pytest.mark.slow
@pytest.mark.parametrize("what", ["never", "late", "announced"])
def test_a_client_that_does_not_answer_in_time(what, tmp_path):
    """The round ends without it; what comes later counts in no round, and it goes on."""
    method = build("fedcpf")

    def fate(client, request):
        slow = (client, request.kind, request.message.round) == (SLOW, "turn", AT)
        return what if slow else "now"

    class Quiet(Loop):
        def ask(self, client, request):
            if fate(client, unpack(request, ClientRequest)) != "now":
                raise ClientLost("silent")
            return super().ask(client, request)

    expected = there(method, tmp_path / "quiet", Quiet(method, tmp_path / "quiet" / "homes"))
    line, _ = lines(method, tmp_path / "homes", fate)
    found = there(method, tmp_path, line)
    line.registry.wire.close()
    assert found.fingerprint == expected.fingerprint
    rows = [r for r in table(tmp_path / "server", "turns.csv") if r["status"] != "ok"]
    assert [(r["client"], r["round"]) for r in rows] == [(SLOW, str(AT + 1))]
    assert rows[0]["status"].startswith("lost: no answer in 0.")


def test_a_link_that_is_half_open(tmp_path):
    """What is sent goes out, and nothing can be fetched: everybody is lost at the deadline."""
    line, grid = lines(build("fedcpf"), tmp_path / "homes", lambda *_: "never")
    grid.dead = True
    began = time.monotonic()
    with pytest.raises(ClientLost, match=r"no answer in 0\."):
        line.ask(SLOW, pack(ClientRequest("evaluate", SLOW, Sent("evaluate"))))
    assert DEADLINE <= time.monotonic() - began < 5 + DEADLINE
    line.registry.wire.close()
