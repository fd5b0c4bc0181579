"""Choice by cross-validation on the samples alone: folds and the one-standard-error rule."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, t

from vergence.adaptation.choice import folds, simplest, units
from vergence.core.data import Samples


def test_few_samples_are_left_out_in_turn_and_more_are_dealt_to_five_folds():
    assert folds(3).tolist() == [0, 1, 2]
    assert folds(10).tolist() == list(range(10))
    assert folds(11).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert np.bincount(folds(27)).tolist() == [6, 5, 6, 5, 5]


def test_a_sample_counts_for_itself_or_with_those_of_its_target():
    plain = Samples({"gaze": torch.zeros(4, 2)})
    assert units(plain).tolist() == [0, 1, 2, 3]
    target = torch.tensor([2, 2, 7, 2])
    assert units(Samples({**plain.columns, "target": target})).tolist() == [0, 0, 1, 0]


def test_a_way_within_one_error_of_the_best_does_not_leave_the_shared_model():
    """Differences 1, -1, 2, 0 have mean 0.5 and error sqrt(5/3) / 2 = 0.645, times t = 1.197."""
    shared = np.array([3.0, 1.0, 4.0, 2.0])
    other = shared - np.array([1.0, -1.0, 2.0, 0.0])
    assert float(np.std([1, -1, 2, 0], ddof=1) / 2) == pytest.approx(0.6455, abs=1e-4)
    assert float(t.ppf(norm.cdf(1), 3)) == pytest.approx(1.197, abs=1e-3)
    assert simplest({"shared": shared, "other": other}) == "shared"
    assert simplest({"shared": shared, "other": other - 1}) == "other"


def test_few_samples_make_an_error_wider():
    """Two differences 1 and 2: mean 1.5, error 0.5, times t = 1.84 with one degree of freedom."""
    shared = np.array([5.0, 5.0])
    assert simplest({"shared": shared, "other": shared - [1.0, 2.0]}) == "other"
    assert simplest({"shared": shared, "other": shared - [0.2, 1.8]}) == "shared"
    assert float(t.ppf(norm.cdf(1), 1)) == pytest.approx(1.837, abs=1e-3)


def test_a_simpler_way_wins_over_a_better_one_that_is_within_its_error():
    shared = np.full(8, 9.0)
    simple = np.array([5.0, 6.0] * 4)
    best = simple - np.array([0.9, -0.8] * 4)
    assert best.mean() < simple.mean()
    assert simplest({"shared": shared, "simple": simple, "best": best}) == "simple"


def test_nothing_is_chosen_that_is_worse_than_the_shared_model_in_the_mean():
    shared = np.array([1.0, 1.0, 1.0, 9.0])
    noisy = np.array([0.0, 0.0, 13.0, 0.0])
    best = np.array([0.5, 0.5, 0.5, 8.5])
    assert simplest({"shared": shared, "noisy": noisy, "best": best}) == "best"
    assert simplest({"shared": shared, "noisy": noisy}) == "shared"
