"""Numbers told with noise: how far data move them, the bound, and the noise's distribution."""

import itertools

import pytest
import torch
from scipy import stats

from vergence.errors import ConfigError
from vergence.privacy.dp.disclosed_statistics import DisclosedStatistics, of_counts, of_mean
from vergence.privacy.keyed_noise import NoiseKey


def test_no_replaced_sample_moves_counts_or_means_further():
    """All data of three samples in three classes, and of three distances in {0, 5, 10}."""
    most = {"counts": 0.0, "mean": 0.0}
    for one in itertools.product(range(3), repeat=3):
        for place, value in itertools.product(range(3), repeat=2):
            other = list(one)
            other[place] = value
            pair = torch.tensor([list(one), other])
            counts = torch.stack([row.bincount(minlength=3).double() for row in pair])
            means = 5.0 * pair.double().mean(1)
            most["counts"] = max(most["counts"], float((counts[0] - counts[1]).abs().sum()))
            most["mean"] = max(most["mean"], float((means[0] - means[1]).abs()))
    assert most["counts"] == of_counts(3).sample
    assert most["mean"] == pytest.approx(of_mean(10.0, numbers=1, samples=3).sample)
    assert of_counts(3).person == 6  # all three of one class, then all of another
    assert of_mean(10.0, 2, 3).person == 20


def test_noise_is_laplace_of_the_change_over_epsilon_and_numbers_are_cut_first():
    policy = DisclosedStatistics(bound=50.0, change=20.0, epsilon=4.0)
    assert policy.scale == 5
    draws = NoiseKey(bytes(32)).draws()
    told = policy.privatize(torch.full((20_000,), 1e9), draws)
    assert stats.kstest((told - 50).numpy(), stats.laplace(scale=5.0).cdf).pvalue > 1e-3
    again = policy.privatize(torch.full((20_000,), 50.0), NoiseKey(bytes(32)).draws())
    assert torch.equal(told, again)
    assert policy.privatize(torch.tensor([-7.0]), NoiseKey(bytes(32)).draws()).equal(
        policy.privatize(torch.tensor([0.0]), NoiseKey(bytes(32)).draws())
    )


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="epsilon must be > 0; got 0"):
        DisclosedStatistics(1.0, 1.0, 0.0)
