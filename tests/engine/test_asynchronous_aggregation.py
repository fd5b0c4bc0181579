"""Rounds that do not wait for everybody, and updates that arrive late: by hand, and to the bit."""

from dataclasses import replace

import pytest
import torch

from tests.conformance.test_methods import NAMES, WITH_SLOW_KIN, build, task_of
from tests.conformance.test_methods import run as conformed
from tests.deployment.test_remote_clients import there
from tests.engine.toys import LOCAL, Interrupt, run_toy, table, untimed
from vergence.core import files
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.core.serialization import equal_states
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import virtual_clock
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.compatibility_check import check
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.records import ClientState, ClientTask, TaskBatch
from vergence.errors import ConfigError, DataError
from vergence.methods.clustered.cfedvs import CFedVS
from vergence.methods.clustered.fedgroup import FedGroup
from vergence.methods.clustered.ifca import IFCA
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

STEPS = replace(LOCAL, steps=2)
"""Everybody has as much to do: two batches of eight."""
FEDAVG, FEDCPF = FedAvg(local=STEPS), FedCPF(local=STEPS, rate=0.1)
BUFFER, ASYNC = Delivery("fedbuff", replies=2), Delivery("fedasync")
QUORUM, DEADLINE = Delivery("quorum", replies=2), Delivery("deadline", seconds=0.178)


def events(path, *names):
    """Return the events of a run as (round, client, version, age), those with these names."""
    return [
        (int(r["round"]), r["client"], int(r["version"]), int(r["age"]))
        for r in table(path, "events.csv")
        if r["event"] in names
    ]


def clocks(path):
    return [float(r["value"]) for r in table(path, "rounds.csv") if r["metric"] == "clock"]


def told(path):
    """Return all tables, events.csv too."""
    return {**untimed(path), "events.csv": table(path, "events.csv")}


# --- whole runs against what the papers write


def one_turn(worker, client, model, turn):
    """Return what a client makes of a model in its `turn`-th turn."""
    message = Message("train", {"model": model}, round=turn)
    task = ClientTask(client, message)
    _, sealed, _ = worker.turn(task, ClientState(), TaskBatch("turn", [task], [1]))
    tree = sealed.trees["model"]
    return model + tree.total / tree.weight, tree.weight


def by_the_book(path, delivery):
    """Go through a log, line by line, with the formulas of the papers; return the model."""
    people, task = People(people=3).load(), ToyTask(Linear(inputs=4))
    worker = ClientExecutor(FEDAVG, task, LocalData(people, people), RandomStream("run", 0))
    versions, buffer = [task.init()], []
    for row in table(path, "events.csv"):
        if row["event"] != "arrived":
            continue
        at, age, turn = int(row["round"]) - 1, int(row["age"]), int(row["turn"])
        sent, now = versions[at - age], versions[-1]
        theirs, weight = one_turn(worker, row["client"], sent, turn)
        assert at == len(versions) - 1
        if delivery.name == "fedasync":
            a = delivery.scale(age)
            versions.append((1 - a) * now + a * theirs)
            continue
        buffer.append((weight, (1 + age) ** -0.5 * (theirs - sent)))
        if len(buffer) == delivery.replies:
            whole = sum((w * u for w, u in buffer), now * 0.0)
            versions.append(now + whole / sum(w for w, _ in buffer))
            buffer = []
    return versions[-1]


@pytest.mark.parametrize(
    "delivery",
    [
        ASYNC,
        Delivery("fedasync", a=0.9, staleness="hinge"),
        BUFFER,
        Delivery("fedbuff", replies=4, sigma=2.0),
    ],
    ids=lambda d: f"{d.name}-{d.staleness}-{d.replies}",
)
def test_the_model_is_that_of_the_formulas(delivery, tmp_path):
    outcome = run_toy(tmp_path, FEDAVG, rounds=12, delivery=delivery)
    assert max(age for *_, age in events(tmp_path, "arrived")) >= 1
    expected = by_the_book(tmp_path, delivery)
    assert torch.allclose(outcome.server.model.flat, expected.flat, atol=1e-6)


