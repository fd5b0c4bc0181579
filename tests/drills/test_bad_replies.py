"""Twenty kinds of bad reply over a line: each named, and the round as if its client were silent.

FedSelect, whose clients declare masks: harms reach its weights, its mask, its state and its note.
`python -m tests.drills.drills replies` prints the table.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load, save

from tests.deployment.test_remote_clients import COUNTS, PEOPLE, QUIET, Loop, build, task_of, there
from tests.engine.test_guards import OTHER, RENAMED, RESHAPED, layout, tree, value, weight
from tests.engine.toys import STAMP, mostly_slow, table
from vergence.core.masks import Mask
from vergence.core.messages import SealedTree
from vergence.core.params import Layout, Params
from vergence.core.serialization import HEADER, pack, read_header, unpack
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import StateError
from vergence.wire.encoding import decode, encode

METHOD = build("fedselect")
AT = 2
"""The round in which p1's reply is harmed; by then its mask has changed."""
LIMIT = 1 << 16
WORD = Params.named(word=torch.ones(1))


@dataclass
class Heard:
    """What a harm may use: this answer, and what else was asked and answered."""

    answer: bytes
    request: ClientRequest
    known: Mapping[str, Mask]
    earlier: dict[str, bytes]


Harm = Callable[[Heard], bytes]


def sealed(change) -> Harm:
    """Change the reply itself, and send it as an honest client sends one."""

    def harm(heard: Heard) -> bytes:
        note, body = unframed(heard.answer)
        return framed(note, encode(change(decode(body, heard.known)), heard.known))

    return harm


def noted(**changes) -> Harm:
    """Change the answer's note."""

    def harm(heard: Heard) -> bytes:
        note, body = unframed(heard.answer)
        return framed({**note, **changes}, body)

    return harm


def headed(change) -> Harm:
    """Change the JSON text in the header of the reply, and nothing else."""

    def harm(heard: Heard) -> bytes:
        note, body = unframed(heard.answer)
        size = int.from_bytes(body[:8], "little")
        about = json.loads(body[8 : 8 + size])
        head = json.loads(about["__metadata__"]["vergence"])
        change(head)
        about["__metadata__"]["vergence"] = json.dumps(head)
        text = json.dumps(about).encode()
        return framed(note, len(text).to_bytes(8, "little") + text + body[8 + size :])

    return harm


def foreign(heard: Heard) -> bytes:
    """Send the mask of a network of 24 entries."""
    note, body = unframed(heard.answer)
    arrays = {name: a for name, a in load(body).items() if name == "model.values"}
    arrays["model.bitmap"] = torch.full((3,), 255, dtype=torch.uint8)
    return framed(note, save(arrays, {HEADER: json.dumps(read_header(body))}))


def claim(head) -> None:
    """Say that one layer has 10^12 entries, of which none is sent."""
    about = head["trees"]["model"]
    about |= {"kind": "float", "level": 0.0, "layout": [["weight"], [[10**12]]]}


def numbered(t):
    """Weigh every entry by a number of its own, where masks are declared."""
    each = torch.arange(1.0, t.total.layout.n + 1)
    return replace(t, weight=Params(each, t.total.layout))


def metric(name, number):
    return sealed(lambda s: replace(s, metrics={name: number}))


def stale(heard: Heard) -> bytes:
    """Say that the new state is the one of the round before."""
    note, body = unframed(heard.answer)
    file, *rest = note["filed"]
    old = file.replace(f".{heard.request.stamp}.", f".{AT - 1}.1.")
    return framed({**note, "filed": [old, *rest]}, body)


def deep(_: Heard) -> bytes:
    """Return a note of lists in lists."""
    head = b"[" * 10_000 + b"]" * 10_000
    return len(head).to_bytes(4, "little") + head


