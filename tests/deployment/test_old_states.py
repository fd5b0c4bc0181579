"""What a client's folder holds in the long run: the states that may still be named, and no others.

Requests and answers get lost, requests come late, and the server is killed and begun again, which
makes it forget what it still wanted dropped.
"""

import random
import threading
from contextlib import suppress

import pytest

from tests.conformance.test_methods import build
from tests.deployment.test_remote_clients import Killed, Loop, there
from tests.engine.toys import table
from vergence.core.serialization import unpack
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost
from vergence.errors import StateError

LOSES = ("never sent", "answer lost", "comes late")


class Rough(Loop):
    """A line whose requests have fates; homes know how often the server keeps a checkpoint.

    A turn's fate depends on its client and stamp alone, so that it is the same in a second life.
    """

    def __init__(self, method, folder, *, seed=0, lost=0.0, kills=(), every=1):
        super().__init__(method, folder)
        self.seed, self.lost, self.kills, self.every = seed, lost, set(kills), every
        self.count, self.lock = 0, threading.Lock()
        self.late: dict[str, list[bytes]] = {}
        self.most: dict[str, int] = {}

    def home(self, client):
        home = super().home(client)
        home.every = self.every
        return home

    def ask(self, client, request):
        with self.lock:
            self.count += 1
            if self.count in self.kills:
                raise Killed
        what = unpack(request, ClientRequest)
        draw = random.Random(f"{self.seed} {client} {what.stamp}")
        fate = "good"
        if what.kind == "turn" and draw.random() < self.lost:
            fate = draw.choice(LOSES)
        if fate == "comes late":
            self.late.setdefault(client, []).append(request)
        if fate in ("never sent", "comes late"):
            raise ClientLost(fate)
        with self.lock:  # homes in one process share torch's generator
            answer = super().ask(client, request)
            for old in self.late.pop(client, []):
                with suppress(StateError):  # it names what has gone: nobody waits for its answer
                    super().ask(client, old)
        files = len(list((self.folder / client).iterdir()))
        self.most[client] = max(files, self.most.get(client, 0))
        if fate == "answer lost":
            raise ClientLost(fate)
        return answer


def lived(method, path, line, **plan):
    """Run a method, begun again as often as its server is killed; return the fingerprint."""
    while True:
        try:
            return there(method, path, line, checkpoint_every=line.every, **plan).fingerprint
        except Killed:
            line.late.clear()  # what was under way goes with the server


@pytest.mark.slow
def test_rounds_that_came_to_nothing_leave_nothing_behind(tmp_path):
    """50 rounds, half the turns lost, 8 servers: the state that counts, a new one, an answer."""
    method, kills = build("fedcpf"), range(10, 170, 20)
    line = Rough(method, tmp_path / "homes", lost=0.5, kills=kills)
    lived(method, tmp_path, line, rounds=50)
    lost = [r for r in table(tmp_path / "server", "turns.csv") if r["status"].startswith("lost")]
    assert len(lost) > 70
    assert max(line.most.values()) <= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "every", "seed"),
    [
        ("fedcpf", 0, 1),
        ("fedcpf", 1, 2),
        ("fedcpf", 3, 3),
        ("fedpac", 1, 4),
        ("fedpac", 3, 5),
        ("splitfed", 1, 6),
        ("splitfed", 3, 7),
    ],
)
def test_no_state_goes_that_is_still_needed(name, every, seed, tmp_path):
    """Killed three times and begun again: the same bits as a server that was never killed."""
    method, draw = build(name), random.Random(seed)
    whole = Rough(method, tmp_path / "whole" / "homes", seed=seed, lost=0.3, every=0)
    expected = there(method, tmp_path / "whole", whole, rounds=5).fingerprint
    kills = draw.sample(range(1, whole.count), 3)
    line = Rough(method, tmp_path / "homes", seed=seed, lost=0.3, kills=kills, every=every)
    assert lived(method, tmp_path, line, rounds=5) == expected
