"""Sums on shares with clients and aggregators elsewhere, reached by bytes alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.conformance.test_methods import NAMES, build
from tests.deployment.test_sums_elsewhere import here
from tests.engine.circle import ON_SHARES, SHARES, Circle
from tests.engine.test_secure_sums import REFUSED
from tests.engine.toys import table
from tests.privacy.sums import register, signing_pair
from vergence.core.messages import Message
from vergence.core.serialization import pack, quick_digest, unpack
from vergence.core.tags import tag
from vergence.deployment.protocol import ClientRequest, framed, unframed
from vergence.deployment.remote_clients import ClientLost
from vergence.engine import secure_sum_attempts
from vergence.engine.secure_sum_attempts import PartyIdentity
from vergence.errors import StateError
from vergence.privacy.config import SecureAggregationConfig
from vergence.privacy.secure_aggregation.additive import Contributor
from vergence.privacy.secure_aggregation.additive_messages import (
    AggregatorParts,
    Contribution,
    OpenedShare,
)
from vergence.privacy.secure_aggregation.session import Invitation

QUICK = ("fedavg", "fedcpf", "fedridge")
SLOW = pytest.mark.slow
FITS = [
    pytest.param(name, marks=() if name in QUICK else SLOW)
    for name in NAMES
    if name not in (*REFUSED, "smashed_average")
]


def shared(name, tmp_path, people=4, many=2, **more):
    names = ("one", "two", "three", "four")[:many]
    return Circle(
        build(name),
        tmp_path,
        people,
        SecureAggregationConfig("additive", aggregators=names),
        **more,
    )


def simulated(circle, path, lost=None, **plan):
    return here(circle, path, lost, privacy=SHARES, **plan).fingerprint


def said(circle, kind):
    """Return what was answered in sums, of one kind: who, in which turn's sum, and the message."""
    found = []
    for who, request, answer in circle.asked:
        if request.sum_message is not None:
            message = unpack(unframed(answer)[1], *secure_sum_attempts.SumAnswer.__args__)
            if isinstance(message, kind):
                found.append((who, request.stamp, message))
    return found


def status(tmp_path, round_):
    rows = table(tmp_path / "server", "turns.csv")
    return {r["client"]: r["status"] for r in rows if r["round"] == str(round_)}


@pytest.mark.parametrize("name", FITS)
def test_every_method_gives_the_simulators_bits(name, tmp_path):
    circle = shared(name, tmp_path)
    assert circle.run_rounds(rounds=2).fingerprint == simulated(circle, tmp_path / "here", rounds=2)
    for told in ("people.csv", "turns.csv"):
        assert table(tmp_path / "server", told) == table(tmp_path / "here", told)


@pytest.mark.parametrize("many", [3, pytest.param(4, marks=SLOW)])
@pytest.mark.parametrize("name", [pytest.param("fedavg", marks=SLOW), "fedcpf"])
def test_the_number_of_aggregators_changes_no_bit(name, many, tmp_path):
    circle = shared(name, tmp_path, many=many)
    assert circle.run_rounds(rounds=1).fingerprint == simulated(circle, tmp_path / "here", rounds=1)


# --- who vanishes


def test_a_client_without_parts_is_left_out(tmp_path):
    circle = shared("fedcpf", tmp_path)
    circle.gone = lambda who, _, round_: round_ == 1 and who == circle.names[1]
    got = circle.run_rounds(rounds=2).fingerprint
    lost = {1: circle.names[1:2]}
    assert got == simulated(circle, tmp_path / "here", lost, rounds=2)
    assert status(tmp_path, 2)[circle.names[1]] == "lost: left the sum"


@pytest.mark.parametrize("step", [*(pytest.param(n, marks=SLOW) for n in (1, 2, 3, 4)), 5])
def test_an_aggregator_that_is_started_anew_in_a_round_holds_another_attempt(step, tmp_path):
    """Its memory is lost before each message of an attempt, also after another has opened."""
    circle = shared("fedcpf", tmp_path)
    honest, died = circle.ask, []

    def dying(who, request):
        what = unpack(request, ClientRequest)
        due = tag(type(what.sum_message)) == ON_SHARES[step] and what.message.round == 1
        if due and who != "one" and not died:
            died.append(circle.adding.pop("two"))
        return honest(who, request)

    circle.ask = dying
    got = circle.run_rounds(rounds=2).fingerprint
    assert died
    assert got == simulated(circle, tmp_path / "here", rounds=2)
    attempts = {m.terms for _, stamp, m in said(circle, Contribution) if stamp.startswith("1.")}
    assert len(attempts) == 2


