"""Sums on a ring of neighbours: exact; how likely luck is; what a server that lies can open."""

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from tests.privacy.sums import (
    clients,
    pairwise,
    people,
    plain_sum,
    random_words,
    register,
    under_pads,
)
from vergence.engine.plan import Plan
from vergence.engine.secure_sums import sums_for
from vergence.errors import ConfigError
from vergence.methods.fedavg import FedAvg
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.secure_aggregation import neighbours
from vergence.privacy.secure_aggregation import pairwise as protocol
from vergence.privacy.secure_aggregation.neighbours import (
    ATTEMPTS,
    UNLUCKY,
    UNSAFE,
    more_than,
    most_in_a_row,
    order,
    ring,
)
from vergence.privacy.secure_aggregation.pairwise import Graph, PairwiseServer, converse
from vergence.privacy.secure_aggregation.pairwise_messages import (
    Agreements,
    RandomNumbers,
    RelayedShares,
    Roster,
    Survivors,
)
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Invitation,
    Refused,
    UsedContributions,
)

MANY = 40
RING = pairwise(MANY, words=4, colluders=2)


def words(n=MANY):
    return {name: random_words(4) for name in people(n)}


def test_each_has_pads_with_its_neighbours_alone():
    said = words()
    talk = under_pads(RING, said)
    total = talk.rest()
    np.testing.assert_array_equal(total.words, plain_sum(said, list(said)))
    found = ring(MANY, 2, 0.05)
    boxes = [len(m.boxes) for m in talk.seen if type(m).__name__ == "Shares"]
    assert boxes == [2 * found.reach] * MANY
    assert 2 * found.reach < MANY - 1


@pytest.mark.parametrize(
    "many",
    [pytest.param(20, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)],
)
def test_sums_with_dropouts(many):
    """The sum of those who are in it, or none: never a wrong one."""
    rng, came = np.random.default_rng(0), {"sum": 0, "none": 0}
    for attempt in range(many):
        terms = pairwise(MANY, words=2, colluders=2, attempt=attempt)
        said = {name: random_words(2) for name in people(MANY)}
        gone = {n: int(rng.integers(2, 6)) for n in said if rng.random() < rng.choice([0.02, 0.1])}
        try:
            total = under_pads(terms, said).rest(
                lambda step, gone=gone: [n for n, at in gone.items() if at == step]
            )
        except Aborted:
            came["none"] += 1
            continue
        assert set(total.names) == {n for n in said if gone.get(n, 9) > 3}
        np.testing.assert_array_equal(total.words, plain_sum(said, total.names))
        came["sum"] += 1
    assert came["sum"] > many / 2


def test_who_vanishes_before_the_ring_is_drawn_ends_the_attempt():
    """Without one number the server would choose between two orders."""
    with pytest.raises(Aborted, match="before the ring was drawn"):
        under_pads(RING, words()).rest(lambda step: ["p03"] if step == 1 else ())


# Numbers.


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_probabilities_are_those_of_the_hypergeometric_distribution(data):
    many = data.draw(st.integers(3, 120))
    marked, drawn = (data.draw(st.integers(0, many)) for _ in range(2))
    limit = data.draw(st.integers(-1, drawn))
    expected = hypergeom.sf(limit, many, marked, drawn)
    assert more_than(limit, many, marked, drawn) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("many", [20, 60, 120, 500, 1000])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("dropouts", [0.02, 0.05, 0.1])
def test_a_ring_is_as_safe_and_as_lucky_as_it_says(many, share, dropouts):
    colluders = max(1, int(share * many))
    found = ring(many, colluders, dropouts)
    if found is None:
        return
    most = found.threshold - found.reach - 2
    assert many * hypergeom.sf(most, many, colluders, found.reach) <= UNSAFE * (1 + 1e-9)
    # Of the neighbours on both sides so many may vanish that the threshold is left.
    spare = 2 * found.reach + 1 - found.threshold
    vanish = math.ceil(dropouts * many)
    assert many * hypergeom.sf(spare, many - 1, vanish, 2 * found.reach) <= UNLUCKY * (1 + 1e-9)


def test_the_table_of_the_page_is_true():
    page = Path(__file__).parents[3] / "docs" / "explanation" / "secure_aggregation.md"
    head, rows = "| people | colluders | neighbours |", 0
    lines = page.read_text().split(head)[1].splitlines()[2:]
    for line in lines[: lines.index("")]:
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        many, colluders, near, threshold = map(int, cells)
        found = ring(many, colluders, 0.05)
        assert (2 * found.reach, found.threshold) == (near, threshold)
        rows += 1
    assert rows > 5


