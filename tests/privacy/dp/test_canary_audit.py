"""What an audit proves: against closed forms, then of DP-SGD as a run takes it."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.bench.canary import DELTA, claimed, measured
from benchmarks.bench.canary_audit import lower_bound
from tests.benchmarks.commands import benched
from vergence.errors import ConfigError
from vergence.privacy.dp.accounting import gaussian_epsilon


def test_the_bound_is_that_of_clopper_and_pearson():
    """All of 400 right, none of 400 wrong: log(0.025^(1/400) / (1 - 0.025^(1/400)))."""
    found = lower_bound(np.ones(800), np.zeros(800), 0.0)
    low = 0.025 ** (1 / 400)
    assert found.epsilon == pytest.approx(math.log(low / (1 - low)))
    exact = binomtest(400, 400).proportion_ci(0.95, "exact")
    assert low == pytest.approx(exact.low)
    assert lower_bound(np.zeros(800), np.ones(800), 0.0).epsilon == 0


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_gaussian_noise_is_never_found_to_spend_more_than_it_does(mu):
    """With mu = 3, epsilon 16.7 at this delta, more than 1.2 is found."""
    generator = np.random.default_rng(0)
    for _ in range(5):
        found = lower_bound(generator.normal(mu, 1, 2000), generator.normal(0, 1, 2000), DELTA)
        assert found.epsilon <= (gaussian_epsilon(mu, DELTA) if mu else 0.05)
        assert mu < 3 or found.epsilon > 1.2


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigError, match="4 runs"):
        lower_bound(np.ones(3), np.ones(9), DELTA)


@pytest.mark.slow
def test_what_is_found_is_at_most_what_is_claimed():
    """Epsilon 1.99 is claimed, and 150 counted runs of either kind can prove up to 3.7."""
    row = measured(8**0.5, 300)
    assert row.claimed == pytest.approx(1.99, abs=0.01)
    assert row.found.epsilon <= row.claimed


@pytest.mark.slow
def test_a_sixth_of_the_noise_is_found():
    """So that the test above can fail; less is found by measuring, in `tests/adversary`."""
    assert measured(8**0.5 / 6, 300).found.epsilon > claimed(8**0.5)


def test_a_canary_with_little_noise_is_seen():
    """mu = 2 sqrt(2), epsilon 15.5: it is seen in three of four runs or so."""
    row = measured(0.5, 100)
    assert row.claimed == pytest.approx(15.46, abs=0.01)
    assert row.found.epsilon > 0.5


def test_noise_that_is_left_out_is_found():
    """Epsilon 1.99 is claimed; 50 counted runs of either kind, all guessed right, prove 2.57."""
    row = measured(8**0.5, 100, silent=True)
    assert row.found.epsilon > row.claimed


def test_the_command_says_what_it_needs():
    benched("canary", "--runs", "3").complains(2, "4 trainings", "got 3")
