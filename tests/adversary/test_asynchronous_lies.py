"""Asynchronous aggregation with a client, a server or a log of events that lies.

A client sends no version and no age: the server's virtual clock knows them. What it does send is
changed here, field by field.
"""

import csv
import math
from collections import Counter
from dataclasses import replace

import pytest

from tests.conformance.test_methods import build, run
from tests.deployment import test_remote_clients
from tests.deployment.test_remote_clients import PEOPLE, Loop, lose, noted, there
from vergence.core.messages import Message, SealedTree
from vergence.core.params import Params
from vergence.core.serialization import pack, unpack
from vergence.deployment.client_ledger import check_plan
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.plan import Plan
from vergence.engine.virtual_clock import read_log
from vergence.errors import DataError, StateError
from vergence.wire.encoding import decode, encode

LIAR, *OTHERS = PEOPLE.clients
FAST = dict.fromkeys(OTHERS, 10.0)
"""The first client is ten times as fast as the others."""
BUFFER = Delivery("fedbuff", replies=3, slow=FAST)
ASYNC = Delivery("fedasync", slow=FAST)
BOTH = pytest.mark.parametrize("delivery", [BUFFER, ASYNC], ids=lambda each: each.name)


def turns(path):
    with (path / "server" / "turns.csv").open() as file:
        return list(csv.DictReader(file))


@BOTH
def test_a_fast_client_takes_more_turns_than_there_are_rounds_elsewhere_too(delivery, tmp_path):
    """Clients refused turns whose number was that of a round after the last one."""
    method, plan = build("fedavg"), {"points": ("P0", "P1"), "evaluate_every": 2}
    here = run(method, tmp_path / "here", PEOPLE, solver="sequential", delivery=delivery, **plan)
    line = Loop(method, tmp_path / "homes")
    away = there(method, tmp_path, line, delivery=delivery, **plan)
    assert away.fingerprint == here[1].fingerprint
    numbers = [unpack(request, ClientRequest) for client, request in line.asked if client == LIAR]
    last = max(each.message.round for each in numbers if each.kind == "turn")
    assert (last >= line.plan.rounds) == (delivery is BUFFER)
    assert last < line.plan.most_turns


# --- a client that lies


class Lies(Loop):
    """A line on which the answer to the liar's second turn is another one."""

    def __init__(self, method, folder, change):
        super().__init__(method, folder)
        self.change, self.old, self.theirs = change, b"", b""

    def ask(self, client, request):
        answer, what = super().ask(client, request), unpack(request, ClientRequest)
        if what.kind != "turn":
            return answer
        if client != LIAR:
            self.theirs = answer
        elif what.message.round == 0:
            self.old = answer
        elif what.message.round == 1:
            return self.change(answer, self)
        return answer


def resealed(change):
    """Return what changes the reply in an answer, and leaves its note."""

    def changed(answer, _):
        note, body = unframed(answer)
        return framed(note, encode(change(decode(body, {})), {}))

    return changed


def on_tree(change):
    return resealed(
        lambda sealed: replace(sealed, trees={n: change(t) for n, t in sealed.trees.items()})
    )


def valued(value):
    return on_tree(lambda tree: replace(tree, total=tree.total * 0.0 + value))


def weighed(weight):
    return on_tree(lambda tree: SealedTree(tree.total, weight))


def as_own(answer, line):
    """Another client's answer, in the liar's name, to the liar's request."""
    note, _ = unframed(answer)
    theirs, body = unframed(line.theirs or line.old)
    return framed({**theirs, "client": note["client"]}, body)


def again(tree):
    return SealedTree(tree.total * 1.0, tree.weight)


