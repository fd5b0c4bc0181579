"""Power and numbers of people: tables of the literature, and what simulated studies find."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

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
