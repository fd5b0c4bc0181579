"""Parts of a run by hand: plans, means, presence, sessions of a server, labs, longer runs."""

import hashlib
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vergence.core.aggregation import Sum
from vergence.core.conversation import NoReplyCounted
from vergence.core.masks import Mask
from vergence.core.messages import Message, Reply, SealedReply, SealedTree
from vergence.core.method import Exposure
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Quarantine, Request, Requests, Step
from vergence.core.serialization import digest
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.client_executor import TurnResult
from vergence.engine.client_runner import NOT_FINITE
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.exchange import ExchangeTotals
from vergence.engine.lab_runner import LabRunner, means
from vergence.engine.participation import Participation, round_half_up, suggest
from vergence.engine.plan import SEEDS, Plan, check_seeds
from vergence.engine.protections import robust_aggregation
from vergence.engine.protections.robust_aggregation import RobustAggregator, among_groups, replies
from vergence.engine.records import ClientResult, ClientState, ClientTask, LabState, TaskBatch
from vergence.engine.round_loop import RoundLoop, averages, fingerprint, measured
from vergence.engine.silos import Silos
from vergence.engine.split_session import ServerSession, status
from vergence.engine.storage import more_rounds
from vergence.engine.storage.run_directory import SolverChoice
from vergence.errors import ConfigError, StateError
from vergence.privacy.robust.krum import Krum

STREAM = RandomStream("run", 0)
MODEL = Params.named(w=torch.tensor([1.0, 2.0]))

# --- plans


def test_a_plan_evaluates_in_its_rounds_and_at_the_end():
    plan = Plan(rounds=7, evaluate_every=3, points=("P0", "P1", "P2"))
    assert [done for done in range(8) if plan.evaluates(done)] == [0, 3, 6, 7]
    assert [plan.points_in(round) for round in (1, 2, 6)] == [(), ("P1",), ("P1",)]
    assert [plan.points_at(done) for done in (2, 3, 7)] == [(), ("P0", "P2"), ("P0", "P2")]
    last = Plan(rounds=7, evaluate_every=0, points=("P0", "P1"))
    assert [done for done in range(8) if last.evaluates(done)] == [7]
    assert last.points_in(6) == ()
    stops = Plan(rounds=4, evaluate_every=2, early_stopping=EarlyStopping(1, restore_best=False))
    both = ("P0", "V0")
    assert [stops.points_at(done) for done in (0, 1, 2, 4)] == [both, (), both, ("P0",)]
    back = Plan(rounds=4, evaluate_every=2, early_stopping=EarlyStopping(1))
    assert [back.points_at(done) for done in (0, 1, 2, 4)] == [both, (), both, both]
    assert [plan.progress(round) for round in (0, 3, 7)] == [0.0, 3 / 7, 0.0]
    assert Plan(rounds=0).progress(0) == 0.0
    assert Plan(workers=3).hands == 3


@pytest.mark.parametrize(
    ("cohort", "delivery", "asked"),
    [
        (1.0, Delivery(), 9),
        (4, Delivery(), 4),
        (20, Delivery(), 9),
        (0.5, Delivery(), 5),
        (6, Delivery("quorum", replies=3), 3),
        (2, Delivery("quorum", replies=3), 2),
        (6, Delivery("fedbuff", replies=3), 6),
    ],
)
def test_a_request_waits_for_so_many_replies(cohort, delivery, asked):
    plan = Plan(presence=Participation(cohort=cohort), delivery=delivery)
    assert plan.asked(9) == asked
    if delivery.name != "fedbuff":
        assert replies(plan, 9) == asked


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": ()}, "seeds must be different numbers"),
        ({"seeds": (1, 1)}, "seeds must be different numbers"),
        ({"split_seeds": (3,)}, "split_seeds must be two or more"),
        ({"split_seeds": (3, 3)}, "split_seeds must be two or more"),
        ({"points": ("P1",)}, "points must hold P0"),
        ({"points": ("P0", "P3")}, "points must hold P0"),
        ({"seeds": (SEEDS,)}, f"= {2**63 - 1}; got {2**63}"),
        ({"seeds": (-1,)}, "got -1"),
        ({"early_stopping": EarlyStopping(patience=1), "evaluate_every": 0}, "early_stopping"),
    ],
)
def test_plans_that_cannot_be_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Plan(**options)


def test_plans_at_the_edge_are_allowed():
    assert Plan(seeds=(0, SEEDS - 1), split_seeds=(3, 4)).split_seeds == (3, 4)
    with pytest.raises(ConfigError, match=r"here: .* got -5"):
        check_seeds((1, -5, -6), "here")