def test_more_colluders_want_more_neighbours_and_too_many_want_all():
    reach = [ring(1000, c, 0.05).reach for c in (10, 50, 100, 200)]
    assert reach == sorted(set(reach))
    assert ring(1000, 100, 0.05).reach < 50
    assert ring(10, 3, 0.05) is None
    assert ring(4, 1, 0.0) is None


def test_ten_times_the_people_want_few_more_neighbours():
    small, large = (ring(n, n // 10, 0.05).reach for n in (1000, 10_000))
    assert large < 1.3 * small


def test_colluders_are_limited_by_who_may_sign():
    """With a third of those asked, two lists of one sum could be signed."""
    for most, fits in ((13, True), (14, False)):
        config = SecureAggregationConfig(min_contributors=27, colluders=most)
        plan = Plan(privacy=Privacy(aggregation=config))
        if fits:
            assert sums_for(plan, FedAvg(), 40).policy.colluders == most
        else:
            with pytest.raises(ConfigError, match=r"colluders = 14, .* take at most 13"):
                sums_for(plan, FedAvg(), 40)
    with pytest.raises(ConfigError, match="colluders are for 'pairwise'"):
        SecureAggregationConfig("additive", 3, colluders=1)


# What a server can open that lies, and lets vanish whom it wants.


def openable(ring_order, reach, threshold, colluding, present):
    """Return the sets of honest people whose sum the server can compute, the smallest first.

    It has everybody's words under pads. It learns the own pad of a person from `threshold` of its
    holders who are in the sum, or collude; the pads of colluding and of vanished people it knows.
    """
    around = neighbours.neighbours(ring_order, reach)
    honest = [p for p in ring_order if p in present and p not in colluding]
    opened = {
        p
        for p in honest
        if len({q for q in around[p] | {p} if q in present or q in colluding}) >= threshold
    }
    parts, left = [], set(honest)
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = {q for p in edge for q in around[p] if q in honest} - part
        left -= part
        parts.append(part)
    return sorted((part for part in parts if part <= opened), key=len), parts


def attacks(people_, reach, threshold, colluding):
    """Try all gaps of vanished people that a server could make on both sides of some person."""
    many = len(people_)
    for start, length in combinations(range(1, many), 2):
        if length - start > many // 2:
            continue
        arc = set(people_[start:length])
        before = [people_[(start - k) % many] for k in range(1, reach + 1)]
        after = [people_[(length + k) % many] for k in range(reach)]
        present = set(people_) - ({*before, *after} - set(colluding))
        found, parts = openable(people_, reach, threshold, colluding, present)
        yield arc, found, parts


def test_no_part_of_a_ring_is_ever_opened():
    """Whatever arc a server cuts out by letting honest people vanish, it opens all or nothing."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        names = [f"p{i}" for i in rng.permutation(24)]
        reach, colluding = 4, set(rng.choice(names, 3, replace=False))
        twice = names + names
        most = max(len(colluding & set(twice[i : i + reach])) for i in range(24))
        cut = 0
        for _, found, parts in attacks(names, reach, reach + 2 + most, colluding):
            cut += len(parts) > 1
            assert not (len(parts) > 1 and found)
        assert cut > 50


def test_one_share_less_opens_a_part():
    """The test above can fail: colluding clients in both gaps help to open the arc between."""
    names = [f"p{i:02d}" for i in range(24)]
    colluding, reach, most = {"p02", "p14"}, 4, 1
    for threshold, falls in ((reach + 2 + most, False), (reach + 1 + most, True)):
        tried = attacks(names, reach, threshold, colluding)
        assert any(len(parts) > 1 and found for _, found, parts in tried) == falls


# The server cannot choose the order.


def at_roster(terms=RING, spent=None):
    said = words()
    talk = under_pads(terms, said, spent=spent) if spent else under_pads(terms, said)
    return talk.until(1)


def test_a_client_takes_no_order_but_the_one_of_everybodys_numbers():
    talk = at_roster().until(2)
    good = talk.asked["p00"]
    assert isinstance(good, RandomNumbers)
    swapped = {**good.numbers, "p01": good.numbers["p02"]}
    fewer = {n: number for n, number in good.numbers.items() if n != "p07"}
    mine = {**good.numbers, "p00": bytes(32)}
    for numbers in (swapped, fewer, mine, {**good.numbers, "p01": b""}, {**good.numbers, "p01": 3}):
        with pytest.raises(Refused, match="order: "):
            talk.ends["p00"].answer(RandomNumbers(good.terms, numbers))
    talk.ends["p00"].answer(good)


def test_without_the_commitment_a_server_chooses_the_order(monkeypatch):
    """The protection taken out: numbers that were promised by nobody give any order."""
    talk = at_roster().until(2)
    good = talk.asked["p00"]
    monkeypatch.setattr(protocol, "check_number", lambda *_: None)
    talk.ends["p00"].answer(RandomNumbers(good.terms, dict.fromkeys(good.numbers, bytes(32))))


def test_numbers_stay_secret_until_the_roster_is_fixed():
    talk = at_roster()
    seen = b"".join(a.promise + a.box_key + a.pad_key for a in talk.asked["p00"].adverts)
    assert not any(end.number in seen for end in talk.ends.values())
    adverts = talk.asked["p00"].adverts
    with pytest.raises(Refused, match="committed to no random number"):
        talk.ends["p00"].answer(
            Roster(RING.digest, tuple(replace(a, promise=b"") for a in adverts))
        )


def test_a_server_draws_few_orders_for_one_sum():
    """It could draw until its colluding clients sit around somebody."""
    spent = {name: UsedContributions() for name in people(MANY)}
    for attempt in range(ATTEMPTS):
        at_roster(pairwise(MANY, words=4, colluders=2, attempt=attempt), spent).until(2)
    last = pairwise(MANY, words=4, colluders=2, attempt=99)
    ends = clients(last, words(), spent)
    server = converse(PairwiseServer(last, register(ends)))
    adverts = {name: ends[name].answer(m) for name, m in next(server).items()}
    roster = server.send(adverts)
    with pytest.raises(Refused, match=f"spent: {ATTEMPTS} orders were drawn"):
        ends["p00"].answer(roster["p00"])


def test_orders_are_random_and_bound_to_the_keys():
    numbers = {name: bytes([i]) * 32 for i, name in enumerate(people(30))}
    first = order(numbers, b"keys")
    assert sorted(first) == sorted(numbers)
    assert first != sorted(numbers)
    assert first != order(numbers, b"other keys")
    assert first != order({**numbers, "p03": bytes(32)}, b"keys")


def test_a_neighbour_whose_box_is_kept_back_is_missed():
    """The other one would have a pad that this one has not."""
    talk = at_roster().until(3)
    good = talk.asked["p00"]
    name = next(iter(good.boxes))
    fewer = {n: box for n, box in good.boxes.items() if n != name}
    with pytest.raises(Refused, match="those who shared are not those whose boxes came"):
        talk.ends["p00"].answer(replace(good, boxes=fewer))
    with pytest.raises(Refused, match="those who shared"):
        talk.ends["p00"].answer(replace(good, sharers=good.sharers[1:]))


def test_words_stay_where_too_few_hold_shares():
    """Beside a gap of people who never shared, a client gives no words: no pad hides them."""
    talk = at_roster().until(3)
    good = talk.asked["p00"]
    few = list(good.boxes)[: ring(MANY, 2, 0.05).threshold - 2]
    gone = good.boxes.keys() - set(few)
    told = replace(
        good,
        boxes={name: good.boxes[name] for name in few},
        sharers=tuple(name for name in good.sharers if name not in gone),
    )
    assert len(told.sharers) >= RING.threshold
    with pytest.raises(Aborted, match="have shared their secrets"):
        talk.ends["p00"].answer(told)


def test_keys_of_neighbours_are_checked():
    """A server that stands in for a neighbour would know its pad."""
    talk = at_roster()
    adverts = talk.asked["p00"].adverts
    forged = tuple(
        a if a.sender == "p00" else replace(a, pad_key=b"\x09" + a.pad_key[1:]) for a in adverts
    )
    talk.ends["p00"].answer(Roster(RING.digest, forged))
    numbers = {name: end.number for name, end in talk.ends.items()}
    with pytest.raises(Refused, match="signature: this is not from"):
        talk.ends["p00"].answer(RandomNumbers(RING.digest, numbers))


def test_all_pairs_have_the_messages_of_before():
    terms = pairwise(5)
    assert protocol.steps_of(terms) == protocol.STEPS
    assert Graph(terms, people(5), []).threshold == terms.threshold
    assert most_in_a_row(10, 0, 3) == 0
    client = clients(terms, {p: random_words(3) for p in people(5)})["p00"]
    assert client.answer(Invitation(terms.digest)).promise == b""


# Two rosters in one attempt: people of the second sum help to open an arc of the first.


class TwoRosters:
    """104 of 196 people are shown one roster, 104 another; nobody colludes.

    Four people are in both: they hold shares of both ends of an arc of the first ring, and are in
    the second sum, where the gaps of the first ring are not.
    """

    def __init__(self, monkeypatch):
        reach, self.threshold = ring(104, 1, 0.05)
        self.terms = pairwise(104, words=4, threshold=70, colluders=1)
        near, far = [f"y{i}" for i in (1, 2, 3, 4)], [f"w{i}" for i in (1, 2, 3, 4)]
        silent = [f"u{i}" for i in range(2 * (reach - 4))]
        self.arc = [f"p{i:02d}" for i in range(20)]
        other = [f"q{i:03d}" for i in range(104 - 2 * reach - 20)]
        left = [*silent[: reach - 4], *far[2:], *near[2:]]
        right = [*near[:2], *far[:2], *silent[reach - 4 :]]
        ends = [[*self.arc[-2:], *far[:2]], [*self.arc[:2], *far[2:]]]
        spare = [f"z{i:02d}" for i in range(3 * reach)]
        rest = [f"x{i:03d}" for i in range(104 - 12 - 3 * reach)]
        first = [*left, *self.arc, *right, *other]
        second = [*spare[:reach], *ends[0], *near[:2], *spare[reach : 2 * reach]]
        second += [*ends[1], *near[2:], *spare[2 * reach :], *rest]
        self.orders = {frozenset(first): first, frozenset(second): second}
        # The luck that a server would need is planted; all checks of clients are the real ones.
        monkeypatch.setattr(protocol, "order", lambda known, about: self.orders[frozenset(known)])  # noqa: ARG005
        self.absent = absent = set(ends[0] + ends[1])
        self.view = {name: frozenset(second) for name in second if name not in absent}
        self.view |= {name: frozenset(first) for name in first if name not in near}
        self.silent = set(silent)
        self.groups = [self.arc + other, near + rest]
        self.named = {frozenset(first): tuple(self.groups[0])}
        self.named[frozenset(second)] = (*self.groups[1], *self.arc[:2], *self.arc[-2:])

    def opened(self, owner):
        """Return how many shares of a person's seed the server gets in both sums."""
        said = {name: random_words(4) for name in sorted(frozenset().union(*self.orders))}
        ends, about = clients(self.terms, said), self.terms.digest
        adverts = {name: end.answer(Invitation(about)) for name, end in ends.items()}
        numbers, shares = {}, {}
        for name, end in ends.items():
            roster = tuple(adverts[other] for other in sorted(self.view[name]))
            numbers[name] = end.answer(Roster(about, roster)).number
        for name, end in ends.items():
            if name not in self.silent:
                known = {other: numbers[other] for other in self.view[name]}
                shares[name] = end.answer(RandomNumbers(about, known))
        graphs = {seen: Graph(self.terms, seen, list(o)) for seen, o in self.orders.items()}
        for group in self.groups:
            for name in group:
                seen = self.view[name]
                sharers = {other for other in shares if self.view[other] == seen}
                sharers |= self.absent if name in self.groups[1] else set()
                near = sharers & graphs[seen].neighbours[name]
                boxes = {other: shares[other].boxes[name] for other in near}
                ends[name].answer(RelayedShares(about, boxes, tuple(sorted(sharers))))
        told = {
            name: ends[name].answer(Survivors(about, self.named[self.view[name]])).signature
            for group in self.groups
            for name in group
        }
        came = set()
        for group in self.groups:
            for name in group:
                signatures = {other: told[other] for other in group}
                if owner in ends[name].answer(Agreements(about, signatures)).seeds:
                    came.add(name)
        return len(came)


def test_people_of_another_sum_do_not_help_to_open_a_part(monkeypatch):
    two = TwoRosters(monkeypatch)
    with pytest.raises(Refused, match=r"the box of '\w+' does not open"):
        two.opened(two.arc[0])


def test_they_would_if_boxes_were_not_bound_to_the_roster(monkeypatch):
    """The protection taken out: the server gets enough shares at the edge of the arc."""
    two = TwoRosters(monkeypatch)

    def unbound(self, other, sender, to):
        what = f"box {sender} {to}"
        return protocol.agreed(self.box_key, other.box_key, self.terms.digest, what)

    monkeypatch.setattr(protocol.PairwiseClient, "_box", unbound)
    assert two.opened(two.arc[0]) >= two.threshold


@pytest.mark.parametrize("promise", [b"", bytes(31)])
def test_one_client_without_a_number_is_left_out_and_the_sum_goes_on(promise):
    said = words()
    talk = under_pads(RING, said)
    answers = talk.answers()
    liar = answers["p05"]
    answers["p05"] = talk.ends["p05"]._signed(replace(liar, promise=promise))
    talk.send(answers)
    total = talk.rest()
    assert "p05" not in total.names
    np.testing.assert_array_equal(total.words, plain_sum(said, total.names))


def test_one_client_with_one_key_for_two_uses_is_left_out_and_the_sum_goes_on():
    said = {name: random_words(3) for name in people(7)}
    talk = under_pads(pairwise(7, threshold=5), said)
    answers = talk.answers()
    liar = answers["p05"]
    answers["p05"] = talk.ends["p05"]._signed(replace(liar, pad_key=liar.box_key))
    talk.send(answers)
    assert talk.rest().names == tuple(n for n in people(7) if n != "p05")
