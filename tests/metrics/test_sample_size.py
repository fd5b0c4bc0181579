"""Power and numbers of people: tables of the literature, and what simulated studies find."""

import numpy as np
import pytest
from scipy.stats import nct, t, ttest_1samp

from vergence.metrics.sample_size import people_needed, power, power_of_likeness
from vergence.metrics.statistics import tost


@pytest.mark.parametrize(("effect", "people"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_cohens_effects_need_the_people_of_his_tables(effect, people):
    """As G*Power 3.1 gives for a two-sided paired t test at 0.05 with a power of 0.8."""
    assert people_needed(effect, 1.0) == people
    assert power(effect, 1.0, people) >= 0.8 > power(effect, 1.0, people - 1)


def test_power_is_the_share_of_studies_that_show_the_difference():
    drawn = np.random.default_rng(0).normal(0.6, 1.0, (4000, 20))
    shown = ttest_1samp(drawn, 0, axis=1)
    share = float(((shown.pvalue < 0.05) & (shown.statistic > 0)).mean())
    assert share == pytest.approx(power(0.6, 1.0, 20), abs=0.025)


def test_power_of_likeness_is_the_share_of_studies_that_show_it():
    drawn = np.random.default_rng(0).normal(0.02, 0.1, (2000, 13))
    share = float(np.mean([tost(row, 0.1) < 0.05 for row in drawn]))
    assert share == pytest.approx(power_of_likeness(0.02, 0.1, 0.1, 13), abs=0.03)


def test_what_no_number_of_people_shows_is_none():
    assert people_needed(0.0, 1.0) is None
    assert people_needed(1e-3, 1.0) is None, "ten thousand people are not enough"
    assert people_needed(0.2, 1.0, limit=0.1) is None, "the mean lies outside the limit"
    assert people_needed(0.0, 0.0) is None
    assert people_needed(0.1, 0.0) == people_needed(0.05, 0.0, limit=0.1) == 2


@pytest.mark.parametrize("people", [2, 3, 7, 40])
@pytest.mark.parametrize(("mean", "deviation"), [(0.6, 1.0), (-0.3, 0.5), (0.02, 0.1)])
def test_powers_are_those_of_scipys_noncentral_t(people, mean, deviation):
    """The oracle is SciPy's distribution, integrated by other code than the special functions."""
    apart = abs(mean) / deviation * np.sqrt(people)
    edge = t.ppf(0.975, people - 1)
    assert power(mean, deviation, people) == pytest.approx(
        nct.sf(edge, people - 1, apart), abs=1e-7
    )
    edge, error = t.ppf(0.95, people - 1), deviation / np.sqrt(people)
    limit = 0.9 * deviation + abs(mean)
    shown = [nct.sf(edge, people - 1, (limit + s * mean) / error) for s in (-1, 1)]
    wanted = max(0.0, sum(shown) - 1)
    assert power_of_likeness(mean, deviation, limit, people) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(("mean", "limit"), [(0.4, 0.0), (0.1, 0.5), (0.02802, 0.0)])
def test_one_person_fewer_is_too_few(mean, limit):
    """Also of ten thousand people, the most there are."""
    found = people_needed(mean, 1.0, limit)

    def chance(people):
        return power_of_likeness(mean, 1.0, limit, people) if limit else power(mean, 1.0, people)

    assert chance(found) >= 0.8 > chance(found - 1)


def test_the_last_number_of_people_that_anybody_plans():
    """An effect that ten thousand people show with 80 % power, and one a little smaller."""
    low, high = 0.02, 0.04
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, 10_000) >= 0.8 else (middle, high)
    assert people_needed(high, 1.0) == 10_000
    assert people_needed(high * (1 - 1e-6), 1.0) is None
    assert people_needed(-high, 1.0) == 10_000


@pytest.mark.parametrize(("mean", "people"), [(0.1, None), (0.0999, 2), (-0.0999, 2), (-0.1, None)])
def test_without_spread_the_limit_itself_is_no_likeness(mean, people):
    assert people_needed(mean, 0.0, limit=0.1) == people


@pytest.mark.parametrize(("effect", "people"), [(9.0, 3), (90.0, 2)])
def test_effects_that_nobody_misses_need_few_people(effect, people):
    """SciPy's noncentral t distribution is NaN at 18 people and an effect of 9, between ones."""
    assert people_needed(effect, 1.0) == people
    assert power(9.0, 1.0, 18) == power_of_likeness(0.0, 1.0, 9.0, 18) == 1
    assert power_of_likeness(0.0, 1.0, 38.5 / 1000**0.5, 1001) == pytest.approx(1)
    assert power_of_likeness(8.5 / 2**0.5 + 1, 1.0, 1.0, 2) == 0
    assert people_needed(0.0, 1.0, limit=9.0) == people_needed(0.0, 10.0, limit=90.0) == 2