# --- rounds


def test_means_leave_out_what_is_not_defined():
    nan = math.nan
    found = averages(
        {"P0": {"a": {"x": 1.0, "y": nan}, "b": {"x": 3.0}, "c": {"z": nan}}, "V0": {}}
    )
    assert list(found)[:2] == [("P0", "x"), ("P0", "y")]
    assert found["P0", "x"] == 2.0
    assert math.isnan(found["P0", "y"])
    assert math.isnan(found["P0", "z"])
    assert len(found) == 3


def test_a_fingerprint_is_of_settings_and_states_in_client_order():
    solving = SolverChoice("stacked", 3, "fp32", "cpu", "a reason that does not count")
    found = fingerprint("srv", {"b": "2", "a": "1"}, solving)
    assert found == hashlib.sha256(b"stacked 3 fp32 cpu srva:1b:2").hexdigest()


@pytest.mark.parametrize(("few", "drawn"), [(0, 8), (8, 8), (9, 8), (7, 7), (3, 3)])
def test_the_people_who_are_evaluated_are_the_same_each_time(few, drawn):
    people = [f"p{i}" for i in range(8)]
    found = measured(SimpleNamespace(clients=people, scored_people=()), Plan(evaluate_people=few))
    assert len(set(found)) == drawn
    if drawn < 8:
        places = RandomStream("measured", few).numpy().choice(8, few, replace=False)
        assert found == [people[i] for i in sorted(places.tolist())]
    else:
        assert found is people


def test_people_without_test_samples_are_not_evaluated():
    some = SimpleNamespace(clients=("p0", "p1", "p2"), scored_people=["p1", "p2"])
    assert measured(some, Plan()) == ("p1", "p2")
    assert measured(some, Plan(evaluate_people=2)) == ("p1", "p2")
    assert len(measured(some, Plan(evaluate_people=1))) == 1
    everybody = SimpleNamespace(clients=("p0", "p1"), scored_people=["p0", "p1"])
    assert measured(everybody, Plan()) is everybody.clients


def test_the_cost_of_a_round_is_per_client_that_was_asked():
    exchange = SimpleNamespace(personal_fraction=lambda: 0.25)
    here = SimpleNamespace(exchange=exchange)
    tally = ExchangeTotals(up=30, down=12, asked={"a", "b", "c"})
    assert RoundLoop.cost(here, tally, 1.23456) == (10, 4, "1.235", "0.250000")
    exchange.personal_fraction = lambda: None
    assert RoundLoop.cost(here, ExchangeTotals(up=5, down=6), 0.0) == (5, 6, "0.000", "")


def test_statuses_of_served_clients():
    assert [status(fault) for fault in (None, "lost: gone", "shape")] == [
        "ok",
        "lost: gone",
        "quarantined: shape",
    ]


# --- presence


@pytest.mark.parametrize(
    ("x", "whole"), [(0.5, 1), (0.49, 0), (1.5, 2), (2.5, 3), (2.4999, 2), (-0.5, 0)]
)
def test_halves_are_rounded_up(x, whole):
    assert round_half_up(x) == whole


def test_a_rhythm_has_a_third_of_every_day_that_begins_at_the_clients_own_time():
    presence, day = Participation(rhythm=True, day=9), 9
    for client in ("a", "b", "c", "d"):
        bedtime = day * STREAM.child("bedtime", client).number() / 2**63
        there = [presence.here(client, round, STREAM) for round in range(3 * day)]
        assert there == [(round - bedtime) % day < 3 for round in range(3 * day)]
        assert sum(there) == day
    starts = {STREAM.child("bedtime", f"p{i}").number() / 2**63 > 0.5 for i in range(20)}
    assert starts == {True, False}


