"""Whose number is it: by hand, against chance, and behind noise."""

import math

import pytest
import torch

from benchmarks.shared_numbers import remembered
from vergence.attacks.disclosed_statistics import closest, has_class, likeliest
from vergence.attacks.identity import matching_rate
from vergence.errors import ConfigError
from vergence.privacy.dp.disclosed_statistics import DisclosedStatistics
from vergence.privacy.keyed_noise import NoiseKey


def test_the_nearest_number_is_named_and_of_equals_the_first():
    """Of 1, 4, 4 and 9: 3 is 1 from both fours; by two numbers (3, 8) is |1| + |1| from (4, 7)."""
    known = torch.tensor([[1.0], [4.0], [4.0], [9.0]])
    assert closest(known, torch.tensor([[3.0], [8.0], [0.0]])).tolist() == [1, 3, 0]
    pairs = torch.tensor([[1.0, 8.0], [4.0, 7.0], [3.0, 1.0]])
    assert closest(pairs, torch.tensor([[3.0, 8.0]])).tolist() in ([0], [1])
    assert closest(pairs, torch.tensor([[3.5, 7.0]])).tolist() == [1]


def test_counts_are_named_by_their_likelihood_and_not_by_how_many_there_are():
    """Shares with half a sample each: (2.5, .5) / 3 and (20.5, 40.5) / 61; asked 20 and 4."""
    known, asked = torch.tensor([[2.0, 0.0], [20.0, 40.0]]), torch.tensor([[20.0, 4.0]])
    logs = [
        20 * math.log(2.5 / 3) + 4 * math.log(0.5 / 3),
        20 * math.log(20.5 / 61) + 4 * math.log(40.5 / 61),
    ]
    assert logs[0] > logs[1]
    assert likeliest(known, asked).tolist() == [0]
    assert closest(known, asked).tolist() == [0]  # 22 against 36
    assert likeliest(known, torch.tensor([[-3.0, 5.0]])).tolist() == [1]


def test_a_class_is_held_from_half_a_sample_on_and_remembered_by_shares():
    assert has_class(torch.tensor([[0.4, 0.5, 3.0]])).tolist() == [[False, True, True]]
    outputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    found = remembered(outputs, torch.tensor([0, 0, 1]), 3)
    assert found.tolist() == [0.5, 1.0, 0.0]


def test_one_candidate_and_other_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"at least two candidates.*\[1, 2\] known"):
        closest(torch.zeros(1, 2), torch.zeros(3, 2))
    with pytest.raises(ConfigError, match=r"\[4, 2\] known and \[3, 1\] asked"):
        likeliest(torch.zeros(4, 2), torch.zeros(3, 1))


def test_noise_for_a_person_leaves_little_more_than_chance_and_none_leaves_everything():
    """N = 20, numbers evenly in [0, 100], epsilon 1: e^1 times chance is the most anybody gets."""
    numbers = torch.linspace(0, 100, 20)[:, None]
    assert matching_rate(closest(numbers, numbers)).value == 1
    draws = NoiseKey(bytes(32)).draws()
    policy = DisclosedStatistics(bound=100.0, change=100.0, epsilon=1.0)
    hits = sum(
        matching_rate(closest(numbers, policy.privatize(numbers, draws))).hits for _ in range(300)
    )
    assert 1.2 * 300 < hits < math.e * 300
