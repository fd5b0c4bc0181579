"""Answers 'none' that are kept back until there is something: one for each node, and no message."""

import asyncio
import base64
import os
import socket
from contextlib import suppress

import pytest

pytest.importorskip("flwr", reason="needs the extra 'deploy'")

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    PullObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)

from vergence.deployment.transport import long_polling
from vergence.deployment.transport.long_polling import (
    AGAIN,
    FETCHED,
    KEY,
    PART,
    PULL,
    PUSH,
    SIGNATURE,
    TIME,
    WANTED,
    LongPollMiddleware,
    PathMiddleware,
)
from vergence.deployment.transport.wakeups import Wakeups

ANNA, BEN = 7, 2**63
SOON = 5.0


class Link:
    """What is behind: answers with a status and a body, when it is let."""

    def __init__(self):
        self.status, self.body, self.served = 200, b"", []
        self.looked = lambda: None

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        self.served.append((scope["path"], body))
        self.looked()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body})


class Polls:
    """The middleware in its event loop, before a link; nodes ask through it."""

    def __init__(self):
        self.link, self.wakeups = Link(), Wakeups(os.urandom(32))
        self.run = self.wakeups.listen("run")
        self.middleware = LongPollMiddleware(self.link, self.wakeups)
        self.arriving = lambda: None

    async def ask(self, node, path=PULL, body=None, parts=1, key=b"a2V5", length=0, signed=()):
        """Return status, whether to ask again, and the body of an answer."""
        kind = PullMessagesRequest if path == PULL else PushMessagesRequest
        data = kind(node=Node(node_id=node)).SerializeToString() if body is None else body
        step = -(-len(data) // parts)
        cut = [data[at * step : (at + 1) * step] for at in range(parts)]
        rest = iter([{"body": part, "more_body": at + 1 < parts} for at, part in enumerate(cut)])
        found = []

        async def receive():
            self.arriving()
            return next(rest)

        async def send(message):
            found.append(message)

        headers = [(KEY, key), (b"content-length", b"%d" % length), *signed]
        scope = {"type": "http", "path": path, "headers": headers}
        await self.middleware(scope, receive, send)
        head, *bodies = found
        again = (AGAIN.encode(), b"1") in head["headers"]
        return head["status"], again, b"".join(message["body"] for message in bodies)

    async def kept_waiting(self, node, **options):
        """Begin to ask; return once the answer is kept back."""
        asking = asyncio.create_task(self.ask(node, **options))
        async with asyncio.timeout(SOON):
            while node not in self.middleware.waiting:
                assert not asking.done()
                await asyncio.sleep(0)
        return asking

    def message_for(self, node):
        """Tell, as the run does, that there is a message, and let it be heard."""
        self.wakeups.tell("link", node)
        self.middleware.read_notices()


@pytest.fixture
def polls():
    made = Polls()
    with made.run, made.middleware.notices:
        yield made


def test_none_is_kept_back_until_there_is_a_message(polls):
    async def check():
        asking = await polls.kept_waiting(ANNA)
        polls.message_for(BEN)
        await asyncio.sleep(0.02)
        assert not asking.done()
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")
        assert not polls.middleware.waiting

    asyncio.run(check())


def test_where_notices_may_be_lost_everybody_asks_again(polls):
    """So many come at once that the socket does not keep them all."""

    async def check():
        asking = await polls.kept_waiting(ANNA)
        for other in range(1000):
            polls.wakeups.tell("link", 1000 + other)
        polls.wakeups.tell("link", ANNA)
        polls.middleware.read_notices()
        assert await asking == (200, True, b"")

    asyncio.run(check())


def crowd(polls):
    """Send 20 datagrams without a proof, as anybody on the machine may."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
        for _ in range(20):
            with suppress(BlockingIOError):
                sending.sendto(b"7", polls.wakeups.socket_name("link"))


def test_what_has_no_proof_answers_nobody(polls):
    async def check():
        asking = await polls.kept_waiting(ANNA)
        crowd(polls)
        polls.middleware.read_notices()
        await asyncio.sleep(0.02)
        assert not asking.done()
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")

    asyncio.run(check())


def test_a_flood_is_looked_at_now_and_then(polls, monkeypatch):
    """The loop rests from it, and hears of a message all the same."""
    looks = []

    def heard(real=polls.middleware.notices.receive):
        looks.append(real())
        crowd(polls)  # there is always more
        return looks[-1]

    async def check():
        asking = await polls.kept_waiting(ANNA)
        crowd(polls)
        polls.middleware.listen()
        for _ in range(200):
            await asyncio.sleep(0)
        assert looks == [(set(), False)]
        monkeypatch.undo()
        polls.middleware.notices.receive()
        polls.wakeups.tell("link", ANNA)
        async with asyncio.timeout(SOON):
            assert await asking == (200, True, b"")

    monkeypatch.setattr(long_polling, "REST", 0.5)
    monkeypatch.setattr(polls.middleware.notices, "receive", heard)
    asyncio.run(check())


def test_a_message_that_comes_while_the_link_looks_is_not_missed(polls):
    """It was too late for this look, and there is no other notice of it."""
    polls.link.looked = lambda: polls.message_for(ANNA)
    assert asyncio.run(polls.ask(ANNA)) == (200, True, b"")


def test_an_old_notice_holds_for_no_later_request(polls):
    async def check():
        polls.message_for(ANNA)
        asking = await polls.kept_waiting(ANNA)
        asking.cancel()

    asyncio.run(check())


def test_a_message_is_passed_on_at_once(polls):
    polls.link.body = b"a message"
    assert asyncio.run(polls.ask(ANNA)) == (200, False, b"a message")


def test_what_waited_never_gets_a_message(polls):
    """A key that is revoked meanwhile, or a line that is dead, takes none with it."""

    async def check():
        asking = await polls.kept_waiting(ANNA)
        polls.link.body = b"a message"
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")
        assert len(polls.link.served) == 1

    asyncio.run(check())


def test_none_is_told_when_nothing_comes(polls, monkeypatch):
    monkeypatch.setattr(long_polling, "HOLD", 0.01)
    assert asyncio.run(polls.ask(ANNA)) == (200, False, b"")
    assert not polls.middleware.waiting


def test_a_node_keeps_one_request_waiting(polls):
    """Else one that asks a thousand times would hold a thousand connections for ten seconds."""

    async def check():
        first = await polls.kept_waiting(ANNA)
        asking = [first, *(asyncio.create_task(polls.ask(ANNA)) for _ in range(50))]
        await asyncio.sleep(0.05)
        assert [task.done() for task in asking] == [True] * 50 + [False]
        assert asking[0].result() == (200, False, b"")
        polls.message_for(ANNA)
        assert await asking[-1] == (200, True, b"")

    asyncio.run(check())


@pytest.mark.parametrize("status", [401, 403, 500])
def test_who_is_refused_is_not_kept_waiting(polls, status):
    """A signature that is not genuine: it takes no place, and the node's own request none's."""

    async def check():
        asking = await polls.kept_waiting(ANNA)
        polls.link.status = status
        assert await polls.ask(ANNA) == (status, False, b"")
        assert not asking.done()
        asking.cancel()

    asyncio.run(check())


@pytest.mark.parametrize("body", [b"", b"x" * (long_polling.SMALL + 1)])
def test_a_request_that_is_no_nodes_is_not_looked_into(polls, body):
    assert asyncio.run(polls.ask(ANNA, body=body)) == (200, False, b"")
    assert polls.link.served[0][1] == body


def test_the_link_gets_a_request_in_its_parts(polls):
    async def check():
        asking = await polls.kept_waiting(BEN, parts=3)
        polls.message_for(BEN)
        assert await asking == (200, True, b"")

    asyncio.run(check())
    whole = PullMessagesRequest(node=Node(node_id=BEN)).SerializeToString()
    assert polls.link.served == [(PULL, whole)]


class Genuine:
    """A node's key, and what a request with its signature says."""

    def __init__(self):
        self.private, public = generate_key_pairs()
        self.key = base64.b64encode(public_key_to_bytes(public))

    def request(self, when=b"2026-11-30T19:00:00+00:00", signed=None):
        """Return the headers of a request: its key, and the signature of a time."""
        signature = base64.b64encode(sign_message(self.private, signed or when))
        return {"key": self.key, "signed": [(TIME, when), (SIGNATURE, signature)]}


@pytest.fixture(scope="module")
def anna():
    return Genuine()


def held_once(polls, monkeypatch, **options):
    """Let a node ask once, and its answer 'none' be over."""
    with monkeypatch.context() as patch:
        patch.setattr(long_polling, "HOLD", 0.01)
        assert asyncio.run(polls.ask(ANNA, **options)) == (200, False, b"")
    assert len(polls.link.served) == 1


def test_of_who_only_waits_flower_is_asked_once(polls, anna, monkeypatch):
    held_once(polls, monkeypatch, **anna.request())

    async def check():
        for _ in range(3):
            asking = await polls.kept_waiting(ANNA, parts=2, **anna.request())
            polls.middleware.end_wait(ANNA, False)
            assert await asking == (200, False, b"")
        assert len(polls.link.served) == 1
        asking = await polls.kept_waiting(ANNA, **anna.request())
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")
        polls.link.body = b"a message"
        assert await polls.ask(ANNA, **anna.request()) == (200, False, b"a message")
        assert len(polls.link.served) == 2

    asyncio.run(check())


def test_a_message_between_two_requests_is_not_missed(polls, anna, monkeypatch):
    held_once(polls, monkeypatch, **anna.request())
    polls.message_for(ANNA)
    polls.link.body = b"a message"
    assert asyncio.run(polls.ask(ANNA, **anna.request())) == (200, False, b"a message")


@pytest.mark.parametrize("lost", ["notices", "time", "message"])
def test_flower_is_asked_anew(polls, anna, monkeypatch, lost):
    """A notice may be lost between two requests, and a node that took a message is not idle."""
    monkeypatch.setattr(long_polling, "ANEW", 0.0 if lost == "time" else 60.0)
    held_once(polls, monkeypatch, **anna.request())
    if lost == "notices":
        for other in range(1000):
            polls.wakeups.tell("link", 1000 + other)
        polls.middleware.read_notices()
    if lost == "message":
        polls.message_for(ANNA)
        polls.link.body = b"a message"
        asyncio.run(polls.ask(ANNA, **anna.request()))
    served = len(polls.link.served)
    polls.link.body = b"another"
    assert asyncio.run(polls.ask(ANNA, **anna.request())) == (200, False, b"another")
    assert len(polls.link.served) == served + 1


@pytest.mark.parametrize("moment", ["its request arrives", "Flower looks"])
def test_notices_that_are_lost_at_any_moment_are_not_missed(polls, anna, monkeypatch, moment):
    """One of them may have been the node's own; it asked before, or Flower has looked already."""

    def lose():
        for other in range(1000):
            polls.wakeups.tell("link", 1000 + other)
        polls.middleware.read_notices()

    if moment == "Flower looks":
        polls.link.looked = lose
    else:
        held_once(polls, monkeypatch, **anna.request())
        polls.arriving = lose
    monkeypatch.setattr(long_polling, "HOLD", SOON)
    monkeypatch.setattr(long_polling, "ANEW", 60.0)

    async def check():
        async with asyncio.timeout(SOON / 2):
            assert await polls.ask(ANNA, **anna.request()) == (200, True, b"")
        polls.link.body, polls.arriving = b"a message", lambda: None
        assert await polls.ask(ANNA, **anna.request()) == (200, False, b"a message")

    asyncio.run(check())


def test_a_node_may_end_its_own_entry_while_its_request_arrives(polls, anna, monkeypatch):
    """By a second request after a notice, of which the first one must not learn by an error."""
    held_once(polls, monkeypatch, **anna.request())
    polls.arriving = polls.middleware.idle.clear

    async def check():
        asking = await polls.kept_waiting(ANNA, **anna.request())
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")

    asyncio.run(check())


@pytest.mark.parametrize("forged", ["signature", "time", "nothing signed"])
def test_whose_signature_is_forged_is_flowers_to_refuse(polls, anna, monkeypatch, forged):
    """With a node's public key alone nobody ends its waiting, or keeps a connection open."""
    held_once(polls, monkeypatch, **anna.request())
    false = {
        "signature": {**anna.request(), "signed": Genuine().request()["signed"]},
        "time": anna.request(signed=b"2026-11-30T18:00:00+00:00"),
        "nothing signed": {"key": anna.key},
    }[forged]

    async def check():
        asking = await polls.kept_waiting(ANNA, **anna.request())
        polls.link.status = 401
        assert await polls.ask(ANNA, **false) == (401, False, b"")
        assert not asking.done()
        asking.cancel()

    asyncio.run(check())


def test_who_names_another_node_waits_in_its_own_place(polls, anna, monkeypatch):
    held_once(polls, monkeypatch, **anna.request())

    async def check():
        other = await polls.kept_waiting(BEN)
        asking = asyncio.create_task(polls.ask(BEN, **anna.request()))
        async with asyncio.timeout(SOON):
            while ANNA not in polls.middleware.waiting:
                await asyncio.sleep(0)
        assert not other.done()
        polls.message_for(ANNA)
        assert await asking == (200, True, b"")
        other.cancel()

    asyncio.run(check())


def announced(*parts):
    """Return how the link answers to an announcement of which it lacks these parts."""
    return PushMessagesResponse(objects_to_push=parts).SerializeToString()


def test_the_run_is_told_when_an_answer_is_whole(polls):
    polls.link.body = announced("a", "b")
    assert asyncio.run(polls.ask(BEN, PUSH)) == (200, False, announced("a", "b"))
    assert not polls.run.receive()[0]
    asyncio.run(polls.ask(BEN, PART))
    assert not polls.run.receive()[0]
    asyncio.run(polls.ask(BEN, PART))
    assert polls.run.wait(SOON)[0] == {BEN}
    asyncio.run(polls.ask(BEN, PART))
    assert not polls.run.receive()[0]


def test_an_answer_of_which_the_link_has_every_part_is_told_of_at_once(polls):
    polls.link.body = announced()
    asyncio.run(polls.ask(BEN, PUSH))
    assert polls.run.wait(SOON)[0] == {BEN}


def test_parts_of_one_node_are_none_of_anothers(polls):
    polls.link.body = announced("a")
    asyncio.run(polls.ask(BEN, PUSH, key=b"YmVu"))
    asyncio.run(polls.ask(ANNA, PART, key=b"YW5u"))
    assert not polls.run.receive()[0]
    asyncio.run(polls.ask(BEN, PART, key=b"YmVu"))
    assert polls.run.wait(SOON)[0] == {BEN}


def test_a_node_is_owed_from_once_however_its_key_is_spelt(polls):
    """Base64 has spare bits at its end: four spellings of one key."""
    polls.link.body = announced("a")
    for spelling in (b"YQ==", b"YR==", b"YS==", b"YT=="):
        asyncio.run(polls.ask(BEN, PUSH, key=spelling))
    assert polls.middleware.missing_parts == {b"a": (BEN, 1)}


def test_of_who_asks_for_a_message_no_part_is_awaited(polls):
    """It has sent its answer, or will announce it anew."""
    polls.link.body = announced("a")
    asyncio.run(polls.ask(BEN, PUSH, key=b"YmVu"))
    asyncio.run(polls.ask(ANNA, PUSH, key=b"YW5u"))
    polls.link.body = b"a message"
    asyncio.run(polls.ask(BEN, key=b"YmVu"))
    assert polls.middleware.missing_parts == {b"ann": (ANNA, 1)}


@pytest.mark.parametrize("path", [PUSH, PART])
def test_what_is_refused_wakes_nobody(polls, path):
    polls.link.body = announced("a")
    asyncio.run(polls.ask(BEN, PUSH))
    polls.link.status = 401
    asyncio.run(polls.ask(BEN, path))
    assert not polls.run.receive()[0]


def test_other_requests_go_through(polls):
    polls.link.status, polls.link.body = 404, b"other"
    assert asyncio.run(polls.ask(ANNA, "/v1/fleet/send-node-heartbeat")) == (404, False, b"other")
    assert not polls.run.receive()[0]
    assert not polls.middleware.waiting


def test_notices_are_heard_as_long_as_the_link_lives(polls):
    async def check():
        began = {"type": "lifespan"}

        async def receive():
            return {"body": b""}

        async def send(_):
            pass

        with pytest.raises(KeyError):  # the link above serves requests alone
            await polls.middleware(began, receive, send)
        asking = await polls.kept_waiting(ANNA)
        polls.wakeups.tell("link", ANNA)
        async with asyncio.timeout(SOON):
            assert await asking == (200, True, b"")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("path", "seen"),
    [("/v1/control/start-run", True), ("/v1/control", False), ("/v1/fleet/v1/control/", False)],
)
def test_a_middleware_sees_its_own_path_alone(path, seen):
    async def behind(scope, *_):
        scope["through"].append("behind")

    class Mark:
        def __init__(self, app, mark):
            self.app, self.mark = app, mark

        async def __call__(self, scope, receive, send):
            scope["through"].append(self.mark)
            await self.app(scope, receive, send)

    made, through = PathMiddleware(behind, Mark, "/v1/control/", mark="own"), []
    asyncio.run(made({"type": "http", "path": path, "through": through}, None, None))
    assert through == [*["own"] * seen, "behind"]
    through.clear()
    asyncio.run(made({"type": "lifespan", "through": through}, None, None))
    assert through == ["own", "behind"]