def test_a_fixed_cohort_is_tried_among_a_quarter_of_the_clients():
    """Of 200 clients all but every tenth left: 5 are found by draws, in client order."""
    clients = [f"p{i}" for i in range(200)]
    gone = {client: 1 for at, client in enumerate(clients) if at % 10 == 0}
    presence = Participation(cohort=5, gone=gone)
    generator = STREAM.child("tries", 3).numpy()
    order = list(dict.fromkeys(generator.integers(200, size=16).tolist()))
    expected = sorted([at for at in order if at % 10][:5])
    assert presence.ask(clients, 3, STREAM) == [clients[at] for at in expected]
    assert presence._try(clients[:20], 3, STREAM) is not None
    assert presence._try(clients[:19], 3, STREAM) is None  # a quarter is 4, and 5 are wanted
    away = Participation(cohort=5, gone=dict.fromkeys(clients[4:], 0))
    assert away._try(clients, 3, STREAM) is None
    assert away.ask(clients, 3, STREAM) == clients[:4]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gone": {"a": -1}}, r"gone.a must be a round, 0 or more; got -1"),
        ({"gone": {"a": 0}, "back": ("b",)}, "'b' never left"),
        ({"trace": "x", "rhythm": True}, "a trace or a rhythm, not both"),
        ({"cohort": 1.5}, r"a share in \(0, 1\] or a whole number; got 1.5"),
    ],
)
def test_presence_that_cannot_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Participation(**options)


def test_presence_at_the_edge_is_allowed():
    made = Participation(gone={"a": 0}, back=("a",), cohort=1.0)
    assert Participation(cohort=2, rhythm=True).size(1) == 2
    assert made.returned("abc", 0) == ["a", "b", "c"]
    assert Participation(gone={"a": 3, "b": 4}).staying("abc", 3) == ["b", "c"]
    assert Participation(gone={"a": 3}).staying("abc", 2) == "abc"


def test_names_are_searched_among_a_thousand_at_most():
    names = [f"p{i:04d}" for i in range(1001)]
    assert "did you mean" in suggest("p00001", names[:1000])
    assert suggest("p00001", names) == "; known: p0000 to p1000, 1,001 clients"


# --- robust rules over groups


@pytest.mark.parametrize(
    ("share", "people", "groups", "liars"),
    [(0.2, 10, 5, 2 / 5), (0.2, 10, 4, None), (0.3, 10, 7, 3 / 7), (0.3, 10, 6, None)],
)
def test_each_liar_is_in_a_group_of_its_own(share, people, groups, liars):
    made = among_groups(Krum(attackers=share), people, groups)
    assert (made and made.attackers) == liars
    rule = SimpleNamespace()
    assert among_groups(rule, people, 1) is rule


# --- sessions of a server


class Clients:
    """Clients of a session: each answers with one tree, or as `faults` says."""

    def __init__(self, serve, hooks=(), faults=None, empty=True, broken=()):
        self.faults, self.empty, self.sent, self.filed = faults or {}, empty, [], []
        self.broken = broken
        exposure = {"front": Exposure("each", ("smashed",), metrics=("loss",))}
        method = SimpleNamespace(serve=serve, exposure=exposure)
        self.worker = SimpleNamespace(method=method, hooks=hooks, receiving=list)
        same = lambda given, *_: given  # noqa: E731
        self.channel = SimpleNamespace(message=same, reply=same)

    def state_of(self, task):
        return ClientState()

    def turns(self, task, state, messages, batch, like, number):
        for message in messages:
            self.sent.append((task.client, message.round, number, message.verb))
            tree = SealedTree(MODEL, 1.0)
            said = SealedReply(message.round, {"smashed": tree}, {"loss": 3.0})
            after = ClientState(None if self.empty else LabState({"x": 1}))
            result = ClientResult(task.client, examples=12.0)
            yield TurnResult(result, None if task.client in self.faults else said, after)

    def answer(self, ask, progress):
        if isinstance(ask, Step):
            raise RuntimeError("x" * 80)
        return ask, progress

    def file_state(self, task, stamp, state):
        self.filed.append((task.client, stamp))
        return (None, NOT_FINITE) if task.client in self.broken else ("file", None)


def session(serve, clients=("a", "b"), **more):
    pool = Clients(serve, **more)
    tasks = [ClientTask(client, Message("serve", {"w": MODEL}, {}, 6)) for client in clients]
    batch = TaskBatch("serve", tasks, [len(tasks)], stamp="6.1", progress=0.5)
    return pool, ServerSession(pool, batch, tasks).hold({"tail": MODEL})


def each(client, count=1):
    return Requests("front", client, (Message("front", {"w": MODEL}),) * count, {"smashed": MODEL})