@pytest.mark.parametrize("step", [0, *(pytest.param(n, marks=SLOW) for n in (2, 3, 4)), 5])
def test_without_an_aggregator_a_round_is_nobodys_and_opens_nothing(step, tmp_path):
    circle = shared("fedcpf", tmp_path)
    away = []

    def gone(who, at, round_):
        away.extend([step] * (round_ == 1 and who == "two" and at == step))
        return round_ == 1 and who == "two" and bool(away)

    circle.gone = gone
    got = circle.run_rounds(rounds=2).fingerprint
    assert got == simulated(circle, tmp_path / "here", {1: circle.names}, rounds=2)
    told = set(status(tmp_path, 2).values())
    assert len(told) == 1
    assert told.pop().startswith("lost: no sum: aggregator 'two' has not sent its ")
    assert {who for who, stamp, _ in said(circle, OpenedShare) if stamp == "1.1"} <= {"one"}
    asked = Counter(
        e.client
        for _, e, _ in circle.asked
        if isinstance(e.sum_message, Invitation) and e.message.round == 1
    )
    assert asked == {"one": 1 if step == 0 else 2} | ({"two": 1} if step else {})


def test_a_sum_of_too_few_is_opened_by_nobody(tmp_path):
    circle = shared("fedcpf", tmp_path)
    circle.gone = lambda who, at, round_: round_ == 1 and at == 1 and who in circle.names[2:]
    got = circle.run_rounds(rounds=2).fingerprint
    assert got == simulated(circle, tmp_path / "here", {1: circle.names}, rounds=2)
    assert not [m for _, stamp, m in said(circle, OpenedShare) if stamp == "1.1"]


# --- who learns what


def test_server_and_each_aggregator_see_no_update(tmp_path):
    """All bytes that the server carries, and what each aggregator unpacks: no row, nor a word."""
    circle, rows = shared("fedavg", tmp_path), []
    honest = Contributor.__init__

    def noted(self, name, terms, words, *rest):
        rows.append(np.array(words))
        honest(self, name, terms, words, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contributor, "__init__", noted)
        circle.run_rounds(rounds=2)
    seen = b"".join(pack(request) + answer for _, request, answer in circle.asked)
    assert len(rows) == 4 * 2
    for words in rows:
        for word in words:
            assert word.tobytes() not in seen
    for who, request, answer in circle.asked:  # nothing beside the sums
        if request.kind == "turn":
            note, body = unframed(answer)
            assert body == b""
            assert not {*note["weight"], *note["metrics"]}
        assert (who in circle.names) or request.kind == "say"


@SLOW
def test_boxes_are_uniform_whatever_the_update_is(tmp_path):
    for frozen in (True, False):
        circle = shared("fedavg", tmp_path / str(frozen), inputs=1000)
        if frozen:
            local = replace(circle.method.local, lr=1e-12)
            circle.method = replace(circle.method, local=local)
        circle.run_rounds(rounds=1)
        data = b"".join(p.box for _, _, m in said(circle, Contribution) for p in m.parts)
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        assert counts.sum() > 8000
        assert chisquare(counts).pvalue > 1e-4


