"""A main server's folder: boxes that it and a client alone can open; three roles from folders."""

import json
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from tests.drills.deployment import TABLE
from tests.lines import Wire
from vergence.core.messages import Message
from vergence.core.serialization import pack
from vergence.deployment import folder_setup, launcher
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import ClientRegistry, RequestQueue
from vergence.deployment.folders import MAIN, ClientSide, ServerSide, settings
from vergence.deployment.keys import SealedBox, genuine, make_box_key
from vergence.deployment.main_server import SessionRelay
from vergence.deployment.main_server_node import MainServerNode
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError, StateError
from vergence.experiment.run import start
from vergence.experiment.schema import check

CLIENTS = ("p00", "p01", "p02")
SPLIT = {**TABLE, "methods": ["splitfed"]}


@pytest.fixture(autouse=True)
def without_flower(monkeypatch):
    monkeypatch.setattr(launcher, "check_flower", lambda: None)


@pytest.fixture
def keys(tmp_path):
    for name in ("a", "b", "c"):
        make_box_key(tmp_path / name, tmp_path / f"{name}.pub")
    return lambda mine, theirs, what="p00": SealedBox(
        tmp_path / mine, tmp_path / f"{theirs}.pub", what
    )


def test_a_box_opens_for_the_other_end_alone_and_as_what_it_is(keys):
    box = keys("a", "b").close(b"smashed", "run 1 request")
    assert keys("b", "a").open(box, "run 1 request") == b"smashed"
    assert b"smashed" not in box
    assert keys("a", "b").close(b"smashed", "run 1 request") != box
    others = [
        (keys("c", "a"), "run 1 request", box),
        (keys("b", "c"), "run 1 request", box),
        (keys("b", "a", "p01"), "run 1 request", box),
        (keys("b", "a"), "run 2 request", box),
        (keys("b", "a"), "run 1 request", box[:-1] + bytes([box[-1] ^ 1])),
        (keys("b", "a"), "run 1 request", b"short"),
    ]
    for other, about, data in others:
        with pytest.raises(StateError, match="does not open"):
            other.open(data, about)


def test_a_box_key_is_private(keys, tmp_path):
    (tmp_path / "a").chmod(0o644)
    with pytest.raises(StateError, match="can be read by others"):
        keys("a", "b")
    (tmp_path / "b.pub").write_bytes(b"none")
    with pytest.raises(StateError, match="no pair of box keys"):
        keys("c", "b")


class Ends(Wire):
    """Stands for Flower: every end is a node of this process."""

    def __init__(self, out):
        folders = [*(out / "clients" / name for name in CLIENTS), out / MAIN]
        ends = [MainServerNode if folder.name == MAIN else AnsweringClient for folder in folders]
        sides = [settings(folder, ClientSide) for folder in folders]
        made = [end(f, side) for end, f, side in zip(ends, folders, sides, strict=True)]
        self.ends = dict(zip(count(), made, strict=False))
        self.seen = []

    def nodes(self):
        return dict.fromkeys(self.ends, "now")

    def answer(self, node, data):
        answer = self.ends[node].answer(data)
        self.seen.append((data, answer))
        return answer


def deployed(tmp_path, table=SPLIT):
    folder_setup.init(check(table), CLIENTS, "127.0.0.1:8000", tmp_path / "out", main=True)
    return tmp_path / "out"


def led(out, wire, path, change=lambda line: line):
    """Run the experiment as a server does that has a main server beside it."""
    server, said = out / "server", []
    side, any_end = settings(server, ServerSide), next(iter(wire.ends.values()))
    registry = ClientRegistry(
        wire,
        side.clients,
        any_end.facts,
        lambda client, data, sign: genuine(server / "keys" / f"{client}.pub", data, sign),
        lambda line, *_, **__: said.append(line),
        servers=(MAIN,),
    )
    registry.open()
    try:
        told = registry.gather(3, 60)
        counts = {client: int(told[client]["train"]) for client in CLIENTS}
        experiment = any_end.experiment
        line = change(RequestQueue(registry, {"run": side.run, "label": "splitfed", "seed": 0}))
        folder = RunDirectory(path, {}, elsewhere=True)
        folder.open()
        found = run_rounds(
            experiment.methods["splitfed"],
            experiment.task(0),
            federation=remote_people("eye_synthetic", counts),
            plan=experiment.plan,
            folder=folder,
            pool_factory=remote_pool(line, relay=SessionRelay(line)),
        )
        return found.fingerprint
    finally:
        registry.close()


def test_three_roles_from_folders_give_the_simulators_bits(tmp_path):
    start(check(SPLIT), tmp_path / "here")
    found = tmp_path / "here" / "splitfed" / "results.json"
    here = json.loads(found.read_text())["fingerprint"]["0"]
    out = deployed(tmp_path)
    wire = Ends(out)
    assert led(out, wire, tmp_path / "run") == here