def test_a_session_counts_bytes_metrics_and_states_of_every_client():
    seen = []

    def serve(clients, templates):
        seen.append((clients, list(templates)))
        for client, count in (("a", 2), ("b", 1), ("a", 1)):
            got = yield each(client, count)
            assert len(got) == count
        seen.append((yield "work"))
        return Reply({"tail": MODEL}, 1.0, {"tail_loss": 5.0})

    pool, (results, sealed) = session(serve, empty=False)
    assert seen == [(("a", "b"), ["tail"]), ("work", 0.5)]
    assert (sealed.round, list(sealed.trees)) == (6, ["tail"])
    sent = [("a", 1), ("a", 1), ("b", 1), ("a", 3)]
    assert pool.sent == [(client, 6, number, "front") for client, number in sent]
    assert pool.filed == [("a", "6.1"), ("b", "6.1")]
    for result, turns in zip(results, (3, 1), strict=True):
        assert (result.status, result.filed, result.examples, result.steps) == ("ok", "file", 12, 0)
        assert (result.down, result.up) == ({"w": 8 * turns}, {"smashed": 8 * turns})
        assert result.metrics == {"loss": 3.0, "tail_loss": 5.0}


def test_a_client_that_is_excluded_has_no_part_and_the_others_go_on():
    def serve(*_):
        for ask in (Quarantine("a", "odd"), each("a")):
            with pytest.raises(NoReplyCounted):
                yield ask
        yield each("b")
        return Reply({"tail": MODEL}, 1.0, {})

    pool, (results, sealed) = session(serve)
    assert [result.status for result in results] == ["quarantined: odd", "ok"]
    assert results[0].metrics == {}
    assert sealed is not None
    assert pool.sent == [("b", 6, 1, "front")]
    assert pool.filed == []


@pytest.mark.parametrize("caught", [True, False])
def test_what_torch_raises_on_a_clients_shapes_silences_that_client(caught):
    """The reason has 60 letters of torch's message; the server's steps are counted."""

    def serve(*_):
        yield each("b")
        try:
            yield Step(MODEL, None, {}, None, None)
        except NoReplyCounted:
            if not caught:
                raise
        return Reply({"tail": MODEL}, 1.0, {})

    _, (results, sealed) = session(serve)
    why = f"quarantined: shape: the server's layers cannot take it (RuntimeError: {'x' * 60})"
    assert [(result.status, result.steps) for result in results] == [("ok", 0), (why, 1)]
    assert (sealed is not None) == caught


def test_a_copy_that_broke_counts_for_nobody():
    bad = Params.named(w=torch.tensor([1.0, math.nan]))

    def serve(*_):
        yield Request("front", {"a": Message("front")}, "each", {"smashed": MODEL})
        return Reply({"tail": bad}, 1.0, {"tail_loss": 5.0})

    _, (results, sealed) = session(serve, ("a",))
    assert sealed is None
    assert results[0].status == "quarantined: finite: the server's copy holds NaN or infinity"


@pytest.mark.parametrize(("broken", "counts"), [(("a",), True), (("a", "b"), False)])
def test_a_copy_counts_if_the_state_of_a_client_does(broken, counts):
    """A client whose own state holds NaN is quarantined after its session."""

    def serve(*_):
        for client in "ab":
            yield each(client)
        return Reply({"tail": MODEL}, 1.0, {"tail_loss": 5.0})

    _, (results, sealed) = session(serve, empty=False, broken=broken)
    assert [result.status == "ok" for result in results] == [c not in broken for c in "ab"]
    assert (sealed is not None) == counts


@pytest.mark.parametrize("ask", [Request("front", {}, "aggregate"), Request("x", {}, "each")])
def test_a_session_asks_for_what_the_method_declares_alone(ask):
    def serve(*_):
        yield ask

    with pytest.raises(ConfigError, match="while it serves, which its exposure table"):
        session(serve)


def test_hooks_of_a_session_wrap_its_work_first_hook_outermost():
    class Hook:
        def __init__(self, name):
            self.name = name

        def serving(self, ask, client):
            return f"{ask} {self.name}({client})"

        def computing(self, ask, round, then):
            answer, progress = then(f"{ask} {self.name}{round}")
            return f"{answer} {self.name}", progress

    seen = []

    def serve(*_):
        yield each("b")
        seen.append((yield "work"))
        return Reply({}, 1.0, {})

    session(serve, hooks=(Hook("1st"), Hook("2nd")))
    assert seen == [("work 1st(b) 2nd(b) 1st7 2nd7 2nd 1st", 0.5)]


# --- labs


