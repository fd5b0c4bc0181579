"""The exchange with a pool made up here: what is asked, in which order, and what is counted."""

from types import SimpleNamespace

import pytest
import torch

from vergence.core.aggregation import Sum
from vergence.core.messages import Message, SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Request, ServeGroups
from vergence.engine.exchange import ClientExchange, lengths
from vergence.engine.participation import Participation
from vergence.engine.records import ClientResult, GroupResult
from vergence.engine.split_session import UNFIT
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import ConfigError
from vergence.privacy.hooks import LEFT_OUT, ServerHooks

MODEL = Params.named(w=torch.tensor([1.0, 2.0]))
STREAM = RandomStream("run", 0)
THERE = Participation()


class Index:
    """Stands in for the index of clients' states: files by name, and two spare files."""

    lab_of = {"p1": "c1", "p2": "c1"}  # noqa: RUF012

    def __init__(self):
        self.spares, self.kept = ["spare1", "spare2"], {}

    def file(self, client):
        return f"file {client}"

    def spare(self):
        return self.spares.pop() if self.spares else None

    def commit(self, client, filed):
        self.kept[client] = filed

    def shares(self):
        return self.own

    own = ()


class Pool:
    """Answers batches with results by client, the last group first."""

    count = 1

    def __init__(self, **results):
        self.results, self.batches = results, []

    def run(self, batch):
        self.batches.append(batch)
        for number in reversed(range(len(batch.groups))):
            done = GroupResult([], Sum())
            for task in batch.group(number):
                result = ClientResult(task.client, **self.results.get(task.client, {}))
                done.results.append(result)
                if result.status == "ok" and batch.kind == "turn":
                    tree = SealedTree(MODEL * float(task.client[1:]), 1.0)
                    sealed = SealedReply(task.message.round, {"model": tree}, result.metrics)
                    if batch.reveal == "each":
                        done.replies[task.client] = sealed
                    else:
                        done.sum.add(sealed)
            yield number, done


METHOD = {
    "pooled": False,
    "setup_verbs": (),
    "finish_verbs": ("tell",),
    "exposure": {"train": Exposure(), "look": Exposure("each"), "tell": Exposure()},
    "offer": lambda *_: {"model": MODEL},
    "server_part": lambda _: {},
}


def made(pool, presence=THERE, method=(), **more):
    exchange = ClientExchange(
        SimpleNamespace(**{**METHOD, **dict(method)}), pool, presence, STREAM, Index(), **more
    )
    exchange.begin("3")
    return exchange


def ask(exchange, clients, verb="train", reveal="aggregate", **more):
    return exchange.exchange(Request(verb, dict.fromkeys(clients), reveal, **more), None, 3, 0.25)


@pytest.mark.parametrize(
    ("loads", "length", "alike", "groups"),
    [
        ([], 3, False, []),
        ([1, 1, 1, 1], 2, False, [2, 2]),
        ([1, 1, 1, 1, 1], 3, False, [3, 2]),
        ([5, 5, 4, 4, 4, 1], 2, True, [2, 2, 1, 1]),
        ([5, 4, 4, 1], 3, False, [3, 1]),
        ([5, 4, 5, 5], 9, True, [1, 1, 2]),
    ],
)
def test_tasks_are_cut_into_groups_of_a_length_and_of_one_load(loads, length, alike, groups):
    assert lengths(loads, length, alike) == groups


def test_the_longest_work_comes_first_and_one_sample_stands_for_an_unknown_load():
    """Of 130 clients three make a group; the sum is that of all, in the order of groups."""
    clients = [f"c{i}" for i in range(130)]
    pool = Pool()
    exchange = made(pool, loads={"c7": 9.0, "c3": 0.5, "c5": 1.5})
    total = ask(exchange, clients)
    (batch,) = pool.batches
    order = [task.client for task in batch.tasks]
    assert order == ["c7", "c5", *[c for c in clients if c not in ("c7", "c5", "c3")], "c3"]
    assert batch.groups == [3] * 43 + [1]
    assert (batch.kind, batch.reveal, batch.stamp, batch.progress, batch.points) == (
        "turn",
        "aggregate",
        "3.1",
        0.25,
        (),
    )
    assert {task.message.round for task in batch.tasks} == {3}
    assert len({id(task.message) for task in batch.tasks}) == 1
    assert [task.file for task in batch.tasks[:2]] == ["file c7", "file c5"]
    assert total.totals["model"].flat.tolist() == [sum(range(130)), 2 * sum(range(130))]
    assert (total.count, total.weights["model"]) == (130, 130)
    assert exchange.jobs == 1
    ask(exchange, ["c1"])
    assert pool.batches[1].stamp == "3.2"
    exchange.begin("4")
    ask(exchange, ["c1"], "tell")
    assert pool.batches[2].stamp == "4.1"