KINDS: dict[str, tuple[Harm, str]] = {
    "NaN": (sealed(value(float("nan"))), "finite: 'model' holds NaN"),
    "infinity": (sealed(value(float("-inf"))), "finite: 'model' holds NaN or infinity"),
    "huge weight": (sealed(weight(1e30)), "weight: 'model' claims a weight outside"),
    "negative weight": (sealed(weight(-1.0)), "weight: 'model' claims a weight outside"),
    "number per entry for a mask": (sealed(tree(numbered)), "weight: 'model' is weighed by more"),
    "other names": (sealed(layout(RENAMED)), "names: the tensors of 'model'"),
    "other shapes": (sealed(layout(RESHAPED)), "shape: the tensors of 'model'"),
    "other number of entries": (sealed(layout(OTHER)), "shape: the tensors of 'model'"),
    "mask of another layout": (foreign, "malformed: ValueError: (3,) are not the bits of 5"),
    "other dtype": (
        sealed(tree(lambda t: replace(t, total=Params(t.total.flat.double(), t.total.layout)))),
        "dtype: 'model' is torch.float64",
    ),
    "undeclared tree": (
        sealed(lambda s: replace(s, trees={**s.trees, "diary": SealedTree(WORD, 1.0)})),
        "names: sent ['diary', 'model']",
    ),
    "undeclared metric": (metric("diary", 1.0), "names: metric 'diary' is not declared"),
    "NaN metric": (metric("loss", float("nan")), "finite: metric 'loss' is nan"),
    "metric that is text": (metric("loss", "low"), "finite: metric 'loss' is low"),
    "metric of 400 digits": (metric("loss", 10**400), "finite: metric 'loss' is 1000"),
    "other round": (sealed(lambda s: replace(s, round=7)), "round: answers round 7"),
    "other client": (lambda heard: heard.earlier["p00"], "stale: it answers another request"),
    "other client's name": (noted(client="p00"), "malformed: ValueError: it names another client"),
    "last round's answer": (
        lambda heard: heard.earlier[QUIET],
        "stale: it answers another request",
    ),
    "stale state": (stale, "malformed: ValueError: its state lies under another name"),
    "state elsewhere": (
        noted(filed=["../../server/state/checkpoint.json", "0" * 32, None]),
        "malformed: ValueError: its state lies under another name",
    ),
    "truncated": (lambda heard: heard.answer[:-5], "malformed: SafetensorError"),
    "empty": (lambda _: b"", "malformed: ValueError: it ends too early"),
    "twice in one": (lambda heard: heard.answer * 2, "malformed: SafetensorError"),
    "oversized": (lambda heard: heard.answer + bytes(LIMIT), "too large: 6"),
    "10^12 entries claimed": (
        headed(claim),
        "malformed: ValueError: 'model' claims 1,000,000,000,000 entries",
    ),
    "attribute for a dtype": (
        headed(lambda head: head["trees"]["model"].update(dtype="load")),
        "malformed: KeyError",
    ),
    "weight that is text": (
        headed(lambda head: head["trees"]["model"].update(kind="float", level="1")),
        "malformed: ValueError: a weight of kind float",
    ),
    "sizes below zero": (
        headed(lambda head: head["trees"]["model"].update(layout=[["w"], [[-1, -5]]])),
        "malformed: ValueError: a layout",
    ),
    "nested 10,000 deep": (deep, "malformed: ValueError: brackets within brackets"),
    "name that is no text": (noted(status="ok\ud800"), "malformed: ValueError: its status"),
}


class Harmed(Loop):
    """A line on which p1's answer in round `AT` comes back harmed."""

    def __init__(self, folder, harm: Harm | None) -> None:
        super().__init__(METHOD, folder)
        self.harm = harm
        self.earlier: dict[str, bytes] = {}

    def ask(self, client, request):
        answer, what = super().ask(client, request), unpack(request, ClientRequest)
        if what.kind != "turn":
            return answer
        if what.message.round < AT:
            self.earlier[client] = answer
        elif (client, what.message.round) == (QUIET, AT):
            if self.harm is None:
                raise ClientLost("no answer")
            store = self.home(client).runner.store
            known = store.read(what.file).known_masks if what.file else {}
            return self.harm(Heard(answer, what, known, self.earlier))
        return answer


