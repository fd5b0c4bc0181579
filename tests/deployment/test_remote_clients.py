"""Clients elsewhere, reached by bytes alone: the same bits as in one process."""

import json
from dataclasses import replace

import pytest
import torch

from tests.conformance.test_averaged_statistics import TASK as NORMED
from tests.conformance.test_methods import LOCAL, NAMES, build, run, task_of
from tests.engine.toys import STAMP, mostly_slow, table
from tests.lines import Line
from vergence.core.randomness import RandomStream
from vergence.core.serialization import pack, unpack
from vergence.data.synthetic.toy import Toy as People
from vergence.deployment.client_node import ClientNode
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory

PEOPLE = People(people=4).load()
COUNTS = {client: len(s.train) for client, s in PEOPLE.people.items()}


class Loop(Line):
    """A line to homes in this process, each with its own data; a new one for every request."""

    def __init__(self, method, folder):
        self.method, self.folder, self.asked = method, folder, []
        self.plan = Plan(rounds=4, evaluate_every=0)

    def home(self, client, method=None):
        method = method or self.method
        own, task = PEOPLE.only((client,)), task_of(method)
        worker = ClientExecutor(method, task, LocalData(own, own), RandomStream("run", task.seed))
        folder = self.folder / client
        folder.mkdir(parents=True, exist_ok=True)
        runner = ClientRunner(worker, ClientStateStore(folder, task.seed, worker.records))
        return ClientNode(runner, client, plan=self.plan)

    def ask(self, client, request):
        self.asked.append((client, request))
        return self.home(client).answer(request)


def there(method, path, line=None, **plan):
    """Run a method whose clients are elsewhere; the server has nobody's data."""
    folder = RunDirectory(path / "server", STAMP, elsewhere=True)
    folder.open()
    plan = {"rounds": 4, "evaluate_every": 0, "solver": "sequential", **plan}
    line = line or Loop(method, path / "homes")
    own = Plan(**plan)
    if isinstance(line, Loop):
        line.plan = own
    people = replace(remote_people("toy", COUNTS), proxies=PEOPLE.proxies)
    return run_rounds(
        method,
        task_of(method),
        federation=people,
        plan=own,
        folder=folder,
        pool_factory=remote_pool(line),
    )


ELSEWHERE = [n for n in NAMES if not build(n).pooled]
QUICK = ("fedavg", "fedcpf", "scaffold", "fedgen", "ap_fl", "smashed_average", "splitfed_v2")


@pytest.mark.parametrize("name", mostly_slow(ELSEWHERE, *QUICK))
def test_every_method_gives_the_same_bits_elsewhere(name, tmp_path):
    """Also who was measured how, and what travelled."""
    method = build(name)
    here = run(method, tmp_path / "here", PEOPLE, solver="sequential")[1].fingerprint
    assert there(method, tmp_path).fingerprint == here
    for name_ in ("people.csv", "turns.csv"):
        assert table(tmp_path / "server", name_) == table(tmp_path / "here", name_)


def test_balanced_batches_are_the_same_elsewhere(tmp_path):
    method = replace(build("fedavg"), local=replace(LOCAL, sampler="balanced"))
    here = run(method, tmp_path / "here", PEOPLE, solver="sequential")[1].fingerprint
    assert there(method, tmp_path).fingerprint == here
    assert run(build("fedavg"), tmp_path / "shuffled", PEOPLE)[1].fingerprint != here


class Bad(Loop):
    """A line on which p1's answers to turns of the second round come back changed."""

    def __init__(self, method, folder, change):
        super().__init__(method, folder)
        self.change = change

    def ask(self, client, request):
        answer = super().ask(client, request)
        what = unpack(request, ClientRequest)
        if (client, what.kind, what.message.round) == (QUIET, "turn", 1):
            return self.change(answer)
        return answer


QUIET = PEOPLE.clients[1]


def lose(_):
    raise ClientLost("no answer in 30 s")


def noted(**changes):
    """Return what changes an answer's note and leaves its body."""

    def change(answer):
        note, body = unframed(answer)
        return framed({**note, **changes}, body)

    return change


@pytest.fixture(scope="module")
def silence(tmp_path_factory):
    """Fingerprint of the run in which the client says nothing."""
    method, path = build("fedcpf"), tmp_path_factory.mktemp("quiet")
    return there(method, path, Bad(method, path / "homes", lose)).fingerprint


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lose, "lost: no answer in 30 s"),
        (lambda a: a[:40], "quarantined: malformed"),
        (lambda _: b"", "quarantined: malformed"),
        (lambda a: a[:-8] + b"\xff" * 8, "quarantined: finite"),
        (lambda a: a[:4] + a[4:].replace(b"{", b"[", 1), "quarantined: malformed"),
        (lambda a: (2**31).to_bytes(4, "little") + a[4:], "quarantined: malformed"),
        (noted(client="p0"), "quarantined: malformed"),
        (noted(examples=-1), "quarantined: malformed"),
        (noted(examples="many"), "quarantined: malformed"),
        (noted(filed=["../../etc/passwd", "", None]), "quarantined: malformed"),
        (noted(status="fine"), "quarantined: malformed"),
    ],
)
def test_a_bad_answer_is_its_clients_silence(change, status, silence, tmp_path):
    """The round is as if it had not spoken, and the tables say why."""
    method = build("fedcpf")
    bad = there(method, tmp_path / "bad", Bad(method, tmp_path / "bad" / "homes", change))
    assert bad.fingerprint == silence
    rows = [
        r
        for r in table(tmp_path / "bad" / "server", "turns.csv")
        if (r["client"], r["round"]) == (QUIET, "2")
    ]
    assert all(row["status"].startswith(status) for row in rows)
    assert rows


