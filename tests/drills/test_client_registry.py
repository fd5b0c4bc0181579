"""Who is let in, and whose answers count: over a wire in memory, with real node keys."""

import asyncio
import json
import threading
import time

import pytest

from tests.lines import Wire, greet
from vergence.deployment import client_registry
from vergence.deployment.client_registry import (
    LATER,
    MENDS,
    NAMED,
    ClientConnection,
    ClientGone,
    ClientRegistry,
    RequestQueue,
    Timeouts,
    reply,
)
from vergence.deployment.keys import genuine, make_node_key, signer
from vergence.deployment.protocol import SharedBytes
from vergence.deployment.remote_clients import ClientLost, unframed
from vergence.errors import PartialRun

MINE = {"config": "c1", "vergence code": "v1", "own code": "none", "torch": "t1"}


class Node:
    """A client's machine: answers a greeting with what it claims, and a request with an echo."""

    def __init__(self, client, sign, facts=MINE, since="1"):
        self.client, self.sign, self.facts, self.since = client, sign, facts, since
        self.heard, self.error, self.stale = [], "", None

    def answer(self, asked):
        note, body = unframed(asked)
        self.heard.append((note["kind"], note.get("text", "")))
        if self.stale is not None and note["kind"] == "request":
            return self.stale
        found = json.dumps({**self.facts, "train": 9}).encode() if note["kind"] == "hello" else body
        return reply(asked, self.client, self.sign, found, self.error)


class Nodes(Wire):
    """Nodes in this process."""

    def __init__(self, nodes):
        self.there, self.fail = nodes, []

    def nodes(self):
        return {number: node.since for number, node in self.there.items()}

    def answer(self, node, data):
        if self.fail:
            raise self.fail.pop()
        return self.there[node].answer(data)


@pytest.fixture
def keys(tmp_path):
    """Return how clients a, b and an impostor sign, and how a signature is told genuine."""
    for name in ("a", "b", "mallory"):
        make_node_key(tmp_path / name, tmp_path / f"{name}.pub")
    signs = {name: signer(tmp_path / name) for name in ("a", "b", "mallory")}
    return signs, lambda c, data, sign: genuine(tmp_path / f"{c}.pub", data, sign), tmp_path


def opened(wire, keys, clients=("a", "b"), timeouts=Timeouts(2.0, 0.3)):  # noqa: B008
    told = []
    registry = ClientRegistry(
        wire, clients, MINE, keys[1], lambda line, *_, **__: told.append(line), timeouts
    )
    for number, node in wire.there.items():
        greet(registry, number, node.since)
    return registry, told


def test_answers_of_a_known_client_count(keys):
    registry, told = opened(Nodes({1: Node("a", keys[0]["a"])}), keys)
    assert told == ["'a' is here"]
    assert RequestQueue(registry, {"run": "r"}).ask("a", b"train") == b"train"
    assert registry.gather(1) == {"a": {**MINE, "train": 9}}


def test_nobody_waits_for_a_revoked_client(keys):
    """Neither in a round, for as long as for one that may come back, nor before it begins."""
    registry, told = opened(
        Nodes({1: Node("a", keys[0]["a"])}), keys, timeouts=Timeouts(60.0, 60.0)
    )
    registry.revoked = lambda client: client == "b"
    with pytest.raises(ClientLost, match="its key is revoked"):
        registry.ask("b", {}, b"train")
    with pytest.raises(PartialRun):
        registry.gather(2, 0.0)
    assert told[-1] == "1 of 2 clients are here; missing: "


def test_a_node_cannot_take_another_clients_name(keys):
    registry, told = opened(Nodes({1: Node("a", keys[0]["mallory"])}), keys)
    assert not registry.connections
    assert "the signature is not that of 'a'" in told[0]


def test_a_name_that_is_not_expected_is_refused(keys):
    registry, told = opened(Nodes({1: Node("mallory", keys[0]["mallory"])}), keys)
    assert not registry.connections
    assert "'mallory' is not expected, only a, b" in told[0]


@pytest.mark.parametrize("what", list(MINE))
def test_a_difference_is_named(keys, what):
    node = Node("a", keys[0]["a"], {**MINE, what: "other"})
    registry, told = opened(Nodes({1: node}), keys)
    reason = f"its {what} is other, the server's {MINE[what]}: use the same on both"
    reason += MENDS.get(what, "")
    assert not registry.connections
    assert told == [f"'a' refused: {reason}"]
    assert node.heard[-1] == ("refused", reason)


def test_the_second_node_of_a_name_is_refused(keys):
    registry, told = opened(Nodes({n: Node("a", keys[0]["a"]) for n in (1, 2)}), keys)
    assert registry.connections["a"].node == 1
    assert told[1] == ("'a' refused: another node is connected under this name: stop one of them")


