"""What every method must pass; methods are found by folder, so a new file is tested at once."""

import inspect
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import SimpleNamespace

import pytest
import torch

from tests.engine import toys
from tests.engine.toys import CHAIN, mostly_slow
from tests.engine.turns import watch_turns
from vergence.core.aggregation import add_up
from vergence.core.conversation import drive
from vergence.core.local_training import LocalTraining
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, ServedGroups, ServeGroups
from vergence.core.serialization import equal_states, pack, unpack
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.channel import Channel
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.exchange import ClientExchange
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.client_states import ClientStateIndex, ClientStateStore
from vergence.engine.storage.more_rounds import prepare
from vergence.engine.storage.run_directory import TABLES, RunDirectory
from vergence.engine.workers.pools import InProcess
from vergence.experiment.registry import find, names
from vergence.methods.fedavg import FedAvg
from vergence.methods.generative.provider import Taught
from vergence.methods.split.base import Cutting
from vergence.methods.split.local_loss_split import LocalLossSplit
from vergence.methods.split.smashed_average import SmashedAverage
from vergence.methods.split.split import SplitLearning
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

NAMES = names("methods", Method)
ALIKE = (
    *("fedyogi", "fedadagrad", "fedavgm"),  # of fedadam
    *("fedavg_ft", "fedbabu", "lg_fedavg"),  # of fedavg and fedper
    *("pfedme", "reptile", "fedgroup"),  # of ditto, per_fedavg and ifca
    *("splitfed_v2", "local_loss_split", "sg_zsl"),  # of splitfed, smashed_average and pe_zsl
)
"""Kin of methods that run by default; `make check` runs them, too."""
WITH_SLOW_KIN = mostly_slow(NAMES, *(n for n in NAMES if n not in ALIKE))
"""Every method as a parameter of a test; its name tells `-m slow` that a file has slow tests."""
LOCAL = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05)
TASK = ToyTask(Linear())


SUITED = {
    "ap_fl": {"base": FedAvg(), "samples": 10, "passes": 2, "noise": 4, "tune_epochs": 1},
    "apfl": {"alpha": 0.8},
    "fedadam": {"server_lr": 0.1, "beta1": 0.5, "tau": 0.03},
    "fedyogi": {"server_lr": 0.1, "beta1": 0.5, "tau": 0.03},
    "fedadagrad": {"server_lr": 0.3},
    "fedavgm": {"beta": 0.5, "server_lr": 0.5},
    "feddf": {"steps": 10, "batch": 16},
    "fedgen": {"alpha": 0.01, "beta": 0.01, "steps": 2, "hidden": 8},
    "pe_zsl": {
        "generator_rounds": 1,
        "samples": 100,
        "batch": 20,
        "rate": 0.02,
        "noise": 16,
        "hidden": 64,
    },
    "sg_zsl": {
        "generator_rounds": 1,
        "samples": 100,
        "batch": 20,
        "rate": 0.02,
        "noise": 16,
        "hidden": 128,
    },
    "pfedme": {"lamda": 2.0, "w_lr": 0.4},
    "qfedavg": {"q": 0.05},
}
"""Rates and numbers that suit a line and thirty rounds, where a method's defaults suit networks."""


def task_of(method):
    return CHAIN if isinstance(method, Cutting) else TASK


class Listening(Channel):
    """A channel that writes down what crosses between a served client and the server's copy."""

    def __init__(self):
        self.heard, self.asked = [], None

    def message(self, message):
        self.asked = message
        return message

    def reply(self, sealed, known):
        if self.asked is not None:
            request = SimpleNamespace(verb=self.asked.verb, reveal="each")
            self.heard.append((request, "", self.asked, sealed, None))
            self.asked = None
        return sealed


def build(name):
    return find("methods", name, Method)(local=LOCAL, **SUITED.get(name, {}))


