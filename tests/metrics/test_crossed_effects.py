"""Differences between conditions: found where made, and rarely where there are none."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vergence.errors import DataError
from vergence.metrics.crossed_effects import crossed_difference

PEOPLE, STIMULI = 12, 20


def scores(rng, effect=0.0, people=PEOPLE, stimuli=STIMULI, crossed=True):
    """Scores of people on stimuli under two conditions; both respond in their own way.

    If not `crossed`, a person sees each stimulus under one condition, half of them under each.
    """
    own, theirs = (rng.normal(0, [[1.0], [0.5]], (2, n)) for n in (people, stimuli))
    person, stimulus, second = np.indices((people, stimuli, 2)).reshape(3, -1)
    if not crossed:
        use = (person + stimulus) % 2 == second
        person, stimulus, second = person[use], stimulus[use], second[use]
    step = (second - 0.5) * (effect + own[1, person] + theirs[1, stimulus])
    values = own[0, person] + theirs[0, stimulus] + step + rng.normal(0, 1, len(person))
    return values, [f"p{i}" for i in person], [f"s{i}" for i in stimulus], second == 1


@pytest.mark.parametrize("crossed", [True, False])
def test_a_difference_that_was_made_is_found(crossed):
    rng = np.random.default_rng(1)
    found = [crossed_difference(*scores(rng, 1.2, crossed=crossed)) for _ in range(8)]
    assert sum(one.p < 0.05 for one in found) >= 7
    assert sum(one.low < 1.2 < one.high for one in found) >= 7
    assert np.mean([one.difference for one in found]) == pytest.approx(1.2, abs=0.25)
    assert {(one.people, one.stimuli, one.degrees) for one in found} == {(12, 20, 11)}


@pytest.mark.slow
@pytest.mark.parametrize("crossed", [True, False])
def test_no_difference_is_rarely_found_where_there_is_none(crossed):
    """A t test over pairs, which takes them as independent, finds one in many draws."""
    rng = np.random.default_rng(2)
    alarms, naive = 0, 0
    for _ in range(100):
        values, person, stimulus, second = scores(rng, 0, 8, 12, crossed)
        alarms += crossed_difference(values, person, stimulus, second).p < 0.05
        naive += crossed and stats.ttest_rel(values[second], values[~second]).pvalue < 0.05
    assert alarms <= 7
    assert naive > 20 or not crossed


def test_without_stimuli_it_is_a_paired_t_test():
    values, person, _, second = scores(np.random.default_rng(3), 0.4)
    found = crossed_difference(values, person, ["?"] * len(values), second)
    table = pd.DataFrame({"value": values, "person": person, "second": second})
    means = table.groupby(["person", "second"]).value.mean().unstack()
    other = stats.ttest_rel(means[True], means[False])
    assert found.p == pytest.approx(other.pvalue)
    interval = other.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.stimuli == 1


def test_equal_samples_change_nothing_and_missing_scores_are_left_out():
    values, person, stimulus, second = scores(np.random.default_rng(4), 1.0, 5, 6)
    once = crossed_difference(values, person, stimulus, second)
    twice = crossed_difference(
        np.append(np.tile(values, 2), np.nan),
        [*person, *person, "p0"],
        [*stimulus, *stimulus, "s0"],
        np.append(np.tile(second, 2), True),
    )
    assert twice.difference == pytest.approx(once.difference)
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high))


@pytest.mark.parametrize(
    ("people", "stimuli", "gone"),
    [
        (1, 20, ()),
        (1, 1, ()),
        (2, 1, ("p0",)),
        # Nobody has scores under the second condition.
        (3, 1, ("p0", "p1", "p2")),
        # A group of people is no condition that a person is recorded under.
        (8, 20, ("p0", "p1", "p2", "p3")),
    ],
)
def test_too_few_are_refused(people, stimuli, gone):
    values, person, stimulus, second = scores(np.random.default_rng(5), 0, people, stimuli)
    values[second & np.isin(person, gone)] = np.nan
    if len(gone) == 4:
        values[~second & ~np.isin(person, gone)] = np.nan
    with pytest.raises(DataError, match="record more people"):
        crossed_difference(values, person, stimulus, second)


def chosen(use, *names):
    """The names of samples that are used."""
    return [[name for name, own in zip(each, use, strict=True) if own] for each in names]


def test_conditions_of_stimuli_compare_two_groups_of_them():
    """Free viewing of ten pictures, and search in ten others: two means of pictures."""
    rng = np.random.default_rng(7)
    for _ in range(3):
        values, person, stimulus, second = scores(rng, 6.0)
        use = (np.array([int(name[1:]) for name in stimulus]) % 2 == 1) == second
        names = (
            [each for each, own in zip(n, use, strict=True) if own] for n in (person, stimulus)
        )
        found = crossed_difference(values[use], *names, second[use])
        assert found.degrees == 11
        assert found.low > 0
    few = np.isin(stimulus, ("s0", "s1")) & use
    with pytest.raises(DataError, match="fewer than two stimuli"):
        crossed_difference(values[few], *chosen(few, person, stimulus), second[few])


def test_equal_scores_are_equal():
    person, second = ["a", "a", "b", "b"], np.array([False, True] * 2)
    for gain, p in ((0.0, 1.0), (1.0, 0.0)):
        values = np.array([1, 1 + gain, 2, 2 + gain])
        found = crossed_difference(values, person, ["?"] * 4, second)
        assert (found.difference, found.p) == (gain, p)


def test_many_means_are_tested_on_some_of_the_stimuli(monkeypatch):
    monkeypatch.setattr("vergence.metrics.crossed_effects.MOST_MEANS", 120)
    found = crossed_difference(*scores(np.random.default_rng(6), 3.0))
    assert (found.people, found.stimuli, found.all_stimuli) == (12, 5, 20)
    assert found.p < 0.05