LONG = Params.zeros(
    replace(
        build("fedavg").server(test_remote_clients.task_of(build("fedavg"))).model.layout,
        names=("other",),
        shapes=((3,),),
    )
)
CLIENT_LIES = {
    "silence": (lambda *_: lose(b""), "lost"),
    "its old answer": (lambda _, line: line.old, "quarantined: stale"),
    "another's answer": (as_own, "quarantined: stale"),
    "another's name": (lambda a, _: noted(client=OTHERS[0])(a), "quarantined: malformed"),
    "an old turn": (resealed(lambda s: replace(s, round=0)), "quarantined: round"),
    "a later turn": (resealed(lambda s: replace(s, round=10**9)), "quarantined: round"),
    "NaN": (valued(math.nan), "quarantined: finite"),
    "infinity": (valued(math.inf), "quarantined: finite"),
    "another shape": (on_tree(lambda t: SealedTree(LONG, t.weight)), "quarantined: names"),
    "another tree": (
        resealed(lambda s: replace(s, trees={"else": s.trees["model"]})),
        "quarantined: names",
    ),
    "a tree more": (
        resealed(lambda s: replace(s, trees={**s.trees, "else": again(s.trees["model"])})),
        "quarantined: names",
    ),
    "a weight of 10^10": (weighed(1e10), "quarantined: weight"),
    "a weight below 0": (weighed(-1.0), "quarantined: weight"),
    "a weight of NaN": (weighed(math.nan), "quarantined: "),
    "a metric more": (resealed(lambda s: replace(s, metrics={"age": 0.0})), "quarantined: names"),
    "10^10 samples": (lambda a, _: noted(examples=1e10)(a), "quarantined: malformed"),
    "-1 steps": (lambda a, _: noted(steps=-1)(a), "quarantined: malformed"),
    "half of it": (lambda a, _: a[: len(a) // 2], "quarantined: malformed"),
}


@BOTH
@pytest.mark.parametrize("lie", CLIENT_LIES)
def test_a_lie_of_a_client_is_its_silence(delivery, lie, tmp_path):
    """The model is as if it had not spoken, and the table says why."""
    method, change = build("fedavg"), CLIENT_LIES[lie][0]
    lied = there(
        method, tmp_path / "a", Lies(method, tmp_path / "a" / "homes", change), delivery=delivery
    )
    silence = Lies(method, tmp_path / "b" / "homes", CLIENT_LIES["silence"][0])
    assert lied.fingerprint == there(method, tmp_path / "b", silence, delivery=delivery).fingerprint
    honest = there(method, tmp_path / "c", delivery=delivery).fingerprint
    assert lied.fingerprint != honest
    bad = [row for row in turns(tmp_path / "a") if row["status"] != "ok"]
    assert {row["client"] for row in bad} == {LIAR}
    assert bad[0]["status"].startswith(CLIENT_LIES[lie][1]), bad[0]["status"]


def test_what_no_check_bounds(tmp_path):
    """As docs/how-to/delivery.md says: a finite update counts whole, however long it is."""
    method, moved = build("fedavg"), {}
    for size in (1.0, 1e6):
        path = tmp_path / f"{size:g}"
        line = Lies(method, path / "homes", valued(size))
        moved[size] = there(method, path, line, delivery=ASYNC).server.model.flat.abs().max()
    assert moved[1e6] > 1e3 * moved[1.0]
    assert moved[1e6].isfinite()


@pytest.mark.parametrize(("samples", "most"), [(12, 5), (1, 17), (0, 17)])
def test_who_claims_few_samples_comes_back_sooner(samples, most, tmp_path, monkeypatch):
    """Of four alike. A claim of none took no time at all, and the others were never waited for."""
    claimed = {**dict.fromkeys(OTHERS, 12), LIAR: samples}
    monkeypatch.setattr(test_remote_clients, "COUNTS", claimed)
    there(build("fedavg"), tmp_path, delivery=Delivery("fedasync", sigma=0.0), rounds=20)
    came = Counter(row["client"] for row in turns(tmp_path))
    assert came[LIAR] == most
    assert came.total() == 20


# --- a server that lies


@pytest.mark.parametrize(
    ("lie", "noun"),
    [
        ({"round": 12}, "after the last round"),
        ({"round": 10**9}, "this run has 12"),
        ({"round": -1}, "this run has 12"),
        ({"progress": math.nan}, "progress"),
        ({"progress": math.inf}, "progress"),
        ({"progress": -1.0}, "progress"),
        ({"progress": 0.3}, "progress"),
        ({"progress": 1e9}, "progress"),
        ({"points": ("P2",)}, "measured"),
        ({"points": ("P1",)}, "measured"),
        ({"kind": "evaluate", "round": 5, "points": ("P0",)}, "this run has 4"),
    ],
)
def test_a_client_refuses_what_is_not_in_its_plan(lie, noun, tmp_path):
    """Progress sets learning rates, and the number of turns is that of the plan's arrivals."""
    plan, method = Plan(rounds=4, evaluate_every=0, delivery=BUFFER), build("fedavg")
    line = Loop(method, tmp_path)
    line.plan = plan
    sent = method.offer(method.server(test_remote_clients.task_of(method)), "")

    def asked(kind="turn", round=11, progress=0.5, points=()):
        message = Message("train", sent, round=round)
        return ClientRequest(kind, LIAR, message, "0.1", progress=progress, points=points)

    check_plan(asked(), plan, method)
    with pytest.raises(StateError, match=noun):
        check_plan(asked(**lie), plan, method)
    with pytest.raises(StateError):
        line.home(LIAR).answer(pack(asked(**lie)))


def test_replies_that_are_lost_have_numbers_too():
    plan = Plan(rounds=4, delivery=BUFFER)
    assert plan.most_turns == 12
    assert replace(plan, delivery=ASYNC).most_turns == 4
    lossy = replace(plan, presence=replace(plan.presence, lost=0.5))
    assert lossy.most_turns == 48


# --- a log that lies


@pytest.mark.parametrize("took", ["nan", "inf", "-inf", "-1.0", "many", ""])
def test_a_log_with_impossible_times_is_refused(took, tmp_path):
    """NaN has no place in the order of arrivals, and below 0 the clock would go back."""
    path = tmp_path / "events.csv"
    path.write_text(f"seed,event,client,took\n0,sent,p00,1.5\n0,sent,p01,{took}\n")
    with pytest.raises(DataError, match="log of events") as refused:
        read_log(path, 0)
    assert "\n" not in str(refused.value)
