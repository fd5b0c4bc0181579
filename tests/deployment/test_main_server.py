"""Split learning in three roles: clients, main server, aggregator; each sees only its part."""

import threading
from dataclasses import replace

import pytest

from tests.conformance.test_methods import NAMES, build, run, task_of
from tests.deployment.test_remote_clients import COUNTS, PEOPLE, QUIET, Loop
from tests.engine.toys import STAMP, mostly_slow, table
from vergence.core.randomness import RandomStream
from vergence.core.serialization import pack, unpack
from vergence.deployment import remote_clients
from vergence.deployment.main_server import MainServer, SessionRelay, SessionRequest
from vergence.deployment.protocol import framed, unframed
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import PartialRun, StateError
from vergence.wire.encoding import decode

SERVED = [name for name in NAMES if build(name).served]
KEY = bytes(range(1, 256))


def cover(client, data, _asked=b""):
    """Stand for encryption: the same again opens it."""
    key = client.encode() + KEY
    return bytes(b ^ key[i % len(key)] for i, b in enumerate(data))


class Three(Loop):
    """Homes, a main server without data, and what passed between the three."""

    def __init__(self, method, folder, close=None):
        super().__init__(method, folder)
        self.close, self.served, self.relayed = close, [], []
        self.reborn()

    def reborn(self):
        """Begin with a main server that remembers nothing."""
        task = task_of(self.method)
        nobody = remote_people("toy", {})
        worker = ClientExecutor(
            self.method, task, LocalData(nobody, nobody), RandomStream("run", task.seed)
        )
        store = ClientStateStore(self.folder, task.seed, worker.records)
        self.server = MainServer(ClientRunner(worker, store), self.close, self.close)

    def ask_main_server(self, data):
        answer = self.server.answer(data)
        self.served.append((data, answer))
        return answer

    def relay(self, client, closed, beside):
        request = self.close(client, closed) if self.close else closed
        answer = self.home(client).answer(request, beside)
        self.relayed.append((closed, beside, request, answer))
        return self.close(client, answer) if self.close else answer


def three(method, path, line=None, **plan):
    """Run a method in three roles."""
    folder = RunDirectory(path / "server", STAMP, elsewhere=True)
    folder.open()
    plan = {"rounds": 3, "evaluate_every": 0, "solver": "sequential", **plan}
    line = line or Three(method, path / "homes")
    pool_factory, line.plan = remote_pool(line, relay=SessionRelay(line)), Plan(**plan)
    return run_rounds(
        method,
        task_of(method),
        federation=remote_people("toy", COUNTS),
        plan=line.plan,
        folder=folder,
        pool_factory=pool_factory,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(SERVED, "splitfed_u"))
def test_three_roles_give_the_bits_and_tables_of_one_process(name, tmp_path):
    method = build(name)
    here = run(method, tmp_path / "here", PEOPLE, rounds=3, solver="sequential")[1].fingerprint
    assert three(method, tmp_path).fingerprint == here
    for name_ in ("people.csv", "turns.csv"):
        assert table(tmp_path / "server", name_) == table(tmp_path / "here", name_)


def test_nobody_but_the_main_server_sees_smashed_data_and_it_sees_no_layers(tmp_path):
    method = build("splitfed")
    line = Three(method, tmp_path / "homes", cover)
    three(method, tmp_path, line)
    smashed = []
    for _, _, _, answer in line.relayed:
        note, body = unframed(answer)
        assert note["status"] == "ok"
        smashed.append(decode(body, {}).trees["smashed"].total.flat.numpy().tobytes())
    fronts = [
        unpack(beside)["front"].flat.numpy().tobytes() for _, beside, *_ in line.relayed if beside
    ]
    told = b"".join(asked + answer for asked, answer in line.served)
    carried = b"".join(closed for closed, *_ in line.relayed) + told
    opened = b"".join(request + answer for *_, request, answer in line.relayed) + told
    long = [values for values in smashed if len(values) > 16]
    assert long
    assert fronts
    assert not any(values in carried for values in long)
    assert all(values in opened for values in long)  # the search finds them where they are
    assert not any(values in opened for values in fronts)


@pytest.mark.slow
@pytest.mark.parametrize("at", mostly_slow((1, 2, 5, 9), 5))
def test_a_main_server_that_forgot_serves_anew_with_the_same_bits(at, tmp_path):
    method = build("splitfed")
    line, left = Three(method, tmp_path / "homes"), [at]
    honest = line.ask_main_server

    def forgetful(data):
        left[0] -= 1
        if left[0] == 0:
            line.reborn()
        return honest(data)

    line.ask_main_server = forgetful
    here = run(method, tmp_path / "here", PEOPLE, rounds=3, solver="sequential")[1].fingerprint
    assert three(method, tmp_path, line).fingerprint == here
    assert left[0] < 0


@pytest.mark.slow
def test_without_its_main_server_a_run_stops_and_goes_on(tmp_path):
    method = build("splitfed_v2")
    line = Three(method, tmp_path / "homes")
    honest, left = line.ask_main_server, [6]

    def dying(data):
        left[0] -= 1
        if left[0] <= 0:
            raise ClientLost("not connected")
        return honest(data)

    line.ask_main_server = dying
    with pytest.raises(PartialRun, match="main server is lost: not connected"):
        three(method, tmp_path, line)
    line.ask_main_server = honest
    here = run(method, tmp_path / "here", PEOPLE, rounds=3, solver="sequential")[1].fingerprint
    assert three(method, tmp_path, line).fingerprint == here