def harmed(path, harm: Harm | None) -> tuple[str, set[str]]:
    """Return the fingerprint of a run in which p1 sends one bad reply, and what is said of it."""
    folder = RunDirectory(path / "server", STAMP, elsewhere=True)
    folder.open()
    pool_factory = remote_pool(Harmed(path / "homes", harm), LIMIT)
    plan = Plan(rounds=4, evaluate_every=0, solver="sequential")
    outcome = run_rounds(
        METHOD,
        task_of(METHOD),
        federation=remote_people("toy", COUNTS),
        plan=plan,
        folder=folder,
        pool_factory=pool_factory,
    )
    rows = table(path / "server", "turns.csv")
    assert {(r["client"], r["round"]) for r in rows if r["status"] != "ok"} == {
        (QUIET, str(AT + 1))
    }
    return outcome.fingerprint, {r["status"] for r in rows} - {"ok"}


@pytest.fixture(scope="module")
def silence(tmp_path_factory) -> str:
    return harmed(tmp_path_factory.mktemp("silent"), None)[0]


@pytest.mark.parametrize("kind", mostly_slow(KINDS, *list(KINDS)[::4]))
def test_a_bad_reply_is_named_and_counts_for_nothing(kind, silence, tmp_path):
    harm, says = KINDS[kind]
    found, (status,) = harmed(tmp_path, harm)
    assert status.startswith(f"quarantined: {says}")
    assert found == silence


ODD = Params(torch.ones(6), Layout(("values",), ((2, 3),)))
BARE = Params(torch.ones(1), Layout(("values",), ((),)))


@pytest.mark.parametrize(
    ("name", "which", "odd", "says"),
    [
        (
            "fedpac",
            "statistics",
            ODD,
            "shape: the tensors of 'statistics' are not as those of others",
        ),
        ("fedpac", "head", ODD, "shape: the tensors of 'head' are not as those of others"),
        (
            "smashed_average",
            "smashed",
            ODD,
            "shape: the tensors of 'smashed' have other shapes than those sent",
        ),
        ("splitfed", "smashed", BARE, "shape: 'smashed' holds data without rows"),
    ],
)
def test_a_tree_of_a_shape_that_nobody_was_sent(name, which, odd, says, tmp_path):
    """It is compared with what the others send: the server could not compute with it."""
    method = build(name)

    class Odd(Loop):
        harms = True

        def ask(self, client, request):
            answer = super().ask(client, request)
            note, body = unframed(answer)
            if client != QUIET or not body or which not in decode(body, {}).trees:
                return answer
            if not self.harms:
                raise ClientLost("no answer")
            said = decode(body, {})
            trees = {**said.trees, which: SealedTree(odd, 1.0)}
            return framed(note, encode(replace(said, trees=trees), {}))

    line = Odd(method, tmp_path / "odd" / "homes")
    found = there(method, tmp_path / "odd", line, rounds=2).fingerprint
    line = Odd(method, tmp_path / "quiet" / "homes")
    line.harms = False
    assert found == there(method, tmp_path / "quiet", line, rounds=2).fingerprint
    rows = table(tmp_path / "odd" / "server", "turns.csv")
    (status,) = {row["status"] for row in rows if row["status"] != "ok"}
    assert status.startswith(f"quarantined: {says}")


@pytest.mark.parametrize(("name", "most"), [("fedcpf", 3), ("splitfed", 3)])
def test_states_of_turns_that_came_to_nothing_are_dropped(name, most, tmp_path):
    """In every other round answers of p1 are lost after it has kept its new state."""
    method, turns = build(name), iter(range(10**6))

    class Losing(Loop):
        def ask(self, client, request):
            answer, what = super().ask(client, request), unpack(request, ClientRequest)
            odd = client == QUIET and what.kind == "turn" and what.message.round % 2 == 1
            if odd and next(turns) % 2:
                raise ClientLost("no answer")
            return answer

    there(method, tmp_path, Losing(method, tmp_path / "homes"), rounds=8)
    for client in PEOPLE.clients:
        assert 1 <= len(list((tmp_path / "homes" / client).glob("*.safetensors"))) <= most


