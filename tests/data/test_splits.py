"""Sizes of parts, random and ordered splits: against a search through all of them, and refusals."""

import itertools

import numpy as np
import pytest

from tests.data.synthetic.stored_sums import assert_stored
from vergence.data.splits import (
    PeopleOptions,
    SplitOptions,
    check_shares,
    deal_at_random,
    deal_in_order,
    part_sizes,
)
from vergence.errors import ConfigError, DataError

SHARES = (0.7, 0.1, 0.2)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(100, (70, 10, 20)), (12, (9, 1, 2)), (8, (5, 1, 2)), (25, (18, 2, 5)), (35, (24, 4, 7))],
)
def test_validation_and_test_are_rounded_and_training_is_the_rest(count, sizes):
    """Halves are rounded to even: 2.5 of 25 becomes 2, 3.5 of 35 becomes 4."""
    assert part_sizes(count, SHARES, "rows") == sizes


@pytest.mark.parametrize(
    ("count", "shares", "sizes"),
    [(5, SHARES, (4, 0, 1)), (2, (0.2, 0.4, 0.4), (0, 1, 1)), (10, (0.8, 0.18, 0.02), (8, 2, 0))],
)
def test_a_part_that_would_be_empty_is_refused(count, shares, sizes):
    with pytest.raises(DataError) as caught:
        part_sizes(count, shares, "frames of p00")
    assert f"frames of p00: {count} are too few" in str(caught.value)
    assert str(sizes) in str(caught.value)


@pytest.mark.parametrize(
    "shares", [SHARES, (0.5, 0.25, 0.25 + 9e-7), (1 - 2e-9, 1e-9, 1e-9), (0.4, 0.3, 0.3 - 9e-7)]
)
def test_shares_that_are_allowed(shares):
    check_shares(shares)


@pytest.mark.parametrize(
    "shares",
    [(0.8, 0.2), (0.4, 0.2, 0.2, 0.2), (0.8, 0.0, 0.2), (1.1, -0.2, 0.1), (0.7, 0.1, 0.2 + 2e-6)],
)
def test_shares_that_are_refused(shares):
    with pytest.raises(ConfigError, match="three positive numbers"):
        check_shares(shares)
    with pytest.raises(ConfigError, match="shares"):
        SplitOptions(shares=shares)


def test_options_tell_percents_and_people():
    assert SplitOptions(shares=(0.125, 0.375, 0.5)).percent == "12/38/50"
    known = {"b": 1, "a": 2}
    assert PeopleOptions().people_to_load(known, "viewer") == ("b", "a")
    assert PeopleOptions(people=("a",)).people_to_load(known, "viewer") == ("a",)
    assert PeopleOptions(people=()).people_to_load(known, "viewer") == ()
    with pytest.raises(DataError, match=r"unknown viewer 'ab'"):
        PeopleOptions(people=("a", "ab", "zz")).people_to_load(known, "viewer")


def test_every_block_is_split_at_random_and_test_rows_come_first():
    blocks = [np.arange(20), np.arange(100, 130)]
    parts = deal_at_random(blocks, SHARES, np.random.default_rng(4), "rows")
    assert [len(part) for part in parts] == [14 + 21, 2 + 3, 4 + 6]
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sorted(np.concatenate(parts)) == sorted(np.concatenate(blocks))
    assert [int((part < 50).sum()) for part in parts] == [14, 2, 4]
    others = deal_at_random(blocks, (0.5, 0.3, 0.2), np.random.default_rng(4), "rows")
    assert others[2].tolist() == parts[2].tolist()
    assert set(parts[1]) < set(others[1])
    assert_stored("rows at random", parts)


def test_groups_in_order_are_cut_where_the_shares_are_nearest():
    rng = np.random.default_rng(5)
    for shares in (SHARES, (0.4, 0.3, 0.3), (0.1, 0.1, 0.8)):
        for groups in (3, 4, 7, 11):
            counts = rng.integers(1, 40, groups)
            parts = deal_in_order(counts, shares, "days")
            assert np.concatenate(parts).tolist() == list(range(groups))
            assert min(map(len, parts)) >= 1

            def off(first, second, counts=counts, shares=shares):
                ends = counts[:first].sum(), counts[:second].sum()
                wanted = shares[0] * counts.sum(), (shares[0] + shares[1]) * counts.sum()
                return abs(ends[0] - wanted[0]) + abs(ends[1] - wanted[1])

            cuts = list(itertools.combinations(range(1, groups), 2))
            own = len(parts[0]), len(parts[0]) + len(parts[1])
            assert off(*own) == pytest.approx(min(off(*cut) for cut in cuts))


def test_two_groups_are_too_few():
    with pytest.raises(DataError, match="days of p1: 2 are too few"):
        deal_in_order(np.array([9, 9]), SHARES, "days of p1")
    assert [part.tolist() for part in deal_in_order(np.ones(3), SHARES, "days")] == [[0], [1], [2]]