@pytest.mark.slow
def test_a_client_that_is_lost_is_served_no_more(tmp_path):
    """As in a run in which the aggregator holds the copies, and hears nothing either."""
    method = build("splitfed")
    line = Three(method, tmp_path / "homes")
    honest = line.relay

    def relay(client, closed, beside):
        if client == QUIET:
            raise ClientLost("no answer in 30 s")
        return honest(client, closed, beside)

    line.relay = relay
    three(method, tmp_path, line)
    rows = [r for r in table(tmp_path / "server", "turns.csv") if r["client"] == QUIET]
    assert {row["status"] for row in rows if row["verb"] == "serve"} == {"lost: no answer in 30 s"}


def changed(**changes):
    def change(note, body):
        return {**note, **changes}, body

    return change


def receipt(**changes):
    def change(note, body):
        return {**note, "done": [{**note["done"][0], **changes}]}, body

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(failed="out of memory"),
        changed(done=[]),
        changed(drops=["seed0.client.other.1.1.safetensors"]),
        changed(drops=["../../etc/passwd"]),
        receipt(client="other"),
        receipt(status="fine"),
        receipt(steps=-1),
        receipt(up={"smashed": "many"}),
        receipt(filed=["../x", "", None]),
        lambda note, body: (note, body[:40]),
        lambda note, body: (note, body[:-8] + b"\xff" * 8),
    ],
)
def test_a_main_server_that_answers_what_cannot_be_stops_the_run(change, tmp_path):
    method = build("splitfed")
    line = Three(method, tmp_path / "homes")
    honest = line.ask_main_server

    def lying(data):
        note, body = unframed(honest(data))
        return framed(*(change(note, body) if "done" in note else (note, body)))

    line.ask_main_server = lying
    with pytest.raises(PartialRun, match="answers what cannot be"):
        three(method, tmp_path, line)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        framed({}),
        framed({"kind": "serve"}, b"nothing"),
        framed({"kind": "client answer", "session": [], "number": "x", "lost": ""}),
        framed(
            {"kind": "serve"}, pack(SessionRequest("t", ("p00",), (), "1.1", 0, 0.0, 9.0, {}))[:60]
        ),
    ],
)
def test_what_is_no_request_is_refused(data, tmp_path):
    line = Three(build("splitfed"), tmp_path)
    with pytest.raises(StateError, match=r"no request|not a readable"):
        line.ask_main_server(data)


def test_a_message_that_comes_twice_is_heard_once(tmp_path):
    method = build("splitfed")
    line = Three(method, tmp_path / "homes")
    honest = line.ask_main_server

    def twice(data):
        first = honest(data)
        assert honest(data) == first
        return first

    line.ask_main_server = twice
    here = run(method, tmp_path / "here", PEOPLE, rounds=3, solver="sequential")[1].fingerprint
    assert three(method, tmp_path, line).fingerprint == here


class Endless(Three):
    """One client never sends its last batch; a second passes with every exchange."""

    def __init__(self, method, folder):
        super().__init__(method, folder)
        self.endless = replace(method, local=replace(method.local, epochs=10**6))
        self.here = threading.local()

    def monotonic(self):
        return getattr(self.here, "now", 0.0)

    def home(self, client):
        self.here.now = self.monotonic() + 1
        return super().home(client, self.endless if client == QUIET else self.method)


def test_a_client_without_an_end_is_served_no_more(tmp_path, monkeypatch):
    """Not in a round of its own length either: the others' replies wait for it."""
    line = Endless(build("splitfed"), tmp_path / "homes")
    monkeypatch.setattr(remote_clients, "time", line)
    pool_factory = remote_pool(line, session_seconds=40.0)
    folder = RunDirectory(tmp_path / "server", STAMP, elsewhere=True)
    folder.open()
    plan = line.plan = Plan(rounds=2, evaluate_every=0, solver="sequential")
    run_rounds(
        line.method,
        task_of(line.method),
        federation=remote_people("toy", COUNTS),
        plan=plan,
        folder=folder,
        pool_factory=pool_factory,
    )
    rows = [r for r in table(tmp_path / "server", "turns.csv") if r["verb"] == "serve"]
    found = {client: {r["status"] for r in rows if r["client"] == client} for client in COUNTS}
    assert found.pop(QUIET) == {"lost: its part took more than 40 s"}
    assert set.union(*found.values()) == {"ok"}


def test_a_main_server_that_asks_for_ever_is_given_up(tmp_path):
    line = Three(build("splitfed"), tmp_path / "homes")
    now = [0.0]

    def asking(_):
        now[0] += 1000.0
        return framed({"ask": QUIET, "attachments": [], "number": now[0]})

    def silent(*_):
        raise ClientLost("no answer")

    line.ask_main_server, line.relay = asking, silent
    folder = RunDirectory(tmp_path / "server", STAMP, elsewhere=True)
    folder.open()
    pool_factory = remote_pool(line, relay=SessionRelay(line, lambda: now[0]))
    plan = Plan(rounds=1, evaluate_every=0, solver="sequential")
    with pytest.raises(PartialRun, match="main server is lost: a talk with 1 client had no end"):
        run_rounds(
            line.method,
            task_of(line.method),
            federation=remote_people("toy", COUNTS),
            plan=plan,
            folder=folder,
            pool_factory=pool_factory,
        )