def test_an_old_answer_fits_no_new_request(keys):
    node = Node("a", keys[0]["a"])
    registry, _ = opened(Nodes({1: node}), keys)
    kept = []
    whole = node.answer

    def keep(asked):
        kept.append(whole(asked))
        return kept[-1]

    node.answer = keep
    registry.ask("a", {}, b"one")
    node.answer, node.stale = whole, kept[0]
    with pytest.raises(ClientLost, match="signature"):
        registry.ask("a", {}, b"one")


def test_one_client_cannot_answer_for_another(keys):
    nodes = {1: Node("a", keys[0]["a"]), 2: Node("b", keys[0]["b"])}
    registry, _ = opened(Nodes(nodes), keys)
    nodes[1].client, nodes[1].sign = "b", keys[0]["b"]
    with pytest.raises(ClientLost, match="'b' answered in its place"):
        registry.ask("a", {}, b"x")


def test_nothing_that_a_revoked_key_signs_counts(keys):
    registry, _ = opened(Nodes({1: Node("a", keys[0]["a"])}), keys)
    (keys[2] / "a.pub").unlink()
    with pytest.raises(ClientLost, match="revoked"):
        registry.ask("a", {}, b"x")


def test_what_went_wrong_at_the_client_is_the_reason(keys):
    node = Node("a", keys[0]["a"])
    registry, _ = opened(Nodes({1: node}), keys)
    node.error = "disk full"
    with pytest.raises(ClientLost, match="disk full"):
        registry.ask("a", {}, b"x")


def test_a_client_that_answers_later_is_asked_again_within_the_servers_patience(keys, monkeypatch):
    node, waits = Node("a", keys[0]["a"]), []
    registry, told = opened(Nodes({1: node}), keys, timeouts=Timeouts(50.0, 1.0))

    async def wait(seconds):
        waits.append(seconds)
        node.error = ""

    monkeypatch.setattr(client_registry.asyncio, "sleep", wait)
    node.error = f"{LATER}40 s: so many samples a minute"
    assert registry.ask("a", {}, b"x") == b"x"
    assert waits == [40.0]
    assert told[-1].startswith("'a' answers later: ask again in 40 s")
    for error in (f"{LATER}51 s: so many", f"{LATER}-1 s: so many", f"so many; {LATER}4 s: ever"):
        node.error = error
        with pytest.raises(ClientLost, match=r"so many"):
            registry.ask("a", {}, b"x")
    assert waits == [40.0]


def test_bytes_that_are_no_answer_are_lost(keys):
    node = Node("a", keys[0]["a"])
    registry, _ = opened(Nodes({1: node}), keys)
    for junk in (b"", b"\xff" * 9, b"\x02\x00\x00\x00{}"):
        node.stale = junk
        with pytest.raises(ClientLost, match="malformed"):
            registry.ask("a", {}, b"x")


@pytest.mark.slow
def test_a_node_that_went_is_asked_again_once_it_is_back(keys):
    wire = Nodes({1: Node("a", keys[0]["a"])})
    registry, _ = opened(wire, keys)
    wire.fail = [ClientGone()]
    assert registry.ask("a", {}, b"x") == b"x"


def test_who_is_not_connected_is_lost_after_its_patience(keys):
    registry, _ = opened(Nodes({}), keys)
    began = time.monotonic()
    with pytest.raises(ClientLost, match="not connected"):
        registry.ask("a", {}, b"x")
    assert 0.2 < time.monotonic() - began < 1.5


@pytest.mark.slow
def test_the_watch_sees_who_comes_and_who_goes(keys):
    wire = Nodes({})
    registry, told = opened(wire, keys)
    registry.open()
    try:
        threading.Timer(0.2, lambda: wire.there.update({7: Node("b", keys[0]["b"])})).start()
        assert list(registry.gather(1, 5.0)) == ["b"]
        wire.there.clear()
        until = time.monotonic() + 5
        while registry.connections and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        registry.close()
    assert "0 of 1 clients are here; missing: a, b" in told
    assert told[-1] == "'b' is gone"


@pytest.mark.slow
def test_a_greeting_without_an_answer_is_sent_again(keys):
    """Where a thousand connect at once, some answers come too late; their nodes stay connected."""
    wire = Nodes({})
    registry, told = opened(wire, keys)
    wire.fail = [ClientLost("no answer in 60 s")]
    registry.open()
    try:
        # Some looks after the watch began: its table of greeted nodes must be the same one.
        time.sleep(2.5)
        wire.there[7] = Node("b", keys[0]["b"])
        assert list(registry.gather(1, 8.0)) == ["b"]
    finally:
        registry.close()
    assert "node 7 did not say who it is (no answer in 60 s)" in told