def test_a_stack_has_clients_of_one_load():
    pool = Pool()
    ask(made(pool, chunk=4, loads={"c1": 2.0, "c2": 2.0, "c9": 3.0}), [f"c{i}" for i in range(10)])
    assert pool.batches[0].groups == [1, 2, 4, 3]
    ask(made(pool, chunk=1, loads={"c1": 2.0}), [f"c{i}" for i in range(3)])
    assert pool.batches[1].groups == [1, 1, 1]


def test_groups_that_come_early_wait_for_those_before_them():
    """The pool hands over the last group first; single replies come in the order of the request."""
    pool = Pool()
    exchange = made(pool, loads={"c2": 5.0})
    replies = ask(exchange, ["c1", "c2", "c3"], "look", "each")
    assert [task.client for task in pool.batches[0].tasks] == ["c2", "c1", "c3"]
    assert list(replies) == ["c1", "c2", "c3"]
    added = []
    exchange._results(pool.batches[0], lambda group: added.append(group.results[0].client))
    assert added == ["c2", "c1", "c3"]


def ref(client):
    return StateRef(f"new {client}", "0" * 64, None)


def test_states_of_replies_that_count_are_kept_and_other_files_are_spare():
    pool = Pool(
        c1={"filed": ref("c1"), "metrics": {"loss": 1.0}, "up": {"model": 7}},
        c2={"filed": ref("c2"), "status": f"{LEFT_OUT}: far away", "metrics": {"loss": 3.0}},
        c3={"filed": ref("c3"), "status": "quarantined: nan"},
        c4={"metrics": {"loss": 4.0, "acc": 1.0}, "examples": 12.5, "steps": 3, "share": 0.25},
    )
    exchange = made(pool)
    ask(exchange, ["c1", "c2", "c3", "c4"])
    kept = exchange.clients.kept
    assert kept == {"c1": ref("c1"), "c2": ref("c2")}
    assert sorted(exchange.clients.spares) == []
    given = {task.client: task.spare for task in pool.batches[0].tasks}
    assert given == {"c1": "spare2", "c2": "spare1", "c3": None, "c4": None}
    tally = exchange.tally
    assert tally.asked == {"c1", "c2", "c3", "c4"}
    assert tally.counted == 2
    assert tally.metrics == {"loss": [1.0, 3.0, 4.0], "acc": [1.0]}
    assert (tally.up, tally.down) == (7, 4 * 8)
    assert tally.turns == [
        ("c1", "train", "model", 7, 8, 0, "", 0, "", "ok"),
        ("c2", "train", "model", 0, 8, 0, "", 0, "", f"{LEFT_OUT}: far away"),
        ("c3", "train", "model", 0, 8, 0, "", 0, "", "quarantined: nan"),
        ("c4", "train", "model", 0, 8, 12.5, "", 3, "0.250000", "ok"),
    ]
    again = Pool(c1={"status": "ok"}, c2={"filed": ref("c2")})
    exchange = made(again)
    ask(exchange, ["c1", "c2"])
    assert exchange.clients.spares == ["spare2"]  # c1 wrote nothing


def test_rows_of_a_client_name_each_tree_and_its_weight():
    pool = Pool(
        c1={"up": {"b": 3, "a": 4}, "down": {"a": 5, "c": 6}, "weight": {"a": 2.5}},
        c2={"up": {}, "down": {}},
    )
    exchange = made(pool)
    ask(exchange, ["c1", "c2"])
    assert [row[2:7] for row in exchange.tally.turns] == [
        ("a", 4, 5, 0, "2.5"),
        ("b", 3, 0, 0, ""),
        ("c", 0, 6, 0, ""),
        ("", 0, 0, 0, ""),
    ]
    assert (exchange.tally.up, exchange.tally.down) == (7, 11)
    centre = made(Pool(c1={"up": {"b": 3}}), method={"pooled": True})
    ask(centre, ["c1"])
    assert [row[2:5] for row in centre.tally.turns] == [("", 0, 0)]
    assert (centre.tally.up, centre.tally.down) == (0, 0)


