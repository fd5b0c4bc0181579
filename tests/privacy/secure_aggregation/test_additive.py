"""Sums on shares: exact, with a threshold on counts; what aggregators see; what is refused."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.privacy.sums import (
    bytes_in,
    ends,
    on_shares,
    people,
    plain_sum,
    random_words,
    shared,
)
from vergence.core.tags import tag
from vergence.errors import ConfigError
from vergence.privacy.secure_aggregation import masking as pads
from vergence.privacy.secure_aggregation.additive_messages import (
    AggregatorParts,
    HeldByAll,
    OpenedShare,
    ShownCounts,
)
from vergence.privacy.secure_aggregation.packing import Packing, received, withheld
from vergence.privacy.secure_aggregation.session import (
    Aborted,
    Invitation,
    Refused,
    UsedContributions,
    statement,
    summary,
)
from vergence.privacy.secure_aggregation.threshold import (
    deal,
    hidden_table,
    looked_up,
    passing,
    read_table,
    shown_counts,
)

FEW = 1e-6


def uniform(data: bytes, cells: int = 256) -> float:
    return chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=cells)).pvalue


def masked_words(n: int, many: int, rng: np.random.Generator, heaviest: int = 1):
    """Random masks, words, and how words are packed; every count from 0 to many comes."""
    packing = Packing(8, many, True, heaviest)
    given = {}
    for i, name in enumerate(people(many)):
        mask = rng.random(n) < 0.5
        mask[: many + 1] = i < np.arange(many + 1)  # entry c has c contributors
        weight = mask * rng.integers(1, heaviest + 1, n)
        given[name] = packing.encode(np.where(mask, rng.uniform(-8, 8, n), 0.0), weight)
    return packing, given


@pytest.mark.parametrize("many", [2, 3, 4])
def test_the_sum_is_exact_and_clients_without_all_parts_are_left_out(many):
    rng = np.random.default_rng(many)
    for trial in range(34):
        n, width = int(rng.integers(3, 7)), int(rng.integers(1, 40))
        given = {name: random_words(width) for name in people(n)}
        terms = shared(width, many)
        talk = on_shares(terms, given).until(1)
        answers = talk.answers()
        silent = [p for p in given if rng.random() < 0.15]
        partly = [p for p in given if p not in silent and rng.random() < 0.15]
        for name in silent:
            del answers[name]
        talk.send(answers)
        for name in partly:  # one part is changed on its way to one aggregator
            at = str(rng.choice(terms.aggregators))
            asked = talk.asked[at]
            parts = [
                replace(p, box=p.box[:-1] + b"\0\1") if p.sender == name else p for p in asked.parts
            ]
            talk.asked[at] = replace(asked, parts=tuple(parts))
        left = [p for p in given if p not in silent and p not in partly]
        if len(left) < 3:
            with pytest.raises(Aborted, match=f"too few: {len(left)} sent all their parts"):
                talk.rest()
            continue
        total = talk.rest()
        assert total.names == tuple(left), trial
        np.testing.assert_array_equal(total.words, plain_sum(given, left))


@pytest.mark.parametrize("many", [2, 3, 4])
@pytest.mark.parametrize("people_", [3, 6, 9, 17, 40])
@pytest.mark.parametrize("heaviest", [1, 500])
def test_counts_below_the_threshold_stay_closed(many, people_, heaviest):
    """Counts 0, 1, t-1, t and all others come; ungated words behind them are always opened."""
    rng = np.random.default_rng(people_)
    packing, given = masked_words(60, people_, rng, heaviest)
    given = {name: np.append(words, random_words(2)) for name, words in given.items()}
    bits = packing.count_bits
    for least in {3, people_}:
        terms = shared(62, many, gated=60, threshold=least, count_bits=bits)
        talk = on_shares(terms, given)
        total, plain = talk.rest(), plain_sum(given, given)
        counts = packing.contributors(plain[:60])
        assert {0, 1, least - 1, least} <= set(counts.tolist())
        np.testing.assert_array_equal(total.opened, counts >= least)
        np.testing.assert_array_equal(total.words[:60], withheld(plain[:60], packing, least))
        np.testing.assert_array_equal(total.words[60:], plain[60:])
        opened = [m for m in talk.seen if isinstance(m, OpenedShare)]
        assert len(opened) == many
        for message in opened:
            assert len(message.words) == 8 * (int((counts >= least).sum()) + 2)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("own", [False, True])
def test_the_gate_on_every_count(bits, parties, own):
    """All m counts with random shares, with and without a share that the dealer has itself."""
    rng, m, salt = np.random.default_rng(bits), 1 << bits, bytes(32)
    counts = np.tile(np.arange(m, dtype=np.uint8), 50)
    n = len(counts)
    for least in range(1, m):
        shares = [rng.integers(0, m, n).astype(np.uint8) for _ in range(parties - 1 + own)]
        shares.append((counts - sum(shares)) & np.uint8(m - 1))
        dealt = shares[-1] if own else None
        seeds, table = deal(n, bits, least, parties, salt, dealt)
        shown = [shown_counts(a, b, bits, salt) for a, b in zip(shares, seeds, strict=False)]
        tables = [hidden_table(seed, n, bits, salt) for seed in seeds[:-1]]
        tables.append(read_table(table, bits))
        found = [looked_up(one, shown, bits) for one in tables]
        np.testing.assert_array_equal(passing(found, n), counts >= least)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_what_parties_see_of_counts_is_the_same_whatever_they_are(count):
    """Shown counts, tables and single lookups are uniform for each count (chi-square)."""
    n, bits, salt = 20_000, 4, bytes(32)
    first = np.frombuffer(pads.new_seed() * (n // 32 + 1), np.uint8)[:n] & 15
    shares = [first, (count - first) & np.uint8(15)]
    seeds, table = deal(n, bits, 3, 2, salt)
    shown = [shown_counts(a, b, bits, salt) for a, b in zip(shares, seeds, strict=True)]
    together = (shown[0] + shown[1]) & np.uint8(15)
    for values in (*shown, together):
        assert uniform(values.tobytes(), 16) > FEW
    assert uniform(table) > FEW
    for one in (hidden_table(seeds[0], n, bits, salt), read_table(table, bits)):
        assert uniform(looked_up(one, shown, bits).tobytes()) > FEW


def test_no_aggregator_and_not_the_coordinator_sees_an_update():
    """The long parts and every share of the sum are uniform for two very different inputs; no word
    of anybody is in what passes the coordinator, and no share of the sum tells the sum."""
    width = 20_000
    for fill in (0, 2**40 + 5):
        given = {name: np.full(width, fill, np.uint64) for name in people(3)}
        talk = on_shares(shared(width, 3), given).until(3)
        for data in talk.ends["agg0"].parts.values():
            assert len(data) == 8 * width
            assert uniform(data) > FEW
        for name in ("agg1", "agg2"):
            assert all(len(data) == 32 for data in talk.ends[name].parts.values())
        talk.rest()
        for message in talk.seen:
            if isinstance(message, OpenedShare):
                assert uniform(message.words) > FEW
    given = {name: random_words(300) for name in people(4)}
    talk = on_shares(shared(300, 2, gated=200, threshold=3, count_bits=3), given)
    talk.rest()
    view = b"".join(bytes_in(message) for message in talk.seen)
    for words in given.values():
        assert not any(words[i : i + 1].tobytes() in view for i in range(300))


def test_the_coordinator_cannot_read_what_parties_show_each_other():
    """It may be the dealer, and with the shown counts it would learn every count."""
    given = masked_words(40, 4, np.random.default_rng(0))[1]
    terms = shared(40, 2, gated=40, threshold=3, count_bits=3)
    talk = on_shares(terms, given).until(5)
    shown = [m for m in talk.seen if isinstance(m, ShownCounts)]
    assert [set(m.boxes) for m in shown] == [{"agg1"}, {"agg0"}]
    for message in shown:
        (box,) = message.boxes.values()
        assert len(box) == 32 + 40 + 16  # key, counts, tag: nothing in clear
        assert not set(range(8)) >= set(box[32:-16])


# What is refused.


def test_an_aggregator_opens_one_sum_of_a_contribution():
    """The very same one again, for a server that lost it; none over others, or of other words."""
    for more in ({}, {"gated": 2, "threshold": 3, "count_bits": 3}):
        given = {name: random_words(3) for name in people(4)}
        spent = {"agg0": UsedContributions(), "agg1": UsedContributions()}
        first = on_shares(shared(3, **more), given, spent).rest()
        again = on_shares(shared(3, attempt=1, **more), given, spent).rest()
        assert again.words.tobytes() == first.words.tobytes()
        fewer = {name: given[name] for name in people(3)}
        for other, who in (({}, fewer), ({"form": b"asked otherwise"}, given)):
            with pytest.raises(Refused, match="spent: "):
                on_shares(shared(3, attempt=2, **other, **more), who, spent).rest()
        on_shares(shared(3, request="1.1", **more), given, spent).rest()


def test_an_aggregator_refuses_parts_that_are_not_right():
    given = {name: random_words(3) for name in people(4)}
    terms = shared(3)
    talk = on_shares(terms, given).until(2)
    told = {m.sender: m for m in talk.seen if hasattr(m, "parts")}
    asked, aggregator = talk.asked["agg0"], talk.ends["agg0"]
    first, second, third, fourth = asked.parts
    other = on_shares(shared(3, attempt=1), given).until(2).asked["agg0"].parts[1]
    bad = [
        first,
        first,
        replace(second, sender="p00"),
        other,
        replace(third, box=fourth.box),
        told["p03"].parts[1],
    ]
    held = aggregator.answer(AggregatorParts(asked.terms, tuple(bad)))
    assert held.names == ("p00",)
    assert aggregator.refused["p00"].startswith("order: 'p00' sent a part before")
    assert aggregator.refused["p01"].startswith("round: ")
    assert aggregator.refused["p02"].startswith("signature: ")
    assert aggregator.refused["p03"].startswith("round: ")


def test_a_part_of_another_size_is_refused():
    given = {name: random_words(3) for name in people(4)}
    longer = {name: random_words(4) for name in people(4)}
    talk, other = on_shares(shared(3), given).until(1), on_shares(shared(4), longer).until(1)
    wrong = other.ends["p00"]
    wrong.terms = replace(other.ends["p00"].terms, words=3)
    answers = {**talk.answers(), "p00": wrong.answer(talk.asked["p00"])}
    talk.send(answers)
    total = talk.rest()
    assert total.names == ("p01", "p02", "p03")
    assert talk.ends["agg0"].refused["p00"].startswith("size: 'p00' sent 32 bytes, and 24 are due")


def test_a_client_splits_for_the_agreed_aggregators_only():
    given = {name: random_words(3) for name in people(3)}
    talk = on_shares(shared(3, 3), given).until(1)
    told = talk.asked["p00"]
    first, second, third = told.openings
    old = on_shares(shared(3, 3, attempt=1), given).until(1).asked["p00"].openings[0]
    forged = replace(second, key=first.key)
    doubled = replace(forged, signature=ends("agg1")[0](forged.signed))
    for openings, why in [
        ((first, second), "lists: keys of"),
        ((first, second, replace(third, sender="stranger")), "lists: keys of"),
        ((first, second, third, third), "lists: keys of"),
        ((first, forged, third), "signature: this is not from 'agg1'"),
        ((first, doubled, third), "lists: a key is there twice"),
        ((old, second, third), "round: the key of 'agg0'"),
    ]:
        with pytest.raises(Refused, match=why):
            talk.ends["p00"].answer(replace(told, openings=openings))
    talk.ends["p00"].answer(told)
    with pytest.raises(Refused, match="order: "):
        talk.ends["p00"].answer(told)


def test_an_aggregator_adds_up_what_all_said_they_hold():
    given = {name: random_words(3) for name in people(4)}
    talk = on_shares(shared(3), given).until(3)
    told, aggregator = talk.asked["agg0"], talk.ends["agg0"]
    mine, other = told.helds
    fewer = replace(other, names=other.names[1:])
    lie = replace(mine, names=mine.names[1:])
    signed = [replace(m, signature=ends(m.sender)[0](m.signed)) for m in (fewer, lie)]
    few = replace(other, names=other.names[2:])
    few = replace(few, signature=ends("agg1")[0](few.signed))
    for helds, why in [
        ((mine,), "lists: an aggregator does not say"),
        ((mine, fewer), "signature: this is not from 'agg1'"),
        ((signed[1], other), "lists: this is not what I said"),
        ((mine, few), "too few: 2 sent all their parts"),
    ]:
        with pytest.raises((Refused, Aborted), match=why):
            aggregator.answer(HeldByAll(told.terms, helds, told.openings))
    aggregator.answer(told)


@pytest.mark.parametrize("step", [0, 2, 3])
def test_without_an_aggregator_there_is_no_sum(step):
    given = {name: random_words(3) for name in people(4)}
    talk = on_shares(shared(3), given)
    with pytest.raises(Aborted, match="aggregator 'agg1' has not sent its"):
        talk.rest(lambda now: ["agg1"] if now == step else ())


@pytest.mark.parametrize("step", [3, 4, 5, 6])
@pytest.mark.parametrize("many", [2, 3])
def test_without_a_party_or_the_dealer_no_gate_opens(step, many):
    given = {name: random_words(3) for name in people(4)}
    for gone in [f"agg{i}" for i in range(many)]:
        talk = on_shares(shared(3, many, gated=2, threshold=3, count_bits=3), given)
        if gone == talk.ends["agg0"].terms.dealer and step in (4, 5):
            continue  # it has nothing to say there
        with pytest.raises(Aborted, match=f"aggregator '{gone}' "):
            talk.rest(lambda now, gone=gone: [gone] if now == step else ())


def test_each_step_is_answered_once_and_for_this_attempt():
    given = {name: random_words(3) for name in people(4)}
    terms = shared(3, gated=2, threshold=3, count_bits=3)
    talk, other = on_shares(terms, given), on_shares(replace(terms, attempt=1), given)
    while True:
        old, wrong = dict(talk.asked), dict(other.asked)
        for name in old:
            with pytest.raises(Refused, match="round: "):
                talk.ends[name].answer(wrong[name])
        other.send(other.answers())
        done = talk.send(talk.answers())
        for name, message in old.items():
            if done is None and talk.ends[name].steps and tag(type(message)) == "Relayed":
                continue  # the next step has a message of this kind too; its content is refused
            with pytest.raises(Refused, match="order: "):
                talk.ends[name].answer(message)
        if done is not None:
            break
    assert not any(aggregator.steps for aggregator in talk.ends.values())


def test_tables_are_not_taken_for_shown_counts():
    given = {name: random_words(3) for name in people(4)}
    talk = on_shares(shared(3, gated=2, threshold=3, count_bits=3), given).until(4)
    tables = talk.asked["agg0"]
    talk.send(talk.answers())
    with pytest.raises(Refused, match="round: 'server' boxed this for another step"):
        talk.ends["agg0"].answer(tables)


def test_lookups_of_others_are_refused():
    given = {name: random_words(3) for name in people(4)}
    talk = on_shares(shared(3, gated=2, threshold=3, count_bits=3), given).until(6)
    told = talk.asked["agg0"]
    mine, other = told.looked
    longer = replace(other, bits=bytes(2))
    longer = replace(longer, signature=ends("agg1")[0](longer.signed))
    for looked, why in [
        ((mine,), "lists: a party has not looked up"),
        ((mine, replace(other, bits=bytes(1) + b"x")), "signature: "),
        ((mine, longer), "size: 'agg1'"),
    ]:
        with pytest.raises(Refused, match=why):
            talk.ends["agg0"].answer(replace(told, looked=looked))


def test_an_entry_that_was_opened_and_should_not_have_been_is_noticed():
    """A party that lies about a lookup: the coordinator sees the count, and says so."""
    packing = Packing(8, 4, True)
    given = {n: packing.encode(np.zeros(2), np.array([True, n == "p00"])) for n in people(4)}
    talk = on_shares(shared(2, gated=2, threshold=3, count_bits=3), given).until(5)
    answers = talk.answers()
    lie = replace(answers["agg1"], bits=bytes([answers["agg1"].bits[0] ^ 0b01000000]))
    answers["agg1"] = replace(lie, signature=ends("agg1")[0](lie.signed))
    talk.ends["agg1"].lookup = answers["agg1"]
    talk.send(answers)
    with pytest.raises(Aborted, match="gate: an entry was opened"):
        talk.rest()


@pytest.mark.parametrize(
    ("many", "more", "why"),
    [
        (1, {}, "2 to 4 aggregators"),
        (5, {}, "2 to 4 aggregators"),
        (2, {"threshold": 2}, "at least 3 people"),
        (2, {"gated": 4, "threshold": 3, "count_bits": 3}, "on 4 of 3 words"),
        (2, {"gated": 2, "threshold": 8, "count_bits": 3}, "a threshold of 8"),
        (2, {"gated": 2, "threshold": 3, "count_bits": 7}, "up to 63 people"),
        (2, {"gated": 2, "threshold": 3, "count_bits": 3, "dealer": "agg1"}, "leaves two"),
        (3, {"gated": 2, "threshold": 3, "count_bits": 3, "dealer": "server"}, "leaves two"),
    ],
)
def test_terms_that_cannot_be(many, more, why):
    with pytest.raises(ConfigError, match=why):
        shared(3, many, **more)


def test_invitations_are_answered_with_a_new_key_each_time():
    given = {name: random_words(3) for name in people(3)}
    keys = set()
    for _ in range(2):
        talk = on_shares(shared(3), given)
        keys |= {talk.ends[a].answer(Invitation(m.terms)).key for a, m in talk.asked.items()}
    assert len(keys) == 4
    assert received(b"").size == 0


def test_what_is_signed_is_pinned():
    """Who changes it, or how a summary in it is made, changes the number that it begins with."""
    said = statement("part", b"terms", "anna", summary(b"words"))
    assert said[8:29] == b"vergence secure sum 4"
    assert sha256(said).hexdigest() == (
        "ee15dd33442b84044e21d7009db8319f09c75ab2afd25e0270082d08a30345e7"
    )