def announcement(name):
    """Return the bytes with which a node announces the answer of this name."""
    about = Message(metadata=Metadata(message_id=name))
    return PushMessagesRequest(node=Node(node_id=ANNA), messages_list=[about]).SerializeToString()


@pytest.fixture
def two_at_once(polls, monkeypatch):
    """Nodes of which two may send their answers at the same time."""
    polls.middleware.turns = asyncio.Semaphore(2)
    monkeypatch.setattr(long_polling, "HOLD", SOON)

    async def announce(name, node=None):
        key = base64.b64encode((node or name).encode())
        return (await polls.ask(ANNA, PUSH, announcement(name), key=key))[0]

    polls.announce = announce
    return polls


def test_a_node_sends_its_answer_when_the_run_has_fetched_another(two_at_once):
    async def check():
        polls = two_at_once
        assert [await polls.announce(name) for name in ("first", "second")] == [200, 200]
        third = asyncio.create_task(polls.announce("third"))
        await asyncio.sleep(0.02)
        assert not third.done()
        for name in ("nobody's", "second", "second"):
            fetched = ConfirmMessageReceivedRequest(message_object_id=name)
            await polls.ask(0, FETCHED, fetched.SerializeToString())
        assert await third == 200
        assert sorted(polls.middleware.passing) == [b"first", b"third"]
        assert polls.middleware.turns.locked()

    asyncio.run(check())


