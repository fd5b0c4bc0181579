"""A linear teacher is copied exactly, answers are all that a copy is made of, and misuse."""

import pytest
import torch
from torch import nn

from vergence.attacks.model_extraction import agreement, copy_into, random_samples
from vergence.errors import ConfigError

SHAPE, CLASSES = 4, 3


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(SHAPE, CLASSES)


def centred(network):
    """Weights up to what softmax does not tell."""
    both = torch.cat([network.weight, network.bias[:, None]], 1).detach()
    return both - both.mean(0)


def test_a_linear_teacher_is_copied_exactly():
    """Its cross-entropy has one least value, where the weights are the teacher's."""
    teacher, copy = linear(0), linear(1)
    asked = random_samples(256, (SHAPE,), -2.0, 2.0, 0)
    with torch.no_grad():
        answers = teacher(asked).softmax(1)
    copy_into(copy, asked, answers, steps=1200)
    torch.testing.assert_close(centred(copy), centred(teacher), atol=2e-3, rtol=0)
    unseen = random_samples(500, (SHAPE,), -2.0, 2.0, 1)
    assert agreement(copy(unseen), teacher(unseen)).value > 0.99


def test_without_answers_a_copy_is_what_it_was_which_is_chance():
    unseen = random_samples(200, (SHAPE,), -2.0, 2.0, 1)
    rates = []
    for seed in range(30):
        teacher, copy = linear(seed), linear(100 + seed)
        before = centred(copy)
        copy_into(copy, unseen[:0], teacher(unseen[:0]))
        assert torch.equal(before, centred(copy))
        rates.append(agreement(copy(unseen), teacher(unseen)).value)
    assert sum(rates) / 30 == pytest.approx(1 / CLASSES, abs=0.15)


def test_random_samples_fill_their_range():
    found = random_samples(2000, (2, 3), -1.0, 3.0, 0)
    assert found.shape == (2000, 2, 3)
    assert (found.min(), found.max()) == (pytest.approx(-1, abs=0.01), pytest.approx(3, abs=0.01))
    assert torch.equal(found[:5], random_samples(2000, (2, 3), -1.0, 3.0, 0)[:5])


def test_every_sample_has_an_answer():
    with pytest.raises(ConfigError, match="3 samples have 2 answers"):
        copy_into(linear(0), torch.zeros(3, SHAPE), torch.ones(2, CLASSES))
