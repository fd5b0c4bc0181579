"""People made on demand: ids without a list, lookups without a cache, and what is refused."""

import itertools
import sys
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vergence.core.data import Samples, SharedRows, Splits
from vergence.core.federation import MANY, Federation, NumberedIds, Population
from vergence.errors import ConfigError

COUNTS = st.integers(1, 30)


class Maker:
    """Makes person i of i + 1 samples that all say i, and counts how often it is asked."""

    def __init__(self):
        self.made = []

    def __call__(self, number):
        self.made.append(number)
        part = Samples({"x": torch.full((number + 1,), float(number))})
        return Splits(part, part, part)


def population(count):
    maker = Maker()
    return Population(count, maker, "numbers"), maker


@given(COUNTS)
def test_ids_are_what_their_list_would_be(count):
    ids = NumberedIds(range(count))
    listed = [f"c{i:07d}" for i in range(count)]
    assert list(ids) == listed == [ids[i] for i in range(count)]
    assert list(reversed(ids)) == listed[::-1]
    assert (len(ids), ids[-1]) == (count, listed[-1])
    assert [ids.index(c) for c in listed] == list(range(count))
    assert all(c in ids and ids.count(c) == 1 for c in listed)


@given(COUNTS, st.tuples(*[st.none() | st.integers(-9, 9)] * 2), st.sampled_from([1, 2, -1, -3]))
def test_slices_are_ids_again(count, ends, step):
    ids, cut = NumberedIds(range(count)), slice(*ends, step)
    found, listed = ids[cut], list(ids)[cut]
    assert isinstance(found, NumberedIds)
    assert list(found) == listed
    assert [found.index(c) for c in listed] == list(range(len(listed)))
    assert [c in found for c in ids] == [c in listed for c in ids]


@pytest.mark.parametrize(
    "stranger",
    [
        "c0000010",
        "c000000",
        "c00000001",
        "c-000001",
        "d0000001",
        "0000001",
        "c",
        "",
        "c000000\u0661",
        "c 000001",
        "c" + "1" * 5000,
        1,
        None,
    ],
)
def test_strangers_are_not_among_ten(stranger):
    people, maker = population(10)
    assert stranger not in people.ids
    assert stranger not in people
    if isinstance(stranger, str):
        assert people.get(stranger) is None
        with pytest.raises(KeyError):
            people[stranger]
        with pytest.raises(ValueError, match="no client"):
            people.ids.index(stranger)
    assert maker.made == []


def test_more_than_seven_digits():
    ids = NumberedIds(range(20_000_000))
    assert ids[-1] == "c19999999"
    assert ids.index("c19999999") == 19_999_999


def test_places_after_a_start_and_before_a_stop():
    ids = NumberedIds(range(5))
    assert ids.index("c0000002", 2, 3) == 2
    for ends in ((3,), (0, 2)):
        with pytest.raises(ValueError, match="no client"):
            ids.index("c0000002", *ends)


def test_a_million_ids_and_people_take_no_memory():
    """A list of a million such names takes 64 MB."""
    tracemalloc.start()
    try:
        people, maker = population(1_000_000)
        clients = Federation("f", people).clients
        assert "c0999999" in people
        assert (len(clients), len(people), clients[123_456]) == (10**6, 10**6, "c0123456")
        assert list(itertools.islice(people.keys(), 2)) == ["c0000000", "c0000001"]
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert sys.getsizeof(clients) < 64
    assert maker.made == []


def test_people_are_made_when_asked_for_and_only_the_last_is_kept():
    people, maker = population(10)
    first = people["c0000003"]
    assert people["c0000003"] is first
    assert [float(s.train.columns["x"][0]) for s in people.values()] == list(range(10))
    assert people["c0000003"] is not first
    assert maker.made == [3, *range(10), 3]


def test_populations_are_equal_only_to_themselves_and_nobody_is_made_to_tell():
    people, maker = population(10)
    assert people == people
    assert people != population(10)[0]
    assert Federation("f", people) != Federation("f", population(10)[0])
    assert len({people, population(10)[0]}) == 2
    assert maker.made == []


def test_some_of_the_people_are_held():
    people, maker = population(10)
    some = Federation("f", people, {"licence": "none"}).only(["c0000007", "c0000002"])
    assert some.clients == ("c0000007", "c0000002")
    assert some.people["c0000007"] is some.people["c0000007"]
    assert (some.about, some.recipe) == ({"licence": "none"}, None)
    assert maker.made == [7, 2]


def test_pooling_a_small_population():
    """Person i has i + 1 samples: 1 + 2 + 3 + 4 of four people."""
    whole = Federation("f", population(4)[0]).pooled()
    (everyone,) = whole.people.values()
    assert everyone.train.columns["x"].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert whole.recipe is None  # held now: the recipe is no longer what stands for the data


def test_changing_a_bank_of_a_small_population():
    rows = torch.arange(3.0)

    def make(number):
        part = Samples({"at": torch.tensor([number])}, {"r": SharedRows(rows, "at")})
        return Splits(part, part, part)

    changed = Federation("f", Population(3, make, "r")).map_bank("r", lambda old: old + 1)
    found = [s.test.take(torch.tensor([0]))["r"].item() for s in changed.people.values()]
    assert found == [1, 2, 3]
    assert changed.recipe is None


@pytest.mark.parametrize("ask", [Federation.pooled, lambda f: f.map_bank("r", lambda rows: rows)])
def test_what_would_hold_a_million_people_is_refused(ask):
    people, maker = population(MANY + 1)
    with pytest.raises(ConfigError, match=r"100,001 people of 'f' at once, at most 100,000"):
        ask(Federation("f", people))
    assert maker.made == []