def test_entries_of_fewer_than_three_are_in_nobodys_answer(tmp_path):
    """What aggregators open together is as long as the entries that enough people share."""
    circle = shared("fedcpf", tmp_path, people=3, inputs=40)
    circle.run_rounds(rounds=2)
    sizes = [len(m.words) // 8 for _, _, m in said(circle, OpenedShare)]
    assert sizes[0] == sizes[1] == 42  # all of the model, and the loss
    assert 1 <= sizes[2] == sizes[3] < 42


# --- what is refused


def test_a_client_shares_nothing_with_an_aggregator_whose_key_it_does_not_know(tmp_path):
    """The server puts an aggregator of its own in the place of one."""
    circle = shared("fedavg", tmp_path)
    honest, told = circle.ask, []
    sign, genuine = signing_pair()

    def own(who, request):
        if who == "two" and who not in circle.adding:
            circle.aggregator(who).identity = PartyIdentity("run", register(circle.names), sign)
        try:
            return honest(who, request)
        except ClientLost as lost:
            told.append((who, str(lost)))
            raise

    circle.ask = own
    known = circle.identity

    def fooled(client=None):
        identity = known(client)
        if client == "server":  # it believes what it made itself
            return replace(identity, register={**identity.register, "two": genuine})
        return identity

    circle.identity = fooled
    got = circle.run_rounds(rounds=1).fingerprint
    assert not said(circle, Contribution)
    assert {who for who, _ in told} == set(circle.names)
    assert all("signature: this is not from 'two'" in why for _, why in told)
    assert got == simulated(circle, tmp_path / "here", {0: circle.names}, rounds=1)


def test_who_was_sent_another_model_is_in_no_sum(tmp_path):
    circle = shared("fedavg", tmp_path)
    honest = circle.ask

    def unlike(who, request):
        what = unpack(request, ClientRequest)
        if what.kind == "turn" and what.message.round == 1 and who == circle.names[2]:
            model = what.message["model"] * 1.001
            changed = pack(replace(what, message=replace(what.message, trees={"model": model})))
            note, body = unframed(honest(who, changed))
            return framed({**note, "to": quick_digest(request)}, body)
        return honest(who, request)

    circle.ask = unlike
    got = circle.run_rounds(rounds=2).fingerprint
    assert got == simulated(circle, tmp_path / "here", {1: circle.names[2:3]}, rounds=2)


def test_a_server_that_forgot_gets_the_very_same_sum_and_none_over_others(tmp_path):
    circle = shared("fedcpf", tmp_path)
    first = circle.run_rounds(rounds=1).fingerprint
    (tmp_path / "server").rename(tmp_path / "gone")
    circle.adding.clear()
    assert circle.run_rounds(rounds=1).fingerprint == first
    (tmp_path / "server").rename(tmp_path / "again")
    before = len(said(circle, OpenedShare))
    circle.gone = lambda who, at, _: who == circle.names[0] and at == 1
    circle.run_rounds(rounds=1)
    assert len(said(circle, OpenedShare)) == before
    assert all(s.startswith("lost") for s in status(tmp_path, 1).values())


def test_a_client_gives_one_row_for_one_question(tmp_path):
    """A server cannot learn what one person's update is from another state."""
    circle = shared("scaffold", tmp_path)
    circle.run_rounds(rounds=2)
    who, request, _ = next(
        x for x in circle.asked if x[1].kind == "turn" and x[1].message.round == 1
    )
    home = circle.home(who)
    with pytest.raises(StateError, match="spent: "):
        home.answer(pack(replace(request, file=None, stamp="1.7")))


OTHER = [
    ({"client": "two"}, {}, "no message of a sum for 'one'"),
    ({"kind": "turn", "sum_message": None}, {}, "no message of a sum for 'one'"),
    ({"sum_message": Invitation("no bytes")}, {}, "no message of a sum for 'one'"),
    ({"sum_message": AggregatorParts(b"", ())}, {}, "order: AggregatorParts came, due is nothing"),
    ({}, {"attempt": 1.5}, "no message of a secure sum"),
    ({}, {"threshold": None}, "no message of a secure sum"),
    ({}, {"threshold": 2}, "threshold: a sum of 2 people is proposed, and this end opens none of"),
    ({}, {"cipher": "rot13"}, "cipher: pads by 'rot13' are proposed, and this end draws them by"),
    ({}, {"request": "0.dance"}, "is no sum of this run"),
    ({}, {"request": None}, "is no sum of this run"),
    ({}, {"about": "xyz"}, "no message of a sum"),
    ({}, {"attempt": 7}, "knows of no such attempt"),
]


def test_an_aggregator_refuses_other_messages(tmp_path):
    circle = shared("fedavg", tmp_path)
    circle.run_rounds(rounds=1)
    request = [e for who, e, _ in circle.asked if who == "one"][1]
    for change, facts, why in OTHER:
        told = Message("say", {}, {**request.message.facts, **facts})
        with pytest.raises(StateError, match=why):
            circle.aggregator("one").answer(pack(replace(request, message=told, **change)))
    end = circle.aggregator("one")
    end.limit = 10
    with pytest.raises(StateError, match="where 10 are allowed"):
        end.answer(pack(request))


@SLOW
def test_a_message_that_comes_twice_gets_the_same_answer(tmp_path):
    circle = shared("fedcpf", tmp_path)
    honest = circle.ask

    def twice(who, request):
        first = honest(who, request)
        assert honest(who, request) == first
        return first

    circle.ask = twice
    assert circle.run_rounds(rounds=2).fingerprint == simulated(circle, tmp_path / "here", rounds=2)
