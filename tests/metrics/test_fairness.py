"""The fairness block on people whose every number is known."""

import math

import pytest

from vergence.errors import DataError
from vergence.metrics.fairness import fairness

ALONE = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 5.0}


def test_higher_is_better_by_hand():
    """1.5 1.97 3.9 5: p10 = 1.5 + 0.3 * 0.47 = 1.641, p90 = 3.9 + 0.7 * 1.1 = 4.67.

    b loses 0.03 of 2 = 1.5 %, c 0.1 of 4 = 2.5 %: two of four harmed.
    """
    f = fairness({"a": 1.5, "b": 1.97, "c": 3.9, "d": 5.0}, False, ALONE)
    assert (f.best, f.best_person, f.worst, f.worst_person) == (5.0, "d", 1.5, "a")
    assert (f.p10, f.p90, f.spread) == pytest.approx((1.641, 4.67, 3.029))
    mean = (1.5 + 1.97 + 3.9 + 5.0) / 4
    squares = sum((v - mean) ** 2 for v in (1.5, 1.97, 3.9, 5.0))
    assert f.std == pytest.approx(math.sqrt(squares / 3))
    assert f.harmed == 0.5
    assert (f.worst_harm, f.most_harmed) == (pytest.approx(0.025), "c")


def test_lower_is_better_turns_best_worst_and_harm_round():
    """The same values as errors: a has 0.5 more of 1 = 50 %; b and c gain, d is as alone."""
    f = fairness({"a": 1.5, "b": 1.97, "c": 3.9, "d": 5.0}, True, ALONE)
    assert (f.best_person, f.worst_person) == ("a", "d")
    assert f.harmed == 0.25
    assert (f.worst_harm, f.most_harmed) == (pytest.approx(0.5), "a")


@pytest.mark.parametrize(("value", "harmed"), [(1.98, 0.0), (1.9799, 1.0), (2.5, 0.0)])
def test_harm_begins_above_one_percent(value, harmed):
    f = fairness({"b": value}, False, ALONE)
    assert f.harmed == harmed
    assert f.worst_harm == pytest.approx(max(0, 1 - value / 2))
    assert f.most_harmed == ("b" if value < 2 else None)


def test_nobody_alone_and_nobody_at_all():
    f = fairness({"a": 1.0}, False)
    assert (f.harmed, f.worst_harm, f.most_harmed) == (None, None, None)
    assert (f.std, f.spread) == (0, 0)
    with pytest.raises(DataError, match="at least one person"):
        fairness({}, False)
    with pytest.raises(DataError, match="no person in common"):
        fairness({"z": 1.0}, False, ALONE)


def test_losing_what_was_nothing_is_infinite_harm():
    assert fairness({"a": -0.1}, False, {"a": 0.0}).worst_harm == math.inf
    assert fairness({"a": 0.0}, False, {"a": 0.0}).worst_harm == 0