def test_whoever_is_lost_is_told_so_and_nobody_is_lost_at_the_end():
    pool = Pool()
    exchange = made(pool, Participation(lost=1.0))
    assert ask(exchange, ["c1", "c2"]).count == 0
    assert [(row[0], row[-1]) for row in exchange.tally.turns] == [("c1", "lost"), ("c2", "lost")]
    assert exchange.tally.counted == 0
    assert pool.batches[0].tasks == []
    exchange.begin("finish")
    assert ask(exchange, ["c1", "c2"], "tell").count == 2
    half = Participation(lost=0.5)
    exchange = made(pool, half)
    names = [f"c{i}" for i in range(20)]
    ask(exchange, names)
    lost = {row[0] for row in exchange.tally.turns if row[-1] == "lost"}
    assert lost == {name for name in names if half.loses(name, 3, STREAM)}


class Clock:
    """A clock on which c2 is late; it notes when it was asked."""

    delivery = SimpleNamespace(asynchronous=False)

    def __init__(self):
        self.asked = []

    def gather(self, asked, lost, round):
        self.asked.append((sorted(asked), lost, round))
        return {"c2"}


def test_who_is_late_for_the_first_request_is_late_for_the_rest_of_the_round():
    pool, clock = Pool(), Clock()
    joining = {"exposure": {**METHOD["exposure"], "join": Exposure(joining=True)}}
    exchange = made(pool, method=joining, virtual_clock=clock)
    ask(exchange, ["c1", "c2"], "join")
    assert clock.asked == []
    for verb in ("train", "tell"):
        ask(exchange, ["c1", "c2"], verb)
    assert clock.asked == [(["c1", "c2"], set(), 3)]
    rows = [(row[0], row[1], row[-1]) for row in exchange.tally.turns]
    assert rows == [
        ("c1", "join", "ok"),
        ("c2", "join", "ok"),
        ("c1", "train", "ok"),
        ("c2", "train", "late"),
        ("c1", "tell", "ok"),
        ("c2", "tell", "late"),
    ]
    exchange.begin("setup")
    ask(exchange, ["c1", "c2"])
    assert len(clock.asked) == 1
    exchange.begin("3")
    ask(exchange, ["c1", "c2"])
    assert len(clock.asked) == 2


@pytest.mark.parametrize(
    ("verb", "reveal"), [("other", "aggregate"), ("train", "each"), ("look", "aggregate")]
)
def test_what_the_method_does_not_declare_is_refused(verb, reveal):
    with pytest.raises(ConfigError, match=f"asks for '{verb}' revealing {reveal}, which its"):
        ask(made(Pool()), ["c1"], verb, reveal)


def test_secure_sums_refuse_verbs_of_another_phase():
    sums = SimpleNamespace(form_for=lambda *_: None)
    exchange = made(Pool(), sums=sums)
    assert ask(exchange, ["c1"]).count == 1
    exchange.begin("finish")
    assert ask(exchange, ["c1"], "tell").count == 1
    with pytest.raises(ConfigError, match=r"asks for 'train' in finish, .* in its finish_verbs"):
        ask(exchange, ["c1"])
    exchange.begin("setup")
    with pytest.raises(ConfigError, match="asks for 'train' in setup"):
        ask(exchange, ["c1"])


class Doubling(ServerHooks):
    """Notes each sum that it lets out, and asks every second client."""

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def release(self, whole, phase, number, asked):
        self.seen.append((self.name, whole.count, phase, number, asked))
        return whole

    def cohort(self, clients, round, draw):
        self.seen.append((self.name, round))
        return draw(clients, round)[::2]


def test_server_hooks_are_called_in_their_order_with_the_number_of_the_sum():
    seen = []
    hooks = [Doubling("first", seen), Doubling("last", seen)]
    exchange = made(Pool(), Participation(lost=1.0), server_hooks=hooks)
    ask(exchange, ["c1", "c2"])
    assert seen == [("first", 0, "3", 1, 2), ("last", 0, "3", 1, 2)]
    seen.clear()
    assert exchange.cohort([f"c{i}" for i in range(8)], 5) == ["c0", "c4"]
    assert seen == [("first", 5), ("last", 5)]