@pytest.mark.slow
def test_a_client_takes_no_request_that_the_main_server_did_not_close(tmp_path):
    """The aggregator cannot write one itself, nor hand on an old one as another run's."""
    out = deployed(tmp_path)
    wire, tries = Ends(out), []

    class Curious:
        def __init__(self, line):
            self.line = line

        def __getattr__(self, name):
            return getattr(self.line, name)

        def relay(self, client, closed, attachment):
            flipped = bytes([closed[-1] ^ 1])
            for box in (closed[:-1] + flipped, b"made up", b""):
                with pytest.raises(ClientLost, match="does not open"):
                    self.line.relay(client, box, attachment)
                tries.append(box)
            return self.line.relay(client, closed, attachment)

    led(out, wire, tmp_path / "run", Curious)
    assert tries


def test_nobody_may_ask_a_client_for_what_the_other_server_alone_may_see(tmp_path):
    """The aggregator could ask for smashed data in the open, the main server for layers."""
    out = deployed(tmp_path)
    side = settings(out / "clients" / "p00", ClientSide)
    end = AnsweringClient(out / "clients" / "p00", side)
    run = settings(out / "server", ServerSide).run
    note = {"run": run, "label": "splitfed", "seed": 0, "kind": "request", "attachment": 0}
    train = ClientRequest("turn", "p00", Message("train", {}), "0.1.1")
    served = MainServerNode(out / MAIN, settings(out / MAIN, ClientSide))
    for one, kind in ((end, "request"), (served, "main")):
        with pytest.raises(StateError, match=f"takes part in run '{run}' alone, not in 'r'"):
            one.work({**note, "run": "r", "kind": kind}, pack(train))
    with pytest.raises(StateError, match="'train' is not for who asks"):
        end.work(note, pack(train))
    with pytest.raises(StateError, match="'train' is not for who asks"):
        end.work(note, pack(replace(train, message=Message("release"), then=(Message("train"),))))
    main = SealedBox(out / MAIN / "box", out / MAIN / "peers" / "p00.box", "p00")
    for asked in (replace(train, message=Message("release")), replace(train, kind="evaluate")):
        box = main.close(pack(asked), f"{run} splitfed 0 request")
        with pytest.raises(StateError, match="did not do what the main server asked"):
            end.work({**note, "kind": "closed"}, box)
    said = (out / "clients" / "p00" / "events.log").read_text()
    assert "'release' is not for who asks" in said
    assert "'evaluate' is not for who asks" in said


def test_a_main_server_needs_somebody_to_serve(tmp_path):
    with pytest.raises(ConfigError, match="no method of this experiment cuts its network"):
        deployed(tmp_path, {**TABLE, "methods": ["fedavg"]})
    with pytest.raises(ConfigError, match="cannot be called 'main'"):
        folder_setup.init(
            check(SPLIT), ("p00", MAIN), "127.0.0.1:8000", tmp_path / "other", main=True
        )


def test_only_a_client_of_a_main_server_takes_closed_requests(tmp_path):
    out = deployed(tmp_path)
    folder = out / "clients" / "p00"
    side = settings(folder, ClientSide)
    note = {"run": "r", "label": "splitfed", "seed": 0, "kind": "closed", "attachment": 0}
    with pytest.raises(StateError, match="has no main server"):
        AnsweringClient(folder, replace(side, main=False)).work(note, b"")
    (folder / "main.box").unlink()
    with pytest.raises(StateError, match="no pair of box keys"):
        AnsweringClient(folder, side).work(note, b"")


@pytest.fixture
def meeting(tmp_path):
    """Give a client, the main server's box for it, what it is offered, and a request's note."""
    out = deployed(tmp_path)
    folder, run = out / "clients" / "p00", settings(out / "server", ServerSide).run
    end = AnsweringClient(folder, settings(folder, ClientSide))
    method, task = end.experiment.methods["splitfed"], end.experiment.task(0)
    box = SealedBox(out / MAIN / "box", out / MAIN / "peers" / "p00.box", "p00")
    note = {"run": run, "label": "splitfed", "seed": 0, "kind": "closed", "attachment": 0}
    close = partial(box.close, about=f"{run} splitfed 0 request")
    return end, lambda request: close(pack(request)), method.offer(method.server(task), "p00"), note


def test_a_main_server_has_no_say_in_a_clients_layers(meeting):
    """It could send layers that let data through as they are."""
    end, close, front, note = meeting
    with pytest.raises(StateError, match="did not do what the main server asked"):
        end.work(note, close(ClientRequest("turn", "p00", Message("train", front), "0.1.1")))
    assert "has no say in its layers" in (end.folder / "events.log").read_text()


def test_an_answer_to_the_main_server_is_not_given_to_the_aggregator(meeting, monkeypatch):
    """Even if the aggregator finds a request with the same short digest."""
    monkeypatch.setattr("vergence.deployment.client_node.quick_digest", lambda *_: "0" * 32)
    end, close, front, note = meeting
    trees = pack(dict(front))
    asked = ClientRequest("turn", "p00", Message("train"), "0.1.1", attachments=("front",))
    answer = end.work({**note, "attachment": len(trees)}, trees + close(asked))
    assert end.work({**note, "attachment": len(trees)}, trees + close(asked)) != answer  # new boxes
    for curious in (asked, replace(asked, kind="evaluate"), replace(asked, kind="digest")):
        with pytest.raises(StateError):
            end.work({**note, "kind": "request"}, pack(replace(curious, attachments=())))