def test_no_delays_and_one_client_at_a_time_is_sequential_mixing(tmp_path):
    """Everything has age 0 and the clock stands still: theta <- .4 theta + .6 theta_k."""
    delivery = Delivery("fedasync", pace=float("inf"))
    presence = Participation(cohort=1)
    outcome = run_toy(tmp_path, FEDAVG, rounds=9, delivery=delivery, presence=presence)
    arrived = events(tmp_path, "arrived")
    assert [(at, age) for at, _, _, age in arrived] == [(n + 1, 0) for n in range(9)]
    assert {client for _, client, _, _ in arrived} == {"p00", "p01", "p02"}
    assert clocks(tmp_path) == [0.0] * 9
    expected = by_the_book(tmp_path, delivery)
    assert torch.allclose(outcome.server.model.flat, expected.flat, atol=1e-6)


@pytest.mark.parametrize("method", [FEDAVG, FEDCPF], ids=["fedavg", "fedcpf"])
def test_a_buffer_for_everybody_at_one_speed_is_the_synchronous_method_to_the_bit(method, tmp_path):
    buffered = Delivery("fedbuff", replies=3, sigma=0.0)
    late = run_toy(tmp_path / "late", method, delivery=buffered)
    assert {age for *_, age in events(tmp_path / "late", "arrived")} == {0}
    assert late.fingerprint == run_toy(tmp_path / "plain", method).fingerprint


# --- the same bits


def test_a_run_without_a_clock_is_as_it_was(tmp_path):
    """And one that keeps the time of `all`, or whose deadline nobody misses, trains the same."""
    plain = run_toy(tmp_path / "plain", FEDCPF)
    assert not (tmp_path / "plain" / "events.csv").exists()
    assert not clocks(tmp_path / "plain")
    for delivery in (Delivery(clock=True), Delivery("deadline", seconds=100.0)):
        path = tmp_path / delivery.name
        assert run_toy(path, FEDCPF, delivery=delivery).fingerprint == plain.fingerprint
        assert clocks(path) == sorted(set(clocks(path)))


@pytest.mark.parametrize("delivery", [QUORUM, DEADLINE], ids=["quorum", "deadline"])
def test_a_late_reply_is_a_lost_reply(delivery, tmp_path, monkeypatch):
    """p01 is the slowest: it is late in every round, trains nothing and keeps its state."""
    late = run_toy(tmp_path / "late", FEDCPF, delivery=delivery)
    status = {(r["client"], r["status"]) for r in table(tmp_path / "late", "turns.csv")}
    assert status == {("p00", "ok"), ("p01", "late"), ("p02", "ok")}
    monkeypatch.setattr(Participation, "loses", lambda _, client, *__: client == "p01")
    lost = run_toy(tmp_path / "lost", FEDCPF)
    assert late.fingerprint == lost.fingerprint
    assert "p01" not in late.clients


@pytest.mark.parametrize("delivery", [QUORUM, BUFFER, ASYNC], ids=lambda d: d.name)
def test_the_same_seed_gives_the_same_log_and_bits_whoever_carries_it_out(delivery, tmp_path):
    plan = {"delivery": delivery, "presence": Participation(lost=0.3), "rounds": 8, "people": 5}
    first = run_toy(tmp_path / "a", FEDCPF, **plan)
    for name, other in (("b", {}), ("c", {"workers": 2}), ("d", {"engine": "bytes"})):
        assert run_toy(tmp_path / name, FEDCPF, **plan, **other).fingerprint == first.fingerprint
        assert told(tmp_path / name) == told(tmp_path / "a")