def run(method, tmp_path, people=None, **plan):
    """Run a method on the toy people; return its folder and outcome."""
    folder = RunDirectory(tmp_path, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    plan = {"rounds": 4, "evaluate_every": 0, "workers": 1, **plan}
    people = people or People(people=4).load()
    return folder, run_rounds(
        method, task_of(method), federation=people, plan=Plan(**plan), folder=folder
    )


def short(method, tmp_path, people=None, **plan):
    """Run a method for three rounds: one more than a run that is resumed after round 2 had."""
    return run(method, tmp_path, people, rounds=3, **plan)


HONEST = TemporaryDirectory(prefix="conformance-")
"""Runs that several tests compare with, each carried out once."""


@cache
def honest(method):
    """The run of `short(method, ...)` with nothing changed: its folder and outcome."""
    return short(method, Path(mkdtemp(dir=HONEST.name)))


@cache
def fedavgs_line():
    """FedAvg's outcome after thirty rounds with one person alone."""
    return run(FedAvg(local=LOCAL), Path(HONEST.name) / "fedavg", one_person(), rounds=30)[1]


def one_person():
    """A federation of one person, of the kind that everybody is."""
    people = People(people=1, strength=0.0).load()
    (only,) = people.people.values()
    return replace(people, people={"a": only})


@pytest.fixture(params=WITH_SLOW_KIN)
def method(request):
    return build(request.param)


def test_docstring_cites_its_source(method):
    text = inspect.getdoc(type(method)) or ""
    assert "Source:" in text
    assert re.search(r"(19|20)\d\d|arXiv|section", text)


def test_states_pack_and_unpack(method):
    task = task_of(method)
    for state in (method.server(task), method.client(task)):
        thawed = unpack(pack(state), *method.state_records(task))
        assert type(thawed) is type(state)
        assert equal_states(thawed, state)


@pytest.mark.ci
def test_bytes_engine_equals_simulator(method, tmp_path):
    plain = honest(method)[1].fingerprint
    assert short(method, tmp_path / "b", engine="bytes")[1].fingerprint == plain
    assert short(method, tmp_path / "c", workers=2)[1].fingerprint == plain


class Shuffled(InProcess):
    """A worker pool whose results arrive in another order each time."""

    def run(self, job):
        done = list(super().run(job))
        order = RandomStream("shuffle", len(done)).numpy().permutation(len(done))
        yield from (done[i] for i in order)


def test_arrival_order_does_not_matter(method, tmp_path, monkeypatch):
    plain = honest(method)[1].fingerprint
    monkeypatch.setattr(
        "vergence.engine.round_loop.worker_pool", lambda runner, *_: Shuffled(runner)
    )
    assert short(method, tmp_path / "b")[1].fingerprint == plain


def test_client_order_does_not_matter_for_aggregates(method, tmp_path):
    """Sums may differ in the last bit, nothing more."""
    if type(method) in (SplitLearning, SplitFedV2):
        pytest.skip("clients are served one after the other")
    people = People(people=4).load()
    back = replace(people, people=dict(reversed(people.people.items())))
    a = honest(method)[1].server
    b = short(method, tmp_path / "b", back)[1].server
    tolerance = 0.5 if method.pooled else 1e-5  # pooled rows are drawn in another order
    for x, y in zip(trees(a), trees(b), strict=True):
        assert torch.allclose(x.flat, y.flat, atol=tolerance)


def trees(state):
    return [v for v in vars(state).values() if isinstance(v, Params)]


def test_resuming_at_round_2_equals_running_through(method, tmp_path, monkeypatch):
    whole, outcome = honest(method)
    folder = tmp_path / "broken"

    plain = _round_loop().one_round

    def stop(self, at, server):
        if at == 2:
            raise KeyboardInterrupt
        return plain(self, at, server)

    with monkeypatch.context() as patch:
        patch.setattr(_round_loop(), "one_round", stop)
        with pytest.raises(KeyboardInterrupt):
            short(method, folder)
    resumed = short(method, folder)[1]
    assert resumed.fingerprint == outcome.fingerprint
    for client, state in outcome.clients.items():
        assert equal_states(state, resumed.clients[client])  # masks, k, r_th and sums included
    for table in TABLES:
        ours, theirs = (untimed(p / table) for p in (folder, whole.path))
        assert ours == theirs


def test_more_rounds_equal_a_run_that_was_planned_with_them(method, tmp_path):
    """From the state before `finish`, which some methods hold once, at the very end."""
    whole, outcome = honest(method)
    folder, _ = run(method, tmp_path, rounds=2)
    prepare(tmp_path, folder.stamp | {"config": "more"}, keeps_p1=False, restores=False)
    folder = RunDirectory(tmp_path, folder.stamp | {"config": "more"})
    folder.open()
    plan = Plan(rounds=3, evaluate_every=0, workers=1)
    people = People(people=4).load()
    raised = run_rounds(method, task_of(method), federation=people, plan=plan, folder=folder)
    assert raised.fingerprint == outcome.fingerprint
    for table in TABLES:
        ours, theirs = (untimed(p / table) for p in (tmp_path, whole.path))
        assert ours == theirs


def _round_loop():
    from vergence.engine import round_loop as module

    return module.RoundLoop


def untimed(path):
    lines = [line.split(",") for line in path.read_text().splitlines()]
    skip = lines[0].index("seconds") if "seconds" in lines[0] else None
    return [[c for i, c in enumerate(line) if i != skip] for line in lines]


def test_empty_reply_set_leaves_the_server_unchanged(method):
    server = method.server(task_of(method))
    conversation = method.round(server, ["p00"])
    answer = None
    while True:
        try:
            ask = conversation.send(answer)
        except StopIteration as end:
            after = end.value
            break
        offered = method.offer(server, "p00")
        if isinstance(ask, ServeGroups):
            answer = ServedGroups(add_up([], ask.templates), ())
        else:
            assert isinstance(ask, Request)
            answer = add_up([], offered) if ask.reveal == "aggregate" else {}
    assert equal_states(after, server)


def transcript(method, place, rounds=3):
    """Return every request and sealed reply of a few rounds: what leaves and reaches clients."""
    people = People(people=3).load()
    trained_on = people.pooled() if method.pooled else people
    worker = ClientExecutor(
        method, task_of(method), LocalData(trained_on, people), RandomStream("run", 0)
    )
    place.mkdir(exist_ok=True)
    channel = Listening()
    store = ClientStateStore(place, 0, worker.records)
    runner = ClientRunner(worker, store, channel=channel)
    simulator = ClientExchange(
        method,
        InProcess(runner),
        Plan().presence,
        RandomStream("run", 0),
        ClientStateIndex(runner.store),
    )
    seen, server = channel.heard, method.server(task_of(method))

    def answer(request, at):
        if isinstance(request, ServeGroups):
            return simulator.attend(request, server, at, 0.0)
        if not isinstance(request, Request):
            return worker.answer(request, 0.0)
        before = dict(simulator.clients)
        orders = {
            c: simulator.message(m, request.verb, server, c, at) for c, m in request.to.items()
        }
        got = simulator.exchange(request, server, at, 0.0)
        for client, message in orders.items():
            task, kept = ClientTask(client, message), ClientState(before.get(client))
            _, sealed, _ = worker.turn(task, kept, TaskBatch("turn", [task], [1]))
            seen.append((request, client, message, sealed, before.get(client)))
        return got

    server = drive(method.setup(server, trained_on.clients), lambda ask: answer(ask, 0))
    for at in range(rounds):
        server = drive(method.round(server, trained_on.clients), lambda ask, at=at: answer(ask, at))
    drive(method.finish(server, trained_on.clients), lambda ask: answer(ask, rounds))
    return seen


@cache
def three_rounds(method):
    """The transcript of three rounds, which several tests read."""
    return transcript(method, Path(mkdtemp(dir=HONEST.name)))


def test_exposure_equals_the_committed_table(method):
    found, sent = {}, []
    for request, _, message, sealed, _ in three_rounds(method):
        sent.append((request.verb, tuple(message.trees)))
        kinds = {type(tree.weight) for tree in sealed.trees.values()}
        weight = "mask" if Mask in kinds else "per entry" if Params in kinds else "number"
        found[request.verb] = (request.reveal, tuple(sealed.trees), weight)
    declared = {v: (e.reveal, tuple(e.trees), e.weight) for v, e in method.exposure.items()}
    assert found == declared
    for verb, exposed in method.exposure.items():
        if exposed.down is not None:
            assert {t for v, trees in sent for t in trees if v == verb} == set(exposed.down)


def test_every_tree_is_described(method):
    """Reports know no method by the names of its trees: they print what it says of them."""
    sent = {t for e in method.exposure.values() for t in (*e.trees, *(e.down or ()))}
    assert sent <= {"model", *method.trees}


def test_what_setup_and_finish_ask_is_declared(method, tmp_path):
    """Without rounds they are all there is; what a round asks of newcomers is a round's, too."""
    asked = {request.verb for request, *_ in transcript(method, tmp_path, rounds=0)}
    joining = {verb for verb, exposed in method.exposure.items() if exposed.joining}
    assert asked - joining <= {*method.setup_verbs, *method.finish_verbs} <= set(method.exposure)
    assert not set(method.setup_verbs) & joining


def test_nothing_undeclared_leaves_a_client(method):
    """Entries of weight 0 are erased, metrics are numbers, and no reply holds the raw data."""
    data = People(people=3).load()
    rows = {float(v) for s in data.people.values() for v in s.train.columns["y"]}
    for _, _, _, sealed, _ in three_rounds(method):
        for name, tree in sealed.trees.items():
            if isinstance(tree.weight, Mask):
                assert not tree.total.flat[~tree.weight.bits].any()
            if name != "labels":  # which the method declares
                assert not rows & set(tree.total.flat.tolist())
        assert set(sealed.metrics) <= {"loss"}


def test_beats_its_start(method, tmp_path):
    people = People(people=3, strength=0.3).load()
    late = isinstance(method, SmashedAverage | Taught)  # half of its layers learn; or a student
    rounds = 15 if late else 3
    folder, _ = run(method, tmp_path, people, rounds=rounds, evaluate_every=rounds)
    rows = [line.split(",") for line in (folder.path / "people.csv").read_text().splitlines()]
    after = [float(r[-1]) for r in rows if r[2:4] == ["P0", "error"]]
    zero = [float(s.test.columns["y"].square().mean().sqrt()) for s in people.people.values()]
    assert sum(after) / len(after) < 0.8 * sum(zero) / len(zero)


def test_alike_people_agree_with_fedavg(method, tmp_path):
    """With one kind of person every method comes to FedAvg's line."""
    if isinstance(method, Taught):
        pytest.skip("a student knows its teacher where samples were made up, and nowhere else")
    clones, task = one_person(), task_of(method)
    mine = run(method, tmp_path / "mine", clones, rounds=30)[1]
    theirs = fedavgs_line()
    worker = ClientExecutor(
        method,
        task,
        LocalData(clones.pooled() if method.pooled else clones, clones),
        RandomStream(),
    )
    state = mine.clients.get("a", method.client(task))
    trees = {**method.offer(mine.server, "a"), **method.server_part(mine.server)}
    message = Message("evaluate", trees)
    site = worker.site(clones, "a", message)
    params = worker.predicting(state, message, site)
    weights = [params[name] for name in reversed(params.layout.names) if name.endswith("weight")]
    line = torch.linalg.multi_dot(weights) if task is CHAIN else weights[0]
    frozen = isinstance(method, SmashedAverage | LocalLossSplit)  # or trained by another loss
    assert torch.allclose(line, theirs.server.model["weight"], atol=0.25 if frozen else 0.05)


def test_bad_replies_are_quarantined_as_if_silent(method, tmp_path, monkeypatch):
    """A client that sends NaN changes nothing for the server or anyone else."""
    if not any(e.trees for e in method.exposure.values()) or method.pooled:
        pytest.skip("this method's replies hold no parameters of several people")

    def poison(task, sealed):
        if task.client == "p01":
            for tree in sealed.trees.values():
                tree.total.flat[:1] = float("nan")

    with monkeypatch.context() as patch:
        watch_turns(patch, poison)
        folder, bad = short(method, tmp_path / "bad")
    with monkeypatch.context() as patch:
        patch.setattr(
            "vergence.engine.participation.Participation.loses",
            lambda _, client, *__: client == "p01",
        )
        _, quiet = short(method, tmp_path / "quiet")
    assert equal_states(bad.server, quiet.server)
    for client in ("p00", "p02", "p03"):
        assert equal_states(bad.clients.get(client), quiet.clients.get(client))
    assert "quarantined: finite" in (folder.path / "turns.csv").read_text()


def test_somebody_without_test_samples_trains_and_is_not_measured(method, tmp_path):
    """Without validation samples, too, where the method chooses nothing on them."""
    people = People(people=4).load()
    client, own = next(iter(people.people.items()))
    none = torch.empty(0, dtype=torch.int64)
    val = own.val if method.uses_validation else own.val.subset(none)
    own = replace(own, val=val, test=own.test.subset(none))
    less = replace(people, people={**people.people, client: own})
    folder, outcome = run(method, tmp_path / "less", less)
    _, whole = run(method, tmp_path / "whole", people)
    assert outcome.fingerprint == whole.fingerprint
    measured = {row["person"] for row in toys.table(folder.path, "people.csv")}
    assert measured == set(people.clients) - {client}