def lab(**replies):
    """Run the turn of a lab of three, whose people reply as given."""
    notes = []

    def turn(task, *_):
        weight, steps = replies[task.client]
        result = ClientResult(task.client, "quarantined: budget", examples=2.0, steps=steps)
        tree = SealedTree(MODEL * weight, weight) if weight else None
        sealed = SealedReply(4, {"model": tree}, {"loss": weight}) if weight else None
        return TurnResult(result, sealed, ClientState(LabState({"x": 1}) if steps else None))

    method = SimpleNamespace(exposure={"train": Exposure()})
    worker = SimpleNamespace(turn=turn, method=method, state=lambda own: own.state, covers=None)
    here = SimpleNamespace(
        silos=Silos({"lab": ("a", "b", "c")}),
        worker=worker,
        _zeros=lambda *_: None,
        _note=lambda task, person, reason: notes.append((task.client, person, reason)),
    )
    task = ClientTask("lab", Message("train", {"model": MODEL}, {}, 4))
    before = ClientState(LabState({"b": "old"}))
    return LabRunner.turn(here, task, before, TaskBatch("turn", [task], [1])), notes, before


def test_a_lab_sends_the_sum_over_its_people_and_keeps_their_states():
    (result, sealed, after), notes, _ = lab(a=(1.0, 1), b=(0, 2), c=(2.0, 0))
    assert (result.client, result.status, result.examples, result.steps) == ("lab", "ok", 6, 3)
    assert sealed.trees["model"].total.flat.tolist() == [3.0, 6.0]
    assert (sealed.trees["model"].weight, sealed.metrics, sealed.round) == (3.0, {"loss": 1.5}, 4)
    assert after.state.people == {"a": LabState({"x": 1}), "b": "old"}
    assert notes == [("lab", "b", "budget")]


def test_a_lab_of_which_nobody_counts_keeps_its_state():
    (result, sealed, after), _, before = lab(a=(0, 0), b=(0, 0), c=(0, 0))
    assert result.status == "quarantined: of nobody in it a reply counts, as of the first: budget"
    assert sealed is None
    assert after is before


def test_means_over_a_labs_people_leave_out_what_is_not_defined():
    nan = math.nan
    found = means([{"P0": {"x": 1.0, "y": nan}}, {"P0": {"x": 4.0, "y": 2.0}}, {"P2": {"x": 7.0}}])
    assert found == {"P0": {"x": 2.5, "y": 2.0}, "P2": {"x": 7.0}}
    assert np.isnan(means([{"P0": {"y": nan}}])["P0"]["y"])


# --- longer runs


@pytest.mark.parametrize(
    ("name", "keeps", "kept"),
    [
        ("rounds.csv", True, ["3,2,P1,x", "3,4,P0,x", "3,4,P1,x"]),
        ("rounds.csv", False, ["3,2,P1,x", "3,4,P0,x"]),
        ("turns.csv", False, ["3,2,P1,x", "3,4,P0,x", "3,4,P1,x"]),
    ],
)
def test_rows_of_a_seed_up_to_its_last_round_go_on(tmp_path, name, keeps, kept):
    """Up to a length that is kept; rows of other seeds, and P1 of the last round, may go."""
    lines = ["seed,round,point,more", "3,2,P1,x", "33,4,P0,x", "3,4,P0,x", "3,4,P1,x"]
    data = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(data + b"3,5,P0,x\n")
    last = {"round": 4, "tables": {name: len(data)}, "digests": {name: digest(data)}}
    found = [",".join(row) for row in more_rounds._rows(tmp_path / name, "3", last, keeps)]
    assert found == kept
    last["digests"][name] = digest(b"")
    with pytest.raises(StateError, match="is damaged: start a new run"):
        list(more_rounds._rows(tmp_path / name, "3", last, keeps))


def test_a_sum_of_sums_is_that_of_all():
    whole, part = Sum(), Sum()
    part.add(SealedReply(0, {"model": SealedTree(MODEL, 2.0)}, {}))
    whole.merge(part)
    whole.merge(part)
    assert (whole.count, whole.weights["model"]) == (2, 4.0)


def masked(*bits: bool, weight: Params | Mask | None = None) -> SealedReply:
    """Return a reply of ones, of which those with a true bit are sent."""
    mask = Mask(torch.tensor(bits), MODEL.layout)
    total = mask.keep(Params.named(w=torch.ones(2)))
    return SealedReply(0, {"model": SealedTree(total, weight or mask)}, {})


