"""The virtual clock by hand: who arrives when, how old, and how much it counts then."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.engine.test_asynchronous_aggregation import ASYNC, BUFFER, QUORUM
from vergence.core.masks import Mask
from vergence.core.messages import Message, SealedReply, SealedTree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.engine.asynchronous_aggregation import OLDEST, Delivery
from vergence.engine.participation import Participation
from vergence.engine.virtual_clock import PendingUpdate, VirtualClock, read_log, waves
from vergence.errors import DataError

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


def test_the_rows_of_a_round_by_hand():
    """Turns of 4, 2, 1 seconds; c is lost, and a is late for the deadline of 2.5."""
    clock = hand(Delivery("deadline", seconds=2.5), {"a": 4, "b": 2, "c": 1})
    clock.gather(offered("abc", 0), (), 0)
    clock.rows.clear()
    clock.gather(offered("abc", 1), ("c",), 1)
    assert clock.rows == [
        (2, "2.5", "a", 1, 1, 0, "sent", "4.0"),
        (2, "2.5", "b", 1, 1, 0, "sent", "2.0"),
        (2, "2.5", "c", 1, 1, 0, "sent", "1.0"),
        (2, "4.5", "b", 1, 1, 0, "arrived", ""),
        (2, "5.0", "a", 1, 1, 0, "late", ""),
        (2, "5.0", "c", 1, 1, 0, "lost", ""),
    ]


def test_the_rows_of_arrivals_by_hand_with_who_left():
    """c (1 second) leaves in round 1, when its second turn is under way."""
    clock = hand(ASYNC, {"a": 4, "c": 1})
    clock.presence = Participation(gone={"c": 1})
    ((first, what),) = clock.arrivals(offered("ac", 0), 0, 0.0)
    assert (first.client, first.due, first.turn, first.version, what) == ("c", 1, 0, 0, "arrived")
    assert first.progress == 0.0
    clock._dispatch(["a", "c"], offered("ac", 0), 0, 0.25)
    ((last, _),) = clock.arrivals(offered("ac", 1), 1, 0.5)
    assert (last.client, last.version) == ("a", 0)
    assert clock.rows == [
        (1, "0.0", "a", 0, 0, 0, "sent", "4.0"),
        (1, "0.0", "c", 0, 0, 0, "sent", "1.0"),
        (1, "1.0", "c", 0, 0, 0, "arrived", ""),
        (1, "1.0", "c", 1, 0, 0, "sent", "1.0"),
        (2, "2.0", "c", 1, 0, 1, "gone", ""),
        (2, "4.0", "a", 0, 0, 1, "arrived", ""),
    ]


def test_lost_updates_end_and_do_not_fill_a_buffer():
    """c is lost at 1 and 2, b at 2: only a counts, at 4, beside c's third turn."""
    clock = hand(BUFFER, {"a": 4, "b": 2, "c": 1})
    lost = {("b", 0), ("b", 1), ("c", 0), ("c", 1), ("c", 2)}
    clock.presence = SimpleNamespace(
        loses=lambda client, turn, _: (client, turn) in lost,
        here=lambda *_: True,
        stays=lambda *_: True,
        size=lambda present: present,
    )
    landed = clock.arrivals(offered("abc", 0), 0, 0.0)
    assert [(f.client, f.due, what) for f, what in landed] == [
        ("c", 1, "lost"),
        ("b", 2, "lost"),
        ("c", 2, "lost"),
        ("c", 3, "lost"),
        ("a", 4, "arrived"),
        ("b", 4, "lost"),
        ("c", 4, "arrived"),
    ]


def test_a_replay_takes_the_seconds_of_its_log_and_no_more_turns(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(
        "seed,event,client,took\n1,sent,a,2.5\n1,arrived,a,\n0,sent,a,9\n1,sent,b,1\n1,sent,a,3\n"
    )
    log = read_log(path, 1)
    assert log == {"a": [2.5, 3.0], "b": [1.0]}
    delivery = replace(ASYNC, replay=str(path))
    clock = VirtualClock(delivery, Participation(), RandomStream("run", 0), lambda _: 7, log)
    message = Message("train")
    assert [clock._begin("a", message) for _ in range(2)] == [(0, 2.5), (1, 3.0)]
    with pytest.raises(DataError, match=r"holds 2 turns of 'a', and more"):
        clock._begin("a", message)
    with pytest.raises(DataError, match="holds 0 turns of 'z'"):
        clock._begin("z", message)
    with pytest.raises(DataError, match="no event of seed 2"):
        read_log(path, 2)


def test_a_slow_client_takes_as_many_times_as_long():
    clock = hand(ASYNC, {"a": 4, "b": 4}, slow={"a": 2.5})
    seconds = [clock._begin(client, Message("train"))[1] for client in "ab"]
    assert seconds == [10.0, 4.0]


def test_some_idle_clients_are_drawn_by_the_number_of_turns_so_far():
    """Of 6 idle clients 2 may train: those drawn by the run's numbers, in client order."""
    clients = "abcdef"
    clock = hand(ASYNC, dict.fromkeys(clients, 1))
    clock.presence = Participation(cohort=2)
    drawn = []
    for total in (0, 2):
        clock.pending = []
        clock._dispatch(clients, offered(clients, 0), 0, 0.0)
        places = RandomStream("run", 0).child("next", total).numpy().choice(6, 2, replace=False)
        drawn.append([client for _, client, _ in sorted(clock.pending)])
        assert drawn[-1] == [clients[i] for i in sorted(places.tolist())]
    assert clock.turns.total() == 4
    clock._dispatch(clients, offered(clients, 0), 0, 0.0)
    assert clock.turns.total() == 4  # nobody more may train


def test_a_clock_goes_on_from_a_checkpoint():
    clock = hand(BUFFER, {"a": 4, "b": 2, "c": 1})
    clock.arrivals(offered("abc", 0), 0, 0.0)
    other = hand(BUFFER, {"a": 4, "b": 2, "c": 1})
    other.restore(clock.engine_state())
    assert (other.clock, other.turns, other.offers) == (clock.clock, clock.turns, clock.offers)
    assert [f.client for f in clock.engine_state()["agenda"].pending] == ["c", "a"]
    for at in (1, 2):
        found = [each.arrivals(offered("abc", at), at, 0.5) for each in (clock, other)]
        assert [(f.client, f.due, f.turn, w) for f, w in found[0]] == [
            (f.client, f.due, f.turn, w) for f, w in found[1]
        ]


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
