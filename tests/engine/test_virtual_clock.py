"""The virtual clock by hand: who arrives when, how old, and how much it counts then."""

from dataclasses import replace

import pytest
import torch

from tests.engine.test_asynchronous_aggregation import ASYNC, BUFFER, QUORUM
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, SealedTree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.engine.asynchronous_aggregation import OLDEST, Delivery
from vergence.engine.participation import Participation
from vergence.engine.virtual_clock import PendingUpdate, VirtualClock, waves

# --- values by hand


def test_staleness_by_hand():
    """poly (1 + D)^-.5: 1, .5, 1/3 at 0, 3, 8; hinge 1 to 4, then 1/11, 1/21 at 5, 6; a = .6."""
    poly, hinge = Delivery("fedasync"), Delivery("fedasync", staleness="hinge")
    assert [poly.scale(d) for d in (0, 3, 8)] == pytest.approx([0.6, 0.3, 0.2])
    found = [hinge.scale(d) for d in (0, 4, 5, 6, 16)]
    assert found == pytest.approx([0.6, 0.6, 0.6 / 11, 0.6 / 21, 0.6 / 121])
    assert Delivery("fedasync", a=1.0, staleness="constant").scale(16) == 1
    assert [BUFFER.scale(d) for d in (0, 3, 15)] == [1, 0.5, 0.25]


def hand(delivery, work, **options):
    """Return a virtual clock for clients whose turns take `work` seconds."""
    delivery = replace(delivery, pace=1.0, sigma=0.0, **options)
    return VirtualClock(delivery, Participation(), RandomStream("run", 0), work.__getitem__)


def offered(clients, at, **trees):
    """Return what version `at` sends: one message, the same for all."""
    message = Message("train", trees, round=at)
    return dict.fromkeys(clients, message)


def ages(virtual_clock, clients, rounds):
    """Return (time, client, age) of everything that landed, round by round."""
    found = []
    for at in range(rounds):
        landed = virtual_clock.arrivals(offered(clients, at), at, 0.0)
        found.append([(f.due, f.client, at - f.version) for f, _ in landed])
    return found


def test_ages_of_three_speeds_by_hand():
    """Speeds 1, 2, 4, work 4: turns of 4, 2, 1 seconds; every arrival makes a version.

    c lands at 1 (version 0); b (0) and c (1) at 2; c (3) at 3; a (0), b (3), c (4) at 4. What lands
    at one moment lands in the order of names, and only then is anybody sent the newest version.
    """
    virtual_clock = hand(ASYNC, {"a": 4, "b": 2, "c": 1})
    assert [landed for (landed,) in ages(virtual_clock, "abc", 8)] == [
        (1, "c", 0),
        (2, "b", 1),
        (2, "c", 1),
        (3, "c", 0),
        (4, "a", 4),
        (4, "b", 2),
        (4, "c", 2),
        (5, "c", 0),
    ]


def test_a_buffer_of_three_speeds_by_hand():
    """Buffer of two: c lands at 1, begins again with version 0, b lands at 2: version 1.

    Then c, at 2 too, from version 0 (age 1), sent version 1; it lands at 3: version 2 (age 0).
    Then all three at 4: a (version 0, age 2) and b (sent at 2, version 1, age 1) make version 3.
    """
    virtual_clock = hand(BUFFER, {"a": 4, "b": 2, "c": 1})
    assert ages(virtual_clock, "abc", 3) == [
        [(1, "c", 0), (2, "b", 0)],
        [(2, "c", 1), (3, "c", 0)],
        [(4, "a", 2), (4, "b", 1)],
    ]


def test_a_fast_client_takes_two_turns_in_one_buffer_one_after_the_other():
    updates = [
        PendingUpdate(c, 0.0, t, v, 0.0, "")
        for c, t, v in [("a", 0, 1), ("b", 0, 0), ("a", 1, 1), ("c", 3, 1)]
    ]
    found = [[(f.client, f.turn) for f in wave] for wave in waves(updates)]
    assert found == [[("b", 0)], [("a", 0), ("c", 3)], [("a", 1)]]


def test_an_update_is_dropped_when_more_than_16_versions_old_and_no_more_are_kept():
    """a takes 17.5 seconds, c one: seventeen versions of c are there when a lands at age 17."""
    work = {"a": 17.5, "c": 1.0}
    virtual_clock = hand(ASYNC, work)
    for at in range(18):
        landed = virtual_clock.arrivals(offered("ac", at), at, 0.0)
        assert len({offer.round for offer in virtual_clock.offers.values()}) <= OLDEST + 1
        virtual_clock.forget(at + 1)
    assert [(f.client, at - f.version, what) for f, what in landed] == [
        ("a", 17, "dropped"),
        ("c", 0, "arrived"),
    ]
    just = hand(ASYNC, {**work, "a": 16.5})
    assert [
        (f.client, what)
        for f, what in [just.arrivals(offered("ac", at), at, 0.0)[0] for at in range(17)][-1:]
    ] == [("a", "arrived")]