# --- and bad requests: a home refuses them in one line, and is as it was

TRICKS = {
    "a file above": {"file": "../../secret.safetensors"},
    "a file of nobody": {"file": "seed0.client.p01.1.1.safetensors\0"},
    "a file of another": {"file": "seed0.client.p00.1.1.safetensors"},
    "a stamp that leads away": {"stamp": "../../../away"},
    "a stamp of the state that counts": {"stamp": "0.1"},
    "dropping what counts": {"drop": ("seed0.client.p01.0.1.safetensors",)},
    "dropping what is not its own": {
        "drop": ("seed0.client.p01.9.1.safetensors", "../answer"),
    },
    "another client": {"client": "p00"},
    "a client that leads away": {"client": "../p00"},
    "an unknown verb": {"verb": "model_on"},
    "an unknown kind": {"kind": "delete"},
    "a round below zero": {"round": -1},
    "no trees": {"trees": {}},
    "trees of another network": {"trees": {"model": Params(torch.zeros(6), OTHER)}},
    "a tree that is none": {"trees": {"model": 5}},
    "progress that is none": {"progress": float("nan")},
    "words that are none": {"known": (5,)},
    "a state that is missing": {"file": "seed0.client.p01.8.1.safetensors"},
}


def left(folder) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_home_survives_a_bad_request(trick, honest):
    line, request, folder = honest
    changes = dict(TRICKS[trick])
    message = {k: changes.pop(k) for k in ("verb", "round", "trees") if k in changes}
    bad = replace(request, **changes, message=replace(request.message, **message))
    refused(line, pack(bad), folder)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Return a line after two rounds, p1's next request, and everybody's folder."""
    path = tmp_path_factory.mktemp("honest")
    line = Loop(METHOD, path / "homes")
    there(METHOD, path, line, rounds=2)
    requests = [unpack(e, ClientRequest) for c, e in line.asked if c == QUIET]
    second = next(e for e in requests if e.kind == "turn" and e.message.round == 1)
    file = "seed0.client.p01.0.1.safetensors"
    (path / "homes" / "p01" / file).write_bytes(
        (path / "homes" / "p01" / "seed0.client.p01.1.1.safetensors").read_bytes()
    )
    return line, replace(second, file=file, stamp="5.1", drop=()), path


def test_the_request_they_are_made_of_is_good(honest):
    line, request, _ = honest
    assert unframed(line.home(QUIET).answer(pack(request)))[0]["status"] == "ok"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        pack(5),
        pack({"kind": "turn"}),
        pack(PEOPLE.clients),
        (8).to_bytes(8, "little") + b"[[[[[[[[",
        pack(Mask.full(OTHER)),
    ],
)
def test_a_home_survives_what_is_no_request(data, honest):
    refused(honest[0], data, honest[2])


def test_a_home_refuses_what_is_too_large_before_it_reads(honest):
    line, request, _ = honest
    home = line.home(QUIET)
    home.limit = 100
    with pytest.raises(Exception, match=r"where 100 are allowed"):
        home.answer(pack(request))


def test_a_request_cannot_multiply_its_bytes(honest):
    """A thousand trees that are one array of 40 kB, where 1 MB is allowed."""
    line, request, _ = honest
    model = Params.named(w=torch.zeros(10_000))
    trees = {f"t{i}": model for i in range(1000)}
    home = line.home(QUIET)
    home.limit = 1 << 20
    data = pack(replace(request, message=replace(request.message, trees=trees)))
    with pytest.raises(Exception, match="holds more than it may"):
        home.answer(data)


def refused(line, data: bytes, folder) -> None:
    """Check that a home answers with one line, and changes nothing."""
    before = left(folder)
    with pytest.raises(StateError) as caught:
        line.home(QUIET).answer(data)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    assert left(folder) == before