def test_nodes_that_send_byte_by_byte_or_never_keep_nobody_out(two_at_once, monkeypatch):
    """Their turn is over after a while, though nothing has come."""
    monkeypatch.setattr(long_polling, "TURN", 0.05)

    async def check():
        names = ("slow", "silent", "honest", "other")
        assert [await two_at_once.announce(name) for name in names] == [200] * 4

    asyncio.run(check())


def test_announcements_that_never_end_keep_nobody_out(two_at_once, monkeypatch):
    """Anybody can begin one with somebody's public key, as Flower reads it before the signature."""
    monkeypatch.setattr(long_polling, "TURN", 0.05)

    async def check():
        never, honest = asyncio.Event(), two_at_once.link

        async def endless(*_):
            await never.wait()

        two_at_once.middleware.app = endless
        held = [asyncio.create_task(two_at_once.announce(f"held{n}")) for n in range(2)]
        await asyncio.sleep(0.01)
        two_at_once.middleware.app = honest
        assert await two_at_once.announce("honest") == 200
        assert not any(task.done() for task in held)
        for task in held:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.1)
        assert [await two_at_once.announce(name) for name in ("other", "third")] == [200, 200]
        assert two_at_once.middleware.turns.locked()  # no turn was given back twice

    asyncio.run(check())