def test_masks_are_counted_in_bytes_until_these_are_full():
    """300 replies have both entries or the second alone, then one weighs its entries itself."""
    whole, part = Sum(), Sum()
    for place in range(300):
        whole.add(masked(place % 2 == 0, True))
        assert (whole.weights["model"].flat.dtype == torch.uint8) == (place < 255)
    assert whole.weights["model"].flat.tolist() == [150.0, 300.0]
    # A client's own bytes are no counts: two of them would overflow.
    bytes_ = Params.named(w=torch.tensor([200, 100], dtype=torch.uint8))
    for _ in range(2):
        part.add(masked(True, True, weight=bytes_))
    part.add(masked(True, False))
    assert part.weights["model"].flat.tolist() == [401.0, 200.0]
    whole.merge(part)
    means = whole.aggregate({}, {})
    assert means.weights["model"].flat.tolist() == [551.0, 500.0]
    assert means.totals["model"].flat.tolist() == [153.0, 302.0]


def test_a_sum_of_one_reply_is_copied_before_it_grows():
    reply, new, whole = masked(True, False), torch.empty, Sum()
    one, shared = Sum(), Sum(lambda n, dtype: new(n, dtype=dtype))
    for each in (one, shared):
        each.add(reply)
    total = reply.trees["model"].total.flat
    assert one.totals["model"].flat is total
    assert shared.totals["model"].flat is not total
    whole.merge(one)
    # The first reply's memory is its sender's, who may use it for a later one.
    assert whole.totals["model"].flat is not total
    assert one.aggregate({}, {}).totals["model"].flat is not total
    assert one.aggregate({}, {}).weights["model"].flat.dtype == torch.float32
    for each in (one, shared, whole):
        each.add(reply)
        assert each.totals["model"].flat.tolist() == [2.0, 0.0]
        assert each.aggregate({}, {}).weights["model"].flat.tolist() == [2.0, 0.0]
    assert total.tolist() == [1.0, 0.0]


@dataclass(frozen=True)
class Rule:
    """A robust rule that notes for how many replies it is checked."""

    attackers: float = 0.2
    rooted: bool = False
    trusted: str = "a"
    name: str = "rule"
    asked: list = field(default_factory=list)

    def check(self, people):
        self.asked.append((people, round(self.attackers, 9)))


@pytest.mark.parametrize(
    ("rule", "groups", "cohort", "asked"),
    [
        (Rule(), 0, 1.0, (12, 0.2)),
        (Rule(), 0, 5, (5, 0.2)),
        (Rule(rooted=True), 0, 1.0, (11, 0.2)),
        (Rule(0.08), 3, 1.0, (4, 0.25)),  # one liar, in one of four groups
        (Rule(0.08), 3, 11, (3, 0.333333333)),
        (Rule(0.2), 3, 1.0, (4, 0.2)),  # three liars, more than half of the groups
        (Rule(0.0), 5, 1.0, (2, 0.0)),
    ],
)
def test_a_rule_is_checked_for_the_replies_or_groups_that_it_sees(
    rule, groups, cohort, asked, monkeypatch
):
    dealt = []
    monkeypatch.setattr(robust_aggregation, "check_groups", lambda *given: dealt.append(given))
    secure = SimpleNamespace(groups=groups) if groups else None
    plan = SimpleNamespace(
        privacy=SimpleNamespace(robust=rule, aggregation=secure),
        poison=None,
        presence=Participation(cohort=cohort),
        delivery=Delivery(),
    )
    robust_aggregation.check(plan, "abcdefghijkl")
    assert rule.asked == [asked]
    people = cohort if isinstance(cohort, int) else 12
    assert dealt == ([(people, groups, math.ceil(rule.attackers * people))] if groups else [])


def test_a_root_is_named_known_and_honest():
    liars = SimpleNamespace(malicious_clients=lambda _: ("b",), seed=7)
    check = robust_aggregation._check_root
    check(Rule(), liars, "abc")
    check(Rule(trusted="b"), None, "abc")
    for trusted, said in (("", "root = 'a'"), ("z", "no client 'z'"), ("b", "poison.seed = 7")):
        with pytest.raises(ConfigError, match=said):
            check(Rule(trusted=trusted), liars, "abc")


def test_the_root_is_asked_where_it_is_present():
    draw = lambda *_: ["c", "e"]  # noqa: E731
    for since, asked in ((4, ["b", "c", "e"]), (3, ["c", "e"])):
        hooks = RobustAggregator(Rule(trusted="b"), presence=Participation(gone={"b": since}))
        assert hooks.cohort("abcde", 3, draw) == asked
    assert RobustAggregator(Rule(trusted="c")).cohort("abcde", 3, draw) == ["c", "e"]
    assert RobustAggregator().cohort("abcde", 3, draw) == ["c", "e"]
    looks = RobustAggregator(Rule()).looks_at
    assert looks(Exposure())
    assert not looks(Exposure("each"))
    assert not looks(Exposure(trees=()))