def test_quorum_and_deadline_by_hand():
    """Turns of 4, 2, 1: two replies are there at 2; after 2.5 seconds, too, and a is late."""
    work, asked = {"a": 4, "b": 2, "c": 1}, offered("abc", 0)
    found = {}
    for delivery in (QUORUM, Delivery("deadline", seconds=2.5), Delivery(clock=True)):
        virtual_clock = hand(delivery, work)
        found[delivery.name] = virtual_clock.gather(asked, (), 0), virtual_clock.clock
    assert found == {"quorum": ({"a"}, 2.0), "deadline": ({"a"}, 2.5), "all": (set(), 4.0)}
    virtual_clock = hand(Delivery("deadline", seconds=5.0), work)
    assert virtual_clock.gather(asked, (), 0) == set()
    assert virtual_clock.clock == 4.0  # everybody is there: nobody waits on
    assert virtual_clock.gather(asked, ("c",), 1) == set()
    assert virtual_clock.clock == 9.0  # who knows that c is lost?
    virtual_clock = hand(QUORUM, work)
    assert virtual_clock.gather(asked, ("b",), 0) == set()
    assert virtual_clock.clock == 4.0  # with b lost, a is the second


def test_speeds_are_log_normal_and_bytes_take_time():
    options = Delivery("fedasync", pace=50.0, bandwidth=1000.0)
    model = Params.named(w=torch.zeros(25))
    seconds = []
    for n in range(2000):
        virtual_clock = VirtualClock(
            options, Participation(), RandomStream("run", n), lambda _: 100.0
        )
        seconds.append(virtual_clock._begin("a", Message("train", {"model": model}))[1] - 0.2)
    logs = torch.tensor(seconds, dtype=torch.float64).log()
    assert logs.mean() == pytest.approx(0.693, abs=0.05)  # 100 samples at 50 a second: 2
    assert logs.std() == pytest.approx(0.5, abs=0.03)
    assert virtual_clock._begin("a", Message("train"))[1] == pytest.approx(seconds[-1])


def test_a_late_reply_is_rebased_where_it_counts():
    """theta 5, sent 3, update 2 on the shared first entry: (3 + 2 - 5) * s = 0; the second is home.

    With another update, 4: (3 + 4 - 5) * .6 * .5 = .6 at age 3.
    """
    virtual_clock = hand(ASYNC, {"a": 1})
    then, now = Params.named(w=torch.tensor([3.0, 3.0])), Params.named(w=torch.tensor([5.0, 9.0]))
    virtual_clock.offers = {"x": Message("train", {"model": then}, round=2)}
    pending = PendingUpdate("a", 0.0, 7, 2, 0.0, "x")
    mask = Mask(torch.tensor([True, False]), then.layout)
    for update, expected in ((2.0, 0.0), (4.0, 0.6)):
        total = Params.named(w=torch.tensor([update, 0.0]))
        sealed = SealedReply(7, {"model": SealedTree(total, mask)}, {})
        aged = virtual_clock.aged(sealed, pending, 5, {"model": now})
        assert aged.trees["model"].total.flat.tolist() == pytest.approx([expected, 0.0])
        assert aged.trees["model"].weight is mask
    assert virtual_clock.opened(pending).round == 7


def test_what_is_added_to_models_that_are_not_sent_is_rebased_by_them():
    """Two groups' models, and b's was sent: (3 + 4 - 5) * weight 2 * .6 * .5 = 1.2 at age 3."""
    virtual_clock = hand(ASYNC, {"b": 4, "c": 1})
    then, now = (Params.named(a=torch.tensor([x]), b=torch.tensor([x])) for x in (3.0, 5.0))
    model = Message("train", {"model": Params.named(w=torch.tensor([3.0]))}, round=2)
    ((landed, _),) = virtual_clock.arrivals({"b": model, "c": model}, 2, 0.0, {"models": then})
    virtual_clock.forget(3)
    assert landed.client == "c"
    assert set(virtual_clock.engine_state()) == {"agenda", "base2", landed.offer}
    ((_, _, pending),) = virtual_clock.pending
    weight = Params.named(a=torch.tensor([0.0]), b=torch.tensor([2.0]))
    update = Params.named(a=torch.tensor([0.0]), b=torch.tensor([2.0 * 4.0]))
    sealed = SealedReply(7, {"models": SealedTree(update, weight)}, {})
    aged = virtual_clock.aged(sealed, pending, 5, {"models": now})
    assert aged.trees["models"].total.flat.tolist() == pytest.approx([0.0, 1.2])


def test_a_share_that_rounds_to_nobody_still_lets_one_train():
    delivery = replace(ASYNC, pace=1.0, sigma=0.0)
    work = {"a": 4, "b": 2, "c": 1}
    clock = VirtualClock(
        delivery, Participation(cohort=0.1), RandomStream("run", 0), work.__getitem__
    )
    for landed in ages(clock, "abc", 3):
        assert len(landed) == 1
        assert len(clock.pending) == 0
    two = VirtualClock(delivery, Participation(cohort=2), RandomStream("run", 0), work.__getitem__)
    assert len(ages(two, "abc", 1)[0]) + len(two.pending) == 2
