"""What a client says when it is greeted is looked at before it counts.

The adversary is one registered client, with a genuine key: it says what it likes of itself, field
by field. It is refused by name and told why; the federation begins and goes on without it.
"""

import hashlib
import json
import shutil

import pytest

from tests.drills.test_client_registry import Nodes
from tests.drills.test_folders import TABLE
from tests.lines import greet
from vergence.core.federation import Federation
from vergence.deployment import folder_setup, server_run
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.client_registry import (
    SAME,
    ClientRegistry,
    RequestQueue,
    Timeouts,
    reply,
    request,
)
from vergence.deployment.folders import ClientSide, ServerSide, settings
from vergence.deployment.keys import genuine, signer
from vergence.deployment.protocol import framed, unframed
from vergence.deployment.remote_clients import ClientLost, remote_people
from vergence.errors import StateError
from vergence.experiment.schema import check

MISSING = object()
NO_COUNT = {
    "negative": -5,
    "beyond all samples": 10**9 + 1,
    "of 401 digits": 10**400,
    "true": True,
    "false": False,
    "text": "5",
    "a fraction": 5.5,
    "a float": 5.0,
    "infinite": float("inf"),
    "not a number": float("nan"),
    "null": None,
    "missing": MISSING,
    "a list": [5],
    "a table": {},
}
NO_TEXT = {
    "of another": "other",
    "null": None,
    "missing": MISSING,
    "a number": 7,
    "true": True,
    "a list": ["c1"],
    "a table": {"c1": 1},
    "empty": "",
    "unprintable": "c1\n\x1b[2J",
}
LIES = {"train": NO_COUNT, **dict.fromkeys(SAME, NO_TEXT)}
"""Every field of a greeting, and the kinds of lie."""
NO_TIME = {
    "negative": -1,
    "infinite": float("inf"),
    "not a number": float("nan"),
    "true": True,
    "of 401 digits": 10**400,
    "text": "1",
    "null": None,
    "missing": MISSING,
    "a list": [1],
}
NO_ERROR = {"null": None, "missing": MISSING, "a number": 0, "false": False, "a list": []}
AROUND = {"own": NO_TIME, "error": NO_ERROR}
"""What is signed beside a greeting, or any answer."""
BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "null": b"null",
    "a list": b"[]",
    "a number": b"5",
    "no text": b"\xff\xfe",
    "too deep": b"[" * 100_000,
    "a number of 9,999 digits": b"9" * 9999,
}
FIELDS = [(field, kind) for field, kinds in LIES.items() for kind in kinds]


class Liar:
    """A client's machine: says of itself what it is told to, and answers requests with an echo."""

    def __init__(self, client, sign, body, around=None, always=False):
        self.client, self.sign, self.body, self.since = client, sign, body, "1"
        self.around, self.always, self.heard = around or {}, always, []

    def answer(self, asked):
        note, body = unframed(asked)
        self.heard.append((note["kind"], note.get("text", "")))
        found = self.body if note["kind"] == "hello" else body
        if not self.around or not (self.always or note["kind"] == "hello"):
            return reply(asked, self.client, self.sign, found)
        told = {"client": self.client, "error": "", "own": 0.0, **self.around}
        told = {k: v for k, v in told.items() if v is not MISSING}
        return signed(asked, self.sign, framed(told, found))


def signed(asked, sign, inner):
    return framed({"sign": sign(hashlib.sha256(asked).digest() + inner)}, inner)


def greeting(honest, **lies):
    """Return the bytes of a greeting with lies in it."""
    told = {k: v for k, v in {**honest, **lies}.items() if v is not MISSING}
    return json.dumps(told).encode()