@pytest.mark.parametrize("delivery", [QUORUM, BUFFER, ASYNC], ids=lambda d: d.name)
def test_a_log_replayed_gives_the_same_log_and_bits_and_no_speed_is_drawn(
    delivery, tmp_path, monkeypatch
):
    plan = {"rounds": 8, "people": 5}
    first = run_toy(tmp_path / "a", FEDCPF, delivery=delivery, **plan)
    log = tmp_path / "a" / "events.csv"
    monkeypatch.setattr(virtual_clock.math, "exp", None)
    again = replace(delivery, replay=str(log))
    assert run_toy(tmp_path / "b", FEDCPF, delivery=again, **plan).fingerprint == (
        first.fingerprint
    )
    assert told(tmp_path / "b") == told(tmp_path / "a")
    slow = log.read_text().replace("p00,0,0,0,sent,", "p00,0,0,0,sent,1")
    (tmp_path / "slow.csv").write_text(slow)
    other = replace(delivery, replay=str(tmp_path / "slow.csv"))
    run_toy(tmp_path / "c", FEDCPF, delivery=other, rounds=2, people=5)
    assert events(tmp_path / "c", "arrived") != events(tmp_path / "a", "arrived")[: 2 * 2]
    assert ("p00", 0) not in {(c, v) for _, c, v, _ in events(tmp_path / "c", "arrived")}


def test_a_log_that_does_not_fit_is_refused_in_one_line(tmp_path):
    run_toy(tmp_path / "a", FEDAVG, delivery=BUFFER, rounds=2)
    log = tmp_path / "a" / "events.csv"
    with pytest.raises(DataError, match=r"holds . turns of 'p0.', and more are asked for"):
        run_toy(tmp_path / "b", FEDAVG, delivery=replace(BUFFER, replay=str(log)), rounds=9)
    with pytest.raises(DataError, match="no log to replay at nowhere"):
        run_toy(tmp_path / "c", FEDAVG, delivery=replace(BUFFER, replay="nowhere"))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    replay = replace(BUFFER, replay=str(tmp_path / "other.csv"))
    with pytest.raises(DataError, match="is no log of events"):
        run_toy(tmp_path / "d", FEDAVG, delivery=replay)


# --- interrupted and resumed


@pytest.mark.parametrize(
    ("delivery", "after"),
    [(QUORUM, False), (BUFFER, True), (ASYNC, False)],
    ids=lambda value: getattr(value, "name", value),
)
def test_interrupted_at_any_write_it_goes_on_to_the_same_bits(
    delivery, after, tmp_path, monkeypatch
):
    """Who is at work, with which version, the clock and the log are those of a whole run."""
    method, plan = FedAvgFT(local=STEPS, tune_epochs=1), {"delivery": delivery, "rounds": 3}
    count = Interrupt(0, after=False)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", count)
        whole = run_toy(tmp_path / "whole", method, **plan)
    tables = told(tmp_path / "whole")
    for k in range(1, -count.left):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Interrupt(k, after))
            with pytest.raises(KeyboardInterrupt):
                run_toy(tmp_path / str(k), method, **plan)
        assert run_toy(tmp_path / str(k), method, **plan).fingerprint == whole.fingerprint, k
        assert told(tmp_path / str(k)) == tables, k


def test_rare_checkpoints_personal_states_and_losses_resume_too(tmp_path, monkeypatch):
    plan = {
        "delivery": BUFFER,
        "rounds": 9,
        "checkpoint_every": 4,
        "people": 5,
        "inputs": 40,
        "presence": Participation(lost=0.2, cohort=3, gone={"p04": 5}),
    }
    whole = run_toy(tmp_path / "whole", FEDCPF, **plan)
    for k in (5, 8):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Interrupt(k, after=True))
            with pytest.raises(KeyboardInterrupt):
                run_toy(tmp_path / str(k), FEDCPF, **plan)
        assert run_toy(tmp_path / str(k), FEDCPF, **plan).fingerprint == whole.fingerprint
        assert told(tmp_path / str(k)) == told(tmp_path / "whole")


