"""Who is it: nearest vectors and Gaussians by hand and against SciPy, votes of frames."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from vergence.attacks.identity import RIDGE, IdentifiedSamples, matching_rate, nearest, votes
from vergence.errors import ConfigError


def test_what_everybody_has_in_common_names_nobody():
    """Common part (10, 10) and (-5, 7); own parts e1, e2, -e1. Plain cosines would all be near 1
    or -1; with the means off, everybody is nearest to themselves, in any order."""
    own = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    known, asked = own + 10, 3 * own[[2, 0, 1]] + torch.tensor([-5.0, 7.0])
    assert nearest(known, asked).tolist() == [2, 0, 1]
    rate = matching_rate(nearest(known, 3 * own - 5))
    assert (rate.hits, rate.of) == (3, 3)


def test_vectors_of_nobody_are_named_by_chance():
    """40 people, noise on both sides: 1 in 40 on average, 60 trials; 60 +- 4 * 7.6 of 2400."""
    rng = torch.Generator().manual_seed(0)
    hits = sum(
        matching_rate(nearest(*torch.randn(2, 40, 30, generator=rng))).hits for _ in range(60)
    )
    assert 30 <= hits <= 90


def test_one_vector_on_a_side_is_refused():
    with pytest.raises(ConfigError, match="needed on both sides, got 2 known and 1"):
        nearest(torch.eye(2), torch.ones(1, 2))


def test_gaze_likelihoods_are_those_of_scipy_and_name_the_likeliest():
    rng = np.random.default_rng(0)
    people = [rng.normal((0.0, 0.1), 0.1, (50, 2)), rng.normal((0.1, -0.1), 0.2, (60, 2))]
    known = IdentifiedSamples.of([torch.from_numpy(p) for p in people])
    asked = rng.normal((0.1, -0.1), 0.2, (30, 2))
    expected = [
        multivariate_normal(p.mean(0), np.cov(p.T) + RIDGE * np.eye(2)).logpdf(asked).mean()
        for p in people
    ]
    assert known.likelihood(torch.from_numpy(asked)).tolist() == pytest.approx(expected)
    assert known.named(torch.from_numpy(asked)) == 1
    with pytest.raises(ConfigError, match="two labels"):
        IdentifiedSamples.of([torch.zeros(1, 2)])


def test_frames_vote():
    guesses, session = torch.tensor([4, 4, 1, 2, 2, 3]), torch.tensor([7, 7, 7, 9, 9, 9])
    sessions, named = votes(guesses, session)
    assert (sessions.tolist(), named.tolist()) == ([7, 9], [4, 2])