def outcome(what, *arguments):
    """Return what became of a call: its result, or the error it ended with."""
    try:
        return what(*arguments)
    except Exception as error:
        return error


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A deployment's folders, and a client's honest greeting."""
    home = tmp_path_factory.mktemp("deployed")
    folder_setup.init(check(TABLE), ["p00", "p01", "p02"], "127.0.0.1:8000", home / "out")
    place = home / "out" / "clients" / "p00"
    end = AnsweringClient(place, settings(place, ClientSide))
    return home / "out", json.loads(end.carry_out(request("hello", {})))


@pytest.fixture
def registry_of(folders):
    """Return a registry whose liar is p01, and how to greet everybody."""
    home, honest = folders
    server, signs = home / "server", {}
    names = settings(server, ServerSide).clients
    for name in names:
        signs[name] = signer(home / "clients" / name / "node")

    def make(body, around=None, always=False):
        nodes = {n: Liar(name, signs[name], greeting(honest)) for n, name in enumerate(names)}
        nodes[1] = Liar("p01", signs["p01"], body, around, always)
        told = []
        registry = ClientRegistry(
            Nodes(nodes),
            names,
            {k: v for k, v in honest.items() if k != "train"},
            lambda c, data, sign: genuine(server / "keys" / f"{c}.pub", data, sign),
            lambda line, *_, **__: told.append(line),
            Timeouts(2.0, 0.1),
        )
        for number, node in nodes.items():
            outcome(greet, registry, number, node.since)
        return registry, told, nodes

    return make


def refused(registry, told, _):
    """The liar is not there, by one printable line that names it, and it was told why."""
    assert set(registry.connections) == {"p00", "p02"}
    assert set(registry.gather(2)) == {"p00", "p02"}
    about = [line for line in told if "p01" in line]
    assert len(about) == 1, told
    assert about[0].isprintable()
    assert len(about[0]) < 400
    return about[0]


def test_a_greeting_has_no_field_that_is_not_lied_about_here(folders):
    _, honest = folders
    assert set(honest) == set(LIES)
    note, inner = unframed(reply(b"", "p00", lambda _: "", b""))
    assert set(note) == {"sign"}
    assert set(unframed(inner)[0]) == {"client", *AROUND}


def test_the_honest_are_there(registry_of, folders):
    registry, _, _ = registry_of(greeting(folders[1]))
    assert {c: said["train"] for c, said in registry.gather(3).items()} == dict.fromkeys(
        ("p00", "p01", "p02"), folders[1]["train"]
    )


@pytest.mark.parametrize(("field", "kind"), FIELDS)
def test_a_lie_about_oneself_is_refused_by_name(registry_of, folders, field, kind):
    registry, told, nodes = registry_of(greeting(folders[1], **{field: LIES[field][kind]}))
    line = refused(registry, told, nodes)
    assert ("training samples" if field == "train" else f"its {field} is") in line
    assert nodes[1].heard[-1][0] == "refused"
    assert nodes[1].heard[-1][1] in line
    if field == "train":
        assert "a whole number from 0 to 1,000,000,000" in line
        assert "revoke its key" in line


@pytest.mark.parametrize("count", [0, 1, 10**9])
def test_the_numbers_at_the_ends_of_the_range_may_be_said(registry_of, folders, count):
    registry, _, _ = registry_of(greeting(folders[1], train=count))
    assert registry.gather(3)["p01"]["train"] == count
    assert len(remote_people("toy", {"p01": count}).people["p01"].train) == count


@pytest.mark.parametrize("kind", BODIES)
def test_a_greeting_that_is_no_table_is_refused_by_name(registry_of, kind):
    line = refused(*registry_of(BODIES[kind]))
    assert line.startswith("'p01' refused: its greeting is no table of facts")


@pytest.mark.parametrize(("field", "kind"), [(f, k) for f, kinds in AROUND.items() for k in kinds])
def test_a_lie_beside_the_greeting_is_refused_by_name(registry_of, folders, field, kind):
    around = {field: AROUND[field][kind]}
    assert "malformed answer of 'p01'" in refused(*registry_of(greeting(folders[1]), around))


@pytest.mark.parametrize(("field", "kind"), [(f, k) for f, kinds in AROUND.items() for k in kinds])
def test_a_lie_beside_any_answer_loses_that_answer_alone(registry_of, folders, field, kind):
    """It was genuine when it came in, and lies from then on: a round goes on without it."""
    registry, _, nodes = registry_of(greeting(folders[1]))
    nodes[1].around, nodes[1].always = {field: AROUND[field][kind]}, True
    found = outcome(RequestQueue(registry, {"run": "r"}).ask, "p01", b"train")
    assert isinstance(found, ClientLost), found
    assert "malformed answer of 'p01'" in str(found)
    assert RequestQueue(registry, {"run": "r"}).ask("p00", b"train") == b"train"


@pytest.fixture
def server(folders, tmp_path):
    """A server's folder of its own: no members are known yet."""
    shutil.copytree(folders[0] / "server", tmp_path / "server")
    return server_run.ServerRun(tmp_path / "server", Nodes({}))