def test_what_groups_models_were_is_kept_for_updates_under_way(tmp_path, monkeypatch):
    method = FedGroup(local=STEPS, clusters=2, probe=1)
    plan = {"delivery": ASYNC, "rounds": 6, "people": 4}
    whole = run_toy(tmp_path / "whole", method, **plan)
    assert max(age for *_, age in events(tmp_path / "whole", "arrived")) >= 1
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(12, after=True))
        with pytest.raises(KeyboardInterrupt):
            run_toy(tmp_path / "cut", method, **plan)
    assert run_toy(tmp_path / "cut", method, **plan).fingerprint == whole.fingerprint
    assert not [p for p in (tmp_path / "cut" / "state").iterdir() if "base" in p.name]


def test_a_finished_run_leaves_no_message_and_no_clock_state_behind(tmp_path):
    run_toy(tmp_path, FEDAVG, delivery=ASYNC)
    files = {path.name for path in (tmp_path / "state").iterdir()}
    assert not [name for name in files if "agenda" in name or "offer" in name]


# --- who is there


def test_lost_replies_change_nothing_and_their_clients_go_on(tmp_path):
    """Every lost line is followed by a new turn of that client; the server counts only others."""
    presence = Participation(lost=0.4)
    run_toy(tmp_path, FEDCPF, rounds=8, delivery=BUFFER, presence=presence)
    lost = events(tmp_path, "lost")
    assert lost
    rows = [r for r in table(tmp_path, "turns.csv") if r["status"] == "lost"]
    assert len(rows) == len(lost)
    assert {(r["bytes_up"], r["steps"]) for r in rows} == {("0", "0")}
    counted = [r["value"] for r in table(tmp_path, "rounds.csv") if r["metric"] == "replies"]
    assert counted == ["2.0"] * 8


def test_the_gone_never_land_and_are_sent_nothing_more(tmp_path):
    """p01 leaves at version 2 while it is at work; when all are gone, rounds are empty."""
    run_toy(
        tmp_path / "one", FEDAVG, rounds=8, delivery=ASYNC, presence=Participation(gone={"p01": 2})
    )
    seen = [
        (event, at)
        for event in ("sent", "arrived", "gone")
        for at, client, *_ in events(tmp_path / "one", event)
        if client == "p01"
    ]
    assert [event for event, at in seen if at > 2] == ["gone"]
    nobody = Participation(gone=dict.fromkeys(("p00", "p01", "p02"), 1))
    outcome = run_toy(tmp_path / "two", FEDAVG, delivery=ASYNC, presence=nobody)
    first = run_toy(tmp_path / "first", FEDAVG, delivery=ASYNC, rounds=1)
    assert equal_states(outcome.server, first.server)


def test_no_more_are_at_work_than_the_cohort_says(tmp_path):
    plan = {"presence": Participation(cohort=2), "people": 6, "rounds": 20}
    run_toy(tmp_path, FEDAVG, delivery=ASYNC, **plan)
    working, most, seen = set(), 0, set()
    for row in table(tmp_path, "events.csv"):
        (working.add if row["event"] == "sent" else working.discard)(row["client"])
        most, seen = max(most, len(working)), seen | working
    assert most == 2
    assert len(seen) == 6


# --- every method


REFUSED = {
    "scaffold": "'model and control'|belong together",
    "fedpac": "asks? clients more than once",
    "feddf": "looks at every single reply",
    "fedgen": "looks at every single reply",
    "pe_zsl": "do not begin by asking",
    "sg_zsl": "do not begin by asking",
    "centralised": "nothing arrives late",
    "fedridge": "products in place of updates",
}
SERVED = {name for name in NAMES if build(name).served}


@pytest.mark.parametrize("delivery", [QUORUM, DEADLINE, BUFFER, ASYNC], ids=lambda d: d.name)
@pytest.mark.parametrize("name", WITH_SLOW_KIN)
def test_every_method_runs_or_is_refused_in_one_line(name, delivery, tmp_path):
    method = build(name)
    reason = "batch by batch" if name in SERVED else REFUSED.get(name)
    if reason and (name in SERVED or delivery.asynchronous):
        with pytest.raises(ConfigError, match=reason) as told:
            conformed(method, tmp_path, delivery=delivery)
        assert "\n" not in str(told.value)
        assert not (tmp_path / "events.csv").exists()
        return
    try:
        check(Plan(delivery=delivery), method, task_of(method))
    except ConfigError as error:
        pytest.fail(f"refused, and not in the list above: {error}")
    folder, _ = conformed(method, tmp_path, delivery=delivery, rounds=2)
    assert len(clocks(folder.path)) == (0 if method.pooled else 2)


