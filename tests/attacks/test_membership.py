"""Likelihood ratios against hand-made Gaussians, and what many frames of a person add."""

import math

import pytest
import torch
from scipy.stats import norm, t

from vergence.attacks.membership import (
    chance_without,
    leave_one_out_ratios,
    random_halves,
    ratios,
    sum_by_person,
)
from vergence.attacks.score import tpr_at
from vergence.errors import ConfigError


def drawn(models, samples, gap, seed=0):
    """Statistics N(0, 1) out and N(-gap, 1) in, and who was in."""
    inside = random_halves(samples, models, seed)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(models, samples, generator=generator, dtype=torch.float64)
    return values - gap * inside, inside


def test_ratios_by_hand():
    """In: 0 and 2 (mean 1); out: 3 and 7 (mean 5). One variance for each side, 2 and 8.

    At 1: -(0 + log 2) / 2 + ((1 - 5)^2 / 8 + log 8) / 2 = 1 + log 2.
    """
    shadow = torch.tensor([[0.0], [2.0], [3.0], [7.0]], dtype=torch.float64)
    inside = torch.tensor([[True], [True], [False], [False]])
    found = ratios(torch.tensor([1.0], dtype=torch.float64), shadow, inside)
    assert found.item() == pytest.approx(1 + math.log(2))


def test_ratios_of_many_models_are_the_closed_form():
    """N(-2, 1) against N(0, 1): the log ratio at x is -2 x - 2; 4,000 models come close."""
    shadow, inside = drawn(4000, 3, 2.0)
    at = torch.tensor([-3.0, -1.0, 1.0], dtype=torch.float64)
    assert ratios(at, shadow, inside).tolist() == pytest.approx([4, 0, -4], abs=0.4)


def test_the_attack_on_gaussians_is_as_good_as_it_can_be_and_no_better():
    """Neyman and Pearson: at 1 % false positives, power Phi(gap + Phi^-1(0.01)) is the most.

    With 64 models the means are estimates, which costs little; without a gap it is chance.
    """
    for gap, low in ((3.0, 0.68), (0.0, 0.0)):
        losses, inside = drawn(64, 400, gap)
        pairs = list(leave_one_out_ratios(losses.exp(), inside))
        scores, truth = (torch.cat(part) for part in zip(*pairs, strict=True))
        most = norm.cdf(gap + norm.ppf(0.01))
        rate, false = tpr_at(truth, scores, 0.01)
        assert low <= rate.value <= most + 0.01
        assert false.value <= 0.01


def test_a_person_is_the_sum_of_their_frames():
    known, sums = sum_by_person(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([7, 3, 7]))
    assert known.tolist() == [3, 7]
    assert sums.tolist() == [2.0, 5.0]


def test_halves_are_halves():
    inside = random_halves(30, 8, 1)
    assert inside.shape == (8, 30)
    assert inside.sum(0).tolist() == [4] * 30
    assert 0 < int(inside[0].sum()) < 30


def test_too_few_models_are_refused():
    with pytest.raises(ConfigError, match="even number of models"):
        random_halves(5, 4, 0)
    shadow = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(ConfigError, match="at least two shadow models"):
        ratios(shadow[0], shadow, torch.tensor([[True], [False], [False]]))


def test_the_chance_of_an_outsider_by_hand():
    """Values 1, 2, 3 (variance 1) and, of the other unit, 0, 3, 6 (variance 9).

    Together 5; half way between 1 and 5 lies 3, for one more value 3 * 4 / 3 = 4. At 0 the distance
    from the mean 2 is one deviation, on 4 degrees of freedom.
    """
    outside = torch.tensor([[1.0, 0.0], [2.0, 3.0], [3.0, 6.0]], dtype=torch.float64)
    found = chance_without(torch.tensor([0.0, 2.0], dtype=torch.float64), outside, 0).tolist()
    assert found == pytest.approx([t.cdf(-1, 4), 0.5])
    with pytest.raises(ConfigError, match="at least 3"):
        chance_without(outside[0], outside[:2], 0)


def test_outsiders_are_called_as_often_as_said_and_members_are_found():
    """Units of equal spread: never too often; four deviations away: nearly always below 5 %."""
    drawn = 5 + 0.1 * torch.randn(2000, 9, 6, generator=torch.Generator().manual_seed(1)).double()
    found = torch.cat([chance_without(each[:1, 0], each[1:], 0) for each in drawn])
    for level in (0.01, 0.05, 0.5):
        assert (found < level).double().mean().item() == pytest.approx(level, rel=0.35)
    inside = torch.cat([chance_without(each[:1, 0] - 0.4, each[1:], 0) for each in drawn])
    assert (inside < 0.05).double().mean() > 0.9