def test_a_node_has_one_turn_however_often_it_announces(two_at_once):
    async def check():
        polls = two_at_once
        for name in ("one", "two", "three"):
            assert await polls.announce(name, "greedy") == 200
        assert await polls.announce("honest") == 200
        waiting = asyncio.create_task(polls.announce("four", "other"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        polls.middleware.end_turn("three")
        assert await waiting == 200

    asyncio.run(check())


def test_a_node_whose_turn_does_not_come_announces_its_answer_again(two_at_once, monkeypatch):
    """Flower's node does so where the status is 503; what it awaits is not counted before."""
    monkeypatch.setattr(long_polling, "HOLD", 0.02)

    async def check():
        for name in ("first", "second"):
            await two_at_once.announce(name)
        assert await two_at_once.announce("third") == 503
        assert len(two_at_once.link.served) == 2

    asyncio.run(check())


def test_who_is_refused_waits_for_no_turn(two_at_once):
    """Anybody can announce answers with somebody's public key, and a wrong signature."""

    async def check():
        two_at_once.link.status = 401
        for name in ("first", "second", "third"):
            assert await two_at_once.announce(name) == 401
        assert not two_at_once.middleware.passing

    asyncio.run(check())


def test_no_part_is_taken_of_an_answer_that_is_too_large(polls):
    """Its parts are counted until the node gets its next message, and forged ones never."""
    polls.middleware.limit = 10

    async def part(size, status=200):
        polls.link.status = status
        return (await polls.ask(ANNA, PART, b"x" * size, length=size))[0]

    async def check():
        polls.link.body = b"a response"
        assert [await part(6), await part(4), await part(1)] == [200, 200, 413]
        assert (await polls.ask(ANNA, PULL))[0] == 200
        assert [await part(9, 401), await part(10), await part(1)] == [401, 200, 413]
        assert len(polls.link.served) == 5

    asyncio.run(check())


@pytest.fixture
def one_receives(polls, monkeypatch):
    """Nodes of which one may receive a part at a time; the first does not read what it gets."""
    polls.middleware.receiving = asyncio.Semaphore(1)
    monkeypatch.setattr(long_polling, "HOLD", SOON)
    polls.link.body = b"part" * 100_000
    polls.stalled, polls.pieces = asyncio.Event(), []

    async def silent(message):
        polls.pieces.append(len(message.get("body", b"")))
        if polls.pieces[-1]:
            await polls.stalled.wait()

    async def receive():
        return {"body": b""}

    scope = {"type": "http", "path": WANTED, "headers": []}
    polls.first = lambda: asyncio.create_task(polls.middleware(scope, receive, silent))
    return polls


def test_few_nodes_receive_a_part_at_the_same_time(one_receives):
    """Not all of a part is written to a connection that is full, and the next node waits."""

    async def check():
        polls = one_receives
        first = polls.first()
        await asyncio.sleep(0.02)
        second = asyncio.create_task(polls.ask(BEN, WANTED))
        await asyncio.sleep(0.02)
        assert polls.pieces == [0, long_polling.PIECE]
        assert not second.done()
        assert len(polls.link.served) == 1
        polls.stalled.set()
        assert await second == (200, False, polls.link.body)
        await first
        assert sum(polls.pieces) == len(polls.link.body)
        assert not polls.middleware.receiving.locked()

    asyncio.run(check())


def test_a_node_that_does_not_read_its_part_keeps_nobody_out(one_receives, monkeypatch):
    monkeypatch.setattr(long_polling, "TURN", 0.05)

    async def check():
        first = one_receives.first()
        await asyncio.sleep(0.02)
        assert await one_receives.ask(BEN, WANTED) == (200, False, one_receives.link.body)
        one_receives.stalled.set()
        await first
        assert await one_receives.ask(BEN, WANTED) == (200, False, one_receives.link.body)
        assert one_receives.middleware.receiving._value == 1

    asyncio.run(check())


def test_a_node_whose_turn_does_not_come_asks_for_its_part_again(one_receives, monkeypatch):
    """It is told that the part is not there yet, which Flower's node takes for no failure."""
    monkeypatch.setattr(long_polling, "HOLD", 0.02)

    async def check():
        first = one_receives.first()
        await asyncio.sleep(0.01)
        status, _, body = await one_receives.ask(BEN, WANTED)
        later = PullObjectResponse.FromString(body)
        assert (status, later.object_found, later.object_available) == (200, True, False)
        one_receives.stalled.set()
        await first

    asyncio.run(check())