@pytest.mark.parametrize("kind", NO_COUNT)
def test_the_federation_starts_without_the_liar_and_again_the_next_day(
    registry_of, folders, server, kind
):
    registry, *_ = registry_of(greeting(folders[1], train=NO_COUNT[kind]))
    said = {c: connection.facts for c, connection in registry.connections.items()}
    for _ in range(2):
        found = outcome(server.members, said)
        assert isinstance(found, Federation), found
        counts = {client: len(splits.train) for client, splits in found.people.items()}
        assert counts == {"p00": folders[1]["train"], "p01": 0, "p02": folders[1]["train"]}


@pytest.mark.parametrize("kind", NO_COUNT)
def test_members_that_are_damaged_already_are_named(server, kind):
    told = {"p00": 16, "p01": NO_COUNT[kind], "p02": 16}
    file = server.folder / "members.json"
    file.write_text(json.dumps({k: v for k, v in told.items() if v is not MISSING}))
    found = outcome(server.members, {})
    assert isinstance(found, StateError), found
    lines = str(found).splitlines()
    assert len(lines) == 1
    assert all(word in lines[0] for word in (str(file), "'p01'", "restore it")), lines


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"p00": 1, "p01": 1}',
        b'{"p00": 1, "p01": 1, "p02": 1, "p\\n": 1}',
        b'{"p00": ' + b"9" * 9999 + b"}",
    ],
)
def test_members_that_are_something_else_are_named(server, text):
    file = server.folder / "members.json"
    file.write_bytes(text)
    found = outcome(server.members, {})
    assert isinstance(found, StateError), found
    assert str(found).isprintable()
    assert str(found).startswith(str(file))
    assert "remove it if no round is done yet" in str(found)


@pytest.mark.parametrize("kind", [k for k in NO_COUNT if k != "missing"])
def test_people_elsewhere_have_as_many_samples_as_there_can_be(kind):
    found = outcome(remote_people, "toy", {"a": 3, "b": NO_COUNT[kind]})
    assert isinstance(found, StateError), found
    assert str(found).startswith("'b' is said to have")
    assert str(found).isprintable()


def test_who_has_other_data_on_the_next_day_stops_nobody_else(
    registry_of, folders, server, monkeypatch
):
    """D3: one client says one sample more when the server starts again; it alone is left out."""
    honest = folders[1]["train"]
    registry, *_ = registry_of(greeting(folders[1]))
    server.members(registry.gather(3))
    registry, told, _ = registry_of(greeting(folders[1], train=honest + 1))
    server.registry = registry
    registry.open = registry.close = lambda: None
    found = outcome(server.members, registry.gather(3))
    assert isinstance(found, Federation), found
    assert {len(splits.train) for splits in found.people.values()} == {honest}
    asked = {}

    def run_methods(*_):
        for client in ("p00", "p01", "p02"):
            asked[client] = outcome(RequestQueue(registry, {"run": "r"}).ask, client, b"train")

    monkeypatch.setattr(server_run, "run_methods", run_methods)
    outcome(server.run)
    assert (asked["p00"], asked["p02"]) == (b"train", b"train")
    assert isinstance(asked["p01"], ClientLost)
    said = f"it has {honest + 1} training samples, and had {honest} when the run began: restore its"
    assert said in str(asked["p01"])
    assert sum(said in line for line in told) == 1
    assert f"'p01' is not asked: {said}" in (server.folder / "events.log").read_text()


def test_who_was_not_there_on_the_first_day_may_have_any_number(registry_of, folders, server):
    registry, *_ = registry_of(greeting(folders[1]))
    said = registry.gather(3)
    server.members({client: said[client] for client in ("p00", "p02")})
    registry.samples = {"p00": folders[1]["train"], "p01": 0, "p02": folders[1]["train"]}
    assert RequestQueue(registry, {"run": "r"}).ask("p01", b"train") == b"train"