def test_the_same_request_again_gets_the_stored_answer(tmp_path, monkeypatch):
    method = build("fedcpf")
    line = Loop(method, tmp_path / "homes")
    there(method, tmp_path, line)
    client, request = next(
        (c, e) for c, e in reversed(line.asked) if unpack(e, ClientRequest).kind == "turn"
    )
    first = line.home(client).answer(request)
    monkeypatch.setattr(ClientExecutor, "turn", lambda *_: pytest.fail("it was carried out again"))
    assert line.home(client).answer(request) == first


def test_a_home_answers_nobody_elses_request(tmp_path):
    method = build("fedavg")
    line = Loop(method, tmp_path / "homes")
    there(method, tmp_path, line)
    request = next(e for c, e in line.asked if c == PEOPLE.clients[0])
    with pytest.raises(Exception, match="is not for"):
        line.home(PEOPLE.clients[1]).answer(request)
    stolen = replace(unpack(request, ClientRequest), file="seed0.client.other.1.safetensors")
    with pytest.raises(Exception, match="is no state of"):
        line.home(PEOPLE.clients[0]).answer(pack(stolen))


KINDS = ("fedavg", "fedcpf", "scaffold", "splitfed")


class Killed(Exception):
    """Stands for the server's death."""


@pytest.mark.parametrize("name", mostly_slow(KINDS, "fedcpf"))
@pytest.mark.parametrize("at", mostly_slow((1, 6, 11, 14, 17), 1, 17))
def test_a_server_that_died_goes_on_with_the_same_bits(name, at, tmp_path):
    """It dies when it sends its `at`-th request; homes keep what they had, answered or not."""
    method = build(name)
    expected = there(method, tmp_path / "whole").fingerprint
    line = Loop(method, tmp_path / "homes")
    honest, left = line.ask, [at]

    def dying(client, request):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return honest(client, request)

    line.ask = dying
    with pytest.raises(Killed):
        there(method, tmp_path, line)
    assert there(method, tmp_path, line).fingerprint == expected


def test_homes_do_not_collect_old_states(tmp_path):
    """At the end a home has the state that counts, and at most those of its last two turns."""
    method = build("fedcpf")
    there(method, tmp_path, rounds=12)
    for client in PEOPLE.clients:
        left = list((tmp_path / "homes" / client).glob("*.safetensors"))
        assert 1 <= len(left) <= 3


def test_the_server_keeps_no_state_of_a_client(tmp_path):
    method = build("fedcpf")
    there(method, tmp_path)
    files = [p.name for p in (tmp_path / "server" / "state").iterdir()]
    assert not [name for name in files if ".client." in name]
    assert json.loads((tmp_path / "server" / "state" / "checkpoint.json").read_text())["done"]


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "scaffold", "ditto"])
def test_averaged_statistics_have_the_same_bits_elsewhere(name, tmp_path, monkeypatch):
    """Running statistics travel like parameters, or stay with clients (FedBN)."""
    for module in ("tests.conformance.test_methods", "tests.deployment.test_remote_clients"):
        monkeypatch.setattr(f"{module}.task_of", lambda _: NORMED)
    method = build(name)
    outcome, here = there(method, tmp_path), run(method, tmp_path / "here", PEOPLE)[1]
    assert outcome.fingerprint == here.fingerprint
    model, start = here.server.model, NORMED.init()
    moved = [n for n in NORMED.averaged_statistics() if n in model and (model[n] != start[n]).any()]
    assert len(moved) == (0 if name == "fedbn" else 2)


def test_who_has_no_test_samples_trains_elsewhere_and_is_not_measured(tmp_path, monkeypatch):
    client, own = next(iter(PEOPLE.people.items()))
    none = own.test.subset(torch.empty(0, dtype=torch.int64))
    less = replace(PEOPLE, people={**PEOPLE.people, client: replace(own, test=none)})
    whole = there(build("fedavg"), tmp_path / "whole")
    monkeypatch.setattr("tests.deployment.test_remote_clients.PEOPLE", less)
    assert there(build("fedavg"), tmp_path / "less").fingerprint == whole.fingerprint
    measured = {row["person"] for row in table(tmp_path / "less" / "server", "people.csv")}
    assert measured == set(PEOPLE.people) - {client}