def test_people_are_evaluated_with_their_clients_message_in_64_groups():
    """p1 and p2 are in lab c1: one message; server parts are added to what is sent."""
    people = ["p1", "p2", *[f"c{i}" for i in range(2, 130)]]
    pool = Pool(p1={"measured": {"P0": {"loss": 1.0}}}, c5={"measured": {"P2": {"loss": 2.0}}})
    exchange = made(pool)
    scores = exchange.evaluate(people, None, 7, ("P0", "P2"))
    assert scores == {"P0": {"p1": {"loss": 1.0}}, "P2": {"c5": {"loss": 2.0}}}
    (batch,) = pool.batches
    assert (batch.kind, batch.groups, batch.points) == ("evaluate", [3] * 43 + [1], ("P0", "P2"))
    assert [task.client for task in batch.tasks] == people
    assert {(task.message.verb, task.message.round) for task in batch.tasks} == {("evaluate", 7)}
    assert {tuple(task.message.trees) for task in batch.tasks} == {("model",)}
    assert exchange.clients.kept == {}
    made(pool, method={"server_part": lambda _: {"tail": MODEL}}).evaluate(["c1"], None, 0, ())
    assert [sorted(t.message.trees) for t in pool.batches[1].tasks] == [["model", "tail"]]
    assert exchange.tally.turns == []


def test_the_personal_share_is_the_mean_over_clients():
    exchange = made(Pool())
    assert exchange.personal_fraction() is None
    exchange.clients.own = (0.25, 0.5)
    assert exchange.personal_fraction() == 0.375


SERVE = ServeGroups((("c1", "c2"), ("c3",)), {"tail": MODEL})


def serve(pool, ask=SERVE, **more):
    exchange = made(pool, **more)
    return exchange, exchange.attend(ask, None, 3, 0.5)


def test_served_clients_are_those_whose_part_counts():
    pool = Pool(
        c1={"metrics": {"loss": 1.0}, "down": {}, "up": {"smashed": 4}},
        c2={"status": "quarantined: shape", "down": {"gradient": 3}},
    )
    exchange, done = serve(pool)
    (batch,) = pool.batches
    assert (batch.kind, batch.groups, batch.stamp) == ("serve", [2, 1], "3.1")
    assert (batch.progress, batch.alone) == (0.5, False)
    assert batch.templates == {"tail": MODEL}
    assert done.clients == ("c1", "c3")
    assert exchange.tally.metrics == {"loss": [1.0]}
    assert exchange.tally.counted == 0
    assert [(row[0], row[1], row[-1]) for row in exchange.tally.turns] == [
        ("c1", "serve", "ok"),
        ("c2", "serve", "quarantined: shape"),
        ("c3", "serve", "ok"),
    ]
    assert (exchange.tally.up, exchange.tally.down) == (4, 3)


def test_nobody_served_for_the_networks_sake_ends_the_run():
    one = {"status": f"quarantined: {UNFIT} (why)"}
    _, done = serve(Pool(c1=one, c2=one))
    assert done.clients == ("c3",)
    with pytest.raises(ConfigError, match=r"nobody could be served, .* cannot take it"):
        serve(Pool(c1=one, c2=one, c3=one))
    serve(Pool(c1={"status": "lost"}, c2={"status": "lost"}, c3={"status": "lost"}))


@pytest.mark.parametrize("shuffled", [False, True])
def test_clients_of_a_group_train_in_order_or_in_one_drawn_by_the_round(shuffled):
    clients = tuple(f"c{i}" for i in range(12))
    pool = Pool()
    serve(pool, ServeGroups((clients,), {"tail": MODEL}, shuffled))
    order = tuple(task.client for task in pool.batches[0].tasks)
    places = STREAM.child("served", 3, "c0").numpy().permutation(12).tolist()
    assert order == (tuple(clients[i] for i in places) if shuffled else clients)
    assert pool.batches[0].groups == [12]


def test_equal_messages_are_one_object():
    exchange = made(Pool())
    other = Message("other", {"model": MODEL})
    fact = Message("other", {"model": MODEL}, {"n": 1})
    same = Message("other", {"model": MODEL}, {"n": 1})
    copy = Message("other", {"model": MODEL.like(MODEL.flat.clone())})
    sent = exchange._messages(
        {"c1": None, "c2": other, "c3": fact, "c4": same, "c5": copy}, "train", None, 6
    )
    assert {(m.verb, m.round) for m in sent.values()} == {("train", 6)}
    names = list(dict.fromkeys(id(message) for message in sent.values()))
    assert [names.index(id(sent[c])) for c in ("c1", "c2", "c3", "c4", "c5")] == [0, 0, 1, 1, 2]