class SilentNodes(Nodes):
    """Nodes of which some take a greeting and never answer; `waits` counts what waits for them."""

    def __init__(self, nodes, silent):
        super().__init__(nodes)
        self.silent, self.waits = silent, 0

    async def send(self, node, data, seconds, there=lambda: True, shared=b""):
        if node not in self.silent:
            return await super().send(node, data, seconds)
        self.waits += 1
        while there():
            await asyncio.sleep(0.01)
        self.waits -= 1
        raise ClientGone


def test_of_many_missing_clients_few_lines_are_printed(keys):
    """A hundred that come one after the other would have a hundred lines with twenty names each."""
    names = tuple(f"c{number:03d}" for number in range(100))
    registry, told = opened(Nodes({}), keys, names)

    def come():
        for number, name in enumerate(names):
            with registry.changed:
                registry.connections[name] = ClientConnection(number, "1", {})
                registry.changed.notify_all()
            time.sleep(0.002)

    coming = threading.Timer(0.3, come)
    coming.start()
    assert len(registry.gather(100, 30.0)) == 100
    coming.join()
    # The first, and those in which all names of the missing are.
    assert told[0].startswith("0 of 100 clients are here; missing: c000, c001,")
    assert len(told) <= 1 + NAMED


def greeted_beside(registry, silent):
    """Greet nodes as the watch does, each with the time of its connection; then node 1."""

    async def check():
        tasks = []
        for node, since in silent:
            registry.greeted[node] = since
            tasks.append(asyncio.create_task(registry._greet(node, since)))
            await asyncio.sleep(0)
        registry.greeted[1] = "1"
        async with asyncio.timeout(5.0):
            await registry._greet(1, "1")
        registry.greeted.clear()
        await asyncio.wait(tasks, timeout=5.0)

    asyncio.run(check())
    assert list(registry.connections) == ["a"]


def test_a_node_that_connects_again_and_again_keeps_nobody_from_being_greeted(keys):
    """It has a key and never answers. Each of its connections waited for a minute in a turn."""
    wire = SilentNodes({}, {2})
    registry, _ = opened(wire, keys)
    wire.there[1] = Node("a", keys[0]["a"])
    greeted_beside(registry, [(2, str(at)) for at in range(2 * client_registry.GREETED)])
    assert wire.waits == 0


def test_nodes_that_never_answer_keep_others_waiting_once(keys):
    """After their first greeting, whose minute is over, they have other turns than new nodes."""
    silent = range(2, 2 + 2 * client_registry.GREETED)
    wire = SilentNodes({}, set(silent))
    registry, _ = opened(wire, keys)
    wire.there[1] = Node("a", keys[0]["a"])
    wire.silent, late = set(), wire.silent
    wire.fail = [ClientLost("no answer in 60 s") for _ in silent]
    for node in silent:
        greet(registry, node)
    wire.silent = late
    greeted_beside(registry, [(node, "2") for node in silent])


def test_a_refused_node_that_is_let_in_is_not_greeted_again(keys):
    """A new greeting is a new connection: what its client computes at the time would be lost."""
    wire = Nodes({1: Node("a", keys[0]["a"]), 2: Node("b", keys[0]["b"], {**MINE, "torch": "t0"})})
    registry, _ = opened(wire, keys)
    assert registry.refused == {2}
    wire.there[2] = Node("b", keys[0]["b"], since="2")
    greet(registry, 2, "2")
    assert registry._remove_gone({2: "2"}) == set()
    assert list(registry.connections) == ["b"]


@pytest.mark.slow
def test_who_leaves_has_those_greeted_again_that_were_refused_and_nobody_else(keys):
    """A copy of a node is let in when the first one has gone; who is being greeted is not asked."""
    wire = Nodes({1: Node("a", keys[0]["a"])})
    registry, told = opened(wire, keys)
    wire.there[2] = Node("a", keys[0]["a"])
    asked = []
    registry.wire.answer = lambda node, data, real=wire.answer: (
        asked.append(node) or real(node, data)
    )
    wire.there[3] = Node("b", keys[0]["b"])
    registry.greeted = {3: wire.there[3].since}  # its greeting is under way
    registry.open()
    try:
        until = time.monotonic() + 5
        while not any("another node is connected" in line for line in told):
            assert time.monotonic() < until
            time.sleep(0.05)
        del wire.there[1]
        while "a" not in registry.connections or registry.connections["a"].node != 2:
            assert time.monotonic() < until + 5
            time.sleep(0.05)
    finally:
        registry.close()
    assert 3 not in asked


@pytest.mark.parametrize("shared", [b"", b"the model"])
def test_a_request_may_end_with_bytes_that_others_share(keys, shared):
    """A message without arrays has none, and its answer counts all the same."""
    registry, _ = opened(Nodes({1: Node("a", keys[0]["a"])}), keys)
    asked = RequestQueue(registry, {"run": "r"}).start("a", b"train ", SharedBytes(shared))
    assert asked.result(5) == b"train " + shared