@pytest.mark.parametrize("delivery", [BUFFER, ASYNC], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", [IFCA, FedGroup, CFedVS], ids=lambda kind: kind.__name__)
def test_one_group_is_delivered_as_fedavg(kind, delivery, tmp_path):
    alone = run_toy(tmp_path / "a", kind(local=STEPS, clusters=1), delivery=delivery, rounds=8)
    whole = run_toy(tmp_path / "b", FEDAVG, delivery=delivery, rounds=8)
    assert torch.allclose(alone.server.models.flat, whole.server.model.flat, atol=1e-6)
    assert events(tmp_path / "a", "arrived") == events(tmp_path / "b", "arrived")


@pytest.mark.parametrize("delivery", [QUORUM, BUFFER], ids=lambda d: d.name)
def test_finding_ones_group_takes_no_time_and_excuses_nobody(delivery, tmp_path, monkeypatch):
    """All are probed in the first round; what they train is as late as FedAvg's."""
    monkeypatch.setattr(FedGroup, "setup", lambda _, s, __: s)
    run_toy(tmp_path / "a", FedGroup(local=STEPS, clusters=2), delivery=delivery)
    run_toy(tmp_path / "b", FEDAVG, delivery=delivery)
    assert table(tmp_path / "a", "events.csv") == table(tmp_path / "b", "events.csv")
    rows = [r for r in table(tmp_path / "a", "turns.csv") if r["verb"] == "probe"]
    assert {(r["round"], r["status"]) for r in rows} == {("1", "ok")}
    assert len({r["client"] for r in rows}) == 3


def test_who_is_away_is_not_asked_for_a_group(tmp_path, monkeypatch):
    monkeypatch.setattr(FedGroup, "setup", lambda _, s, __: s)
    trace = tmp_path / "trace.csv"
    days = ["p00,0,1,1", "p01,0,1,1", "p02,0,0,0"]
    trace.write_text("\n".join(["client,round,idle,charging", *days]))
    method, presence = FedGroup(local=STEPS, clusters=2), Participation(trace=str(trace))
    run_toy(tmp_path / "a", method, delivery=BUFFER, presence=presence)
    assert {r["client"] for r in table(tmp_path / "a", "turns.csv")} == {"p00", "p01"}


def test_slow_clients_take_as_many_times_as_long_and_strangers_are_refused(tmp_path):
    slow = replace(Delivery(clock=True), slow={"p02": 8.0})
    times = []
    for name, delivery in (("a", Delivery(clock=True)), ("b", slow)):
        run_toy(tmp_path / name, FEDAVG, delivery=delivery, rounds=1)
        rows = [r for r in table(tmp_path / name, "events.csv") if r["event"] == "sent"]
        times.append({r["client"]: float(r["took"]) for r in rows})
    plain, late = times
    assert late == {**plain, "p02": pytest.approx(8 * plain["p02"])}
    with pytest.raises(ConfigError, match=r"delivery: slow: no client 'p20' \(did you mean"):
        replace(slow, slow={"p20": 8.0}).check_clients(["p01", "p02"])
    for never in (0.0, float("inf")):
        with pytest.raises(ConfigError, match=r"delivery: slow\.p01 must be > 0 and finite; got"):
            replace(slow, slow={"p01": never})


def test_clients_elsewhere_are_asked_when_their_time_has_come(tmp_path):
    """Reached by bytes alone, with their states at home: the same bits as here."""
    method, plan = build("fedcpf"), {"delivery": BUFFER, "solver": "sequential"}
    here = conformed(method, tmp_path / "here", **plan)[1]
    assert there(method, tmp_path, **plan).fingerprint == here.fingerprint
    assert table(tmp_path / "server", "events.csv") == table(tmp_path / "here", "events.csv")
